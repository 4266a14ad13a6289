/* vae_net_hunyuan.c - plans the layers of the encoder and decoder of HunyuanVideo 1.5, and the tensors that they need. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "encoder/vae/vae_impl.h"

#define RMS_EPS 1e-12f /* of torch.nn.functional.normalize */

static const char *const part_names[VAE_PARTS] = {"encoder", "decoder"};

/* ---- names of blocks, in diffusers and in the release ---- */

/* Residual block `index` of a level; level < 0: of the middle. */
static void name_resnet(const struct vae_plan *p, char path[VAE_NAME / 2], int level, int index)
{
	const char *part = part_names[p->at.part], *way = p->at.part == VAE_ENCODER ? "down" : "up";

	if (p->c->hunyuan.original && level < 0)
		snprintf(path, VAE_NAME / 2, "%s.mid.block_%d", part, index + 1);
	else if (p->c->hunyuan.original)
		snprintf(path, VAE_NAME / 2, "%s.%s.%d.block.%d", part, way, level, index);
	else if (level < 0)
		snprintf(path, VAE_NAME / 2, "%s.mid_block.resnets.%d", part, index);
	else
		snprintf(path, VAE_NAME / 2, "%s.%s_blocks.%d.resnets.%d", part, way, level, index);
}

static void name_sampler(const struct vae_plan *p, char path[VAE_NAME / 2], int level)
{
	const char *part = part_names[p->at.part], *way = p->at.part == VAE_ENCODER ? "down" : "up";

	if (p->c->hunyuan.original)
		snprintf(path, VAE_NAME / 2, "%s.%s.%d.%ssample.conv", part, way, level, way);
	else
		snprintf(path, VAE_NAME / 2, "%s.%s_blocks.%d.%ssamplers.0.conv", part, way, level, way);
}

/* ---- layers ---- */

static void want_gamma(struct vae_plan *p, struct vae_norm *n, int dim, const char *name)
{
	n->kind = VAE_NORM_RMS;
	n->eps = RMS_EPS;
	n->dim = dim;
	n->from = vfm_weights_want(p->w, 4, (int64_t[]){dim, 1, 1, 1}, "%s.gamma", name);
}

/* HunyuanVideo15CausalConv3d, of `rows` rows: a border repeats the nearest pixels, and the first frame is repeated. */
static struct vae_layer *plan_edge_conv(struct vae_plan *p, int in, int rows, int out, const char *name)
{
	struct vae_layer *l = vae_plan_layer(p, VAE_LAYER_CONV, in);
	char conv[VAE_NAME];

	snprintf(conv, sizeof(conv), "%s.conv", name);
	l->conv[0] = vae_conv_of(in, out, 3, 3);
	memset(l->conv[0].pad, 0, sizeof(l->conv[0].pad));
	l->conv[0].edge = 1;
	vae_want_rows(p, &l->conv[0], 0, rows, conv);
	return l;
}

/* HunyuanVideo15ResnetBlock */
static void plan_edge_resnet(struct vae_plan *p, int in, int out, int level, int index)
{
	char block[VAE_NAME / 2], name[VAE_NAME];
	struct vae_layer *l = vae_plan_layer(p, VAE_LAYER_SAVE, in);

	name_resnet(p, block, level, index);
	if (in != out) {
		l->has_shortcut = true;
		l->shortcut[0] = vae_conv_of(in, out, 1, 1);
		snprintf(name, sizeof(name), "%s.%s", block, p->c->hunyuan.original ? "nin_shortcut" : "conv_shortcut");
		vae_want_rows(p, &l->shortcut[0], 0, out, name);
	}
	for (int i = 1; i <= 2; i++) {
		const int from = i == 1 ? in : out;

		snprintf(name, sizeof(name), "%s.norm%d", block, i);
		want_gamma(p, &vae_plan_layer(p, VAE_LAYER_NORM, from)->norm[0], from, name);
		snprintf(name, sizeof(name), "%s.conv%d", block, i);
		l = plan_edge_conv(p, from, out, out, name);
	}
	l->add = VAE_ADD_SAVED;
}

/* HunyuanVideo15AttnBlock */
static void plan_causal_attention(struct vae_plan *p, int dim)
{
	static const char *const names[][2] = {{"to_q", "q"}, {"to_k", "k"}, {"to_v", "v"}};
	const bool original = p->c->hunyuan.original;
	struct vae_layer *l = vae_plan_layer(p, VAE_LAYER_ATTN_CAUSAL, dim);
	char at[VAE_NAME / 2], name[VAE_NAME];

	snprintf(at, sizeof(at), "%s.%s", part_names[p->at.part], original ? "mid.attn_1" : "mid_block.attentions.0");
	snprintf(name, sizeof(name), "%s.norm", at);
	want_gamma(p, &l->norm[0], dim, name);
	l->conv[0] = vae_conv_of(dim, dim, 1, 1);
	l->conv[0].scaled = dim; /* q / sqrt(dim) */
	l->conv[0].scale = 1 / sqrtf((float)dim);
	l->conv[1] = vae_conv_of(dim, 2 * dim, 1, 1);
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "%s.%s", at, names[i][original]);
		vae_want_rows(p, &l->conv[i > 0], i > 0 ? i - 1 : 0, dim, name);
	}
	l->conv[2] = vae_conv_of(dim, dim, 1, 1);
	snprintf(name, sizeof(name), "%s.proj_out", at);
	vae_want_rows(p, &l->conv[2], 0, dim, name);
}

