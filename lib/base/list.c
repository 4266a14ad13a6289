/* list.c - parses items, ranges and bracketed items of a list. */
#include "base/list.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"

/* Takes ownership of `item`. */
static int list_add(struct vfm_list *l, char *item, struct vfm_err *err)
{
	if (l->n == VFM_LIST_MAX) {
		free(item);
		return vfm_fail(err, VFM_EUSAGE, "more than %d values", VFM_LIST_MAX);
	}
	vfm_grow(&l->v, &l->cap, l->n + 1, sizeof(*l->v));
	l->v[l->n++] = item;
	return 0;
}

/* Returns whether `item` begins with a number and "-". */
static bool is_range(const char *item)
{
	size_t digits = strspn(item, "0123456789"), unit = digits && item[digits] && strchr("KMGT", item[digits]);

	return digits && item[digits + unit] == '-';
}

struct number_range {
	int64_t first, last, step;
	bool geometric;
};

/* Parses `text`, which it changes. */
static int parse_list_range(char *text, struct number_range *r, struct vfm_err *err)
{
	char *last = strchr(text, '-') + 1, *sign = last + strcspn(last, "+*");

	*r = (struct number_range){.step = 1, .geometric = *sign == '*'};
	last[-1] = 0;
	if (*sign) {
		*sign = 0;
		TRY(vfm_parse_size(sign + 1, &r->step, err));
	}
	TRY(vfm_parse_size(text, &r->first, err));
	TRY(vfm_parse_size(last, &r->last, err));
	if (r->last < r->first)
		return vfm_fail(err, VFM_EUSAGE, "the last value is less than the first");
	if (r->geometric && (r->step < 2 || r->first < 1))
		return vfm_fail(err, VFM_EUSAGE, "expected a factor of at least 2, and a first value of at least 1");
	if (r->step < 1)
		return vfm_fail(err, VFM_EUSAGE, "expected a step of at least 1");
	return 0;
}

static int list_add_range(struct vfm_list *l, const char *item, struct vfm_err *err)
{
	char *text = vfm_strdup(item);
	struct number_range r;
	int rc = parse_list_range(text, &r, err);
	bool over = false;

	free(text);
	for (int64_t x = r.first; rc == 0 && !over && x <= r.last;) {
		rc = list_add(l, vfm_strfmt("%" PRId64, x), err);
		over = r.geometric ? __builtin_mul_overflow(x, r.step, &x) : __builtin_add_overflow(x, r.step, &x);
	}
	return rc < 0 ? vfm_err_context(err, "range '%s'", item) : 0;
}

/* Returns the length of the item at s: up to a comma outside brackets.  *closed: each bracket is closed. */
static size_t item_length(const char *s, bool *closed)
{
	size_t n = 0;
	int depth = 0;

	*closed = true;
	if (*s != '[')
		return strcspn(s, ",");
	for (; s[n] && (depth || s[n] != ','); n++)
		depth += s[n] == '[' ? 1 : s[n] == ']' ? -1 : 0;
	*closed = depth == 0 && s[n - 1] == ']';
	return n;
}

int vfm_list_parse(struct vfm_list *l, const char *text, struct vfm_err *err)
{
	const char *s = text;

	for (;; s++) {
		bool closed, bracketed = *s == '[';
		size_t n = item_length(s, &closed);
		char *item = vfm_strfmt("%.*s", (int)(bracketed ? n - 2 : n), s + bracketed);
		int rc = !closed         ? vfm_fail(err, VFM_EUSAGE, "expected a ']' at the end of '%s'", s)
			: n == 0         ? vfm_fail(err, VFM_EUSAGE, "a value is missing in '%s'", text)
			: bracketed      ? list_add(l, vfm_strdup(item), err)
			: is_range(item) ? list_add_range(l, item, err)
					 : list_add(l, vfm_strdup(item), err);

		free(item);
		TRY(rc);
		s += n;
		if (!*s)
			return 0;
	}
}

void vfm_list_release(struct vfm_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->v[i]);
	free(l->v);
	*l = (struct vfm_list){0};
}
