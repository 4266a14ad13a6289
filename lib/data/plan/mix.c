/* mix.c - parses weights with steps, interpolates between them, and finds where the mix changes. */
#include "data/plan/mix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"

enum {
	MEAN_PARTS = 64,   /* of a stretch between two points, for the mean of a share */
	STEADY_ROUNDS = 40 /* of a bisection */
};

/* ---- one set ---- */

int vfm_weights_add(struct vfm_mix_weights *w, int64_t step, double weight, struct vfm_err *err)
{
	const struct vfm_weight_point *last = w->n ? &w->v[w->n - 1] : NULL;

	if (!(weight >= 0 && weight < 1e12))
		return vfm_fail(err, VFM_EUSAGE, "expected a weight >= 0");
	if (step < 0 || (last && step < last->step))
		return vfm_fail(err, VFM_EUSAGE, "step %lld: expected steps in ascending order", (long long)step);
	if (w->n > 1 && step == w->v[w->n - 2].step)
		return vfm_fail(err, VFM_EUSAGE, "step %lld: more than two weights", (long long)step);
	if (w->n == VFM_WEIGHTS_MAX_POINTS)
		return vfm_fail(err, VFM_EUSAGE, "more than %d weights of a set", VFM_WEIGHTS_MAX_POINTS);
	w->v = vfm_realloc(w->v, (size_t)w->n + 1, sizeof(*w->v));
	w->v[w->n++] = (struct vfm_weight_point){step, weight};
	return 0;
}

/* A number with the suffix K or M. */
static int parse_named_step(char *text, int64_t *step, struct vfm_err *err)
{
	size_t len = strlen(text);
	int64_t unit = 1;

	if (len && (text[len - 1] == 'K' || text[len - 1] == 'M')) {
		unit = text[len - 1] == 'K' ? 1000 : 1000000;
		text[len - 1] = 0;
	}
	TRY(vfm_parse_i64(text, 0, INT64_MAX / 1000000, step, err));
	*step *= unit;
	return 0;
}

static int parse_point(char *item, bool first, bool last, struct vfm_mix_weights *w, struct vfm_err *err)
{
	char *at = strchr(item, '@');
	int64_t step = 0;
	double weight;

	if (!at && !(first && last))
		return vfm_fail(err, VFM_EUSAGE, "expected WEIGHT@STEP, got '%.40s'", item);
	if (at) {
		*at = 0;
		TRY(parse_named_step(at + 1, &step, err));
	}
	TRY(vfm_parse_f64(item, &weight, err));
	return vfm_weights_add(w, step, weight, err);
}

int vfm_weights_parse(const char *text, struct vfm_mix_weights *w, struct vfm_err *err)
{
	char *copy = vfm_strdup(text), *item = copy, *comma;
	int rc = 0;

	do {
		comma = strchr(item, ',');
		if (comma)
			*comma = 0;
		rc = parse_point(item, item == copy, !comma, w, err);
		item = comma ? comma + 1 : NULL;
	} while (item && rc == 0);
	free(copy);
	return rc;
}

void vfm_weights_release(struct vfm_mix_weights *w)
{
	free(w->v);
	*w = (struct vfm_mix_weights){0};
}

double vfm_weights_at(const struct vfm_mix_weights *w, double step)
{
	int32_t lo = 0, hi = w->n; /* points before lo are at or before the step, those from hi on after it */
	const struct vfm_weight_point *a, *b;

	while (lo < hi) {
		int32_t mid = lo + (hi - lo) / 2;

		if ((double)w->v[mid].step <= step)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (w->n == 0)
		return 0;
	if (lo == 0 || lo == w->n)
		return w->v[lo ? lo - 1 : 0].weight;
	a = &w->v[lo - 1];
	b = &w->v[lo];
	return a->weight + (b->weight - a->weight) * (step - (double)a->step) / (double)(b->step - a->step);
}

/* ---- all sets ---- */

bool vfm_mix_changes(const struct vfm_mix_weights *w, int32_t n)
{
	for (int32_t i = 0; i < n; i++)
		for (int32_t k = 1; k < w[i].n; k++)
			if (w[i].v[k].weight != w[i].v[0].weight)
				return true;
	return false;
}

double vfm_mix_next_point(const struct vfm_mix_weights *w, int32_t n, double step)
{
	double next = INFINITY;

	for (int32_t i = 0; i < n; i++)
		for (int32_t k = 0; k < w[i].n; k++)
			if ((double)w[i].v[k].step > step) {
				next = fmin(next, (double)w[i].v[k].step);
				break;
			}
	return next;
}

void vfm_mix_shares(const struct vfm_mix_weights *w, int32_t n, double step, double *share)
{
	double sum = 0;

	for (int32_t i = 0; i < n; i++)
		sum += share[i] = vfm_weights_at(&w[i], step);
	for (int32_t i = 0; i < n && sum > 0; i++)
		share[i] /= sum;
}

void vfm_mix_mean(const struct vfm_mix_weights *w, int32_t n, double from, double to, double *mean)
{
	double *share = vfm_calloc((size_t)n + 1, sizeof(*share)), at = from;

	memset(mean, 0, (size_t)n * sizeof(*mean));
	if (!vfm_mix_changes(w, n)) {
		vfm_mix_shares(w, n, from, mean);
		at = to;
	}
	while (at < to) {
		double end = fmin(vfm_mix_next_point(w, n, at), to), part = (end - at) / MEAN_PARTS;

		for (int k = 0; k < MEAN_PARTS; k++) {
			vfm_mix_shares(w, n, at + (k + 0.5) * part, share);
			for (int32_t i = 0; i < n; i++)
				mean[i] += share[i] * part / (to - from);
		}
		at = end;
	}
	free(share);
}

double vfm_mix_steady(const struct vfm_mix_weights *w, int32_t n, double step, double to, double change)
{
	double *first = vfm_calloc(2 * (size_t)n + 1, sizeof(*first)), *now = first + n, lo = step, hi = to;

	vfm_mix_shares(w, n, step, first);
	for (int k = 0; k < STEADY_ROUNDS && lo < hi; k++) {
		double mid = k ? (lo + hi) / 2 : hi, most = 0; /* first, all of it; the end may be a jump */

		vfm_mix_shares(w, n, mid - (mid - step) * 1e-9, now);
		for (int32_t i = 0; i < n; i++)
			most = fmax(most, fabs(now[i] - first[i]));
		if (most <= change)
			lo = mid;
		else
			hi = mid;
	}
	free(first);
	return lo;
}
