/* vae_net_ltx.c - plans the layers of LTX-Video's encoder and decoder, and the tensors that they need. */
#include <stdio.h>
#include <string.h>

#include "encoder/vae/vae_impl.h"

#define PIXEL_EPS 1e-8f /* of the norms without a gain */

/* The tensors of a release have the numbers of a flat list of blocks; those of diffusers have a level. */
struct ltx_plan {
	struct vae_plan *p;
	const struct vae_ltx *c;
	const struct vae_ltx_part *of;
	const char *part; /* with the prefix of all tensors */
	int block;        /* number of the next block of a release */
	int ahead;        /* frames that convolutions look ahead */
	bool noise;       /* of the current residual blocks */
	/* NULL: the decoder is not conditioned on a time; the path of the current time embedder */
	const char *embedder;
	char embedder_path[VAE_NAME];
};

/* ---- tensors ---- */

/* Requires the modulation of a norm, rows `row` and `row + 1` of `rows` of the table NAME.scale_shift_table. */
static void want_modulation(
	struct ltx_plan *b, struct vae_norm *n, int rows, int row, const char *table, const char *embedder)
{
	struct vfm_weights *w = b->p->w;
	const int64_t dim = n->dim, shape[] = {rows, dim}, first[] = {rows * dim, VAE_TIME_DIM},
		      second[] = {rows * dim, rows * dim};

	n->by = (struct vae_modulation){.table = vfm_weights_want(w, 2, shape, "%s", table),
		.linear1 = {vfm_weights_want(w, 2, first, "%s.timestep_embedder.linear_1.weight", embedder),
			vfm_weights_want(w, 1, first, "%s.timestep_embedder.linear_1.bias", embedder)},
		.linear2 = {vfm_weights_want(w, 2, second, "%s.timestep_embedder.linear_2.weight", embedder),
			vfm_weights_want(w, 1, second, "%s.timestep_embedder.linear_2.bias", embedder)},
		.multiplier = vfm_weights_want(w, 0, shape, "%s.timestep_scale_multiplier", b->part),
		.rows = rows,
		.row = row};
}

/* ---- layers ---- */

static struct vae_layer *plan_ltx_conv(struct ltx_plan *b, int in, int out, const char *name)
{
	struct vae_layer *l = vae_plan_layer(b->p, VAE_LAYER_CONV, in);

	l->ahead = b->ahead;
	l->conv[0] = vae_conv_of(in, out, 3, 3);
	vae_want_rows(b->p, &l->conv[0], 0, out, name);
	return l;
}

/* A norm without a gain; with a modulation if the decoder has a time. */
static struct vae_norm *plan_pixel_norm(struct ltx_plan *b, int dim)
{
	struct vae_norm *n = &vae_plan_layer(b->p, VAE_LAYER_NORM, dim)->norm[0];

	n->kind = VAE_NORM_MEAN_SQUARE;
	n->eps = PIXEL_EPS;
	n->dim = dim;
	return n;
}

/* Saves x, or its projection to other channels, for the end of a residual block. */
static void plan_ltx_save(struct ltx_plan *b, int in, int out, const char *at)
{
	struct vae_layer *l = vae_plan_layer(b->p, VAE_LAYER_SAVE, in);
	struct vae_norm *n = &l->norm[0];
	char name[VAE_NAME + 32];

	l->ahead = 2 * b->ahead;
	l->has_shortcut = in != out;
	if (!l->has_shortcut)
		return;
	snprintf(name, sizeof(name), "%s.%s", at, b->c->original ? "norm3.norm" : "norm3");
	n->kind = VAE_NORM_LAYER;
	n->eps = b->c->eps;
	n->dim = in;
	n->from = vfm_weights_want(b->p->w, 1, (int64_t[]){in}, "%s.weight", name);
	n->from_bias = vfm_weights_want(b->p->w, 1, (int64_t[]){in}, "%s.bias", name);
	snprintf(name, sizeof(name), "%s.%s", at, b->c->original ? "conv_shortcut" : "conv_shortcut.conv");
	l->shortcut[0] = vae_conv_of(in, out, 1, 1);
	vae_want_rows(b->p, &l->shortcut[0], 0, out, name);
}

static void plan_ltx_noise(struct ltx_plan *b, struct vae_layer *l, int dim, const char *at, int index)
{
	if (!b->noise)
		return;
	l->noise = vae_conv_of(1, dim, 1, 1);
	l->noise.from[0] = vfm_weights_want(b->p->w, 3, (int64_t[]){dim, 1, 1}, "%s.per_channel_scale%d", at, index);
	l->noise_id = b->p->net->noises++;
}

