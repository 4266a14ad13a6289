/* run - the stages of a pipeline as one program. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "io/opt.h"
#include "curate.h"
#include "curate/pipeline/pipeline.h"
#include "curate/pipeline/pipeline_run.h"

/* Reads the pipeline of -c, else that of the run in the folder (saved), else the default one; operands replace its
 * inputs. */
static int choose_pipeline(struct vfm_curation *p, struct vfm_curation_run_opts *o, const char *saved, int n,
	char **operands, struct vfm_err *err)
{
	if (!o->config && saved && access(saved, F_OK) == 0)
		o->config = saved;
	if (o->config) {
		TRY(vfm_curation_read(p, o->config, curate_stages, err));
	} else if (n || !saved) {
		o->config = "the default pipeline";
		o->is_default = true;
		TRY(vfm_curation_default(p, curate_stages, err));
	} else {
		return vfm_fail(err, VFM_EUSAGE,
			"no inputs: name files or folders of videos and images, or give a pipeline (-c FILE)");
	}
	return n ? vfm_curation_set_inputs(p, n, operands, err) : 0;
}

static int print_pipeline(const struct vfm_curation *p, struct vfm_err *err)
{
	struct vfm_buf b = {0};
	int rc = 0;

	vfm_curation_text(&b, p);
	if (fwrite(b.data, 1, b.len, stdout) != b.len)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot write to stdout");
	vfm_buf_release(&b);
	return rc;
}

int curate_run(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_curation_run_opts o = {.queue = 1000, .every_s = 60};
	static struct vfm_curation pipeline;
	bool prints = false;
	char *saved;
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 'c', "config", "FILE",
			"the stages and their options, JSON, YAML or TOML: vfm-pipeline(5)", &o.config},
		{VFM_OPT_STR, 'd', "dir", "DIR", "the folder of the run: records, clips, pipeline.json, messages",
			&o.dir},
		{VFM_OPT_FLAG, 0, "print-pipeline", NULL, "print the pipeline and do nothing else", &prints},
		{VFM_OPT_INT, 'j', "jobs", "N", "work on N records at once, over all stages (default: CPUs)", &o.jobs,
			1, 256},
		{VFM_OPT_INT, 0, "queue", "N", "records that may wait before a stage (default 1000)", &o.queue, 1, 1e9},
		{VFM_OPT_STR, 0, "part", "I/N", "do only the I-th of N shares, I from 0; task: that of Slurm's task",
			&o.share},
		{VFM_OPT_FLAG, 0, "update", NULL, "stages or inputs have changed: repeat the affected work", &o.update},
		{VFM_OPT_STR, 0, "html", "FILE", "write the state as a page every two seconds (%t: the share)",
			&o.html},
		{VFM_OPT_NUM, 0, "every", "SECONDS", "a line of progress so often, without a terminal (default 60)",
			&o.every_s, VFM_ABOVE_0, 1e9},
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate run",
		.synopsis = "-d DIR [OPTION ...] [FILE|DIR ...]\n-c FILE -d DIR [OPTION ...] [FILE|DIR ...]\n"
			    "--print-pipeline [OPTION ...] [FILE|DIR ...]",
		.summary = "run the stages of a pipeline; the same command continues an interrupted run",
		.opts = opts,
	};
	int n_operands, rc;

	o.jobs = vfm_par_threads();
	rc = vfm_opt_parse(&cmd, argc, argv, &n_operands, err);
	if (rc != 0)
		return rc;
	if (!o.dir && !prints)
		return vfm_fail(err, VFM_EUSAGE, "-d/--dir DIR is missing: the folder of the run");
	saved = o.dir ? vfm_strfmt("%s/pipeline.json", o.dir) : NULL;
	rc = choose_pipeline(&pipeline, &o, saved, n_operands, argv + 1, err);
	if (rc >= 0)
		rc = prints ? print_pipeline(&pipeline, err) : vfm_curation_run(&pipeline, &o, err);
	free(saved);
	vfm_curation_release(&pipeline);
	return rc;
}
