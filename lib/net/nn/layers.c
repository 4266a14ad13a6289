/* layers.c - linear layers with adapters and fp8, attention, MLP, and tables of positions. */
#include "net/nn/layers.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/par.h"
#include "net/mesh/attn.h"
#include "net/mesh/tp_linear.h"

static struct vfm_axis_cut tp_cut(enum vfm_split split, int groups)
{
	switch (split) {
	case VFM_SPLIT_COLUMN:
		return (struct vfm_axis_cut){.groups = groups ? groups : 1, .dim = 0};
	case VFM_SPLIT_ROW:
		return (struct vfm_axis_cut){.groups = 1, .dim = 1};
	default:
		return (struct vfm_axis_cut){0};
	}
}

static struct vfm_param *declare_adapter(struct vfm_params *ps, const struct vfm_linear_desc *d,
	const struct vfm_pdesc *shape, float std, const char *name, const char *matrix)
{
	struct vfm_param *p = vfm_param_add(
		ps, d->unit, shape, std > 0 ? VFM_INIT_NORMAL : VFM_INIT_ZERO, std, "%s.%s.weight", name, matrix);

	p->frozen = false;
	p->adapter = true;
	return p;
}

/* A is drawn with the variance 1 / (3 in) of the reference implementation, whose distribution is uniform. */
static void declare_lora(struct vfm_linear *l, struct vfm_params *ps, const struct vfm_linear_desc *d, const char *name)
{
	struct vfm_pdesc a = {.ndim = 2, .shape = {l->groups * ps->tuning.rank, d->in}},
			 b = {.ndim = 2, .shape = {d->out, ps->tuning.rank}};

	if (d->split == VFM_SPLIT_COLUMN)
		b.cut[VFM_AX_TP] = l->w->d.cut[VFM_AX_TP];
	else if (d->split == VFM_SPLIT_ROW)
		a.cut[VFM_AX_TP] = l->w->d.cut[VFM_AX_TP];
	l->lora_a = declare_adapter(ps, d, &a, (float)sqrt(1 / (3 * (double)d->in)), name, "lora_A");
	l->lora_b = declare_adapter(ps, d, &b, 0, name, "lora_B");
}

void vfm_linear_declare(
	struct vfm_linear *l, struct vfm_params *ps, const struct vfm_linear_desc *d, const char *name_fmt, ...)
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
	l->skip_bias = d->split == VFM_SPLIT_ROW && ps->mesh->coord[VFM_AX_TP] > 0;
	l->w->fp8 = d->fp8;
	if (d->fp8)
		vfm_param_base(l->w);
	l->keep = d->keep;
	l->few = d->few;
	l->b = d->no_bias ? NULL : vfm_param_add(ps, d->unit, &b, VFM_INIT_ZERO, 0, "%s.bias", name);
	if (l->b)
		l->b->bias = true;
	l->groups = d->groups ? d->groups : 1;
	l->lora_a = l->lora_b = NULL;
	if (vfm_tuning_adapts(&ps->tuning, name))
		declare_lora(l, ps, d, name);
}

static struct vfm_linear_args make_linear_args(const struct vfm_linear *l, enum vfm_act act, enum vfm_dtype out)
{
	struct vfm_var *w = &l->w->var;
	struct vfm_linear_args a = {.w = w,
		.b = l->b && !l->skip_bias ? &l->b->var : NULL,
		.act = act,
		.out = out,
		.keep = l->keep,
		.few = l->few,
		.fp8 = l->w->fp8 && l->w->ps->fp8 && w->v.shape[0] % 16 == 0 && w->v.shape[1] % 16 == 0,
		.past = l->w->past};

	if (l->lora_a)
		a.lora = (struct vfm_lora_args){.a = &l->lora_a->var,
			.b = &l->lora_b->var,
			.blocks = l->groups,
			.scale = (float)vfm_tuning_scale(&l->w->ps->tuning)};
	return a;
}