/* LTXVideoResnetBlock3d */
static void plan_ltx_resnet(struct ltx_plan *b, int in, int out, const char *at)
{
	char name[VAE_NAME + 32], table[VAE_NAME + 32];
	struct vae_layer *l = NULL;
	struct vae_norm *n;

	snprintf(table, sizeof(table), "%s.scale_shift_table", at);
	plan_ltx_save(b, in, out, at);
	for (int i = 1; i <= 2; i++) {
		n = plan_pixel_norm(b, i == 1 ? in : out);
		if (b->embedder)
			want_modulation(b, n, 4, 2 * (i - 1), table, b->embedder);
		snprintf(name, sizeof(name), "%s.conv%d.conv", at, i);
		l = plan_ltx_conv(b, i == 1 ? in : out, out, name);
		plan_ltx_noise(b, l, out, at, i);
	}
	l->add = VAE_ADD_SAVED;
}

/* ---- blocks ---- */

/* Writes the path of a block: "decoder.up_blocks.2" and its `rest` in diffusers, "decoder.up_blocks.5" in a release.
 * level < 0: the middle block. */
static void name_ltx_block(struct ltx_plan *b, char path[VAE_NAME], int level, const char *rest)
{
	const char *list = b->p->at.part == VAE_ENCODER ? "down" : "up";

	if (b->c->original)
		snprintf(path, VAE_NAME, "%s.%s_blocks.%d", b->part, list, b->block++);
	else if (level < 0)
		snprintf(path, VAE_NAME, "%s.mid_block%s", b->part, rest);
	else
		snprintf(path, VAE_NAME, "%s.%s_blocks.%d%s", b->part, list, level, rest);
}

/* The residual blocks of a level, or of the middle block. */
static void plan_ltx_resnets(struct ltx_plan *b, int level, int dim)
{
	const int at = level < 0 ? b->of->levels : level;
	char path[VAE_NAME], resnet[VAE_NAME + 32];

	name_ltx_block(b, path, level, "");
	if (b->c->timestep && b->p->at.part == VAE_DECODER) {
		snprintf(b->embedder_path, sizeof(b->embedder_path), "%.100s.time_embedder", path);
		b->embedder = b->embedder_path;
	}
	b->noise = b->of->noise[at];
	for (int i = 0; i < b->of->resnets[at]; i++) {
		snprintf(resnet, sizeof(resnet), "%s.%s.%d", path, b->c->original ? "res_blocks" : "resnets", i);
		plan_ltx_resnet(b, dim, dim, resnet);
	}
	b->noise = false;
	b->embedder = NULL;
}

/* The residual block that changes the channels of a level. */
static void plan_ltx_change(struct ltx_plan *b, int level, int in, int out, const char *rest)
{
	char path[VAE_NAME];

	if (in == out)
		return;
	name_ltx_block(b, path, level, rest);
	plan_ltx_resnet(b, in, out, path);
}

/* LTXVideoDownsampler3d: pixels and frames to channels, plus their means.  Its first frame counts twice. */
static void plan_ltx_down(struct ltx_plan *b, int level, int in, int out)
{
	/* in time and in space, and their product */
	static const int strides[][3] = {
		[VAE_LTX_SPACE] = {1, 2, 4}, [VAE_LTX_TIME] = {2, 1, 2}, [VAE_LTX_ALL] = {2, 2, 8}};
	const enum vae_ltx_sampler sampler = b->of->sampler[level];
	const int *stride = strides[sampler];
	char path[VAE_NAME], name[VAE_NAME + 32];
	struct vae_layer *l;

	if (sampler == VAE_LTX_NONE)
		return;
	name_ltx_block(b, path, level, ".downsamplers.0");
	if (sampler == VAE_LTX_CONV) {
		snprintf(name, sizeof(name), "%s.conv", path);
		l = plan_ltx_conv(b, in, in, name);
		for (int i = 0; i < 3; i++)
			l->conv[0].stride[i] = 2;
		return;
	}
	snprintf(name, sizeof(name), "%s.conv.conv", path);
	vae_plan_layer(b->p, VAE_LAYER_SAVE, in);
	plan_ltx_conv(b, in, out / stride[2], name);
	l = vae_plan_layer(b->p, VAE_LAYER_CONV, out / stride[2]);
	vae_conv_mean(&l->conv[0], out / stride[2], out, stride[0], stride[1]);
	l->conv[0].stride[0] = stride[0];
	l->add = VAE_ADD_SAVED;
	l->has_shortcut = true;
	vae_conv_mean(&l->shortcut[0], in, out, stride[0], stride[1]);
}

