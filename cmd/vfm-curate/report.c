/* report - one HTML page about a dataset of records. */
#include <stdlib.h>

#include "io/opt.h"
#include "curate.h"
#include "curate/report/report.h"

static int report_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	(void)out, (void)worker, (void)err;
	vfm_report_add(ctx, rec);
	return 0;
}

/* Reads the records, and writes the page also if some of them are unreadable. */
static int run_report(
	const struct vfm_report_opts *o, struct vfm_stage *stage, const char *pattern, struct vfm_err *err)
{
	struct vfm_report *report = vfm_report_new(o);
	char *path = NULL;
	int rc, end;

	TRY_OUT(curate_output(&path, pattern, stage, err));
	stage->ctx = report;
	rc = vfm_stage_run(stage, NULL, err);
	if (rc == 0 || rc == VFM_EINPUT) {
		end = vfm_report_write(report, stage->n_files, stage->files, path, err);
		rc = end < 0 ? end : rc;
	}
out:
	vfm_report_free(report);
	free(path);
	return rc;
}

int curate_report(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_report_opts o = {.pictures = 24, .pairs = 12, .examples = 3, .captions = 24, .timeout_s = 60};
	struct vfm_stage stage = {
		.name = "report", .fn = report_record, .serial = true, .silent = true, .sees_all = true};
	const char *pattern = NULL;
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 'o', "output", "FILE", "the page to write (%t: the share)", &pattern, .required = true},
		{VFM_OPT_STR, 0, "title", "TEXT", "heading of the page (default Dataset)", &o.title},
		{VFM_OPT_STR, 0, "by", "KEY", "pictures at quantiles of this number (default: the first score)", &o.by},
		{VFM_OPT_INT, 0, "pictures", "N", "at most N of these per kind (default 24)", &o.pictures, 0, 200},
		{VFM_OPT_INT, 0, "examples", "N", "pictures of each end of a score; 2 N of a reason (default 3)",
			&o.examples, 0, 8},
		{VFM_OPT_INT, 0, "pairs", "N", "duplicates next to their originals (default 12)", &o.pairs, 0, 100},
		{VFM_OPT_INT, 0, "texts", "N", "records whose captions are shown (default 24)", &o.captions, 0, 1000},
		VFM_TIMEOUT_OPT("give up on a picture after so long (default 60)", &o.timeout_s),
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate report",
		.synopsis = "-o FILE [OPTION ...] [FILE ...]",
		.summary = "write a page about records: hours kept and lost, scores, pictures, captions",
		.opts = opts,
	};
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	return run_report(&o, &stage, pattern, err);
}
