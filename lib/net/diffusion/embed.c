/* embed.c - embedders of texts and image rows, and the refiner. */
#include "net/diffusion/embed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const float EMBED_EPS = 1e-5f; /* of the norms of image rows and of the second text */
static const float REFINER_EPS = 1e-6f;

/* ---- parameters ---- */

static void declare_norm(
	struct vfm_param **w, struct vfm_param **b, struct vfm_params *ps, int unit, int64_t n, const char *name)
{
	*w = vfm_vector_declare(ps, unit, n, VFM_INIT_ONE, "%s.weight", name);
	*b = vfm_vector_declare(ps, unit, n, VFM_INIT_ZERO, "%s.bias", name);
}

static void declare_layer(
	struct vfm_linear *l, struct vfm_params *ps, int unit, int64_t in, int64_t out, const char *name)
{
	vfm_linear_declare(l, ps, &(struct vfm_linear_desc){.unit = unit, .in = in, .out = out}, "%s", name);
}

/* As declare_layer, for an input of one row a sample. */
static void declare_few(
	struct vfm_linear *l, struct vfm_params *ps, int unit, int64_t in, int64_t out, const char *name)
{
	declare_layer(l, ps, unit, in, out, name);
	l->few = true;
}

static void declare_text(struct vfm_embedders *c, struct vfm_params *ps, int unit)
{
	const struct vfm_model_spec *m = &c->m;
	const bool mlp = c->arch->text == VFM_TEXT_MLP;

	if (c->arch->text == VFM_TEXT_ROWS && !m->text_proj)
		return;
	declare_layer(&c->text[0], ps, unit, m->text_dim, vfm_model_context_dim(m), mlp ? "ctx_mlp.0" : "ctx_proj");
	if (mlp)
		declare_layer(&c->text[1], ps, unit, m->hidden, m->hidden, "ctx_mlp.2");
}

/* The numbers of the names are those of Wan 2.1. */
static void declare_image(struct vfm_embedders *c, struct vfm_params *ps, int unit)
{
	const int64_t in = c->m.image_dim, out = c->m.hidden;
	const struct vfm_pdesc table = {.ndim = 2, .shape = {c->m.image_pos, in}};

	if (c->m.image_pos)
		c->image_pos = vfm_param_add(ps, unit, &table, VFM_INIT_ZERO, 0, "img_mlp.pos");
	declare_norm(&c->image_w[0], &c->image_b[0], ps, unit, in, "img_mlp.0");
	declare_layer(&c->image[0], ps, unit, in, in, "img_mlp.1");
	declare_norm(&c->image_w[1], &c->image_b[1], ps, unit, out, "img_mlp.4");
	declare_layer(&c->image[1], ps, unit, in, out, "img_mlp.3");
}

static void declare_text2(struct vfm_embedders *c, struct vfm_params *ps, int unit)
{
	declare_norm(&c->text2_w, &c->text2_b, ps, unit, c->m.text2_dim, "text2.0");
	declare_layer(&c->text2[0], ps, unit, c->m.text2_dim, VFM_TEXT2_WIDTH, "text2.1");
	declare_layer(&c->text2[1], ps, unit, VFM_TEXT2_WIDTH, VFM_TEXT2_WIDTH, "text2.3");
	declare_layer(&c->text2[2], ps, unit, VFM_TEXT2_WIDTH, c->m.hidden, "text2.5");
}

static void declare_refiner_block(struct vfm_refiner_block *b, struct vfm_params *ps, int unit, int64_t h, int64_t i)
{
	struct {
		struct vfm_linear *l;
		const char *name;
		int64_t in, out;
		int groups;
	} layers[] = {{&b->qkv, "qkv", h, 3 * h, 3}, {&b->proj, "proj", h, h, 1}, {&b->fc1, "fc1", h, 4 * h, 1},
		{&b->fc2, "fc2", 4 * h, h, 1}, {&b->ada, "ada", h, 2 * h, 1}};
	char name[64];

	for (int k = 0; k < 2; k++) {
		snprintf(name, sizeof(name), "refiner.%d.ln%d", (int)i, k + 1);
		declare_norm(&b->ln_w[k], &b->ln_b[k], ps, unit, h, name);
	}
	for (size_t k = 0; k < sizeof(layers) / sizeof(layers[0]); k++)
		vfm_linear_declare(layers[k].l, ps,
			&(struct vfm_linear_desc){.unit = unit,
				.in = layers[k].in,
				.out = layers[k].out,
				.groups = layers[k].groups,
				.zero = layers[k].l == &b->ada,
				.few = layers[k].l == &b->ada},
			"refiner.%d.%s", (int)i, layers[k].name);
}