struct vfm_var *vfm_linear(
	struct vfm_tape *t, const struct vfm_linear *l, struct vfm_var *x, enum vfm_act act, enum vfm_dtype out)
{
	struct vfm_linear_args a = make_linear_args(l, act, out);

	return vfm_g_linear(t, x, &a);
}

void vfm_linear_stack(struct vfm_linear_stack *s, const struct vfm_linear *l, int n)
{
	struct vfm_param **p = vfm_calloc((size_t)n, sizeof(*p));
	struct vfm_params *ps = l->w->ps;

	for (int i = 0; i < n; i++) {
		p[i] = l[i].w;
		if (l[i].lora_a && !ps->bad.code)
			vfm_fail(&ps->bad, VFM_EUSAGE,
				"lora.targets: %s is computed with other layers in one product and can have no adapter",
				p[i]->name);
	}
	s->few = l->few;
	s->w = vfm_params_stack(l->w->ps, p, n);
	for (int i = 0; i < n; i++)
		p[i] = l[i].b;
	s->b = l->b ? vfm_params_stack(l->w->ps, p, n) : NULL;
	free(p);
}

struct vfm_var *vfm_linears(struct vfm_tape *t, const struct vfm_linear_stack *s, struct vfm_var *x, enum vfm_dtype out)
{
	return vfm_g_linear(t, x, &(struct vfm_linear_args){.w = s->w, .b = s->b, .out = out, .few = s->few});
}

struct vfm_var *vfm_linear_column(struct vfm_tape *t, const struct vfm_linear *l, struct vfm_var *x, enum vfm_act act,
	enum vfm_dtype out, const struct vfm_attn_layout *lay)
{
	struct vfm_linear_args a = make_linear_args(l, act, out);
	struct vfm_var *y;

	vfm_tp_column(t, lay, x, &a, 1, &y);
	return y;
}

struct vfm_var *vfm_linear_row(struct vfm_tape *t, const struct vfm_linear *l, struct vfm_var *x, enum vfm_dtype out,
	const struct vfm_attn_layout *lay)
{
	struct vfm_linear_args a = make_linear_args(l, VFM_ACT_NONE, out);

	return vfm_tp_row(t, lay, x, &a);
}

/* ---- norms in front of layers in fp8 ---- */

struct vfm_norm_fp8 vfm_linear_norm(const struct vfm_linear *l, const struct vfm_attn_layout *lay)
{
	struct vfm_linear_args a = make_linear_args(l, VFM_ACT_NONE, VFM_BF16);

	if (!a.fp8 || lay->mesh->size[VFM_AX_TP] > 1 || (a.past && a.lora.a)) /* an adapter reads bf16 */
		return (struct vfm_norm_fp8){0};
	return (struct vfm_norm_fp8){.past = a.past && a.past->filled ? a.past : NULL, .amax = !a.past};
}

/* Two layers with a history each do not share a quantized input. */
struct vfm_norm_fp8 vfm_self_attn_norm(
	const struct vfm_self_attn *a, const struct vfm_mlp *mlp, const struct vfm_attn_layout *lay)
{
	const struct vfm_linear *const layers[] = {
		a->qkv.w ? &a->qkv : &a->q, a->qkv.w ? NULL : &a->kv, mlp ? &mlp->in : NULL};
	struct vfm_norm_fp8 first = vfm_linear_norm(layers[0], lay);

	for (int i = 1; i < 3; i++)
		if (layers[i])
			first = (struct vfm_norm_fp8){.amax = first.amax && vfm_linear_norm(layers[i], lay).amax};
	return first;
}

struct vfm_param *vfm_vector_declare(
	struct vfm_params *ps, int unit, int64_t n, enum vfm_init init, const char *name_fmt, ...)
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

