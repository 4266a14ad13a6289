/* vfm-bench plot - draws the curves of training runs as SVG. */
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "io/file.h"
#include "io/json.h"
#include "io/opt.h"
#include "bench.h"
#include "media/draw/chart.h"

static const char *out = "loss.svg", *key = "loss", *title;
static bool log_y;
static int64_t window;

static const struct vfm_opt opts[] = {
	{VFM_OPT_STR, 'o', "output", "FILE", "the SVG to write (loss.svg)", &out},
	{VFM_OPT_STR, 0, "key", "KEY", "the key of metrics.jsonl to draw: loss, grad_norm, lr, tok_s … (loss)", &key},
	{VFM_OPT_INT, 0, "window", "N", "steps of the moving average; default: a fortieth of the run", &window},
	{VFM_OPT_FLAG, 0, "log", NULL, "logarithmic scale", &log_y},
	{VFM_OPT_STR, 0, "title", "TEXT", "heading of the picture", &title},
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench plot",
	.synopsis = "[-o FILE] [--key KEY] [--window N] [--log] [--title TEXT] RUN ...",
	.summary = "draw the curves of one or more runs",
	.opts = opts,
};

/* Adds a run, which is a folder or a metrics.jsonl, to the chart. */
static int read_curve(struct vfm_chart *c, struct vfm_trace *t, const char *run, struct vfm_err *err)
{
	struct stat st;
	char *path = stat(run, &st) == 0 && S_ISDIR(st.st_mode) ? vfm_strfmt("%s/metrics.jsonl", run) : vfm_strdup(run);
	struct vfm_jsonl in = {0};
	json_t *o;
	int rc;

	TRY_OUT(vfm_jsonl_open(&in, path, err));
	while ((rc = vfm_jsonl_next(&in, &o, err)) == 1) {
		const json_t *v = json_object_get(o, key);
		int64_t step = (int64_t)fmin(fmax(json_number_value(json_object_get(o, "step")), 0), 0x1p53);

		vfm_trace_add(t, step, json_is_number(v) ? json_number_value(v) : NAN);
		c->lo = step < c->lo ? step : c->lo;
		c->hi = step > c->hi ? step : c->hi;
		json_decref(o);
	}
	vfm_jsonl_close(&in);
	if (rc == 0 && !t->column)
		rc = vfm_fail(err, VFM_EUSAGE, "'%s' holds no steps yet", path);
out:
	free(path);
	return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
}

static const char *short_name(const char *run)
{
	const char *slash = strrchr(run, '/');

	return slash && slash[1] ? slash + 1 : run;
}

int bench_plot(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_chart chart = {.lo = INT64_MAX, .hi = INT64_MIN, .smooth = true};
	struct vfm_curve *curves;
	struct vfm_trace *traces;
	struct vfm_buf svg = {0};
	char *note = NULL;
	int n = 0, rc;

	rc = vfm_opt_parse(&cmd, argc, argv, &n, err);
	if (rc != 0)
		return rc;
	if (n < 1)
		return vfm_fail(err, VFM_EUSAGE, "no RUN given (see vfm-bench plot -h)");
	if (fnmatch("*.png", out, FNM_CASEFOLD) == 0)
		return vfm_fail(err, VFM_EUSAGE, "-o %s: the plot is SVG; name it .svg", out);
	curves = vfm_calloc((size_t)n, sizeof(*curves));
	traces = vfm_calloc((size_t)n, sizeof(*traces));
	for (int i = 0; i < n; i++) {
		TRY_OUT(read_curve(&chart, &traces[i], argv[1 + i], err));
		curves[i] = (struct vfm_curve){.name = short_name(argv[1 + i]), .trace = &traces[i]};
	}
	note = vfm_strfmt("%s over the steps", key);
	chart.title = title ? title : key;
	chart.note = note;
	chart.log = log_y;
	chart.window = window > 0 ? window : 0;
	chart.curves = curves;
	chart.n = n;
	vfm_chart_svg(&svg, &chart);
	rc = vfm_write_file(out, svg.data, svg.len, err);
out:
	for (int i = 0; i < n; i++)
		vfm_trace_release(&traces[i]);
	free(traces);
	free(curves);
	free(note);
	vfm_buf_release(&svg);
	return rc;
}
