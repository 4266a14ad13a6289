/* key.c - checks values of configuration keys against their ranges, and matches patterns. */
#include "io/key.h"

#include <fnmatch.h>
#include <string.h>

#include "base/mem.h"

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
