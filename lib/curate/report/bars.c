/* bars.c - chooses the axis, counts the values in bins, and draws them as SVG. */
#include "curate/report/bars.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/stats.h"
#include "curate/report/text.h"
#include "data/record/record.h"
#include "media/draw/html.h"

enum {
	BINS = 40,
	STEP = 8, /* of a bar in the drawing; the bar itself takes 7 */
	HEIGHT = 72,
	KEPT = 0, /* colours */
	DROPPED = 1,
	LISTED_KEPT = 3,
	LISTED_DROPPED = 2,
};

struct bin {
	double n[2];     /* kept, dropped; estimates if the values are a sample */
	double min, max; /* of its values */
	const json_t *list[LISTED_KEPT + LISTED_DROPPED];
	int listed[2];
};

struct histogram_drawing {
	const struct report_bars *h;
	struct vfm_histogram_values x[2]; /* kept, dropped; count 0: none */
	double lo, hi;                    /* the ends of the axis */
	bool log, estimated;
	struct bin bins[BINS + 1]; /* the last one: zeros, if logarithmic */
};

static void get_values(const struct vfm_histogram *numbers, const char *key, struct vfm_histogram_values x[2])
{
	for (int k = 0; k < 2; k++)
		if (!vfm_histogram_values(numbers, key, k == DROPPED, &x[k]))
			x[k] = (struct vfm_histogram_values){.min = INFINITY, .max = -INFINITY};
}

bool report_bars_vary(const struct vfm_histogram *numbers, const char *key)
{
	struct vfm_histogram_values x[2];

	get_values(numbers, key, x);
	return fmax(x[KEPT].max, x[DROPPED].max) > fmin(x[KEPT].min, x[DROPPED].min);
}

/* ---- bins ---- */

static void choose_axis(struct histogram_drawing *d)
{
	double *positive = vfm_malloc((d->x[KEPT].n + d->x[DROPPED].n + 1) * sizeof(double));
	size_t n = 0;

	d->lo = fmin(d->x[KEPT].min, d->x[DROPPED].min);
	d->hi = fmax(d->x[KEPT].max, d->x[DROPPED].max);
	for (int k = 0; k < 2; k++)
		for (size_t i = 0; i < d->x[k].n; i++)
			if (d->x[k].v[i] > 0)
				positive[n++] = d->x[k].v[i];
	vfm_sort(positive, n);
	if (d->lo >= 0 && n && positive[n / 2] < d->hi / 10) {
		d->log = true;
		d->lo = fmax(positive[0], d->hi * 1e-6);
	}
	free(positive);
}

/* Returns the place of a value on the axis, 0 to 1 between its ends.  Halves do not overflow. */
static double place_on_axis(const struct histogram_drawing *d, double x)
{
	if (d->log)
		return log(x / d->lo) / log(d->hi / d->lo);
	return (x / 2 - d->lo / 2) / (d->hi / 2 - d->lo / 2);
}

static struct bin *find_bin(struct histogram_drawing *d, double x)
{
	double at;

	if (d->log && x <= 0)
		return &d->bins[BINS];
	at = place_on_axis(d, x);
	return &d->bins[at < 1 ? (at > 0 ? (int)(at * BINS) : 0) : BINS - 1];
}

static void count_bins(struct histogram_drawing *d)
{
	for (int i = 0; i <= BINS; i++)
		d->bins[i] = (struct bin){.min = INFINITY, .max = -INFINITY};
	for (int k = 0; k < 2; k++) {
		const struct vfm_histogram_values *x = &d->x[k];

		d->estimated |= x->count > (int64_t)x->n;
		for (size_t i = 0; i < x->n; i++) {
			struct bin *bin = find_bin(d, x->v[i]);

			bin->n[k] += (double)x->count / (double)x->n;
			bin->min = fmin(bin->min, x->v[i]);
			bin->max = fmax(bin->max, x->v[i]);
		}
	}
}

static bool is_in_bin(const struct bin *bin, const json_t *rec)
{
	for (int i = 0; i < bin->listed[KEPT] + bin->listed[DROPPED]; i++)
		if (bin->list[i] == rec)
			return true;
	return false;
}