static void declare_refiner(struct vfm_embedders *c, struct vfm_params *ps, int unit)
{
	const int64_t h = c->m.hidden;

	declare_few(&c->time[0], ps, unit, VFM_TIME_FEATURES, h, "refiner.t.0");
	declare_few(&c->time[1], ps, unit, h, h, "refiner.t.2");
	declare_few(&c->pool[0], ps, unit, c->m.text_dim, h, "refiner.pool.0");
	declare_few(&c->pool[1], ps, unit, h, h, "refiner.pool.2");
	c->refiner = vfm_calloc((size_t)c->m.refiner_layers, sizeof(*c->refiner));
	for (int64_t i = 0; i < c->m.refiner_layers; i++)
		declare_refiner_block(&c->refiner[i], ps, unit, h, i);
}

static void declare_row_types(struct vfm_embedders *c, struct vfm_params *ps, int unit)
{
	const bool has[VFM_ROW_PARTS] = {true, c->m.text2_dim > 0, c->m.image_dim > 0};
	const struct vfm_pdesc row = {.ndim = 1, .shape = {c->m.hidden}};
	const float std = 1 / sqrtf((float)c->m.hidden);

	for (int k = 0; k < VFM_ROW_PARTS; k++)
		if (has[k])
			c->type[k] = vfm_param_add(ps, unit, &row, VFM_INIT_NORMAL, std, "row_type.%d", k);
}

void vfm_embedders_declare(struct vfm_embedders *c, const struct vfm_model_spec *m, struct vfm_params *ps, int unit)
{
	*c = (struct vfm_embedders){.m = *m, .arch = vfm_model_arch(m)};
	if (vfm_model_reads_text(m))
		declare_text(c, ps, unit);
	if (m->text2_dim && !c->arch->text2_vector)
		declare_text2(c, ps, unit);
	if (m->image_dim)
		declare_image(c, ps, unit);
	if (c->arch->text == VFM_TEXT_REFINER)
		declare_refiner(c, ps, unit);
	if (c->arch->row_type)
		declare_row_types(c, ps, unit);
}

void vfm_embedders_release(struct vfm_embedders *c)
{
	free(c->refiner);
	*c = (struct vfm_embedders){0};
}

/* ---- forward ---- */

struct vfm_var *vfm_embed_text(
	struct vfm_tape *t, const struct vfm_embedders *c, struct vfm_tensor text, enum vfm_dtype out)
{
	struct vfm_var *x = vfm_input(t, text);

	if (c->arch->text == VFM_TEXT_ROWS && !c->text[0].w)
		return vfm_g_cast(t, x, out);
	if (c->arch->text == VFM_TEXT_ROWS)
		return vfm_g_act(t, vfm_linear(t, &c->text[0], x, VFM_ACT_NONE, out), VFM_ACT_GELU);
	if (c->text[1].w)
		x = vfm_linear(t, &c->text[0], x, VFM_ACT_GELU_TANH, out);
	return vfm_linear(t, &c->text[c->text[1].w != NULL], x, VFM_ACT_NONE, out);
}

/* Adds the table to the image rows of each sample, as rows of image_len * image_dim elements. */
static struct vfm_var *add_image_positions(struct vfm_tape *t, const struct vfm_embedders *c, struct vfm_tensor image)
{
	const int64_t len = c->m.image_len, dim = c->m.image_dim;
	struct vfm_var *x = vfm_input(t, vfm_t2(image.data, VFM_F32, image.shape[0] / len, len * dim));

	x = vfm_g_add_row(t, x, &c->image_pos->var);
	return vfm_view(t, x, vfm_t2(x->v.data, VFM_F32, image.shape[0], dim));
}

struct vfm_var *vfm_embed_image(
	struct vfm_tape *t, const struct vfm_embedders *c, struct vfm_tensor image, enum vfm_dtype out)
{
	struct vfm_norm_args norm = {.kind = VFM_NORM_LAYER, .eps = EMBED_EPS, .out = VFM_F32};
	struct vfm_var *x = c->image_pos ? add_image_positions(t, c, image) : vfm_input(t, image);

	for (int i = 0; i < 2; i++) {
		norm.weight = &c->image_w[i]->var;
		norm.bias = &c->image_b[i]->var;
		if (i == 0)
			x = vfm_g_norm(t, x, &norm);
		x = vfm_linear(t, &c->image[i], x, VFM_ACT_NONE, VFM_F32);
		if (i == 0)
			x = vfm_g_act(t, x, VFM_ACT_GELU);
	}
	norm.out = out;
	return vfm_g_norm(t, x, &norm);
}

