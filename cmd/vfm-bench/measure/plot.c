/* vfm-bench plot - draws the curves of training runs as a PNG. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "io/json.h"
#include "io/opt.h"
#include "bench.h"
#include "media/draw/image.h"
#include "media/draw/plot.h"

static const char *out = "loss.png", *key = "loss", *title;
static bool log_y;
static int64_t window;

static const struct vfm_opt opts[] = {
	{VFM_OPT_STR, 'o', "output", "FILE", "the PNG to write (loss.png)", &out},
	{VFM_OPT_STR, 'k', "key", "KEY", "the key of metrics.jsonl to draw: loss, grad_norm, lr, tok_s … (loss)", &key},
	{VFM_OPT_INT, 'w', "window", "N", "steps of the moving average; default: a fortieth of the run", &window},
	{VFM_OPT_FLAG, 0, "log", NULL, "logarithmic scale", &log_y},
	{VFM_OPT_STR, 0, "title", "TEXT", "heading of the picture", &title},
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench plot",
	.synopsis = "[-o FILE] [-k KEY] [-w N] [--log] [--title TEXT] RUN ...",
	.summary = "draw the curves of one or more runs",
	.opts = opts,
};

struct curve {
	double *x, *y, *mean;
	size_t n, cap_x, cap_y;
};

/* RUN is a run directory or a metrics.jsonl file. */
static int curve_read(struct curve *c, const char *run, struct vfm_err *err)
{
	struct stat st;
	char *path = stat(run, &st) == 0 && S_ISDIR(st.st_mode) ? vfm_strfmt("%s/metrics.jsonl", run) : vfm_strdup(run);
	struct vfm_jsonl in = {0};
	json_t *o;
	int rc;

	TRY_OUT(vfm_jsonl_open(&in, path, err));
	while ((rc = vfm_jsonl_next(&in, &o, err)) == 1) {
		const json_t *v = json_object_get(o, key);

		vfm_grow(&c->x, &c->cap_x, c->n + 1, sizeof(double));
		vfm_grow(&c->y, &c->cap_y, c->n + 1, sizeof(double));
		c->x[c->n] = json_number_value(json_object_get(o, "step"));
		c->y[c->n++] = json_is_number(v) ? json_number_value(v) : NAN;
		json_decref(o);
	}
	vfm_jsonl_close(&in);
	if (rc == 0 && c->n == 0)
		rc = vfm_fail(err, VFM_EUSAGE, "'%s' holds no steps yet", path);
out:
	free(path);
	return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
}

/* Centred moving average over the values, except NaN, of `w` steps, which does not lag. */
static void running_mean(struct curve *c, size_t w)
{
	double sum = 0;
	size_t have = 0, lo = 0, hi = 0;

	c->mean = vfm_calloc(c->n, sizeof(double));
	for (size_t i = 0; i < c->n; i++) {
		for (; hi < c->n && hi <= i + w / 2; hi++) {
			if (isnan(c->y[hi]))
				continue;
			sum += c->y[hi];
			have++;
		}
		for (; lo + w / 2 < i; lo++) {
			if (isnan(c->y[lo]))
				continue;
			sum -= c->y[lo];
			have--;
		}
		c->mean[i] = have ? sum / (double)have : NAN;
	}
}

static const char *short_name(const char *run)
{
	const char *slash = strrchr(run, '/');

	return slash && slash[1] ? slash + 1 : run;
}

int bench_plot(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_plot plot = {.x_label = "step"};
	struct vfm_series *series = NULL;
	struct curve *c = NULL;
	char *heading = NULL;
	int n = 0, rc;

	rc = vfm_opt_parse(&cmd, argc, argv, &n, err);
	if (rc != 0)
		return rc;
	if (n < 1)
		return vfm_fail(err, VFM_EUSAGE, "no RUN given (see vfm-bench plot -h)");
	c = vfm_calloc((size_t)n, sizeof(*c));
	series = vfm_calloc((size_t)n * 2, sizeof(*series));
	for (int i = 0; i < n; i++) {
		static const uint32_t palette[] = {0x1f77b4, 0xd62728, 0x2ca02c, 0xff7f0e, 0x9467bd, 0x8c564b};
		uint32_t colour = palette[i % 6];

		TRY_OUT(curve_read(&c[i], argv[1 + i], err));
		running_mean(&c[i], window > 0 ? (size_t)window : c[i].n / 40 + 1);
		series[plot.n_series++] = (struct vfm_series){
			.x = c[i].x, .y = c[i].y, .n = (int64_t)c[i].n, .colour = colour, .faint = true};
		series[plot.n_series++] = (struct vfm_series){.name = short_name(argv[1 + i]),
			.x = c[i].x,
			.y = c[i].mean,
			.n = (int64_t)c[i].n,
			.colour = colour};
	}
	heading = vfm_strdup(title ? title : key);
	plot.title = heading;
	plot.y_label = key;
	plot.log_y = log_y;
	plot.series = series;
	rc = vfm_plot_png(&plot, out, err);
out:
	for (int i = 0; i < n; i++) {
		free(c[i].x);
		free(c[i].y);
		free(c[i].mean);
	}
	free(c);
	free(series);
	free(heading);
	return rc;
}
