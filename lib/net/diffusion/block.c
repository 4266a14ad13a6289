/* block.c - declares the parameters of a block, and runs attention, text attention and MLP. */
#include "net/diffusion/block.h"

#include <stdio.h>

#include "net/mesh/attn.h"

enum { SHIFT, SCALE, GATE, PER_PART }; /* of the modulation of a self-attention or of the MLP */

enum vfm_norm_kind vfm_block_norm(const struct vfm_arch *a)
{
	return a->rms_norm ? VFM_NORM_RMS : VFM_NORM_LAYER;
}

/* ---- parameters ---- */

static void declare_text_attn(
	struct vfm_block *b, struct vfm_params *ps, const struct vfm_attn_desc *attn, int64_t layer)
{
	const int l = (int)layer;
	char prefix[64];

	if (!b->arch->plain_cross && !b->arch->cross_mod)
		b->ln_w = vfm_vector_declare(ps, attn->unit, attn->hidden, VFM_INIT_ONE, "blocks.%d.ln_c.weight", l);
	if (b->ln_w && !b->arch->rms_norm)
		b->ln_b = vfm_vector_declare(ps, attn->unit, attn->hidden, VFM_INIT_ZERO, "blocks.%d.ln_c.bias", l);
	snprintf(prefix, sizeof(prefix), "blocks.%d.cross", l);
	vfm_cross_attn_declare(&b->cross, ps, attn, prefix);
}

static struct vfm_mlp_desc mlp_desc(const struct vfm_model_spec *m, int unit)
{
	const struct vfm_arch *a = vfm_model_arch(m);

	return (struct vfm_mlp_desc){.unit = unit,
		.hidden = m->hidden,
		.ffn = m->ffn,
		.gated = a->mlp == VFM_MLP_SWIGLU,
		.exact = a->mlp == VFM_MLP_GELU_EXACT,
		.no_bias = a->no_bias};
}

static void declare_block_mlp(
	struct vfm_block *b, const struct vfm_model_spec *m, struct vfm_params *ps, int unit, int64_t layer)
{
	struct vfm_mlp_desc d = mlp_desc(m, unit);
	char prefix[64];

	b->has_moe = vfm_model_has_experts(m);
	if (b->has_moe) {
		snprintf(prefix, sizeof(prefix), "blocks.%d.moe", (int)layer);
		vfm_moe_declare(&b->moe, ps, unit, m, prefix);
		d.ffn = m->shared_experts * m->expert_ffn;
	}
	b->has_mlp = d.ffn > 0;
	snprintf(prefix, sizeof(prefix), b->has_moe ? "blocks.%d.shared." : "blocks.%d.", (int)layer);
	if (b->has_mlp)
		vfm_mlp_declare(&b->mlp, ps, &d, prefix);
}

static void declare_text_stream(struct vfm_block *b, const struct vfm_model_spec *m, struct vfm_params *ps,
	const struct vfm_attn_desc *attn, int64_t layer)
{
	const struct vfm_mlp_desc mlp = mlp_desc(m, attn->unit);
	char prefix[64];

	snprintf(prefix, sizeof(prefix), "blocks.%d.text", (int)layer);
	vfm_self_attn_declare(&b->text_attn, ps, attn, prefix);
	snprintf(prefix, sizeof(prefix), "blocks.%d.text.", (int)layer);
	vfm_mlp_declare(&b->text_mlp, ps, &mlp, prefix);
}

