#include "nn/layers.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/par.h"

static struct vfm_cut tp_cut(enum vfm_split split, int groups)
{
	switch (split) {
	case VFM_SPLIT_COLUMN:
		return (struct vfm_cut){.groups = groups ? groups : 1, .dim = 0};
	case VFM_SPLIT_ROW:
		return (struct vfm_cut){.groups = 1, .dim = 1};
	default:
		return (struct vfm_cut){0};
	}
}

void vfm_linear_declare(struct vfm_linear *l, struct vfm_params *ps, const struct vfm_linear_desc *d, const char *name_fmt, ...)
{
	struct vfm_pdesc w = {.ndim = 2, .shape = {d->out, d->in}}, b = {.ndim = 1, .shape = {d->out}};
	float std = (float)sqrt(2.0 / (double)(d->in + d->out));
	char name[80];
	va_list ap;

	va_start(ap, name_fmt);
	vsnprintf(name, sizeof(name), name_fmt, ap);
	va_end(ap);
	w.cut[VFM_AX_TP] = tp_cut(d->split, d->groups);
	if (d->split == VFM_SPLIT_COLUMN)
		b.cut[VFM_AX_TP] = w.cut[VFM_AX_TP];
	l->w = vfm_param_add(ps, d->unit, &w, d->zero ? VFM_INIT_ZERO : VFM_INIT_NORMAL, std, "%s.weight", name);
	l->b = d->no_bias ? NULL : vfm_param_add(ps, d->unit, &b, VFM_INIT_ZERO, 0, "%s.bias", name);
}

struct vfm_var *vfm_linear(struct vfm_tape *t, const struct vfm_linear *l, struct vfm_var *x, enum vfm_act act, enum vfm_dtype out)
{
	return vfm_g_linear(t, x, &l->w->var, l->b ? &l->b->var : NULL, act, out);
}

struct vfm_param *vfm_vector_declare(struct vfm_params *ps, int unit, int64_t n, enum vfm_init init, const char *name_fmt, ...)
{
	struct vfm_pdesc d = {.ndim = 1, .shape = {n}};
	char name[96];
	va_list ap;

	va_start(ap, name_fmt);
	vsnprintf(name, sizeof(name), name_fmt, ap);
	va_end(ap);
	return vfm_param_add(ps, unit, &d, init, 0, "%s", name);
}

/* ---- attention ---- */

void vfm_self_attn_declare(struct vfm_self_attn *a, struct vfm_params *ps, int unit, int64_t hidden, int64_t heads, bool qk_norm, float eps,
	const char *prefix)
{
	*a = (struct vfm_self_attn){.heads = heads, .head_dim = hidden / heads, .eps = eps};
	vfm_linear_declare(&a->qkv, ps,
		&(struct vfm_linear_desc){.unit = unit, .in = hidden, .out = 3 * hidden, .split = VFM_SPLIT_COLUMN, .groups = 3}, "%s.qkv",
		prefix);
	if (qk_norm) {
		a->qn = vfm_vector_declare(ps, unit, a->head_dim, VFM_INIT_ONE, "%s.qn.weight", prefix);
		a->kn = vfm_vector_declare(ps, unit, a->head_dim, VFM_INIT_ONE, "%s.kn.weight", prefix);
	}
	vfm_linear_declare(&a->proj, ps, &(struct vfm_linear_desc){.unit = unit, .in = hidden, .out = hidden, .split = VFM_SPLIT_ROW}, "%s.proj",
		prefix);
}

struct vfm_var *vfm_self_attn(struct vfm_tape *t, const struct vfm_self_attn *a, struct vfm_var *x, const struct vfm_seqs *seqs,
	struct vfm_tensor rope)
{
	enum vfm_dtype dt = x->v.dtype;
	struct vfm_var *qkv = vfm_linear(t, &a->qkv, x, VFM_ACT_NONE, dt); /* [T, 3 * heads * d] */
	struct vfm_var *q = vfm_view_heads(t, qkv, 0, a->heads, a->head_dim);
	struct vfm_var *k = vfm_view_heads(t, qkv, 1, a->heads, a->head_dim);
	struct vfm_var *v = vfm_view_heads(t, qkv, 2, a->heads, a->head_dim);
	struct vfm_var *o;

	q = vfm_g_qk_norm_rope(t, q, a->qn ? &a->qn->var : NULL, rope, a->eps);
	k = vfm_g_qk_norm_rope(t, k, a->kn ? &a->kn->var : NULL, rope, a->eps);
	o = vfm_g_attn(t, q, k, v, seqs, seqs, 1.0f / sqrtf((float)a->head_dim));
	return vfm_linear(t, &a->proj, o, VFM_ACT_NONE, dt);
}

