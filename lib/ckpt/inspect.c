/* inspect.c - streams tensors in blocks for statistics, differences and hashes. */
#include "ckpt/inspect.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

enum { BLOCK = 1 << 18 }; /* elements per block */

/* Block k of a tensor. */
static struct vfm_slice tensor_block(const struct vfm_ckpt_tensor *t, int64_t k)
{
	return (struct vfm_slice){.a = k * BLOCK, .b = (k + 1) * BLOCK < t->numel ? (k + 1) * BLOCK : t->numel};
}

static int64_t tensor_blocks(const struct vfm_ckpt_tensor *t)
{
	return (t->numel + BLOCK - 1) / BLOCK;
}

struct stat_sums {
	int64_t finite;
	double m2, sq;
};

/* Adds a block x [n].  Merges mean and variance of blocks as in Chan, Golub, LeVeque (1979). */
static void add_stat_block(struct vfm_tensor_stat *s, struct stat_sums *all, double *x, int64_t n)
{
	double sum = 0, mean, m2 = 0, d;
	int64_t finite = 0;

	for (int64_t i = 0; i < n; i++) {
		double v = x[i];

		if (!isfinite(v)) {
			s->nan += isnan(v);
			s->inf += isinf(v) != 0;
			continue;
		}
		s->zero += v == 0;
		if (!(v >= s->min))
			s->min = v;
		if (!(v <= s->max))
			s->max = v;
		sum += v;
		all->sq += v * v;
		x[finite++] = v;
	}
	if (!finite)
		return;
	mean = sum / (double)finite;
	for (int64_t i = 0; i < finite; i++)
		m2 += (x[i] - mean) * (x[i] - mean);
	if (!all->finite)
		s->mean = 0;
	d = mean - s->mean;
	all->finite += finite;
	s->mean += d * (double)finite / (double)all->finite;
	all->m2 += m2 + d * d * (double)finite * (double)(all->finite - finite) / (double)all->finite;
}

int vfm_ckpt_stat(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, struct vfm_tensor_stat *out, struct vfm_err *err)
{
	double *x = vfm_malloc(BLOCK * sizeof(*x));
	struct stat_sums all = {0};
	int rc = 0;

	*out = (struct vfm_tensor_stat){
		.n = t->numel, .min = (double)NAN, .max = (double)NAN, .mean = (double)NAN, .std = (double)NAN};
	for (int64_t k = 0; k < tensor_blocks(t); k++) {
		struct vfm_slice s = tensor_block(t, k);

		TRY_OUT(vfm_ckpt_read_tensor(c, t, &s, VFM_F64, x, err));
		add_stat_block(out, &all, x, s.b - s.a);
	}
	if (all.finite)
		out->std = sqrt(all.m2 / (double)all.finite);
	out->norm = sqrt(all.sq);
out:
	free(x);
	return rc;
}

static void add_tensor_difference(struct vfm_tensor_diff *d, double u, double v, double atol, double rtol)
{
	double gap = fabs(u - v), big = fmax(fabs(u), fabs(v));

	if (u == v || (isnan(u) && isnan(v)))
		return;
	if (!isfinite(u) || !isfinite(v)) {
		d->differ++;
		d->max_abs = d->max_rel = INFINITY;
		return;
	}
	d->differ += !(gap <= atol + rtol * fabs(v));
	d->max_abs = fmax(d->max_abs, gap);
	d->max_rel = fmax(d->max_rel, gap / big);
}

int vfm_ckpt_diff(struct vfm_ckpt *a, const struct vfm_ckpt_tensor *ta, struct vfm_ckpt *b,
	const struct vfm_ckpt_tensor *tb, double atol, double rtol, struct vfm_tensor_diff *out, struct vfm_err *err)
{
	double *x = vfm_malloc(2 * BLOCK * sizeof(*x)), *y = x + BLOCK;
	int rc = 0;

	*out = (struct vfm_tensor_diff){.n = ta->numel};
	if (ta->numel != tb->numel)
		rc = vfm_fail(err, VFM_EUSAGE, "tensor '%s': shapes differ", ta->name);
	TRY_OUT(rc);
	for (int64_t k = 0; k < tensor_blocks(ta); k++) {
		struct vfm_slice s = tensor_block(ta, k);

		TRY_OUT(vfm_ckpt_read_tensor(a, ta, &s, VFM_F64, x, err));
		TRY_OUT(vfm_ckpt_read_tensor(b, tb, &s, VFM_F64, y, err));
		for (int64_t i = 0; i < s.b - s.a; i++)
			add_tensor_difference(out, x[i], y[i], atol, rtol);
	}
out:
	free(x);
	return rc;
}

int vfm_ckpt_tensor_hash(
	struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, char hex[VFM_SHA256_HEX], struct vfm_err *err)
{
	struct vfm_sha256 *h = vfm_sha256_new();
	uint8_t *x = vfm_malloc(BLOCK * 8);
	int rc = 0;

	for (int64_t k = 0; k < tensor_blocks(t); k++) {
		struct vfm_slice s = tensor_block(t, k);

		TRY_OUT(vfm_ckpt_read_tensor(c, t, &s, t->dtype, x, err));
		vfm_sha256_add(h, x, (size_t)(s.b - s.a) * vfm_dtype_size(t->dtype));
	}
out:
	vfm_sha256_end(h, hex);
	free(x);
	return rc;
}
