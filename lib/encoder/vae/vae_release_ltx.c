/* vae_release_ltx.c - the autoencoder in a release of LTX-Video: one file, with the transformer.
 *
 * Each part is a flat list of blocks, whose tensors tell their kind: residual blocks, one residual block that changes
 * the channels, or a sampler.  The metadata `config` of the file, which all releases have, tells the rest.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "encoder/vae/vae_impl.h"
#include "io/json.h"

enum ltx_block { BLOCK_NONE, BLOCK_RESNETS, BLOCK_CHANGE, BLOCK_SAMPLER, BLOCK_CONV };

/* A walk over the blocks of a part. */
struct ltx_walk {
	const struct vfm_weights *w;
	char list[32]; /* "vae.encoder.down_blocks" */
	int at;        /* number of the block */
	/* of the block */
	enum ltx_block kind;
	int rows, in; /* of its convolution */
	int resnets;
	bool noise;
};

static const struct vfm_weight *find_ltx(const struct vfm_weights *w, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static const struct vfm_weight *find_ltx(const struct vfm_weights *w, const char *format, ...)
{
	char name[VAE_NAME];
	va_list ap;

	va_start(ap, format);
	vsnprintf(name, sizeof(name), format, ap);
	va_end(ap);
	return vfm_weights_find(w, name);
}

/* Returns dimension `dim` of a convolution; 0: t is none, or it is too large. */
static int conv_size(const struct vfm_weight *t, int dim)
{
	return t && t->ndim == 5 && t->shape[dim] > 0 && t->shape[dim] <= 8 * VAE_DIM_MAX ? (int)t->shape[dim] : 0;
}

/* Reads the kind of block number `at`. */
static void look_at_block(struct ltx_walk *k)
{
	static const struct {
		enum ltx_block kind;
		const char *conv;
	} kinds[] = {{BLOCK_RESNETS, "res_blocks.0.conv1.conv"}, {BLOCK_CHANGE, "conv1.conv"},
		{BLOCK_SAMPLER, "conv.conv"}, {BLOCK_CONV, "conv"}};
	const struct vfm_weight *t;

	k->kind = BLOCK_NONE;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && !k->kind; i++) {
		t = find_ltx(k->w, "%s.%d.%s.weight", k->list, k->at, kinds[i].conv);
		k->rows = conv_size(t, 0);
		k->in = conv_size(t, 1);
		if (k->rows && k->in)
			k->kind = kinds[i].kind;
	}
	if (k->kind != BLOCK_RESNETS)
		return;
	for (k->resnets = 1; k->resnets <= VAE_RES_MAX; k->resnets++)
		if (!find_ltx(k->w, "%s.%d.res_blocks.%d.conv1.conv.weight", k->list, k->at, k->resnets))
			break;
	k->noise = find_ltx(k->w, "%s.%d.res_blocks.0.per_channel_scale1", k->list, k->at) != NULL;
}

static void next_ltx_block(struct ltx_walk *k)
{
	k->at++;
	look_at_block(k);
}

static void begin_walk(struct ltx_walk *k, const struct vfm_weights *w, const char *prefix, const char *list)
{
	*k = (struct ltx_walk){.w = w};
	snprintf(k->list, sizeof(k->list), "%.4s%.24s", prefix, list);
	look_at_block(k);
}

static int fail_at_block(const struct ltx_walk *k, struct vfm_err *err)
{
	return vfm_fail(err, VFM_EUSAGE,
		"%s.%d: not a block of a release of LTX-Video, or more blocks than are supported", k->list, k->at);
}

/* Sets resnets and noise of entry `i` of the part. */
static int take_resnets(struct ltx_walk *k, struct vae_ltx_part *p, int i, struct vfm_err *err)
{
	if (k->kind != BLOCK_RESNETS || k->resnets > VAE_RES_MAX || k->rows > VAE_DIM_MAX)
		return fail_at_block(k, err);
	p->resnets[i] = k->resnets;
	p->noise[i] = k->noise;
	return 0;
}

/* A level: residual blocks, a sampler, a change of channels.  The middle block is last. */
static int walk_encoder(struct vae_ltx_part *p, struct ltx_walk *k, struct vfm_err *err)
{
	static const enum vae_ltx_sampler by_cells[] = {[2] = VAE_LTX_TIME, [4] = VAE_LTX_SPACE, [8] = VAE_LTX_ALL};

	for (;;) {
		const int i = p->levels;
		int cells = 0;

		TRY(take_resnets(k, p, i, err));
		p->dim[i] = k->rows;
		next_ltx_block(k);
		if (k->kind == BLOCK_NONE)
			return 0;
		if (p->levels++ == VAE_LEVELS_MAX - 1)
			return fail_at_block(k, err);
		if (k->kind == BLOCK_CONV) {
			p->sampler[i] = VAE_LTX_CONV;
			next_ltx_block(k);
		} else if (k->kind == BLOCK_SAMPLER) {
			const int inner = k->rows, in = k->in;

			next_ltx_block(k);
			cells = k->kind == BLOCK_RESNETS ? k->rows / inner : 0;
			if ((cells != 2 && cells != 4 && cells != 8) || inner * cells != k->rows ||
				in * cells % k->rows)
				return fail_at_block(k, err);
			p->sampler[i] = by_cells[cells];
		}
		if (!cells && k->kind == BLOCK_CHANGE)
			next_ltx_block(k);
	}
}

