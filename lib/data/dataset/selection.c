/* selection.c - parses subsets, and keeps selected records as sorted ranges. */
#include "data/dataset/selection.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"

/* ---- subsets ---- */

/* One end: a number of samples, a percentage, or "end". */
static int parse_end(const char *text, bool *counted, int64_t *n, double *fraction, bool *last, struct vfm_err *err)
{
	size_t len = strlen(text);
	char number[32];
	double percent;

	*counted = *last = false;
	if (strcmp(text, "end") == 0) {
		*last = true;
		return 0;
	}
	if (len < 2 || text[len - 1] != '%') {
		*counted = true;
		return vfm_parse_i64(text, 0, INT64_MAX, n, err);
	}
	if (len > sizeof(number))
		return vfm_fail(err, VFM_EUSAGE, "expected a percentage, got '%.40s'", text);
	memcpy(number, text, len - 1);
	number[len - 1] = 0;
	TRY(vfm_parse_f64(number, &percent, err));
	if (!(percent >= 0 && percent <= 100))
		return vfm_fail(err, VFM_EUSAGE, "expected 0%% to 100%%, got '%s'", text);
	*fraction = percent / 100;
	return 0;
}

int vfm_subset_parse_ends(const char *a, const char *b, struct vfm_subset *s, struct vfm_err *err)
{
	bool counted[2], last[2];

	*s = VFM_SUBSET_ALL;
	TRY(parse_end(a, &counted[0], &s->from, &s->low, &last[0], err));
	TRY(parse_end(b, &counted[1], &s->to, &s->high, &last[1], err));
	if (last[0] || (!last[1] && counted[0] != counted[1]))
		return vfm_fail(
			err, VFM_EUSAGE, "expected two numbers or two percentages, got '%.40s' and '%.40s'", a, b);
	s->counted = counted[0];
	if (s->counted ? s->to >= 0 && s->from > s->to : s->low > s->high)
		return vfm_fail(err, VFM_EUSAGE, "'%.40s' is above '%.40s'", a, b);
	return 0;
}

int vfm_subset_parse(const char *text, struct vfm_subset *s, struct vfm_err *err)
{
	const char *dots = strstr(text, "..");
	char *a;
	int rc;

	if (!dots)
		return vfm_fail(err, VFM_EUSAGE, "expected A..B, got '%.80s'", text);
	a = vfm_strfmt("%.*s", (int)(dots - text), text);
	rc = vfm_subset_parse_ends(a, dots + 2, s, err);
	free(a);
	return rc;
}

int vfm_subset_nest(struct vfm_subset *inner, const struct vfm_subset *outer, struct vfm_err *err)
{
	double low = inner->low, width = inner->high - inner->low;

	if (outer->counted)
		return vfm_fail(err, VFM_EUSAGE, "numbers of samples are for a dataset alone: use percentages");
	inner->low = low + outer->low * width;
	inner->high = low + outer->high * width;
	return 0;
}

/* ---- selections ---- */

static void append_range(struct vfm_selection *s, int64_t first, int64_t end)
{
	s->total += end - first;
	if (s->n && s->v[s->n - 1].end == first) {
		s->v[s->n - 1].end = end;
		return;
	}
	vfm_grow(&s->v, &s->cap, s->n + 1, sizeof(*s->v));
	s->v[s->n++] = (struct vfm_selection_range){.first = first, .end = end};
}

void vfm_selection_add(struct vfm_selection *s, int64_t first, int64_t end)
{
	if (first < end)
		append_range(s, first, end);
}

int vfm_selection_cut(struct vfm_selection *s, const struct vfm_subset *part, struct vfm_err *err)
{
	int64_t from = part->counted ? part->from : 0, to = part->counted && part->to >= 0 ? part->to : s->total;
	struct vfm_selection old = *s;
	int64_t at = 0, count;

	if (from > to || to > s->total)
		return vfm_fail(err, VFM_EUSAGE, "samples %lld to %lld of %lld", (long long)from, (long long)to,
			(long long)s->total);
	count = to - from; /* rounding down, as Energon does */
	to = from + (int64_t)((double)count * part->high);
	from += (int64_t)((double)count * part->low);
	*s = (struct vfm_selection){0};
	for (size_t i = 0; i < old.n; i++) {
		int64_t n = old.v[i].end - old.v[i].first, a = from > at ? from - at : 0, b = to < at + n ? to - at : n;

		vfm_selection_add(s, old.v[i].first + a, old.v[i].first + b);
		at += n;
	}
	vfm_selection_release(&old);
	return 0;
}

static int compare_ranges(const void *a, const void *b)
{
	const struct vfm_selection_range *x = a, *y = b;

	return (x->first > y->first) - (x->first < y->first);
}

void vfm_selection_seal(struct vfm_selection *s)
{
	size_t n = s->n;

	if (n)
		qsort(s->v, n, sizeof(*s->v), compare_ranges);
	s->n = 0;
	s->total = 0;
	for (size_t i = 0; i < n; i++) {
		struct vfm_selection_range r = s->v[i];

		append_range(s, r.first, r.end);
	}
	for (size_t i = 1; i < s->n; i++)
		s->v[i].before = s->v[i - 1].before + s->v[i - 1].end - s->v[i - 1].first;
}

void vfm_selection_exclude(struct vfm_selection *s, const int64_t *records, size_t n)
{
	struct vfm_selection old = *s;
	size_t k = 0;

	*s = (struct vfm_selection){0};
	for (size_t i = 0; i < old.n; i++) {
		int64_t first = old.v[i].first;

		while (k < n && records[k] < first)
			k++;
		for (; k < n && records[k] < old.v[i].end; k++) {
			vfm_selection_add(s, first, records[k]);
			first = records[k] + 1;
		}
		vfm_selection_add(s, first, old.v[i].end);
	}
	vfm_selection_release(&old);
	vfm_selection_seal(s);
}

int64_t vfm_selection_at(const struct vfm_selection *s, int64_t i)
{
	size_t lo = 0, hi = s->n;

	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;

		if (s->v[mid].before <= i)
			lo = mid;
		else
			hi = mid;
	}
	return s->v[lo].first + i - s->v[lo].before;
}

void vfm_selection_release(struct vfm_selection *s)
{
	free(s->v);
	*s = (struct vfm_selection){0};
}