static void list_record(struct histogram_drawing *d, const json_t *rec)
{
	static const int most[2] = {LISTED_KEPT, LISTED_DROPPED};
	int k = vfm_rec_is_out(rec) ? DROPPED : KEPT;
	struct bin *bin;
	double x;

	if (json_object_get(rec, "error") || !vfm_rec_num(rec, d->h->key, &x))
		return;
	bin = find_bin(d, x);
	if (bin->listed[k] < most[k] && !is_in_bin(bin, rec)) {
		bin->list[bin->listed[KEPT] + bin->listed[DROPPED]] = rec;
		bin->listed[k]++;
	}
}

static void list_records(struct histogram_drawing *d)
{
	for (int i = 0; i < d->h->n_first; i++)
		list_record(d, d->h->first[i]);
	for (int i = 0; i < d->h->view->n_samples; i++)
		list_record(d, d->h->view->samples[i]);
}

/* ---- text ---- */

static void add_bin_range(struct vfm_buf *b, const struct bin *bin)
{
	char from[REPORT_TEXT], to[REPORT_TEXT];

	vfm_html_addf(b, "%s", report_value(from, bin->min));
	if (strcmp(from, report_value(to, bin->max)) != 0)
		vfm_html_addf(b, " to %s", to);
}

static void add_bin_counts(struct vfm_buf *b, const struct histogram_drawing *d, const struct bin *bin)
{
	const char *about = d->estimated ? "about " : "";

	if (bin->n[KEPT] > 0 || bin->n[DROPPED] <= 0)
		vfm_html_addf(b, "%s%'.0f kept", about, bin->n[KEPT]);
	if (bin->n[DROPPED] > 0)
		vfm_html_addf(b, "%s%s%'.0f dropped", bin->n[KEPT] > 0 ? ", " : "", about, bin->n[DROPPED]);
}

static void add_bar_facts(struct vfm_buf *b, const struct histogram_drawing *d)
{
	const struct vfm_histogram_values *x = &d->x[KEPT];
	const struct bin *zeros = &d->bins[BINS];
	char text[6][REPORT_TEXT];
	double *v;

	vfm_buf_adds(b, "<p class=small>");
	if (x->count) {
		v = vfm_malloc(x->n * sizeof(v[0]));
		memcpy(v, x->v, x->n * sizeof(v[0]));
		vfm_sort(v, x->n);
		vfm_html_addf(b,
			"median <b>%s</b> &middot; mean %s &middot; 5 %% below %s, 5 %% above %s &middot; from %s to "
			"%s",
			report_value(text[0], v[lrint(0.5 * (double)(x->n - 1))]), report_value(text[1], x->mean),
			report_value(text[2], v[lrint(0.05 * (double)(x->n - 1))]),
			report_value(text[3], v[lrint(0.95 * (double)(x->n - 1))]), report_value(text[4], x->min),
			report_value(text[5], x->max));
		free(v);
	} else {
		vfm_buf_adds(b, "only in dropped records");
	}
	if (zeros->n[KEPT] + zeros->n[DROPPED] > 0) {
		vfm_html_addf(b,
			zeros->listed[KEPT] + zeros->listed[DROPPED] ? " &middot; <a href='#%s-%d'>zero: "
								     : " &middot; <a>zero: ",
			d->h->id, BINS);
		add_bin_counts(b, d, zeros);
		vfm_buf_adds(b, "</a>");
	}
	if (d->h->undefined)
		vfm_html_addf(b, " &middot; not defined: %'lld", (long long)d->h->undefined);
	vfm_buf_adds(b, "</p>\n");
}

/* ---- the drawing ---- */