void vfm_cross_attn_declare(struct vfm_cross_attn *a, struct vfm_params *ps, int unit, int64_t hidden, int64_t heads, bool qk_norm, float eps,
	const char *prefix)
{
	*a = (struct vfm_cross_attn){.heads = heads, .head_dim = hidden / heads, .eps = eps};
	vfm_linear_declare(&a->q, ps, &(struct vfm_linear_desc){.unit = unit, .in = hidden, .out = hidden, .split = VFM_SPLIT_COLUMN}, "%s.q", prefix);
	vfm_linear_declare(&a->kv, ps,
		&(struct vfm_linear_desc){.unit = unit, .in = hidden, .out = 2 * hidden, .split = VFM_SPLIT_COLUMN, .groups = 2}, "%s.kv", prefix);
	if (qk_norm) {
		a->qn = vfm_vector_declare(ps, unit, a->head_dim, VFM_INIT_ONE, "%s.qn.weight", prefix);
		a->kn = vfm_vector_declare(ps, unit, a->head_dim, VFM_INIT_ONE, "%s.kn.weight", prefix);
	}
	vfm_linear_declare(&a->proj, ps,
		&(struct vfm_linear_desc){.unit = unit, .in = hidden, .out = hidden, .split = VFM_SPLIT_ROW, .zero = true}, "%s.proj", prefix);
}

struct vfm_var *vfm_cross_attn(struct vfm_tape *t, const struct vfm_cross_attn *a, struct vfm_var *x, struct vfm_var *ctx,
	const struct vfm_seqs *seqs, const struct vfm_seqs *text_seqs)
{
	enum vfm_dtype dt = x->v.dtype;
	struct vfm_tensor no_rope = {0};
	struct vfm_var *q = vfm_linear(t, &a->q, x, VFM_ACT_NONE, dt);      /* [T, heads * d] */
	struct vfm_var *kv = vfm_linear(t, &a->kv, ctx, VFM_ACT_NONE, dt); /* [text, 2 * heads * d] */
	struct vfm_var *k = vfm_view_heads(t, kv, 0, a->heads, a->head_dim);
	struct vfm_var *v = vfm_view_heads(t, kv, 1, a->heads, a->head_dim);
	struct vfm_var *o;

	q = vfm_view_heads(t, q, 0, a->heads, a->head_dim);
	q = vfm_g_qk_norm_rope(t, q, a->qn ? &a->qn->var : NULL, no_rope, a->eps);
	k = vfm_g_qk_norm_rope(t, k, a->kn ? &a->kn->var : NULL, no_rope, a->eps);
	o = vfm_g_attn(t, q, k, v, seqs, text_seqs, 1.0f / sqrtf((float)a->head_dim));
	return vfm_linear(t, &a->proj, o, VFM_ACT_NONE, dt);
}

/* ---- positions ---- */

struct table {
	float *out;
	const int16_t (*pos)[3];
	int64_t width;
	double freq[3][512]; /* per axis: radians a position, of each pair */
	int pairs[3];
};

static void rope_rows(int64_t i0, int64_t i1, void *arg)
{
	const struct table *r = arg;

	for (int64_t i = i0; i < i1; i++) {
		float *o = r->out + i * r->width;

		for (int axis = 0; axis < 3; axis++) {
			for (int j = 0; j < r->pairs[axis]; j++) {
				double angle = r->pos[i][axis] * r->freq[axis][j];

				*o++ = (float)cos(angle);
				*o++ = (float)sin(angle);
			}
		}
	}
}

void vfm_rope_table(float *out, const int16_t (*pos)[3], int64_t tokens, int64_t head_dim, double theta)
{
	struct table r = {.out = out, .pos = pos, .width = head_dim};
	int64_t spatial = 2 * (head_dim / 6), dims[3] = {head_dim - 2 * spatial, spatial, spatial};

	for (int axis = 0; axis < 3; axis++) {
		r.pairs[axis] = (int)(dims[axis] / 2);
		for (int j = 0; j < r.pairs[axis]; j++)
			r.freq[axis][j] = pow(theta, -2.0 * j / (double)dims[axis]);
	}
	vfm_par_for(tokens, 256, rope_rows, &r);
}

void vfm_sincos_table(float *out, const int16_t (*pos)[3], int64_t tokens, int64_t hidden)
{
	int64_t dt = hidden / 4, ds = (hidden - dt) / 2, dims[3] = {dt, ds, ds};

	for (int64_t i = 0; i < tokens; i++) {
		float *o = out + i * hidden;

		for (int axis = 0; axis < 3; axis++) {
			int64_t half = dims[axis] / 2;

			for (int64_t j = 0; j < half; j++) {
				double angle = pos[i][axis] / pow(10000.0, (double)j / (double)half);

				o[j] = (float)sin(angle);
				o[half + j] = (float)cos(angle);
			}
			o += dims[axis];
		}
	}
}
