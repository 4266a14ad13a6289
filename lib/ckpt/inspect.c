#include "ckpt/inspect.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

enum { BLOCK = 1 << 18 }; /* elements per block */

typedef int block_fn(void *ctx, int64_t a, int64_t b, struct vfm_err *err);

static int each_block(const struct vfm_ckpt_tensor *t, block_fn *fn, void *ctx, struct vfm_err *err)
{
	for (int64_t a = 0; a < t->numel; a += BLOCK)
		TRY(fn(ctx, a, a + BLOCK < t->numel ? a + BLOCK : t->numel, err));
	return 0;
}

struct stat_ctx {
	struct vfm_ckpt *c;
	const struct vfm_ckpt_tensor *t;
	double *buf, m2, sq;
	int64_t finite;
	struct vfm_tensor_stat *s;
};

/* Merges mean and variance of blocks as in Chan, Golub, LeVeque (1979). */
static int stat_block(void *ctx, int64_t a, int64_t b, struct vfm_err *err)
{
	struct stat_ctx *x = ctx;
	struct vfm_tensor_stat *s = x->s;
	struct vfm_slice sl = {.a = a, .b = b};
	double sum = 0, mean, m2 = 0, d;
	int64_t n = 0;

	TRY(vfm_ckpt_read_tensor(x->c, x->t, &sl, VFM_F64, x->buf, err));
	for (int64_t i = 0; i < b - a; i++) {
		double v = x->buf[i];

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
		x->sq += v * v;
		x->buf[n++] = v;
	}
	if (!n)
		return 0;
	mean = sum / (double)n;
	for (int64_t i = 0; i < n; i++)
		m2 += (x->buf[i] - mean) * (x->buf[i] - mean);
	if (!x->finite)
		s->mean = 0;
	d = mean - s->mean;
	x->finite += n;
	s->mean += d * (double)n / (double)x->finite;
	x->m2 += m2 + d * d * (double)n * (double)(x->finite - n) / (double)x->finite;
	return 0;
}

int vfm_ckpt_stat(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, struct vfm_tensor_stat *out, struct vfm_err *err)
{
	struct stat_ctx x = {.c = c, .t = t, .s = out};
	int rc;

	*out = (struct vfm_tensor_stat){
		.n = t->numel, .min = (double)NAN, .max = (double)NAN, .mean = (double)NAN, .std = (double)NAN};
	x.buf = vfm_malloc(BLOCK * sizeof(double));
	rc = each_block(t, stat_block, &x, err);
	free(x.buf);
	if (x.finite)
		out->std = sqrt(x.m2 / (double)x.finite);
	out->norm = sqrt(x.sq);
	return rc;
}

struct diff_ctx {
	struct vfm_ckpt *c[2];
	const struct vfm_ckpt_tensor *t[2];
	double *buf[2], atol, rtol;
	struct vfm_tensor_diff *d;
};

static int diff_block(void *ctx, int64_t a, int64_t b, struct vfm_err *err)
{
	struct diff_ctx *x = ctx;
	struct vfm_tensor_diff *d = x->d;
	struct vfm_slice sl = {.a = a, .b = b};

	for (int k = 0; k < 2; k++)
		TRY(vfm_ckpt_read_tensor(x->c[k], x->t[k], &sl, VFM_F64, x->buf[k], err));
	for (int64_t i = 0; i < b - a; i++) {
		double u = x->buf[0][i], v = x->buf[1][i], gap = fabs(u - v), big = fmax(fabs(u), fabs(v));

		if (u == v || (isnan(u) && isnan(v)))
			continue;
		if (!isfinite(u) || !isfinite(v)) {
			d->differ++;
			d->max_abs = d->max_rel = INFINITY;
			continue;
		}
		d->differ += !(gap <= x->atol + x->rtol * fabs(v));
		d->max_abs = fmax(d->max_abs, gap);
		d->max_rel = fmax(d->max_rel, gap / big);
	}
	return 0;
}

int vfm_ckpt_diff(struct vfm_ckpt *a, const struct vfm_ckpt_tensor *ta, struct vfm_ckpt *b,
	const struct vfm_ckpt_tensor *tb, double atol, double rtol, struct vfm_tensor_diff *out, struct vfm_err *err)
{
	struct diff_ctx x = {.c = {a, b}, .t = {ta, tb}, .atol = atol, .rtol = rtol, .d = out};
	int rc;

	*out = (struct vfm_tensor_diff){.n = ta->numel};
	if (ta->numel != tb->numel)
		return vfm_fail(err, VFM_EUSAGE, "tensor '%s': shapes differ", ta->name);
	for (int k = 0; k < 2; k++)
		x.buf[k] = vfm_malloc(BLOCK * sizeof(double));
	rc = each_block(ta, diff_block, &x, err);
	free(x.buf[0]);
	free(x.buf[1]);
	return rc;
}

struct hash_ctx {
	struct vfm_ckpt *c;
	const struct vfm_ckpt_tensor *t;
	uint8_t *buf;
	struct vfm_sha256 *h;
};

static int hash_block(void *ctx, int64_t a, int64_t b, struct vfm_err *err)
{
	struct hash_ctx *x = ctx;
	struct vfm_slice sl = {.a = a, .b = b};

	TRY(vfm_ckpt_read_tensor(x->c, x->t, &sl, x->t->dtype, x->buf, err));
	vfm_sha256_add(x->h, x->buf, (size_t)(b - a) * vfm_dtype_size(x->t->dtype));
	return 0;
}

int vfm_ckpt_tensor_hash(
	struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, char hex[VFM_SHA256_HEX], struct vfm_err *err)
{
	struct hash_ctx x = {.c = c, .t = t, .h = vfm_sha256_new()};
	int rc;

	x.buf = vfm_malloc(BLOCK * 8);
	rc = each_block(t, hash_block, &x, err);
	vfm_sha256_end(x.h, hex);
	free(x.buf);
	return rc;
}
