/* stats - histograms of the numbers in records. */
#include <string.h>

#include "io/json.h"
#include "io/opt.h"
#include "curate.h"
#include "data/record/histogram.h"

static int stats_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	(void)out, (void)worker, (void)err;
	vfm_histogram_add(ctx, rec);
	return 0;
}

int curate_stats(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_stage stage = {
		.name = "stats", .fn = stats_record, .serial = true, .silent = true, .sees_all = true};
	struct vfm_histogram *histogram;
	const char *format = "text";
	int64_t bins = 20;
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 'o', "output", "FORMAT", "text or json (default text)", &format},
		{VFM_OPT_INT, 0, "bins", "N", "bins of a histogram (default 20)", &bins},
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
	if (strcmp(format, "text") && strcmp(format, "json"))
		return vfm_fail(err, VFM_EUSAGE, "-o: expected text or json, got '%s'", format);
	if (bins < 2 || bins > 100)
		return vfm_fail(err, VFM_EUSAGE, "--bins: expected 2 to 100, got %lld", (long long)bins);
	stage.ctx = histogram = vfm_histogram_new();
	rc = vfm_stage_run(&stage, NULL, err);
	if (rc == 0 || rc == VFM_EINPUT) {
		if (!strcmp(format, "text"))
			vfm_histogram_print(histogram, (int)bins, stdout);
		else
			rc = vfm_histogram_json(histogram, (int)bins, stdout, err) < 0 ? VFM_EENV : rc;
	}
	vfm_histogram_free(histogram);
	return rc;
}