static void qk_norm_declare(struct vfm_param **qn, struct vfm_param **kn, struct vfm_params *ps,
	const struct vfm_attn_desc *d, const char *prefix)
{
	const int64_t hd = d->hidden / d->heads;
	struct vfm_pdesc q = {.ndim = 1, .shape = {d->row_qk_norm ? d->hidden : hd}},
			 k = {.ndim = 1, .shape = {d->row_qk_norm ? d->kv_heads * hd : hd}};

	*qn = *kn = NULL;
	if (!d->qk_norm)
		return;
	if (d->row_qk_norm)
		q.cut[VFM_AX_TP] = k.cut[VFM_AX_TP] = tp_cut(VFM_SPLIT_COLUMN, 1);
	*qn = vfm_param_add(ps, d->unit, &q, VFM_INIT_ONE, 0, "%s.qn.weight", prefix);
	*kn = vfm_param_add(ps, d->unit, &k, VFM_INIT_ONE, 0, "%s.kn.weight", prefix);
}

/* Declares a column-split projection of attention with `groups` blocks of outputs. */
static void column_declare(struct vfm_linear *l, struct vfm_params *ps, const struct vfm_attn_desc *d, int64_t in,
	int64_t out, int groups, const char *prefix, const char *name)
{
	struct vfm_linear_desc ld = {.unit = d->unit,
		.in = in,
		.out = out,
		.split = VFM_SPLIT_COLUMN,
		.keep = VFM_KEEP_QKV,
		.groups = groups,
		.no_bias = d->no_bias,
		.fp8 = true};

	vfm_linear_declare(l, ps, &ld, "%s.%s", prefix, name);
}

static void proj_declare(
	struct vfm_linear *l, struct vfm_params *ps, const struct vfm_attn_desc *d, bool zero, const char *prefix)
{
	struct vfm_linear_desc ld = {.unit = d->unit,
		.in = d->hidden,
		.out = d->hidden,
		.split = VFM_SPLIT_ROW,
		.keep = VFM_KEEP_PROJ,
		.zero = zero,
		.no_bias = d->no_bias || d->no_proj_bias,
		.fp8 = true};

	vfm_linear_declare(l, ps, &ld, "%s.proj", prefix);
}

void vfm_self_attn_declare(
	struct vfm_self_attn *a, struct vfm_params *ps, const struct vfm_attn_desc *d, const char *prefix)
{
	int64_t tp = ps->mesh->size[VFM_AX_TP], hd = d->hidden / d->heads;

	*a = (struct vfm_self_attn){.row_qk_norm = d->row_qk_norm,
		.heads = d->heads / tp,
		.kv_heads = d->kv_heads / tp,
		.head_dim = hd,
		.eps = d->eps};
	if (d->kv_heads == d->heads) {
		column_declare(&a->qkv, ps, d, d->hidden, 3 * d->hidden, 3, prefix, "qkv");
	} else {
		column_declare(&a->q, ps, d, d->hidden, d->hidden, 1, prefix, "q");
		column_declare(&a->kv, ps, d, d->hidden, 2 * d->kv_heads * hd, 2, prefix, "kv");
	}
	qk_norm_declare(&a->qn, &a->kn, ps, d, prefix);
	proj_declare(&a->proj, ps, d, false, prefix);
}

/* Norms and rotation of q and k; the weights of the norms may be NULL. */
static void norm_qk(struct vfm_tape *t, struct vfm_param *qn, struct vfm_param *kn, bool rows, struct vfm_tensor rope,
	float eps, struct vfm_var *qk[2])
{
	const struct vfm_qk_args a = {qk[0], qk[1], qn ? &qn->var : NULL, kn ? &kn->var : NULL, rope, eps};

	if (qn && rows)
		vfm_m_row_norm_rope(t, qn->ps->mesh, &a, qk);
	else
		vfm_g_qk_norm_rope(t, &a, qk);
}

/* The first layers of attention.  With a layout, x is this tp rank's share of the rows. */
struct projection {
	const struct vfm_self_attn *attn;
	const struct vfm_attn_layout *lay; /* NULL: none */
	struct vfm_tensor rope;
	const struct vfm_linear_args *next; /* another layer of x, with the same gather; NULL: none */
	struct vfm_var *next_y;             /* its result */
};