static void add_linked_bar(struct vfm_buf *b, const struct histogram_drawing *d, int i, double most)
{
	const struct bin *bin = &d->bins[i];
	double y = HEIGHT;

	if (bin->n[KEPT] + bin->n[DROPPED] <= 0)
		return;
	if (bin->listed[KEPT] + bin->listed[DROPPED])
		vfm_html_addf(b, "<a href='#%s-%d'>", d->h->id, i);
	else
		vfm_buf_adds(b, "<a>");
	vfm_buf_adds(b, "<title>");
	add_bin_range(b, bin);
	vfm_buf_adds(b, ": ");
	add_bin_counts(b, d, bin);
	vfm_html_addf(b, "</title><rect x=%d width=%d height=%d />", i * STEP, STEP, HEIGHT);
	for (int k = 0; k < 2; k++) {
		double height = bin->n[k] > 0 ? fmax(1, HEIGHT * bin->n[k] / most) : 0;

		if (height > 0)
			vfm_html_addf(b, "<path class=a%d d='M%d %.1fv-%.1fh%dv%.1fz'/>", k, i * STEP, y, height,
				STEP - 1, height);
		y -= height;
	}
	vfm_buf_adds(b, "</a>");
}

static void add_bar_limit(struct vfm_buf *b, const struct histogram_drawing *d, double limit)
{
	if (!isnan(limit) && limit >= d->lo && limit <= d->hi)
		vfm_html_addf(b, "<path class='limit dashed' d='M%.1f 0V%d'/>", place_on_axis(d, limit) * BINS * STEP,
			HEIGHT);
}

static void add_histogram_drawing(struct vfm_buf *b, const struct histogram_drawing *d)
{
	char lo[REPORT_TEXT], middle[REPORT_TEXT], hi[REPORT_TEXT];
	double most = 1;

	for (int i = 0; i < BINS; i++)
		most = fmax(most, d->bins[i].n[KEPT] + d->bins[i].n[DROPPED]);
	vfm_html_addf(b,
		"<svg role=group aria-label='histogram of %s' viewBox='0 0 %d %d'><line x1=0 y1='%d.5' x2=%d "
		"y2='%d.5'/>",
		d->h->key, BINS * STEP, HEIGHT + 1, HEIGHT, BINS * STEP, HEIGHT);
	for (int i = 0; i < BINS; i++)
		add_linked_bar(b, d, i, most);
	add_bar_limit(b, d, d->h->low);
	add_bar_limit(b, d, d->h->high);
	vfm_html_addf(b, "</svg><div class=ends><span>%s</span><span>%s%s</span><span>%s</span></div>\n",
		report_value(lo, d->lo), d->log ? "log scale, middle " : "",
		report_value(middle, d->log ? sqrt(d->lo * d->hi) : d->lo / 2 + d->hi / 2), report_value(hi, d->hi));
}

static void add_bin_list(struct vfm_buf *b, const struct histogram_drawing *d, int i)
{
	const struct bin *bin = &d->bins[i];
	int n = bin->listed[KEPT] + bin->listed[DROPPED];
	char text[REPORT_TEXT];
	double x;

	if (n == 0)
		return;
	vfm_html_addf(b, "<div class=bin id='%s-%d'><a href='#%s'>close</a><b>%s ", d->h->id, i, d->h->id, d->h->key);
	add_bin_range(b, bin);
	vfm_buf_adds(b, "</b>: ");
	add_bin_counts(b, d, bin);
	vfm_buf_adds(b, n < bin->n[KEPT] + bin->n[DROPPED] ? ", such as\n<ul>" : "\n<ul>");
	for (int k = 0; k < n; k++) {
		const char *drop = vfm_rec_str(bin->list[k], "drop", NULL);

		vfm_rec_num(bin->list[k], d->h->key, &x);
		vfm_html_addf(b, "<li>%s ", report_value(text, x));
		report_add_source(b, d->h->view->pictures->links, bin->list[k]);
		vfm_html_addf(b, " <b>%s</b>", vfm_rec_str(bin->list[k], "id", ""));
		if (drop)
			vfm_html_addf(b, " <span class=failed>%s</span>", drop);
		vfm_buf_adds(b, "\n");
	}
	vfm_buf_adds(b, "</ul></div>\n");
}

void report_bars_add(struct vfm_buf *b, const struct report_bars *h)
{
	struct histogram_drawing *d = vfm_calloc(1, sizeof(*d));

	d->h = h;
	get_values(h->view->numbers, h->key, d->x);
	choose_axis(d);
	count_bins(d);
	list_records(d);
	add_bar_facts(b, d);
	add_histogram_drawing(b, d);
	for (int i = 0; i <= BINS; i++)
		add_bin_list(b, d, i);
	free(d);
}