static struct vfm_var *embed_text2(
	struct vfm_tape *t, const struct vfm_embedders *c, struct vfm_tensor text2, enum vfm_dtype out)
{
	const struct vfm_norm_args norm = {.kind = VFM_NORM_LAYER,
		.eps = EMBED_EPS,
		.out = VFM_F32,
		.weight = &c->text2_w->var,
		.bias = &c->text2_b->var};
	struct vfm_var *x = vfm_g_norm(t, vfm_input(t, text2), &norm);

	for (int i = 0; i < 2; i++)
		x = vfm_g_act(t, vfm_linear(t, &c->text2[i], x, VFM_ACT_NONE, VFM_F32), VFM_ACT_GELU);
	return vfm_linear(t, &c->text2[2], x, VFM_ACT_NONE, out);
}

/* Attention of the rows of each sample to one another. */
static struct vfm_var *refiner_attn(struct vfm_tape *t, const struct vfm_refiner_block *b, struct vfm_var *x,
	const struct vfm_model_spec *m, const struct vfm_seqs *seqs)
{
	const int64_t d = vfm_model_head_dim(m);
	struct vfm_var *y = vfm_linear(t, &b->qkv, x, VFM_ACT_NONE, x->v.dtype), *qkv[3];

	for (int i = 0; i < 3; i++)
		qkv[i] = vfm_view_heads(t, y, i, m->heads, d);
	y = vfm_g_attn(t, qkv[0], qkv[1], qkv[2], seqs, seqs, 1.0f / sqrtf((float)d));
	return vfm_linear(t, &b->proj, y, VFM_ACT_NONE, x->v.dtype);
}

static struct vfm_var *refine(
	struct vfm_tape *t, const struct vfm_embedders *c, struct vfm_var *x, const struct vfm_model_in *in)
{
	const enum vfm_dtype dtype = in->x.dtype;
	struct vfm_norm_args norm = {.kind = VFM_NORM_LAYER, .eps = REFINER_EPS, .out = dtype};
	struct vfm_var *r = vfm_g_timestep(t, in->t_cond, VFM_TIME_FEATURES, 10000.0f, VFM_F32), *p, *ada, *y;

	r = vfm_linear(t, &c->time[0], r, VFM_ACT_SILU, VFM_F32);
	r = vfm_linear(t, &c->time[1], r, VFM_ACT_NONE, VFM_F32);
	p = vfm_linear(t, &c->pool[0], vfm_input(t, in->text_mean), VFM_ACT_SILU, VFM_F32);
	p = vfm_linear(t, &c->pool[1], p, VFM_ACT_NONE, VFM_F32);
	r = vfm_g_act(t, vfm_g_add(t, p, r), VFM_ACT_SILU);
	for (int64_t i = 0; i < c->m.refiner_layers; i++) {
		const struct vfm_refiner_block *b = &c->refiner[i];

		ada = vfm_linear(t, &b->ada, r, VFM_ACT_NONE, VFM_F32);
		for (int k = 0; k < 2; k++) {
			norm.weight = &b->ln_w[k]->var;
			norm.bias = &b->ln_b[k]->var;
			y = vfm_g_norm(t, x, &norm);
			if (k == 0)
				y = refiner_attn(t, b, y, &c->m, &in->text_seqs);
			else
				y = vfm_linear(t, &b->fc2, vfm_linear(t, &b->fc1, y, VFM_ACT_SILU, dtype), VFM_ACT_NONE,
					dtype);
			x = vfm_g_gate(t, x, y, vfm_view_cols(t, ada, k, c->m.hidden), &in->joint.text_segs);
		}
	}
	return x;
}

struct vfm_var *vfm_embed_rows(
	struct vfm_tape *t, const struct vfm_embedders *c, const struct vfm_model_in *in, enum vfm_dtype out)
{
	struct vfm_var *x[VFM_ROW_PARTS], *part[VFM_ROW_PARTS];
	int n = 0;

	x[0] = vfm_embed_text(t, c, in->text, out);
	if (c->refiner)
		x[0] = refine(t, c, x[0], in);
	x[1] = c->text2_w ? embed_text2(t, c, in->text2, out) : NULL;
	x[2] = c->m.image_dim ? vfm_embed_image(t, c, in->image, out) : NULL;
	for (int k = 0; k < VFM_ROW_PARTS; k++)
		if (x[k])
			part[n++] = c->type[k] ? vfm_g_add_row(t, x[k], &c->type[k]->var) : x[k];
	return vfm_g_join_rows(t, part, &in->joint.pick);
}