/* x [R,D] -> q [R,heads,d], k, v [R,kv_heads,d], normalised and rotated. */
static void project(struct vfm_tape *t, struct projection *p, struct vfm_var *x, struct vfm_var *qkv[3])
{
	const struct vfm_self_attn *a = p->attn;
	bool fused = a->qkv.w;
	struct vfm_linear_args layer[VFM_TP_COLUMN_LAYERS] = {
		make_linear_args(fused ? &a->qkv : &a->kv, VFM_ACT_NONE, x->v.dtype)};
	struct vfm_var *y[VFM_TP_COLUMN_LAYERS]; /* [R, 3 * heads * d], or [R, 2 * kv_heads * d] and [R, heads * d] */
	int n = fused ? 1 : 2, all = n + (p->next != NULL);

	if (!fused)
		layer[1] = make_linear_args(&a->q, VFM_ACT_NONE, x->v.dtype);
	if (p->next)
		layer[n] = *p->next;
	if (p->lay)
		vfm_tp_column(t, p->lay, x, layer, all, y);
	for (int i = 0; i < all && !p->lay; i++)
		y[i] = vfm_g_linear(t, x, &layer[i]);
	p->next_y = p->next ? y[n] : NULL;
	qkv[0] = vfm_view_heads(t, y[n - 1], 0, a->heads, a->head_dim);
	qkv[1] = vfm_view_heads(t, y[0], fused ? 1 : 0, a->kv_heads, a->head_dim);
	qkv[2] = vfm_view_heads(t, y[0], fused ? 2 : 1, a->kv_heads, a->head_dim);
	norm_qk(t, a->qn, a->kn, a->row_qk_norm, p->rope, a->eps, qkv);
}

struct vfm_var *vfm_self_attn(struct vfm_tape *t, const struct vfm_self_attn *a, struct vfm_var *x,
	const struct vfm_attn_layout *l, struct vfm_tensor rope)
{
	struct vfm_var *qkv[3], *o;

	project(t, &(struct projection){.attn = a, .lay = l, .rope = rope}, x, qkv);
	o = vfm_m_attn(t, qkv[0], qkv[1], qkv[2], l, 1.0f / sqrtf((float)a->head_dim));
	return vfm_linear_row(t, &a->proj, o, o->v.dtype, l);
}

struct vfm_var *vfm_self_attn_units(struct vfm_tape *t, const struct vfm_self_attn *a, struct vfm_var *x,
	const struct vfm_attn_layout *l, const struct vfm_attn_units *u)
{
	struct vfm_var *qkv[3], *o;

	x = vfm_m_redist(t, l->mesh, VFM_AX_CP, vfm_tp_gather(t, l, x), &u->to_units);
	project(t, &(struct projection){.attn = a, .rope = u->rope}, x, qkv);
	o = vfm_g_attn(t, qkv[0], qkv[1], qkv[2], &u->seqs, &u->seqs, 1.0f / sqrtf((float)a->head_dim));
	o = vfm_m_redist(t, l->mesh, VFM_AX_CP, o, &u->from_units);
	return vfm_linear_row(t, &a->proj, o, o->v.dtype, l);
}

static void image_kv_declare(
	struct vfm_cross_attn *a, struct vfm_params *ps, const struct vfm_attn_desc *d, const char *prefix)
{
	const int64_t hd = d->hidden / d->heads;
	struct vfm_pdesc norm = {.ndim = 1, .shape = {d->row_qk_norm ? d->kv_heads * hd : hd}};

	column_declare(&a->kv_img, ps, d, d->hidden, 2 * d->kv_heads * hd, 2, prefix, "kv_img");
	if (!d->qk_norm)
		return;
	if (d->row_qk_norm)
		norm.cut[VFM_AX_TP] = tp_cut(VFM_SPLIT_COLUMN, 1);
	a->kn_img = vfm_param_add(ps, d->unit, &norm, VFM_INIT_ONE, 0, "%s.kn_img.weight", prefix);
}