void vfm_block_declare(
	struct vfm_block *b, const struct vfm_model_spec *m, struct vfm_params *ps, int unit, int64_t layer)
{
	static const char *const names[] = {
		[VFM_ATTN_FULL] = "attn", [VFM_ATTN_SPATIAL] = "attn_s", [VFM_ATTN_TEMPORAL] = "attn_t"};
	const struct vfm_arch *a = vfm_model_arch(m);
	const struct vfm_attn_desc attn = {.unit = unit,
		.hidden = m->hidden,
		.heads = m->heads,
		.kv_heads = m->kv_heads,
		.qk_norm = m->qk_norm,
		.row_qk_norm = a->row_qk_norm,
		.no_bias = a->no_bias,
		.no_proj_bias = vfm_model_is_single(m, layer), /* the MLP has the bias of the sum */
		.image = m->image_dim > 0,
		.context = vfm_model_context_dim(m),
		.eps = (float)(a->qk_eps > 0 ? a->qk_eps : m->norm_eps)};
	char prefix[64];

	*b = (struct vfm_block){.arch = a,
		.has_text = vfm_model_has_cross(m),
		.single = vfm_model_is_single(m, layer),
		.eps = (float)m->norm_eps};
	for (int i = 0; i < a->n_attn; i++) {
		snprintf(prefix, sizeof(prefix), "blocks.%d.%s", (int)layer, names[a->attn[i]]);
		vfm_self_attn_declare(&b->attn[i], ps, &attn, prefix);
	}
	if (b->has_text)
		declare_text_attn(b, ps, &attn, layer);
	declare_block_mlp(b, m, ps, unit, layer);
	if (a->joint && !b->single)
		declare_text_stream(b, m, ps, &attn, layer);
}

/* ---- the residual stream ---- */

/* The residual stream within a block: h, and a branch that the op of the next norm adds to it.  Sum and norm as one op
 * read the stream once less; so does their backward.  A block ends with the value of its stream: a branch pending
 * between blocks would have to be saved by recompute, and would need gradients of another unit. */
struct residual {
	struct vfm_var *h;           /* [T,D] f32 or bf16 */
	struct vfm_var *branch;      /* [T,D]; NULL: none is pending */
	struct vfm_var *gate;        /* [G,D] of the branch; NULL: 1 */
	const struct vfm_seqs *seqs; /* of the gate */
};

/* Returns the stream with all branches. */
static struct vfm_var *residual_value(struct vfm_tape *t, struct residual *r)
{
	if (r->branch)
		r->h = vfm_g_gate(t, r->h, r->branch, r->gate, r->seqs);
	r->branch = NULL;
	return r->h;
}

/* Adds gate[seg] * branch to the stream; branch and gate may be NULL. */
static void residual_add(struct vfm_tape *t, struct residual *r, struct vfm_var *branch, struct vfm_var *gate)
{
	r->h = residual_value(t, r);
	r->branch = branch;
	r->gate = gate;
}

/* Returns the norm of the stream. */
static struct vfm_var *residual_norm(struct vfm_tape *t, struct residual *r, const struct vfm_norm_args *args)
{
	struct vfm_norm_args a = *args;
	struct vfm_var *branch = r->branch;

	a.seqs = r->seqs;
	r->branch = NULL;
	return branch ? vfm_g_add_norm(t, r->h, branch, r->gate, &a, &r->h) : vfm_g_norm(t, r->h, &a);
}

/* ---- forward ---- */

/* Returns self-attention i of x. */
static struct vfm_var *self_attn(
	struct vfm_tape *t, const struct vfm_block *b, int i, struct vfm_var *x, const struct vfm_model_in *in)
{
	switch (b->arch->attn[i]) {
	case VFM_ATTN_SPATIAL:
		return vfm_self_attn_units(t, &b->attn[i], x, &in->attn, &in->frames.a);
	case VFM_ATTN_TEMPORAL:
		return vfm_self_attn_units(t, &b->attn[i], x, &in->attn, &in->columns.a);
	default:
		return vfm_self_attn(t, &b->attn[i], x, &in->attn, in->rope);
	}
}

