/* key.c - reads, writes and checks values of configuration keys, and matches patterns. */
#include "io/key.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "io/json.h"

bool vfm_patterns_match(const struct vfm_patterns *p, const char *name)
{
	char one[sizeof(p->text)];
	bool in = false;

	for (const char *at = p->text; *at;) {
		size_t n = strcspn(at, ",");
		const bool out = *at == '!';

		memcpy(one, at + out, n - out);
		one[n - out] = '\0';
		if (fnmatch(one, name, 0) == 0)
			in = !out;
		at += n + (at[n] == ',');
	}
	return in;
}

int vfm_key_check_int(const char *path, int64_t v, int64_t lo, int64_t hi, struct vfm_err *err)
{
	if (v >= lo && v <= hi)
		return 0;
	return vfm_fail(err, VFM_EUSAGE, "%s: expected %lld to %lld, got %lld", path, (long long)lo, (long long)hi,
		(long long)v);
}

int vfm_key_fail_name(const char *path, const char *const *names, const char *got, struct vfm_err *err)
{
	struct vfm_buf all = {0};
	int rc;

	for (int i = 0; names[i]; i++)
		vfm_buf_addf(&all, "%s%s", i ? ", " : "", names[i]);
	rc = vfm_fail(err, VFM_EUSAGE, "%s: expected one of %s, got %s%s%s", path, all.data, got ? "'" : "",
		got ? got : "another type", got ? "'" : "");
	vfm_buf_release(&all);
	return rc;
}

int vfm_key_check_value(const void *base, const struct vfm_key *k, struct vfm_err *err)
{
	const void *p = (const char *)base + k->off;
	int64_t lo = (int64_t)k->min, hi = (int64_t)k->max;
	double x;

	switch (k->type) {
	case VFM_KEY_INT:
		return vfm_key_check_int(k->path, *(const int64_t *)p, lo, hi, err);
	case VFM_KEY_INT3:
		for (int i = 0; i < 3; i++)
			TRY(vfm_key_check_int(k->path, ((const int64_t *)p)[i], lo, hi, err));
		return 0;
	case VFM_KEY_NUM:
	case VFM_KEY_NUM3:
		for (int i = 0; i < (k->type == VFM_KEY_NUM ? 1 : 3); i++) {
			x = ((const double *)p)[i];
			if (!(x >= k->min && x <= k->max))
				return vfm_fail(
					err, VFM_EUSAGE, "%s: expected %g to %g, got %g", k->path, k->min, k->max, x);
		}
		return 0;
	default:
		return 0;
	}
}

/* ---- JSON ---- */

static int read_key_number(const struct vfm_key *k, const json_t *v, double *out, struct vfm_err *err)
{
	static const char *const names[] = {
		"an object", "an array", "a string", "an integer", "a number", "true", "false", "null"};
	bool integer = k->type != VFM_KEY_NUM;

	*out = json_number_value(v);
	/* 1e6 is a valid integer.  The limits of all keys are below 2^53, so a double holds it exactly. */
	if (!json_is_number(v) || (integer && *out != floor(*out)))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected %s%s, got %s", k->path,
			integer ? "an integer" : "a number", k->type == VFM_KEY_AUTO ? " or auto" : "",
			names[json_typeof(v)]);
	if (*out >= k->min && *out <= k->max)
		return 0;
	return vfm_fail(err, VFM_EUSAGE, "%s: expected %g to %g, got %g", k->path, k->min, k->max, *out);
}

static int set_enum(const struct vfm_key *k, const json_t *v, int *out, struct vfm_err *err)
{
	const char *s = json_string_value(v);

	for (int i = 0; s && k->names[i]; i++)
		if (!strcmp(s, k->names[i])) {
			*out = k->values ? k->values[i] : i;
			return 0;
		}
	return vfm_key_fail_name(k->path, k->names, s, err);
}

/* Sets *out from "a,b" or ["a","b"]. */
static int set_key_patterns(const struct vfm_key *k, const json_t *v, struct vfm_patterns *out, struct vfm_err *err)
{
	struct vfm_patterns p = {0};
	size_t n = 0;

	for (size_t i = 0; i < (json_is_array(v) ? json_array_size(v) : 1); i++) {
		const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;

		if (!json_is_string(one))
			return vfm_fail(err, VFM_EUSAGE, "%s: expected patterns, as a,b or [\"a\",\"b\"]", k->path);
		if (n + json_string_length(one) + 2 > sizeof(p.text))
			return vfm_fail(err, VFM_EUSAGE, "%s: longer than %zu bytes", k->path, sizeof(p.text) - 1);
		n += (size_t)sprintf(p.text + n, "%s%s", n ? "," : "", json_string_value(one));
	}
	*out = p;
	return 0;
}

