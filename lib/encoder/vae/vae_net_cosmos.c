/* vae_net_cosmos.c - plans the layers of Cosmos's encoder and decoder, and the tensors that they need. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "encoder/vae/vae_impl.h"

#define GROUP_EPS 1e-6f /* of CosmosCausalGroupNorm in diffusers */

/* ---- tensors, by the names of AutoencoderKLCosmos of diffusers ---- */

static void want_norm(struct vae_plan *p, struct vae_norm *n, int dim, const char *name)
{
	n->kind = VAE_NORM_GROUP;
	n->eps = GROUP_EPS;
	n->dim = dim;
	n->from = vfm_weights_want(p->w, 1, (int64_t[]){dim}, "%s.norm.weight", name);
	n->from_bias = vfm_weights_want(p->w, 1, (int64_t[]){dim}, "%s.norm.bias", name);
}

/* ---- layers ---- */

static const char *const part_names[VAE_PARTS] = {"encoder", "decoder"};

static struct vae_layer *plan_conv(struct vae_plan *p, int in, int out, int kt, int k, const char *name)
{
	struct vae_layer *l = vae_plan_layer(p, VAE_LAYER_CONV, in);

	l->conv[0] = vae_conv_of(in, out, kt, k);
	vae_want_rows(p, &l->conv[0], 0, out, name);
	return l;
}

/* CosmosConvProjection3d: 1 x 3 x 3, then 3 x 1 x 1; with `norm` of its silu.  Returns its last layer. */
static struct vae_layer *plan_projection(struct vae_plan *p, int in, int out, const char *norm, const char *name)
{
	char part[VAE_NAME];

	if (norm)
		want_norm(p, &vae_plan_layer(p, VAE_LAYER_NORM, in)->norm[0], in, norm);
	snprintf(part, sizeof(part), "%s.conv_s", name);
	plan_conv(p, in, out, 1, 3, part);
	snprintf(part, sizeof(part), "%s.conv_t", name);
	return plan_conv(p, out, out, 3, 1, part);
}

/* CosmosResnetBlock3d */
static void plan_resnet(struct vae_plan *p, int in, int out, const char *at, int index)
{
	char block[VAE_NAME / 2], norm[VAE_NAME], conv[VAE_NAME];
	struct vae_layer *l;

	snprintf(block, sizeof(block), "%s.resnets.%d", at, index);
	vae_plan_layer(p, VAE_LAYER_SAVE, in);
	for (int i = 1; i <= 2; i++) {
		snprintf(norm, sizeof(norm), "%s.norm%d", block, i);
		snprintf(conv, sizeof(conv), "%s.conv%d", block, i);
		l = plan_projection(p, i == 1 ? in : out, out, norm, conv);
	}
	l->add = VAE_ADD_SAVED;
	l->has_shortcut = in != out;
	if (l->has_shortcut) {
		snprintf(conv, sizeof(conv), "%s.conv_shortcut", block);
		l->shortcut[0] = vae_conv_of(in, out, 1, 1);
		vae_want_rows(p, &l->shortcut[0], 0, out, conv);
	}
}

/* CosmosCausalAttention with one head, over a frame (`attentions`) or over time (`temp_attentions`). */
static void plan_attention(struct vae_plan *p, int dim, bool time, const char *at, int index)
{
	static const char *const names[] = {"to_q", "to_k", "to_v"};
	struct vae_layer *l = vae_plan_layer(p, time ? VAE_LAYER_ATTN_TIME : VAE_LAYER_ATTN, dim);
	struct vae_conv *out = &l->conv[time ? 2 : 1];
	char block[VAE_NAME / 2], name[VAE_NAME];

	snprintf(block, sizeof(block), "%s.%sattentions.%d", at, time ? "temp_" : "", index);
	snprintf(name, sizeof(name), "%s.norm", block);
	want_norm(p, &l->norm[0], dim, name);
	l->conv[0] = vae_conv_of(dim, time ? dim : 3 * dim, 1, 1);
	if (time)
		l->conv[1] = vae_conv_of(dim, 2 * dim, 1, 1);
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "%s.%s", block, names[i]);
		vae_want_rows(p, &l->conv[time && i > 0], time && i > 0 ? i - 1 : i, dim, name);
	}
	l->conv[0].scaled = dim; /* q / sqrt(dim) */
	l->conv[0].scale = 1 / sqrtf((float)dim);
	*out = vae_conv_of(dim, dim, 1, 1);
	snprintf(name, sizeof(name), "%s.to_out.0", block);
	vae_want_rows(p, out, 0, dim, name);
}

static void plan_attentions(struct vae_plan *p, int dim, const char *at, int index)
{
	plan_attention(p, dim, false, at, index);
	plan_attention(p, dim, true, at, index);
}

/* A mean of 2 x 2 pixels or of 2 frames, parallel to a convolution with the same stride. */
static void add_pooling(struct vae_layer *l, int dim, int kt, int k)
{
	l->add = VAE_ADD_INPUT;
	l->has_shortcut = true;
	vae_conv_mean(&l->shortcut[0], dim, dim, kt, k);
}