/* Adds the cross-attention to the text.  mod: its shift, scale and gate with cross_mod, else NULL. */
static void add_text_attn(struct vfm_tape *t, const struct vfm_block *b, const struct vfm_block_in *in,
	struct vfm_var *const *mod, struct residual *r)
{
	const struct vfm_attn_layout *l = &in->in->attn;
	struct vfm_norm_args norm = {.kind = vfm_block_norm(b->arch),
		.eps = b->eps,
		.out = in->in->x.dtype,
		.fp8 = vfm_linear_norm(&b->cross.q, l)};
	struct vfm_var *y;

	if (b->ln_w)
		norm.weight = &b->ln_w->var;
	if (b->ln_b)
		norm.bias = &b->ln_b->var;
	if (mod) {
		norm.shift = mod[SHIFT];
		norm.scale = mod[SCALE];
	}
	y = b->ln_w || mod ? residual_norm(t, r, &norm) : vfm_g_cast(t, residual_value(t, r), norm.out);
	residual_add(t, r,
		vfm_cross_attn(t, &b->cross, y, l,
			&(struct vfm_cross_ctx){in->ctx, in->img, &in->in->text_seqs, &in->in->image_seqs}),
		mod ? mod[GATE] : NULL);
}

/* The sum over experts has the dtype of the residual stream. */
static struct vfm_var *block_mlp(struct vfm_tape *t, const struct vfm_block *b, struct vfm_var *x,
	const struct vfm_model_in *in, enum vfm_dtype stream)
{
	struct vfm_var *y = b->has_moe ? vfm_moe(t, &b->moe, x, &in->moe, stream) : NULL;

	if (!b->has_mlp)
		return y;
	return y ? vfm_g_gate(t, y, vfm_mlp(t, &b->mlp, x, &in->attn), NULL, NULL) : vfm_mlp(t, &b->mlp, x, &in->attn);
}

static struct vfm_var *plain_block(struct vfm_tape *t, const struct vfm_block *b, const struct vfm_block_in *in)
{
	const struct vfm_attn_layout *l = &in->in->attn;
	struct residual s = {.h = in->h, .seqs = &in->in->segs};
	struct vfm_norm_args norm = {.kind = vfm_block_norm(b->arch), .eps = b->eps, .out = in->in->x.dtype};
	struct vfm_var *const *mod = in->mod, *y;

	residual_add(t, &s, in->pos, NULL);
	for (int i = 0; i < b->arch->n_attn; i++, mod += PER_PART) {
		norm.shift = mod[SHIFT];
		norm.scale = mod[SCALE];
		/* Rows for frames and columns are redistributed first. */
		norm.fp8 = b->arch->attn[i] == VFM_ATTN_FULL ? vfm_self_attn_norm(&b->attn[i], NULL, l)
							     : (struct vfm_norm_fp8){0};
		y = residual_norm(t, &s, &norm);
		residual_add(t, &s, self_attn(t, b, i, y, in->in), mod[GATE]);
	}
	if (b->has_text)
		add_text_attn(t, b, in, b->arch->cross_mod ? mod : NULL, &s);
	if (b->arch->cross_mod)
		mod += PER_PART;
	norm.shift = mod[SHIFT];
	norm.scale = mod[SCALE];
	norm.fp8 = b->has_moe ? (struct vfm_norm_fp8){0} : vfm_linear_norm(&b->mlp.in, l);
	y = residual_norm(t, &s, &norm);
	residual_add(t, &s, block_mlp(t, b, y, in->in, s.h->v.dtype), mod[GATE]);
	return residual_value(t, &s);
}

struct vfm_var *vfm_stream_part(struct vfm_tape *t, struct vfm_var *h, const struct vfm_model_in *in, int k)
{
	const int64_t n = in->tok.rows, d = h->v.shape[1];
	char *data = h->v.data;

	if (k == 0 && in->stream_rows == n)
		return h;
	if (k == 0)
		return vfm_view(t, h, vfm_t2(data, h->v.dtype, n, d));
	data = data ? data + (size_t)(n * d) * vfm_dtype_size(h->v.dtype) : NULL;
	return vfm_view(t, h, vfm_t2(data, h->v.dtype, in->stream_rows - n, d));
}

