/* vae_net.c - plans the layers of Wan's encoder and decoder, and the tensors that they need. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "encoder/vae/vae_impl.h"

#define RMS_EPS 1e-12f /* of torch.nn.functional.normalize */

struct vae_layer *vae_plan_layer(struct vae_plan *p, enum vae_kind kind, int in)
{
	size_t n = (size_t)p->net->n + 1;
	struct vae_layer *l;

	vfm_grow(&p->net->layer, &p->cap, n, sizeof(*l));
	l = &p->net->layer[p->net->n++];
	*l = (struct vae_layer){.kind = kind, .in = in};
	return l;
}

/* ---- tensors ---- */

/* A learned convolution of all its rows; ndim 5, or 4 without time. */
static void want_conv(struct vae_plan *p, struct vae_conv *v, enum vae_tensor t, int rows, int ndim)
{
	const int64_t k3[] = {rows, v->in, v->kernel[0], v->kernel[1], v->kernel[2]};
	const int64_t k2[] = {rows, v->in, v->kernel[1], v->kernel[2]}, k1[] = {rows};
	char name[VAE_NAME];

	vae_name(name, p->c, &p->at, t);
	v->from[0] = vfm_weights_want(p->w, ndim, ndim == 5 ? k3 : k2, "%s.weight", name);
	v->from_bias[0] = vfm_weights_want(p->w, 1, k1, "%s.bias", name);
}

struct vae_conv vae_conv_of(int in, int out, int kt, int k)
{
	struct vae_conv v = {.in = in, .out = out, .kernel = {kt, k, k}, .stride = {1, 1, 1}};

	for (int i = 0; i < 4; i++)
		v.pad[i] = k / 2;
	return v;
}

void vae_conv_mean(struct vae_conv *v, int in, int out, int kt, int k)
{
	*v = vae_conv_of(in, out, kt, k);
	v->fixed = VAE_AVG_DOWN;
	v->group = in * kt * k * k / out;
	v->stride[1] = v->stride[2] = k;
	memset(v->pad, 0, sizeof(v->pad));
}

void vae_want_rows(struct vae_plan *p, struct vae_conv *v, int i, int rows, const char *name)
{
	const int64_t shape[] = {rows, v->in, v->kernel[0], v->kernel[1], v->kernel[2]};

	v->from[i] = vfm_weights_want(p->w, 5, shape, "%s.weight", name);
	v->from_bias[i] = vfm_weights_want(p->w, 1, shape, "%s.bias", name);
}

static void conv_layer(struct vae_plan *p, struct vae_conv *v, enum vae_tensor t, int in, int out, int k)
{
	*v = vae_conv_of(in, out, k, k);
	want_conv(p, v, t, out, 5);
}

static void norm_layer(struct vae_plan *p, struct vae_norm *n, enum vae_tensor t, int dim, int ndim)
{
	char name[VAE_NAME];

	vae_name(name, p->c, &p->at, t);
	n->dim = dim;
	n->eps = RMS_EPS;
	n->from = vfm_weights_want(p->w, ndim, (int64_t[]){dim, 1, 1, 1}, "%s", name);
}

/* ---- layers ---- */

static void plan_res(struct vae_plan *p, int in, int out)
{
	struct vae_layer *l = vae_plan_layer(p, VAE_LAYER_RES, in);

	norm_layer(p, &l->norm[0], VAE_NORM1, in, 4);
	conv_layer(p, &l->conv[0], VAE_CONV1, in, out, 3);
	norm_layer(p, &l->norm[1], VAE_NORM2, out, 4);
	conv_layer(p, &l->conv[1], VAE_CONV2, out, out, 3);
	if (in != out)
		conv_layer(p, &l->conv[2], VAE_SHORTCUT, in, out, 1);
}