/* The middle block, then levels: a change of channels, a sampler, residual blocks. */
static int walk_decoder(struct vae_ltx_part *p, struct ltx_walk *k, struct vfm_err *err)
{
	TRY(take_resnets(k, p, VAE_LEVELS_MAX, err));
	p->dim[0] = k->rows;
	for (next_ltx_block(k); k->kind != BLOCK_NONE; next_ltx_block(k)) {
		const int i = p->levels;
		int now = p->dim[i];

		if (p->levels++ == VAE_LEVELS_MAX)
			return fail_at_block(k, err);
		p->factor[i] = 1;
		if (k->kind == BLOCK_CHANGE) {
			now = k->rows;
			next_ltx_block(k);
		}
		if (k->kind == BLOCK_SAMPLER) {
			if (k->in != now || k->rows % 8 || 8 * now % k->rows || 8 * now / k->rows > 8)
				return fail_at_block(k, err);
			p->sampler[i] = VAE_LTX_ALL;
			p->factor[i] = 8 * now / k->rows;
			p->residual[i] = p->factor[i] > 1;
			now = k->rows / 8;
			next_ltx_block(k);
		}
		TRY(take_resnets(k, p, i, err));
		p->dim[i + 1] = k->rows;
		if (now != k->rows || (p->residual[i] && p->factor[i] * now % 8))
			return fail_at_block(k, err);
	}
	if (!p->levels)
		return fail_at_block(k, err);
	p->resnets[p->levels] = p->resnets[VAE_LEVELS_MAX];
	p->noise[p->levels] = p->noise[VAE_LEVELS_MAX];
	return 0;
}

/* ---- metadata ---- */

/* Whether samplers have shortcuts: the elements [name, {"residual": ...}] of the list, which ends with the first block
 * of the decoder. */
static int read_residual(struct vae_ltx_part *p, const json_t *blocks, struct vfm_err *err)
{
	int level = 0;

	for (size_t i = json_array_size(blocks); i-- > 0;) {
		const json_t *b = json_array_get(blocks, i), *options = json_array_get(b, 1);
		const char *name = json_string_value(json_array_get(b, 0));

		if (!name || strncmp(name, "compress", strlen("compress")) != 0)
			continue;
		while (level < p->levels && p->sampler[level] == VAE_LTX_NONE)
			level++;
		if (level == p->levels || strcmp(name, "compress_all") != 0)
			return vfm_fail(err, VFM_EUSAGE, "decoder_blocks[%zu]: %s does not fit the tensors", i, name);
		p->residual[level] = false;
		TRY(vae_config_bool(options, "residual", &p->residual[level], err));
		if (p->residual[level] && p->factor[level] * p->dim[level + 1] % 8)
			return vfm_fail(err, VFM_EUSAGE, "decoder_blocks[%zu]: residual does not fit the tensors", i);
		level++;
	}
	return 0;
}

/* Names that the tensors do not tell from others, such as a convolution with a stride in time alone. */
static int check_encoder_blocks(const json_t *blocks, struct vfm_err *err)
{
	static const char *const known[] = {"res_x", "res_x_y", "compress_all", "compress_all_res",
		"compress_space_res", "compress_time_res", NULL};

	for (size_t i = 0; i < json_array_size(blocks); i++) {
		const char *name = json_string_value(json_array_get(json_array_get(blocks, i), 0));
		int k = 0;

		while (name && known[k] && strcmp(name, known[k]) != 0)
			k++;
		if (!name || !known[k])
			return vfm_fail(err, VFM_EUSAGE, "encoder_blocks[%zu]: %s is not supported", i,
				name ? name : "a value");
	}
	return 0;
}

/* A value that the tensors give, or that only one kind is supported of. */
struct ltx_key {
	const char *key, *word;
	int number; /* word NULL; -1: any */
};

static int check_ltx_key(const json_t *o, const struct ltx_key *k, struct vfm_err *err)
{
	const json_t *v = json_object_get(o, k->key);
	bool same = !v || (!k->word && k->number < 0);

	if (v && k->word)
		same = json_is_string(v) && !strcmp(json_string_value(v), k->word);
	else if (v && json_is_boolean(v))
		same = same || json_is_true(v) == (k->number == 1);
	else if (v)
		same = same || (json_is_number(v) && json_number_value(v) == k->number);
	if (same)
		return 0;
	return k->word ? vfm_fail(err, VFM_EUSAGE, "%s: expected %s", k->key, k->word)
		       : vfm_fail(err, VFM_EUSAGE, "%s: expected %d", k->key, k->number);
}