void vfm_cross_attn_declare(
	struct vfm_cross_attn *a, struct vfm_params *ps, const struct vfm_attn_desc *d, const char *prefix)
{
	int64_t tp = ps->mesh->size[VFM_AX_TP], hd = d->hidden / d->heads;

	*a = (struct vfm_cross_attn){.row_qk_norm = d->row_qk_norm,
		.heads = d->heads / tp,
		.kv_heads = d->kv_heads / tp,
		.head_dim = hd,
		.eps = d->eps};
	column_declare(&a->q, ps, d, d->hidden, d->hidden, 1, prefix, "q");
	column_declare(&a->kv, ps, d, d->context ? d->context : d->hidden, 2 * d->kv_heads * hd, 2, prefix, "kv");
	qk_norm_declare(&a->qn, &a->kn, ps, d, prefix);
	if (d->image)
		image_kv_declare(a, ps, d, prefix);
	proj_declare(&a->proj, ps, d, true, prefix);
}

/* Attention of q [R,heads,d], normalised, to the image rows -> [R, heads * d]. */
static struct vfm_var *image_attn(struct vfm_tape *t, const struct vfm_cross_attn *a, struct vfm_var *q,
	const struct vfm_attn_layout *l, const struct vfm_cross_ctx *ctx)
{
	struct vfm_var *kv = vfm_linear(t, &a->kv_img, ctx->image, VFM_ACT_NONE, q->v.dtype);
	struct vfm_var *v = vfm_view_heads(t, kv, 1, a->kv_heads, a->head_dim);
	struct vfm_var *k[] = {vfm_view_heads(t, kv, 0, a->kv_heads, a->head_dim), NULL};

	norm_qk(t, a->kn_img, NULL, a->row_qk_norm, (struct vfm_tensor){0}, a->eps, k);
	return vfm_g_attn(t, q, k[0], v, &l->own, ctx->image_seqs, 1.0f / sqrtf((float)a->head_dim));
}

struct vfm_var *vfm_cross_attn(struct vfm_tape *t, const struct vfm_cross_attn *a, struct vfm_var *x,
	const struct vfm_attn_layout *l, const struct vfm_cross_ctx *ctx)
{
	enum vfm_dtype dt = x->v.dtype;
	/* [R, heads * d] */
	struct vfm_var *q = vfm_linear_column(t, &a->q, x, VFM_ACT_NONE, dt, l);
	struct vfm_var *kv = vfm_linear(t, &a->kv, ctx->text, VFM_ACT_NONE, dt); /* [text, 2 * kv_heads * d] */
	struct vfm_var *v = vfm_view_heads(t, kv, 1, a->kv_heads, a->head_dim);
	struct vfm_var *qk[] = {
		vfm_view_heads(t, q, 0, a->heads, a->head_dim), vfm_view_heads(t, kv, 0, a->kv_heads, a->head_dim)};
	struct vfm_var *o;

	norm_qk(t, a->qn, a->kn, a->row_qk_norm, (struct vfm_tensor){0}, a->eps, qk);
	o = vfm_g_attn(t, qk[0], qk[1], v, &l->own, ctx->text_seqs, 1.0f / sqrtf((float)a->head_dim));
	if (ctx->image)
		o = vfm_g_add(t, o, image_attn(t, a, qk[0], l, ctx));
	return vfm_linear_row(t, &a->proj, o, dt, l);
}

/* ---- MLP ---- */

void vfm_mlp_declare(struct vfm_mlp *m, struct vfm_params *ps, const struct vfm_mlp_desc *d, const char *prefix)
{
	const struct vfm_linear_desc in = {.unit = d->unit,
		.in = d->hidden,
		.out = d->gated ? 2 * d->ffn : d->ffn,
		.split = VFM_SPLIT_COLUMN,
		.keep = VFM_KEEP_FC1,
		.groups = d->gated ? 2 : 1,
		.no_bias = d->no_bias,
		.fp8 = true};
	const struct vfm_linear_desc out = {.unit = d->unit,
		.in = d->ffn,
		.out = d->hidden,
		.split = VFM_SPLIT_ROW,
		.keep = VFM_KEEP_MLP,
		.no_bias = d->no_bias,
		.fp8 = true};

	m->gated = d->gated;
	m->exact = d->exact;
	vfm_linear_declare(&m->in, ps, &in, "%s%s", prefix, d->gated ? "w13" : "fc1");
	vfm_linear_declare(&m->out, ps, &out, "%s%s", prefix, d->gated ? "w2" : "fc2");
}