/* LTXVideoUpsampler3d: channels to 2 frames of 2 x 2 pixels. */
static void plan_ltx_up(struct ltx_plan *b, int level, int out)
{
	enum { CELLS = 8 };
	const int in = out * b->of->factor[level];
	char path[VAE_NAME], name[VAE_NAME + 32];
	struct vae_layer *l;

	if (b->of->sampler[level] == VAE_LTX_NONE)
		return;
	name_ltx_block(b, path, level, ".upsamplers.0");
	snprintf(name, sizeof(name), "%s.conv.conv", path);
	l = plan_ltx_conv(b, in, CELLS * out, name);
	l->conv[0].cells = CELLS;
	if (b->of->residual[level]) { /* channels to pixels, then copies of all channels */
		l->add = VAE_ADD_INPUT;
		l->has_shortcut = true;
		l->shortcut[0] = vae_conv_of(in, CELLS * out, 1, 1);
		l->shortcut[0].fixed = VAE_PICK;
		l->shortcut[0].pick = (struct vae_pick){
			.width = out, .repeat = 1, .modulo = in / CELLS, .of_cell = 1, .of_channel = CELLS};
	}
	vae_plan_layer(b->p, VAE_LAYER_SHUFFLE, CELLS * out)->temporal = true;
}

static void plan_ltx_head(struct ltx_plan *b, int dim, int rows, int out)
{
	struct vae_norm *n = plan_pixel_norm(b, dim);
	struct vae_conv *v;
	char name[VAE_NAME], table[VAE_NAME];

	if (b->c->timestep && b->p->at.part == VAE_DECODER) {
		snprintf(name, sizeof(name), "%s.%s", b->part, b->c->original ? "last_time_embedder" : "time_embedder");
		snprintf(table, sizeof(table), "%s.%s", b->part,
			b->c->original ? "last_scale_shift_table" : "scale_shift_table");
		want_modulation(b, n, 2, 0, table, name);
	}
	v = &vae_plan_layer(b->p, VAE_LAYER_CONV, dim)->conv[0];
	b->p->net->layer[b->p->net->n - 1].ahead = b->ahead;
	*v = vae_conv_of(dim, out, 3, 3);
	snprintf(name, sizeof(name), "%s.conv_out.conv", b->part);
	vae_want_rows(b->p, v, 0, rows, name);
	b->p->net->out = out;
}

static void plan_ltx_encoder(struct ltx_plan *b)
{
	const struct vae_ltx_part *of = b->of;

	for (int i = 0; i < of->levels; i++) {
		const int in = of->dim[i], out = of->dim[i + 1];
		const bool packs = of->sampler[i] > VAE_LTX_CONV; /* changes the channels */

		plan_ltx_resnets(b, i, in);
		plan_ltx_down(b, i, in, packs ? out : in);
		plan_ltx_change(b, i, packs ? out : in, out, ".conv_out");
	}
	plan_ltx_resnets(b, -1, of->dim[of->levels]);
	/* the mode of the posterior: without the last row, the deviation of all channels */
	plan_ltx_head(b, of->dim[of->levels], b->p->c->z_dim + 1, b->p->c->z_dim);
}

static void plan_ltx_decoder(struct ltx_plan *b)
{
	const struct vae_ltx_part *of = b->of;

	plan_ltx_resnets(b, -1, of->dim[0]);
	for (int i = 0; i < of->levels; i++) {
		const int out = of->dim[i + 1];

		plan_ltx_change(b, i, of->dim[i], out * of->factor[i], ".conv_in");
		plan_ltx_up(b, i, out);
		plan_ltx_resnets(b, i, out);
	}
	plan_ltx_head(b, of->dim[of->levels], b->p->c->out_channels, b->p->c->out_channels);
}

void vae_plan_ltx(struct vae_plan *p)
{
	static const char *const names[VAE_PARTS][2] = {{"encoder", "vae.encoder"}, {"decoder", "vae.decoder"}};
	const struct vae_config *c = p->c;
	const enum vae_part part = p->at.part;
	struct ltx_plan b = {.p = p,
		.c = &c->ltx,
		.of = &c->ltx.part[part],
		.part = names[part][c->ltx.prefixed],
		.ahead = part == VAE_DECODER && !c->ltx.causal};
	char name[VAE_NAME];

	p->net->repeat_first = true;
	snprintf(name, sizeof(name), "%s.conv_in.conv", b.part);
	plan_ltx_conv(&b, part == VAE_ENCODER ? c->in_channels : c->z_dim, b.of->dim[0], name);
	if (part == VAE_ENCODER)
		plan_ltx_encoder(&b);
	else
		plan_ltx_decoder(&b);
}