static void plan_mid(struct vae_plan *p, int dim)
{
	struct vae_layer *l;

	p->at = (struct vae_place){.part = p->at.part, .mid = true};
	plan_res(p, dim, dim);
	l = vae_plan_layer(p, VAE_LAYER_ATTN, dim);
	norm_layer(p, &l->norm[0], VAE_ATTN_NORM, dim, 3);
	l->conv[0] = vae_conv_of(dim, 3 * dim, 1, 1);
	want_conv(p, &l->conv[0], VAE_ATTN_QKV, 3 * dim, 4);
	l->conv[0].scaled = dim; /* q / sqrt(dim) */
	l->conv[0].scale = 1 / sqrtf((float)dim);
	l->conv[1] = vae_conv_of(dim, dim, 1, 1);
	want_conv(p, &l->conv[1], VAE_ATTN_PROJ, dim, 4);
	p->at.index = 1;
	plan_res(p, dim, dim);
}

static void plan_head(struct vae_plan *p, int dim, int out)
{
	norm_layer(p, &vae_plan_layer(p, VAE_LAYER_NORM, dim)->norm[0], VAE_NORM_OUT, dim, 4);
	conv_layer(p, &vae_plan_layer(p, VAE_LAYER_CONV, dim)->conv[0], VAE_CONV_OUT, dim, out, 3);
}

/* Cuts the head's convolution over 3 frames into one of each frame, with results for the next two as well, and their
 * sum.  The second holds 3 * out channels of two frames, where the whole would hold dim. */
static void split_head(struct vae_plan *p, int out)
{
	struct vae_conv *v = &p->net->layer[p->net->n - 1].conv[0], sum = vae_conv_of(3 * out, out, 3, 1);

	sum.fixed = VAE_SUM_FRAMES;
	sum.from_bias[0] = v->from_bias[0];
	v->from_bias[0] = NULL;
	v->split = v->kernel[0];
	v->kernel[0] = 1;
	v->out = 3 * out;
	vae_plan_layer(p, VAE_LAYER_CONV, 3 * out)->conv[0] = sum;
}

static void plan_down(struct vae_plan *p, int in, int dim, bool temporal)
{
	struct vae_layer *l = vae_plan_layer(p, VAE_LAYER_DOWN, dim);
	struct vae_conv *v = &l->conv[0];

	*v = vae_conv_of(dim, dim, 1, 3);
	v->stride[1] = v->stride[2] = 2;
	v->pad[0] = v->pad[2] = 0;
	want_conv(p, v, VAE_RESAMPLE, dim, 4);
	l->temporal = temporal;
	if (temporal) {
		l->conv[1] = vae_conv_of(dim, dim, 3, 1);
		want_conv(p, &l->conv[1], VAE_TIME_CONV, dim, 5);
	}
	if (p->c->wan.residual) {
		l->has_shortcut = true;
		vae_conv_mean(&l->shortcut[0], in, dim, temporal ? 2 : 1, 2);
	}
}

static void plan_up(struct vae_plan *p, int in, int dim, int out, bool temporal)
{
	struct vae_layer *l = vae_plan_layer(p, VAE_LAYER_UP, dim);

	l->temporal = temporal;
	l->conv[0] = vae_conv_of(dim, out, 1, 3);
	l->conv[0].up = 1;
	want_conv(p, &l->conv[0], VAE_RESAMPLE, out, 4);
	if (temporal) { /* the outputs of one tensor: those of the first frame come first */
		l->conv[1] = vae_conv_of(dim, dim, 3, 1);
		want_conv(p, &l->conv[1], VAE_TIME_CONV, 2 * dim, 5);
		l->conv[2] = l->conv[1];
		l->conv[2].first = dim;
	}
	l->has_shortcut = p->c->wan.residual;
	for (int i = 0; l->has_shortcut && in != out && i < (temporal ? 2 : 1); i++) {
		l->shortcut[i] = vae_conv_of(in, 4 * out, 1, 1);
		l->shortcut[i].fixed = VAE_DUP_UP;
		l->shortcut[i].dup_t = temporal ? i : -1;
	}
}

