/* num.c - parses decimal integers, sizes and floating-point numbers; refuses everything else. */
#include "base/num.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Parses digits with an optional minus sign; *end is the character after them.  Returns false without digits or on
 * overflow. */
static bool parse_digits(const char *s, const char **end, int64_t *out)
{
	bool neg = *s == '-';
	int64_t v = 0;

	if (neg)
		s++;
	if (*s < '0' || *s > '9')
		return false;
	for (; *s >= '0' && *s <= '9'; s++) {
		/* Accumulates a negative number, since -INT64_MIN overflows. */
		if (__builtin_mul_overflow(v, (int64_t)10, &v) || __builtin_sub_overflow(v, (int64_t)(*s - '0'), &v))
			return false;
	}
	if (!neg && v == INT64_MIN)
		return false;
	*out = neg ? v : -v;
	*end = s;
	return true;
}

static bool all_digits(const char *s)
{
	if (*s == '-')
		s++;
	return *s && s[strspn(s, "0123456789")] == 0;
}

int vfm_parse_i64(const char *s, int64_t min, int64_t max, int64_t *out, struct vfm_err *err)
{
	const char *end;
	int64_t v;

	if (!all_digits(s))
		return vfm_fail(err, VFM_EUSAGE, "expected an integer, got '%s'", s);
	if (parse_digits(s, &end, &v) && v >= min && v <= max) {
		*out = v;
		return 0;
	}
	if (max == INT64_MAX && min > INT64_MIN)
		return vfm_fail(err, VFM_EUSAGE, "expected an integer of at least %" PRId64 ", got '%s'", min, s);
	return vfm_fail(err, VFM_EUSAGE, "expected an integer from %" PRId64 " to %" PRId64 ", got '%s'", min, max, s);
}

int vfm_parse_size(const char *s, int64_t *out, struct vfm_err *err)
{
	static const char suffix[] = "KMGT";
	const char *end, *unit;
	int64_t v, scale = 1;

	if (*s == '-' || !parse_digits(s, &end, &v))
		return vfm_fail(err, VFM_EUSAGE, "expected a size (a number, then K, M, G or T), got '%s'", s);
	if (*end) {
		unit = strchr(suffix, *end);
		if (!unit || end[1])
			return vfm_fail(err, VFM_EUSAGE, "expected a size (a number, then K, M, G or T), got '%s'", s);
		scale = (int64_t)1 << (10 * (unit - suffix + 1));
	}
	if (__builtin_mul_overflow(v, scale, &v))
		return vfm_fail(err, VFM_EUSAGE, "size '%s' is too large", s);
	*out = v;
	return 0;
}

int vfm_parse_f64(const char *s, double *out, struct vfm_err *err)
{
	char *end;
	double v;

	/* strtod also accepts blanks, hexadecimal, "inf" and "nan". */
	if (!*s || s[strspn(s, "0123456789+-.eE")])
		return vfm_fail(err, VFM_EUSAGE, "expected a number, got '%s'", s);
	v = strtod(s, &end);
	if (end == s || *end)
		return vfm_fail(err, VFM_EUSAGE, "expected a number, got '%s'", s);
	if (!isfinite(v))
		return vfm_fail(err, VFM_EUSAGE, "number '%s' is too large", s);
	*out = v;
	return 0;
}