static int read_vae_metadata(struct vae_config *c, const json_t *o, struct vfm_err *err)
{
	static const char *const keys[] = {"_class_name", "dims", "in_channels", "out_channels", "latent_channels",
		"blocks", "encoder_blocks", "decoder_blocks", "scaling_factor", "norm_layer", "patch_size",
		"patch_size_t", "latent_log_var", "use_quant_conv", "causal_decoder", "timestep_conditioning",
		"normalize_latent_channels", "encoder_base_channels", "decoder_base_channels", "spatial_padding_mode",
		"double_z", NULL};
	const struct ltx_key values[] = {{"_class_name", "CausalVideoAutoencoder", 0}, {"dims", NULL, 3},
		{"in_channels", NULL, 3}, {"out_channels", NULL, 3}, {"latent_channels", NULL, c->z_dim},
		{"scaling_factor", NULL, 1}, {"norm_layer", "pixel_norm", 0}, {"patch_size", NULL, c->patch},
		{"patch_size_t", NULL, 1}, {"latent_log_var", "uniform", 0}, {"use_quant_conv", NULL, 0},
		{"timestep_conditioning", NULL, c->ltx.timestep}, {"normalize_latent_channels", NULL, 0},
		{"encoder_base_channels", NULL, c->ltx.part[VAE_ENCODER].dim[0]}, {"decoder_base_channels", NULL, -1},
		{"spatial_padding_mode", "zeros", 0}};
	const json_t *both = json_object_get(o, "blocks"), *down = json_object_get(o, "encoder_blocks"),
		     *up = json_object_get(o, "decoder_blocks");

	TRY(vfm_json_only_keys(o, "", keys, err));
	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
		TRY(check_ltx_key(o, &values[i], err));
	TRY(vae_config_bool(o, "causal_decoder", &c->ltx.causal, err));
	TRY(check_encoder_blocks(down ? down : both, err));
	return read_residual(&c->ltx.part[VAE_DECODER], up ? up : both, err);
}

static int read_ltx_metadata(struct vae_config *c, const struct vfm_weights *w, struct vfm_err *err)
{
	json_t *all;
	const json_t *vae;
	int rc;

	TRY(vfm_weights_metadata(w, "config", &all, err));
	vae = json_object_get(all, "vae");
	rc = json_is_object(vae) ? read_vae_metadata(c, vae, err) : 0;
	json_decref(all);
	return rc < 0 ? vfm_err_context(err, "metadata config: vae") : 0;
}

/* ---- the release ---- */

static const char *prefix_of(const struct vfm_weights *w)
{
	return vfm_weights_has(w, "vae.encoder.conv_in.conv.weight") ? "vae." : "";
}

bool vae_is_ltx_release(const struct vfm_weights *w)
{
	return find_ltx(w, "%sencoder.down_blocks.0.res_blocks.0.conv1.conv.weight", prefix_of(w)) != NULL;
}

int vae_config_ltx_release(struct vae_config *c, struct vfm_weights *w, struct vfm_err *err)
{
	const char *prefix = prefix_of(w);
	char name[VAE_NAME], std[VAE_NAME];
	struct ltx_walk k;
	int rows;

	*c = (struct vae_config){.ltx = {.original = true, .prefixed = prefix[0], .eps = 1e-6f}};
	c->z_dim = conv_size(find_ltx(w, "%sdecoder.conv_in.conv.weight", prefix), 1);
	rows = conv_size(find_ltx(w, "%sdecoder.conv_out.conv.weight", prefix), 0);
	for (c->patch = 1; c->patch < VAE_PATCH_MAX && 3 * c->patch * c->patch < rows;)
		c->patch++;
	if (c->z_dim < 1 || c->z_dim > VAE_Z_MAX || 3 * c->patch * c->patch != rows)
		return vfm_fail(err, VFM_EUSAGE,
			"%sdecoder.conv_in, %sdecoder.conv_out: expected 1 to %d latent channels and RGB in patches",
			prefix, prefix, VAE_Z_MAX);
	begin_walk(&k, w, prefix, "encoder.down_blocks");
	TRY(walk_encoder(&c->ltx.part[VAE_ENCODER], &k, err));
	begin_walk(&k, w, prefix, "decoder.up_blocks");
	TRY(walk_decoder(&c->ltx.part[VAE_DECODER], &k, err));
	c->ltx.timestep = find_ltx(w, "%sdecoder.timestep_scale_multiplier", prefix) != NULL;
	TRY(read_ltx_metadata(c, w, err));
	TRY(vae_ltx_finish(c, err));
	vfm_weights_ignore(w, "model.diffusion_model.");
	snprintf(name, sizeof(name), "%sper_channel_statistics.", prefix);
	vfm_weights_ignore(w, name);
	snprintf(name, sizeof(name), "%sper_channel_statistics.mean-of-means", prefix);
	snprintf(std, sizeof(std), "%sper_channel_statistics.std-of-means", prefix);
	return vae_ltx_scaling(c, w, name, std, 1, err);
}