struct vfm_var *vfm_mlp(struct vfm_tape *t, const struct vfm_mlp *m, struct vfm_var *x, const struct vfm_attn_layout *l)
{
	enum vfm_dtype dt = x->v.dtype;

	x = vfm_linear_column(t, &m->in, x, m->gated || m->exact ? VFM_ACT_NONE : VFM_ACT_GELU_TANH, dt, l);
	if (m->exact) /* no product computes it */
		x = vfm_g_act(t, x, VFM_ACT_GELU);
	return vfm_linear_row(t, &m->out, m->gated ? vfm_g_swiglu(t, x) : x, dt, l);
}

/* ---- joint attention ---- */

void vfm_joint_attn(struct vfm_tape *t, const struct vfm_self_attn *const a[2], const struct vfm_mlp *mlp,
	struct vfm_var *x[2], const struct vfm_joint_layout *l, struct vfm_tensor rope)
{
	struct vfm_var *of[2][3], *qkv[3], *hidden[2], *o;
	struct vfm_linear_args fc1;

	for (int k = 0; k < 2; k++) {
		struct projection p = {.attn = a[k], .lay = l->layers[k]};

		if (k == 0)
			p.rope = rope;
		if (mlp) {
			fc1 = make_linear_args(&mlp->in, mlp->exact ? VFM_ACT_NONE : VFM_ACT_GELU_TANH, x[k]->v.dtype);
			p.next = &fc1;
		}
		project(t, &p, x[k], of[k]);
		hidden[k] = p.next_y;
	}
	for (int i = 0; i < 3; i++)
		qkv[i] = vfm_g_join_rows(t, (struct vfm_var *[]){of[0][i], of[1][i]}, l->rows);
	o = vfm_m_attn(t, qkv[0], qkv[1], qkv[2], l->attn, 1.0f / sqrtf((float)a[0]->head_dim));
	for (int k = 0; k < 2; k++) {
		const enum vfm_dtype dt = x[k]->v.dtype;

		x[k] = vfm_linear_row(t, &a[k]->proj, vfm_g_part_of_rows(t, o, k, l->rows), dt, l->layers[k]);
		if (mlp && mlp->exact)
			hidden[k] = vfm_g_act(t, hidden[k], VFM_ACT_GELU);
		if (mlp)
			x[k] = vfm_g_gate(
				t, x[k], vfm_linear_row(t, &mlp->out, hidden[k], dt, l->layers[k]), NULL, NULL);
	}
}

/* ---- positions ---- */

/* A row of a table consists of one segment per axis, which depends only on the position along that axis.  Each segment
 * is computed once per position, then copied. */
struct table {
	float *out;
	const int16_t (*pos)[3];
	int64_t width, segment[3]; /* features of a row; of an axis */
	float *axis[3];            /* [positions, segment] */
	void (*copy)(int64_t i0, int64_t i1, void *arg);
	double scale[3];    /* of positions */
	int64_t first_pair; /* row RoPE: that of a row, counted from the first that rotates */
};

static void copy_rows(int64_t i0, int64_t i1, void *arg)
{
	const struct table *r = arg;

	for (int64_t i = i0; i < i1; i++) {
		float *o = r->out + i * r->width;

		for (int a = 0; a < 3; a++) {
			memcpy(o, r->axis[a] + r->pos[i][a] * r->segment[a], (size_t)r->segment[a] * sizeof(float));
			o += r->segment[a];
		}
	}
}