static void plan_encoder(struct vae_plan *p)
{
	const struct vae_config *c = p->c;
	int in = c->wan.base_dim, out = in;

	conv_layer(p, &vae_plan_layer(p, VAE_LAYER_CONV, c->in_channels)->conv[0], VAE_CONV_IN, c->in_channels, in, 3);
	for (int i = 0; i < c->wan.levels; i++, in = out) {
		const bool down = i < c->wan.levels - 1;

		out = c->wan.base_dim * c->wan.dim_mult[i];
		if (c->wan.residual)
			vae_plan_layer(p, VAE_LAYER_SAVE, in);
		for (int j = 0; j < c->num_res_blocks; j++) {
			p->at.level = i, p->at.index = j;
			plan_res(p, j ? out : in, out);
		}
		p->at.index = c->num_res_blocks;
		if (down) {
			plan_down(p, in, out, c->wan.temporal_down[i]);
		} else if (c->wan.residual) {
			struct vae_layer *l = vae_plan_layer(p, VAE_LAYER_ADD, out);

			vae_conv_mean(&l->shortcut[0], in, out, 1, 1);
			l->has_shortcut = in != out;
		}
	}
	plan_mid(p, out);
	plan_head(p, out, 2 * c->z_dim);
	/* the mode of the posterior: the first half of quant_conv */
	{
		struct vae_conv *v = &vae_plan_layer(p, VAE_LAYER_CONV, 2 * c->z_dim)->conv[0];

		*v = vae_conv_of(2 * c->z_dim, c->z_dim, 1, 1);
		want_conv(p, v, VAE_QUANT, 2 * c->z_dim, 5);
	}
	p->net->out = c->z_dim;
}

static void plan_decoder(struct vae_plan *p)
{
	const struct vae_config *c = p->c;
	int in = c->wan.decoder_base_dim * c->wan.dim_mult[c->wan.levels - 1], out = in;

	conv_layer(p, &vae_plan_layer(p, VAE_LAYER_CONV, c->z_dim)->conv[0], VAE_QUANT, c->z_dim, c->z_dim, 1);
	conv_layer(p, &vae_plan_layer(p, VAE_LAYER_CONV, c->z_dim)->conv[0], VAE_CONV_IN, c->z_dim, in, 3);
	plan_mid(p, in);
	p->at = (struct vae_place){.part = VAE_DECODER};
	for (int i = 0; i < c->wan.levels; i++, in = c->wan.residual ? out : out / 2) {
		const int level = c->wan.levels - 1 - i;
		const bool up = level > 0;

		out = c->wan.decoder_base_dim * c->wan.dim_mult[level];
		if (c->wan.residual && up)
			vae_plan_layer(p, VAE_LAYER_SAVE, in);
		for (int j = 0; j <= c->num_res_blocks; j++) {
			p->at.level = i, p->at.index = j;
			plan_res(p, j ? out : in, out);
		}
		p->at.index = c->num_res_blocks + 1;
		if (up)
			plan_up(p, in, out, c->wan.residual ? out : out / 2, c->wan.temporal_down[level - 1]);
	}
	plan_head(p, out, c->out_channels);
	if (p->dtype == VFM_F32 && 3 * c->out_channels < out) /* bf16 would round each of the results */
		split_head(p, c->out_channels);
	p->net->out = c->out_channels;
}

void vae_net_plan(struct vae_net *net, const struct vae_config *c, enum vae_part part, enum vfm_dtype dtype,
	struct vfm_weights *w)
{
	struct vae_plan p = {.net = net, .c = c, .w = w, .dtype = dtype, .at = {.part = part}};

	*net = (struct vae_net){0};
	if (c->family == VAE_COSMOS)
		vae_plan_cosmos(&p);
	else if (c->family == VAE_LTX)
		vae_plan_ltx(&p);
	else if (c->family == VAE_HUNYUAN)
		vae_plan_hunyuan(&p);
	else if (part == VAE_ENCODER)
		plan_encoder(&p);
	else
		plan_decoder(&p);
}

void vae_net_free(struct vae_net *net)
{
	free(net->layer);
	*net = (struct vae_net){0};
}