static void plan_causal_middle(struct vae_plan *p, int dim)
{
	plan_edge_resnet(p, dim, dim, -1, 0);
	plan_causal_attention(p, dim);
	plan_edge_resnet(p, dim, dim, -1, 1);
}

static void mean_of_taps(struct vae_conv *v, int in, int out, int kt)
{
	vae_conv_mean(v, in, out, kt, 2);
	v->taps_first = true;
}

/* HunyuanVideo15Downsample: pixels and frames to channels, plus their means.  Its first frame counts twice, but the
 * means are those of one frame. */
static void plan_edge_down(struct vae_plan *p, int in, int out, bool time, int level)
{
	const int kt = time ? 2 : 1, inner = out / (4 * kt);
	char name[VAE_NAME / 2];
	struct vae_layer *l;

	name_sampler(p, name, level);
	vae_plan_layer(p, VAE_LAYER_SAVE, in);
	plan_edge_conv(p, in, inner, inner, name);
	l = vae_plan_layer(p, VAE_LAYER_CONV, inner);
	mean_of_taps(&l->conv[0], inner, out, kt);
	l->conv[0].stride[0] = kt;
	l->add = VAE_ADD_SAVED;
	l->has_shortcut = true;
	mean_of_taps(&l->shortcut[0], in, out, kt);
	if (time)
		mean_of_taps(&l->shortcut[1], in, out, 1);
}

/* Output (cell, c) is a copy of input (cell, c / repeat), of `cells` cells. */
static void pick_channels(struct vae_conv *v, int in, int out, int cells)
{
	*v = vae_conv_of(in, out, 1, 1);
	v->fixed = VAE_PICK;
	v->pick = (struct vae_pick){
		.width = out / cells, .repeat = out / in, .modulo = in / cells, .of_cell = in / cells, .of_channel = 1};
}

/* HunyuanVideo15Upsample: channels to pixels and frames, plus copies of channels.  Of the first frame, half of the
 * channels make one frame. */
static void plan_edge_up(struct vae_plan *p, int in, int out, bool time, int level)
{
	const int cells = time ? 8 : 4;
	char name[VAE_NAME / 2];
	struct vae_layer *l;

	name_sampler(p, name, level);
	l = plan_edge_conv(p, in, cells * out, cells * out, name);
	l->add = VAE_ADD_INPUT;
	l->has_shortcut = true;
	pick_channels(&l->shortcut[0], in, cells * out, cells);
	if (time) { /* (cell, c) of the first half of the channels of 4 cells; the other half is not read */
		pick_channels(&l->shortcut[1], in, cells * out, 4);
		l->shortcut[1].pick.repeat /= 2;
	}
	l = vae_plan_layer(p, VAE_LAYER_SHUFFLE, cells * out);
	l->temporal = time;
	l->first = VAE_FIRST_EVEN;
}

static void plan_edge_blocks(struct vae_plan *p)
{
	const enum vae_part part = p->at.part;
	const struct vae_hunyuan_part *of = &p->c->hunyuan.part[part];
	const int resnets = p->c->num_res_blocks + (part == VAE_DECODER);

	for (int i = 0; i < p->c->hunyuan.blocks; i++) {
		for (int j = 0; j < resnets; j++)
			plan_edge_resnet(p, j ? of->inner[i] : of->dim[i], of->inner[i], i, j);
		if (of->space[i] && part == VAE_ENCODER)
			plan_edge_down(p, of->inner[i], of->dim[i + 1], of->time[i], i);
		else if (of->space[i])
			plan_edge_up(p, of->inner[i], of->dim[i + 1], of->time[i], i);
	}
}

void vae_plan_hunyuan(struct vae_plan *p)
{
	const struct vae_config *c = p->c;
	const struct vae_hunyuan_part *of = &c->hunyuan.part[p->at.part];
	const int z = c->z_dim, first = of->dim[0], last = of->dim[c->hunyuan.blocks];
	struct vae_layer *l;

	p->net->repeat_first = true;
	if (p->at.part == VAE_ENCODER) {
		plan_edge_conv(p, c->in_channels, first, first, "encoder.conv_in");
		plan_edge_blocks(p);
		plan_causal_middle(p, last);
		vae_plan_layer(p, VAE_LAYER_SAVE, last);
		want_gamma(p, &vae_plan_layer(p, VAE_LAYER_NORM, last)->norm[0], last, "encoder.norm_out");
		/* the mode of the posterior: the first half of the rows */
		l = plan_edge_conv(p, last, 2 * z, z, "encoder.conv_out");
		l->add = VAE_ADD_SAVED;
		l->has_shortcut = true;
		vae_conv_mean(&l->shortcut[0], last, z, 1, 1);
		l->shortcut[0].group = last / (2 * z);
		p->net->out = z;
	} else {
		l = plan_edge_conv(p, z, first, first, "decoder.conv_in");
		l->add = VAE_ADD_INPUT;
		l->has_shortcut = true;
		pick_channels(&l->shortcut[0], z, first, 1);
		plan_causal_middle(p, first);
		plan_edge_blocks(p);
		want_gamma(p, &vae_plan_layer(p, VAE_LAYER_NORM, last)->norm[0], last, "decoder.norm_out");
		plan_edge_conv(p, last, c->out_channels, c->out_channels, "decoder.conv_out");
		p->net->out = c->out_channels;
	}
}
