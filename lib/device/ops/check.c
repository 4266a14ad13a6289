/* check.c - matches operands against the shapes, strides and dtypes in an op's row. */
#include "device/ops/check.h"

#include <ctype.h>
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

static int check_seqs(
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

/* The lengths of the letters of an op's shapes; -1: not known. */
struct letters {
	int64_t length['Z' + 1];
};

/* Reads a shape (check.h): *dims, and the letters whose dimension is the length itself; 0: it is none.  Returns the
 * number of dimensions. */
static int expand_shape(const char *shape, const struct letters *l, int64_t dims[VFM_MAX_DIM], char letter[VFM_MAX_DIM])
{
	int n = 0;

	for (const char *s = shape; *s; n++) {
		int64_t times = 0;

		while (isdigit((unsigned char)*s))
			times = 10 * times + (*s++ - '0');
		letter[n] = isupper((unsigned char)*s) && !times ? *s : 0;
		if (isupper((unsigned char)*s)) {
			int64_t length = l->length[(unsigned char)*s++];

			dims[n] = length < 0 ? -1 : length * (times ? times : 1);
		} else if (*s == '*') {
			dims[n] = -1;
			s++;
		} else {
			dims[n] = times;
		}
	}
	return n;
}

/* A letter is the length in the first operand that has it. */
static void find_lengths(struct letters *l, const struct vfm_op_info *info, const void *args)
{
	int64_t dims[VFM_MAX_DIM];
	char letter[VFM_MAX_DIM];

	for (int i = 'A'; i <= 'Z'; i++)
		l->length[i] = -1;
	for (const struct vfm_operand *o = info->operands; o->name; o++) {
		const struct vfm_tensor *t = vfm_operand_of((void *)args, o);
		int n = o->shape ? expand_shape(o->shape, l, dims, letter) : 0;

		for (int i = 0; i < n && t->ndim == n; i++)
			if (letter[i] && l->length[(unsigned char)letter[i]] < 0)
				l->length[(unsigned char)letter[i]] = t->shape[i];
	}
}

int vfm_op_check_operands(const struct vfm_op_info *info, const void *args, struct vfm_err *err)
{
	const unsigned like = 1u << vfm_operand_of((void *)args, &info->operands[0])->dtype;
	struct letters l;

	find_lengths(&l, info, args);
	for (const struct vfm_operand *o = info->operands; o->name; o++) {
		int64_t dims[VFM_MAX_DIM];
		char letter[VFM_MAX_DIM];

		if (o->shape)
			TRY(vfm_op_check(info->name, o->name, vfm_operand_of((void *)args, o),
				o->allows & LIKE ? (o->allows & ~LIKE) | like : o->allows,
				expand_shape(o->shape, &l, dims, letter), dims, err));
	}
	for (int i = 0; i < 2 && info->seqs[i].name; i++) {
		const struct vfm_op_seqs *q = &info->seqs[i];
		int64_t samples = q->dims[1] == '*' ? -1 : l.length[(unsigned char)q->dims[1]];

		if (samples >= 0 || q->dims[1] == '*')
			TRY(check_seqs(info->name, q->name,
				*(const struct vfm_seqs *const *)((const char *)args + q->offset),
				l.length[(unsigned char)q->dims[0]], samples, err));
	}
	return 0;
}
