/* run - the stages of a pipeline as one program. */
#include "base/par.h"
#include "io/opt.h"
#include "curate.h"
#include "curate/pipeline/pipeline.h"
#include "curate/pipeline/pipeline_run.h"

int curate_run(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_curation_run_opts o = {.queue = 1000, .every_s = 10};
	static struct vfm_curation pipeline;
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 'c', "config", "FILE", "the stages and their options, JSON or YAML: vfm-pipeline(5)",
			&o.config, .required = true},
		{VFM_OPT_STR, 'd', "dir", "DIR", "the folder of the run: records, progress, messages", &o.dir,
			.required = true},
		{VFM_OPT_INT, 'j', "jobs", "N", "work on N records at once, over all stages (default: CPUs)", &o.jobs,
			1, 256},
		{VFM_OPT_INT, 0, "queue", "N", "records that may wait before a stage (default 1000)", &o.queue, 1, 1e9},
		{VFM_OPT_STR, 0, "part", "I/N", "do only the I-th of N shares, I from 0; task: that of Slurm's task",
			&o.share},
		{VFM_OPT_FLAG, 0, "update", NULL, "stages or inputs have changed: repeat the affected work", &o.update},
		{VFM_OPT_STR, 0, "html", "FILE", "write the state as a page every two seconds (%t: the share)",
			&o.html},
		{VFM_OPT_NUM, 0, "every", "SECONDS", "a line of progress so often, without a terminal (default 10)",
			&o.every_s, VFM_ABOVE_0, 1e9},
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate run",
		.synopsis = "-c FILE -d DIR [OPTION ...]",
		.summary = "run the stages of a pipeline; the same command continues an interrupted run",
		.opts = opts,
		.no_operands = true, /* the inputs stand in the file of -c */
	};
	int n_operands, rc;

	o.jobs = vfm_par_threads();
	rc = vfm_opt_parse(&cmd, argc, argv, &n_operands, err);
	if (rc != 0)
		return rc;
	rc = vfm_curation_read(&pipeline, o.config, curate_stages, err);
	if (rc >= 0)
		rc = vfm_curation_run(&pipeline, &o, err);
	vfm_curation_release(&pipeline);
	return rc;
}