/* The pairs of row RoPE, where the axes alternate. */
static void copy_pairs(int64_t i0, int64_t i1, void *arg)
{
	static const float still[2] = {1, 0};
	const struct table *r = arg;

	for (int64_t i = i0; i < i1; i++) {
		float *o = r->out + i * r->width;

		for (int64_t pair = r->first_pair; pair < r->first_pair + r->width / 2; pair++, o += 2) {
			int64_t a = pair < 0 ? 0 : pair % 3;
			const float *from = pair < 0 ? still : r->axis[a] + r->pos[i][a] * r->segment[a] + pair / 3 * 2;

			memcpy(o, from, sizeof(still));
		}
	}
}

/* fill writes the segment of one position: n features.  theta [3] is that of each axis. */
static void make_table(struct table *r, int64_t tokens, const double *theta,
	void (*fill)(float *out, int64_t n, double position, double theta))
{
	for (int a = 0; a < 3; a++) {
		int64_t positions = 0;

		for (int64_t i = 0; i < tokens; i++)
			if (r->pos[i][a] >= positions)
				positions = r->pos[i][a] + 1;
		r->axis[a] = vfm_calloc((size_t)(positions * r->segment[a]) + 1, sizeof(float));
		for (int64_t p = 0; p < positions; p++)
			fill(r->axis[a] + p * r->segment[a], r->segment[a], r->scale[a] * (double)p, theta[a]);
	}
	vfm_par_for(tokens, 1024, r->copy, r);
	for (int a = 0; a < 3; a++)
		free(r->axis[a]);
}

static void rope_piece(float *out, int64_t n, double position, double theta)
{
	for (int64_t j = 0; j < n / 2; j++) {
		double angle = position * pow(theta, -2.0 * (double)j / (double)n);

		out[2 * j] = (float)cos(angle);
		out[2 * j + 1] = (float)sin(angle);
	}
}

void vfm_rope_table(float *out, const int16_t (*pos)[3], int64_t tokens, const struct vfm_rope_axes *r)
{
	struct table t = {
		.out = out, .pos = pos, .width = r->features[0] + r->features[1] + r->features[2], .copy = copy_rows};

	memcpy(t.segment, r->features, sizeof(t.segment));
	memcpy(t.scale, r->scale, sizeof(t.scale));
	make_table(&t, tokens, r->theta, rope_piece);
}

static void row_rope_piece(float *out, int64_t n, double position, double theta)
{
	const int64_t last = n / 2 - 1;

	for (int64_t j = 0; j <= last; j++) {
		double angle = (2 * position - 1) * M_PI / 2 * pow(theta, last ? (double)j / (double)last : 0);

		out[2 * j] = (float)cos(angle);
		out[2 * j + 1] = (float)sin(angle);
	}
}

void vfm_row_rope_table(float *out, const int16_t (*pos)[3], int64_t tokens, const struct vfm_row_rope *r)
{
	const int64_t n = 2 * (r->hidden / 6);
	struct table t = {.out = out,
		.pos = pos,
		.width = r->width,
		.segment = {n, n, n},
		.copy = copy_pairs,
		.scale = {r->scale[0], r->scale[1], r->scale[2]},
		.first_pair = (r->first - r->hidden % 6) / 2};

	make_table(&t, tokens, (const double[]){r->theta, r->theta, r->theta}, row_rope_piece);
}

static void sincos_piece(float *out, int64_t n, double position, double theta)
{
	int64_t half = n / 2;

	for (int64_t j = 0; j < half; j++) {
		double angle = position / pow(theta, (double)j / (double)half);

		out[j] = (float)sin(angle);
		out[half + j] = (float)cos(angle);
	}
}

void vfm_sincos_table(float *out, const int16_t (*pos)[3], int64_t tokens, int64_t hidden)
{
	int64_t dt = hidden / 4, ds = (hidden - dt) / 2;
	struct table r = {.out = out,
		.pos = pos,
		.width = hidden,
		.segment = {dt, ds, ds},
		.copy = copy_rows,
		.scale = {1, 1, 1}};

	make_table(&r, tokens, (const double[]){10000, 10000, 10000}, sincos_piece);
}