static struct vfm_var *joint_block(struct vfm_tape *t, const struct vfm_block *b, const struct vfm_block_in *in)
{
	const struct vfm_joint_in *j = &in->in->joint;
	const struct vfm_self_attn *attn[] = {&b->attn[0], &b->text_attn};
	const struct vfm_joint_layout layout = {{&in->in->attn, &j->layers}, &j->attn, &j->rows};
	const struct vfm_mlp *mlp[] = {&b->mlp, &b->text_mlp};
	const struct vfm_seqs *segs[] = {&in->in->segs, &j->segs};
	struct vfm_norm_args norm = {.kind = vfm_block_norm(b->arch), .eps = b->eps, .out = in->in->x.dtype};
	struct vfm_var *const *mod[] = {in->mod, in->mod + b->arch->n_mod / 2}, *x[2];
	struct residual s[2];

	for (int k = 0; k < 2; k++) {
		s[k] = (struct residual){.h = vfm_stream_part(t, in->h, in->in, k), .seqs = segs[k]};
		norm.shift = mod[k][SHIFT];
		norm.scale = mod[k][SCALE];
		norm.fp8 = vfm_self_attn_norm(attn[k], NULL, layout.layers[k]);
		x[k] = residual_norm(t, &s[k], &norm);
	}
	vfm_joint_attn(t, attn, NULL, x, &layout, in->in->rope);
	for (int k = 0; k < 2; k++) {
		residual_add(t, &s[k], x[k], mod[k][GATE]);
		norm.shift = mod[k][PER_PART + SHIFT];
		norm.scale = mod[k][PER_PART + SCALE];
		norm.fp8 = vfm_linear_norm(&mlp[k]->in, layout.layers[k]);
		x[k] = residual_norm(t, &s[k], &norm);
		residual_add(t, &s[k], vfm_mlp(t, mlp[k], x[k], layout.layers[k]), mod[k][PER_PART + GATE]);
		x[k] = residual_value(t, &s[k]);
	}
	return vfm_g_join_rows(t, x, &j->own);
}

static struct vfm_var *single_block(struct vfm_tape *t, const struct vfm_block *b, const struct vfm_block_in *in)
{
	const struct vfm_joint_in *j = &in->in->joint;
	const struct vfm_self_attn *attn[] = {&b->attn[0], &b->attn[0]};
	const struct vfm_joint_layout layout = {{&in->in->attn, &j->layers}, &j->attn, &j->rows};
	const struct vfm_seqs *segs[] = {&in->in->segs, &j->segs};
	struct vfm_norm_args norm = {.kind = vfm_block_norm(b->arch),
		.eps = b->eps,
		.shift = in->mod[SHIFT],
		.scale = in->mod[SCALE],
		.out = in->in->x.dtype};
	struct residual s[2];
	struct vfm_var *x[2];

	for (int k = 0; k < 2; k++) {
		s[k] = (struct residual){.h = vfm_stream_part(t, in->h, in->in, k), .seqs = segs[k]};
		norm.fp8 = vfm_self_attn_norm(attn[k], &b->mlp, layout.layers[k]);
		x[k] = residual_norm(t, &s[k], &norm);
	}
	vfm_joint_attn(t, attn, &b->mlp, x, &layout, in->in->rope);
	for (int k = 0; k < 2; k++) {
		residual_add(t, &s[k], x[k], in->mod[GATE]);
		x[k] = residual_value(t, &s[k]);
	}
	return vfm_g_join_rows(t, x, &j->own);
}

struct vfm_var *vfm_block(struct vfm_tape *t, const struct vfm_block *b, const struct vfm_block_in *in)
{
	if (b->single)
		return single_block(t, b, in);
	if (b->arch->joint)
		return joint_block(t, b, in);
	return plain_block(t, b, in);
}
