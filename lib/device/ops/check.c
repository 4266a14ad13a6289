#include "device/ops/check.h"

#include <inttypes.h>
#include <stdio.h>

static void dims_str(char *buf, size_t len, int ndim, const int64_t *dims)
{
	size_t n = 0;

	buf[0] = 0;
	for (int i = 0; i < ndim && n < len; i++)
		n += (size_t)(dims[i] < 0 ? snprintf(buf + n, len - n, "%sany", i ? ", " : "")
					  : snprintf(buf + n, len - n, "%s%" PRId64, i ? ", " : "", dims[i]));
}

static bool shape_ok(const struct vfm_tensor *t, int ndim, const int64_t *dims)
{
	if (t->ndim != ndim)
		return false;
	for (int i = 0; i < ndim; i++)
		if (t->shape[i] < 0 || (dims[i] >= 0 && t->shape[i] != dims[i]))
			return false;
	return true;
}

static bool strides_ok(const struct vfm_tensor *t, bool strided)
{
	if (!strided || vfm_numel(t) == 0)
		return vfm_numel(t) == 0 || vfm_contiguous(t);
	for (int i = t->ndim - 1; i >= 0; i--) {
		int64_t least = i == t->ndim - 1 ? 1 : t->stride[i + 1] * t->shape[i + 1];

		if (t->shape[i] > 1 && (t->stride[i] < least || (i == t->ndim - 1 && t->stride[i] != 1)))
			return false;
	}
	return true;
}

int vfm_op_check(const char *op, const char *name, const struct vfm_tensor *t, unsigned what, int ndim,
	const int64_t *dims, struct vfm_err *err)
{
	char got[128], want[128];

	if (!vfm_has(t)) {
		if (what & OPT)
			return 0;
		return vfm_fail(err, VFM_EUSAGE, "%s: operand '%s' is missing", op, name);
	}
	if (!shape_ok(t, ndim, dims)) {
		dims_str(want, sizeof(want), ndim, dims);
		return vfm_fail(err, VFM_EUSAGE, "%s: operand '%s' is %s, expected [%s]", op, name,
			vfm_tensor_str(t, got, sizeof(got)), want);
	}
	if (!(what & 1u << t->dtype))
		return vfm_fail(err, VFM_EUSAGE, "%s: operand '%s' is %s: this dtype is not allowed here", op, name,
			vfm_tensor_str(t, got, sizeof(got)));
	if (!strides_ok(t, what & STRIDED))
		return vfm_fail(err, VFM_EUSAGE, "%s: operand '%s' (%s) must be contiguous%s", op, name,
			vfm_tensor_str(t, got, sizeof(got)), what & STRIDED ? " within its rows" : "");
	if (!t->data && vfm_numel(t))
		return vfm_fail(err, VFM_EUSAGE, "%s: operand '%s' (%s) has no memory", op, name,
			vfm_tensor_str(t, got, sizeof(got)));
	return 0;
}

int vfm_op_check_seqs(
	const char *op, const char *name, const struct vfm_seqs *q, int64_t total, int64_t samples, struct vfm_err *err)
{
	if (!q || !q->cu)
		return vfm_fail(err, VFM_EUSAGE, "%s: '%s' is missing", op, name);
	if (q->n < 0 || q->total != total || (samples >= 0 && q->n != samples))
		return vfm_fail(err, VFM_EUSAGE,
			"%s: '%s' has %d samples and %" PRId64 " tokens, expected %" PRId64 " and %" PRId64, op, name,
			q->n, q->total, samples, total);
	for (int i = 0; i < q->n; i++)
		if (q->cu[i + 1] < q->cu[i])
			return vfm_fail(err, VFM_EUSAGE, "%s: '%s' descends at sample %d", op, name, i);
	if (q->cu[0] != 0 || q->cu[q->n] != total)
		return vfm_fail(err, VFM_EUSAGE, "%s: '%s' does not cover its %" PRId64 " tokens", op, name, total);
	return 0;
}