/* Sets three integers or numbers. */
static int set_key3(const struct vfm_key *k, const json_t *v, void *dst, struct vfm_err *err)
{
	const bool ints = k->type == VFM_KEY_INT3;
	struct vfm_key one = *k;
	double x[3];

	if (!json_is_array(v) || json_array_size(v) != 3)
		return vfm_fail(
			err, VFM_EUSAGE, "%s: expected an array of three %s", k->path, ints ? "integers" : "numbers");
	one.type = ints ? VFM_KEY_INT : VFM_KEY_NUM;
	for (size_t i = 0; i < 3; i++)
		TRY(read_key_number(&one, json_array_get(v, i), &x[i], err));
	for (size_t i = 0; i < 3; i++) {
		if (ints)
			((int64_t *)dst)[i] = (int64_t)x[i];
		else
			((double *)dst)[i] = x[i];
	}
	return 0;
}

int vfm_key_set(void *base, const struct vfm_key *k, const json_t *v, struct vfm_err *err)
{
	void *dst = (char *)base + k->off;
	double x;

	switch (k->type) {
	case VFM_KEY_INT:
	case VFM_KEY_AUTO:
		if (k->type == VFM_KEY_AUTO && json_is_string(v) && !strcmp(json_string_value(v), "auto"))
			x = -1;
		else
			TRY(read_key_number(k, v, &x, err));
		*(int64_t *)dst = (int64_t)x;
		return 0;
	case VFM_KEY_SEED:
		TRY(read_key_number(k, v, &x, err));
		*(uint64_t *)dst = (uint64_t)x;
		return 0;
	case VFM_KEY_NUM:
		TRY(read_key_number(k, v, &x, err));
		*(double *)dst = x;
		return 0;
	case VFM_KEY_BOOL:
		if (!json_is_boolean(v))
			return vfm_fail(err, VFM_EUSAGE, "%s: expected true or false", k->path);
		*(bool *)dst = json_is_true(v);
		return 0;
	case VFM_KEY_ENUM:
		return set_enum(k, v, dst, err);
	case VFM_KEY_INT3:
	case VFM_KEY_NUM3:
		return set_key3(k, v, dst, err);
	case VFM_KEY_NAME:
		if (!json_is_string(v) || json_string_length(v) >= VFM_KEY_NAME_SIZE)
			return vfm_fail(err, VFM_EUSAGE, "%s: expected a short string", k->path);
		memcpy(dst, json_string_value(v), json_string_length(v) + 1);
		return 0;
	case VFM_KEY_PATTERNS:
		return set_key_patterns(k, v, dst, err);
	case VFM_KEY_WEIGHTS:
		break;
	}
	return 0;
}

json_t *vfm_key_json(const void *base, const struct vfm_key *k)
{
	const void *p = (const char *)base + k->off;

	switch (k->type) {
	case VFM_KEY_AUTO:
		if (*(const int64_t *)p < 0)
			return json_string("auto");
		/* fallthrough */
	case VFM_KEY_INT:
		return json_integer(*(const int64_t *)p);
	case VFM_KEY_SEED:
		return json_integer((json_int_t) * (const uint64_t *)p);
	case VFM_KEY_NUM:
		return vfm_json_real(*(const double *)p);
	case VFM_KEY_BOOL:
		return json_boolean(*(const bool *)p);
	case VFM_KEY_ENUM:
		for (int i = 0; k->names[i]; i++)
			if ((k->values ? k->values[i] : i) == *(const int *)p)
				return json_string(k->names[i]);
		return json_null();
	case VFM_KEY_INT3:
		return json_pack("[III]", (json_int_t)((const int64_t *)p)[0], (json_int_t)((const int64_t *)p)[1],
			(json_int_t)((const int64_t *)p)[2]);
	case VFM_KEY_NUM3:
		return json_pack("[ooo]", vfm_json_real(((const double *)p)[0]), vfm_json_real(((const double *)p)[1]),
			vfm_json_real(((const double *)p)[2]));
	case VFM_KEY_NAME:
		return json_string(p);
	case VFM_KEY_PATTERNS:
		return json_string(((const struct vfm_patterns *)p)->text);
	case VFM_KEY_WEIGHTS:
		break;
	}
	return json_null();
}
