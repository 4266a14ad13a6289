/* stats - histograms of the numbers in records. */
#include <string.h>

#include "io/json.h"
#include "io/opt.h"
#include "curate.h"
#include "data/record/histogram.h"

enum { BINS = 20 };

static int stats_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	(void)out, (void)worker, (void)err;
	vfm_histogram_add(ctx, rec);
	return 0;
}

static int print_histogram_json(struct vfm_histogram *histogram, struct vfm_err *err)
{
	json_t *o = vfm_histogram_object(histogram, BINS);
	int rc = vfm_jsonl_write(stdout, o, err);

	json_decref(o);
	return rc;
}

int curate_stats(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_stage stage = {
		.name = "stats", .fn = stats_record, .serial = true, .silent = true, .sees_all = true};
	struct vfm_histogram *histogram;
	int json = 0;
	struct vfm_opt opts[] = {
		{VFM_OPT_NAME, 0, "format", "text|json", "how to print them", &json},
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate stats",
		.synopsis = "[OPTION ...] [FILE ...]",
		.summary = "count and draw histograms of what records hold",
		.opts = opts,
	};
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	stage.ctx = histogram = vfm_histogram_new();
	rc = vfm_stage_run(&stage, NULL, err);
	if (rc == 0 || rc == VFM_EINPUT) {
		if (!json)
			vfm_histogram_print(histogram, BINS, stdout);
		else
			rc = print_histogram_json(histogram, err) < 0 ? VFM_EENV : rc;
	}
	vfm_histogram_free(histogram);
	return rc;
}