/* CosmosDownsample3d */
static void plan_cosmos_down(struct vae_plan *p, int dim, bool space, bool time, const char *at)
{
	char name[VAE_NAME];
	struct vae_layer *l;

	if (space) {
		snprintf(name, sizeof(name), "%s.downsamplers.0.conv1", at);
		l = plan_conv(p, dim, dim, 1, 3, name);
		l->conv[0].stride[1] = l->conv[0].stride[2] = 2;
		l->conv[0].pad[0] = l->conv[0].pad[2] = 0;
		add_pooling(l, dim, 1, 2);
	}
	if (time) {
		snprintf(name, sizeof(name), "%s.downsamplers.0.conv2", at);
		l = plan_conv(p, dim, dim, 3, 1, name);
		l->conv[0].stride[0] = 2;
		add_pooling(l, dim, 2, 1);
	}
	if (space || time) {
		snprintf(name, sizeof(name), "%s.downsamplers.0.conv3", at);
		plan_conv(p, dim, dim, 1, 1, name);
	}
}

/* CosmosUpsample3d */
static void plan_cosmos_up(struct vae_plan *p, int dim, bool space, bool time, const char *at)
{
	char name[VAE_NAME];

	if (time) {
		snprintf(name, sizeof(name), "%s.upsamplers.0.conv1", at);
		vae_plan_layer(p, VAE_LAYER_TWICE, dim);
		plan_conv(p, dim, dim, 3, 1, name)->add = VAE_ADD_INPUT;
	}
	if (space) {
		snprintf(name, sizeof(name), "%s.upsamplers.0.conv2", at);
		vae_plan_layer(p, VAE_LAYER_NEAREST, dim);
		plan_conv(p, dim, dim, 1, 3, name)->add = VAE_ADD_INPUT;
	}
	if (space || time) {
		snprintf(name, sizeof(name), "%s.upsamplers.0.conv3", at);
		plan_conv(p, dim, dim, 1, 1, name);
	}
}

static void plan_middle(struct vae_plan *p, int dim)
{
	char at[VAE_NAME / 4];

	snprintf(at, sizeof(at), "%s.mid_block", part_names[p->at.part]);
	plan_resnet(p, dim, dim, at, 0);
	plan_attentions(p, dim, at, 0);
	plan_resnet(p, dim, dim, at, 1);
}

static void plan_blocks(struct vae_plan *p)
{
	const enum vae_part part = p->at.part;
	const struct vae_cosmos_part *of = &p->c->cosmos.part[part];
	const int resnets = p->c->num_res_blocks + (part == VAE_DECODER);
	char at[VAE_NAME / 4];

	for (int i = 0; i < of->blocks; i++) {
		const int in = of->dim[i], out = of->dim[i + 1];

		snprintf(at, sizeof(at), "%s.%s_blocks.%d", part_names[part], part == VAE_ENCODER ? "down" : "up", i);
		for (int j = 0; j < resnets; j++) {
			plan_resnet(p, j ? out : in, out, at, j);
			if (of->attn[i])
				plan_attentions(p, out, at, j);
		}
		if (part == VAE_ENCODER)
			plan_cosmos_down(p, out, of->space[i], of->time[i], at);
		else
			plan_cosmos_up(p, out, of->space[i], of->time[i], at);
	}
}

static void plan_wavelets(struct vae_plan *p, enum vae_fixed fixed)
{
	const int n = p->c->in_channels;
	struct vae_conv *v;

	if (!p->c->cosmos.haar || p->c->patch == 1)
		return;
	v = &vae_plan_layer(p, VAE_LAYER_CONV, n)->conv[0];
	*v = vae_conv_of(n, n, 1, 1);
	v->fixed = fixed;
}

/* CosmosEncoder3d and quant_conv, or post_quant_conv and CosmosDecoder3d.  The encoder gives the latent itself, not the
 * mean and the deviation of a posterior. */
void vae_plan_cosmos(struct vae_plan *p)
{
	const struct vae_config *c = p->c;
	const struct vae_cosmos_part *of = &c->cosmos.part[p->at.part];
	const int z = c->z_dim, first = of->dim[0], last = of->dim[of->blocks];

	p->net->repeat_first = true;
	if (p->at.part == VAE_ENCODER) {
		plan_wavelets(p, VAE_HAAR);
		plan_projection(p, c->in_channels, first, NULL, "encoder.conv_in");
		plan_blocks(p);
		plan_middle(p, last);
		plan_projection(p, last, z, "encoder.norm_out", "encoder.conv_out");
		plan_conv(p, z, z, 1, 1, "quant_conv");
		p->net->out = z;
	} else {
		plan_conv(p, z, z, 1, 1, "post_quant_conv");
		plan_projection(p, z, first, NULL, "decoder.conv_in");
		plan_middle(p, first);
		plan_blocks(p);
		plan_projection(p, last, c->out_channels, "decoder.norm_out", "decoder.conv_out");
		plan_wavelets(p, VAE_HAAR_INVERSE);
		p->net->out = c->out_channels;
	}
}
