/* vae_config_ltx.c - reads config.json of AutoencoderKLLTXVideo. */
#include <math.h>
#include <string.h>

#include "encoder/vae/vae_impl.h"
#include "io/json.h"

enum { RATIO_MAX = VFM_GEOMETRY_STRIDE_MAX };

/* ---- lists: an element for each level, in the order of config.json ---- */

static int expect_length(size_t n, int want, const char *key, struct vfm_err *err)
{
	return (int)n == want ? 0 : vfm_fail(err, VFM_EUSAGE, "%s: expected %d elements, got %zu", key, want, n);
}

/* Reads `want` integers; an absent key leaves the `standard` defaults in `to`. */
static int read_level_ints(
	const json_t *o, const char *key, int min, int max, int want, int standard, int *to, struct vfm_err *err)
{
	const json_t *a;
	size_t n;

	TRY(vae_config_array(o, key, VAE_LEVELS_MAX + 1, &a, &n, err));
	TRY(expect_length(a ? n : (size_t)standard, want, key, err));
	return vae_config_ints(a, key, min, max, to, err);
}

static int read_level_bools(const json_t *o, const char *key, int want, int standard, bool *to, struct vfm_err *err)
{
	const json_t *a;
	size_t n;

	TRY(vae_config_array(o, key, VAE_LEVELS_MAX + 1, &a, &n, err));
	TRY(expect_length(a ? n : (size_t)standard, want, key, err));
	return vae_config_bools(a, key, to, err);
}

/* Reads words of a list, as numbers of `words`, which ends with NULL. */
static int read_level_words(const json_t *o, const char *key, const char *const *words, int want, int standard, int *to,
	struct vfm_err *err)
{
	const json_t *a;
	size_t n;

	TRY(vae_config_array(o, key, VAE_LEVELS_MAX, &a, &n, err));
	TRY(expect_length(a ? n : (size_t)standard, want, key, err));
	for (size_t i = 0; i < n; i++) {
		const char *s = json_string_value(json_array_get(a, i));
		int k = 0;

		while (s && words[k] && strcmp(s, words[k]) != 0)
			k++;
		if (!s || !words[k])
			return vfm_fail(err, VFM_EUSAGE, "%s[%zu]: %s is not supported", key, i, s ? s : "a value");
		to[i] = k;
	}
	return 0;
}

/* Sets *levels to the length of a list, which is 4 if the key is absent. */
static int read_levels_of(const json_t *o, const char *key, int *levels, struct vfm_err *err)
{
	const json_t *a;
	size_t n;

	TRY(vae_config_array(o, key, VAE_LEVELS_MAX, &a, &n, err));
	if (a && !n)
		return vfm_fail(err, VFM_EUSAGE, "%s: expected at least one element", key);
	*levels = a ? (int)n : 4;
	return 0;
}

static void reverse(void *list, int n, size_t size)
{
	char *first = list, *last = first + (size_t)(n - 1) * size, tmp[sizeof(int)];

	for (; first < last; first += size, last -= size) {
		memcpy(tmp, first, size);
		memcpy(first, last, size);
		memcpy(last, tmp, size);
	}
}

/* ---- encoder ---- */

enum { DOWN_OLD, DOWN_NEW };
static const char *const down_types[] = {"LTXVideoDownBlock3D", "LTXVideo095DownBlock3D", NULL};
static const char *const samplers[] = {"conv", "spatial", "temporal", "spatiotemporal", NULL};

/* The sampler of level i, and whether its channels fit. */
static int set_down_sampler(struct vae_ltx_part *p, int i, bool scales, bool old, int type, struct vfm_err *err)
{
	const int in = p->dim[i], out = p->dim[i + 1];
	int cells;

	p->sampler[i] = scales ? VAE_LTX_CONV + type : VAE_LTX_NONE;
	if (old && p->sampler[i] > VAE_LTX_CONV)
		return vfm_fail(err, VFM_EUSAGE, "downsample_type[%d]: expected conv in a %s", i, down_types[DOWN_OLD]);
	if (p->sampler[i] <= VAE_LTX_CONV) {
		if (!old && in != out)
			return vfm_fail(err, VFM_EUSAGE, "block_out_channels[%d]: no layer changes %d channels to %d",
				i + 1, in, out);
		return 0;
	}
	cells = p->sampler[i] == VAE_LTX_ALL ? 8 : p->sampler[i] == VAE_LTX_SPACE ? 4 : 2;
	if (out % cells || in * cells % out)
		return vfm_fail(err, VFM_EUSAGE, "block_out_channels[%d]: %d does not divide %d x %d channels", i + 1,
			out, cells, in);
	return 0;
}

/* A block of the first kind has the channels of the next one, the last its own; of the second kind a list has one
 * element more. */
static int read_encoder(struct vae_config *c, const json_t *o, struct vfm_err *err)
{
	struct vae_ltx_part *p = &c->ltx.part[VAE_ENCODER];
	int types[VAE_LEVELS_MAX] = {0}, samples[VAE_LEVELS_MAX] = {0};
	bool scales[VAE_LEVELS_MAX + 1] = {true, true, true, false};
	int levels;

	TRY(read_levels_of(o, "down_block_types", &levels, err));
	p->levels = levels;
	memcpy(p->dim, (int[]){128, 256, 512, 512}, 4 * sizeof(int));
	memcpy(p->resnets, (int[]){4, 3, 3, 3, 4}, 5 * sizeof(int));
	TRY(read_level_words(o, "down_block_types", down_types, levels, 4, types, err));
	for (int i = 1; i < levels; i++)
		if (types[i] != types[0])
			return vfm_fail(err, VFM_EUSAGE, "down_block_types[%d]: expected %s", i, down_types[types[0]]);
	TRY(read_level_ints(o, "block_out_channels", 1, VAE_DIM_MAX, levels + types[0], 4, p->dim, err));
	if (types[0] == DOWN_OLD)
		p->dim[levels] = p->dim[levels - 1];
	TRY(read_level_ints(o, "layers_per_block", 1, VAE_RES_MAX, levels + 1, 5, p->resnets, err));
	TRY(read_level_bools(o, "spatio_temporal_scaling", levels, 4, scales, err));
	TRY(read_level_words(o, "downsample_type", samplers, levels, 4, samples, err));
	for (int i = 0; i < levels; i++)
		TRY(set_down_sampler(p, i, scales[i], types[0] == DOWN_OLD, samples[i], err));
	return 0;
}

/* ---- decoder ---- */

/* The lists begin with the finest level, the decoder with the coarsest. */
static int check_up_level(const struct vae_ltx *c, int i, struct vfm_err *err)
{
	const struct vae_ltx_part *p = &c->part[VAE_DECODER];
	const int at = p->levels - 1 - i, in = p->dim[i], out = p->dim[i + 1], factor = p->factor[i];
	const bool ups = p->sampler[i] != VAE_LTX_NONE, changes = in != out * factor;

	if (factor > 1 && (!ups || 8 % factor || changes))
		return vfm_fail(err, VFM_EUSAGE, "upsample_factor[%d]: %d does not fit %d channels in, %d out%s", at,
			factor, in, out, ups ? "" : " without upsampling");
	if (p->residual[i] && ups && out * factor % 8)
		return vfm_fail(
			err, VFM_EUSAGE, "upsample_residual[%d]: 8 does not divide %d channels", at, out * factor);
	if (changes && c->timestep)
		return vfm_fail(err, VFM_EUSAGE,
			"timestep_conditioning: not supported with a block that changes %d channels to %d "
			"(decoder_block_out_channels, upsample_factor)",
			in, out);
	if (changes && p->noise[i])
		return vfm_fail(err, VFM_EUSAGE,
			"decoder_inject_noise[%d]: not supported with a block that changes %d channels to %d", at, in,
			out);
	return 0;
}

static int read_decoder(struct vae_config *c, const json_t *o, struct vfm_err *err)
{
	struct vae_ltx_part *p = &c->ltx.part[VAE_DECODER];
	int dim[VAE_LEVELS_MAX + 1] = {128, 256, 512, 512}, levels;
	bool ups[VAE_LEVELS_MAX + 1] = {true, true, true, false};

	TRY(read_levels_of(o, "decoder_block_out_channels", &levels, err));
	p->levels = levels;
	memcpy(p->resnets, (int[]){4, 3, 3, 3, 4}, 5 * sizeof(int));
	for (int i = 0; i < VAE_LEVELS_MAX; i++)
		p->factor[i] = 1;
	TRY(read_level_ints(o, "decoder_block_out_channels", 1, VAE_DIM_MAX, levels, 4, dim, err));
	TRY(read_level_ints(o, "decoder_layers_per_block", 1, VAE_RES_MAX, levels + 1, 5, p->resnets, err));
	TRY(read_level_bools(o, "decoder_spatio_temporal_scaling", levels, 4, ups, err));
	TRY(read_level_bools(o, "decoder_inject_noise", levels + 1, 5, p->noise, err));
	TRY(read_level_bools(o, "upsample_residual", levels, 4, p->residual, err));
	TRY(read_level_ints(o, "upsample_factor", 1, 8, levels, 4, p->factor, err));
	reverse(dim, levels, sizeof(dim[0]));
	reverse(p->resnets, levels, sizeof(p->resnets[0])); /* the last is that of the middle block */
	reverse(ups, levels, sizeof(ups[0]));
	reverse(p->noise, levels, sizeof(p->noise[0]));
	reverse(p->residual, levels, sizeof(p->residual[0]));
	reverse(p->factor, levels, sizeof(p->factor[0]));
	p->dim[0] = dim[0];
	for (int i = 0; i < levels; i++) {
		if (dim[i] % p->factor[i])
			return vfm_fail(err, VFM_EUSAGE, "upsample_factor[%d]: %d does not divide %d channels",
				levels - 1 - i, p->factor[i], dim[i]);
		p->dim[i + 1] = dim[i] / p->factor[i];
		p->sampler[i] = ups[i] ? VAE_LTX_ALL : VAE_LTX_NONE;
	}
	for (int i = 0; i < levels; i++)
		TRY(check_up_level(&c->ltx, i, err));
	return 0;
}

/* ---- both ---- */

/* Counts how often a part halves or doubles height and width, and time. */
static void count_samplers(const struct vae_ltx_part *p, int *space, int *time)
{
	*space = *time = 0;
	for (int i = 0; i < p->levels; i++) {
		*space += p->sampler[i] != VAE_LTX_NONE && p->sampler[i] != VAE_LTX_TIME;
		*time += p->sampler[i] != VAE_LTX_NONE && p->sampler[i] != VAE_LTX_SPACE;
	}
}

int vae_ltx_finish(struct vae_config *c, struct vfm_err *err)
{
	int space, time, up_space, up_time;

	count_samplers(&c->ltx.part[VAE_ENCODER], &space, &time);
	count_samplers(&c->ltx.part[VAE_DECODER], &up_space, &up_time);
	if (space != up_space || time != up_time)
		return vfm_fail(err, VFM_EUSAGE,
			"decoder_spatio_temporal_scaling: the decoder doubles pixels %d times and frames %d times, but "
			"the encoder halves them %d and %d times",
			up_space, up_time, space, time);
	c->family = VAE_LTX;
	c->patch_t = 1;
	c->ratio = 1 << space;
	c->ratio_t = c->step = 1 << time;
	c->scaling_frames = 1;
	c->in_channels = c->out_channels = 3 * c->patch * c->patch;
	if (c->ratio * c->patch > VFM_GEOMETRY_STRIDE_MAX)
		return vfm_fail(err, VFM_EUSAGE, "patch_size: a latent covers %d x %d pixels; at most %d are supported",
			c->ratio * c->patch, c->ratio * c->patch, VFM_GEOMETRY_STRIDE_MAX);
	return 0;
}

int vae_ltx_scaling(struct vae_config *c, struct vfm_weights *w, const char *mean, const char *std, double factor,
	struct vfm_err *err)
{
	const struct vfm_weight *m = vfm_weights_want(w, 1, (int64_t[]){c->z_dim}, "%s", mean),
				*s = vfm_weights_want(w, 1, (int64_t[]){c->z_dim}, "%s", std);

	if (!m || !s) /* vfm_weights_check reports it */
		return 0;
	vfm_weight_to_f32(m, c->mean);
	vfm_weight_to_f32(s, c->std);
	for (int i = 0; i < c->z_dim; i++) {
		c->std[i] = (float)((double)c->std[i] / factor);
		if (!isfinite(c->mean[i]) || !isfinite(c->std[i]) || c->std[i] <= 0)
			return vfm_fail(
				err, VFM_EUSAGE, "%s, %s: expected numbers, and positive deviations", mean, std);
	}
	return 0;
}

/* The value of a key that has only one supported value. */
static int expect_int(const json_t *o, const char *key, int want, struct vfm_err *err)
{
	int x = want;

	TRY(vae_config_int(o, key, 1, VAE_DIM_MAX, &x, err));
	return x == want ? 0 : vfm_fail(err, VFM_EUSAGE, "%s: expected %d, got %d", key, want, x);
}

/* A ratio may be null: diffusers then computes it. */
static int check_ratio(const json_t *o, const char *key, int want, struct vfm_err *err)
{
	return json_is_null(json_object_get(o, key)) ? 0 : expect_int(o, key, want, err);
}

int vae_config_ltx(struct vae_config *c, struct vfm_weights *w, const json_t *o, struct vfm_err *err)
{
	static const char *const keys[] = {"_class_name", "_diffusers_version", "_name_or_path", "in_channels",
		"out_channels", "latent_channels", "block_out_channels", "down_block_types",
		"decoder_block_out_channels", "layers_per_block", "decoder_layers_per_block", "spatio_temporal_scaling",
		"decoder_spatio_temporal_scaling", "decoder_inject_noise", "downsample_type", "upsample_residual",
		"upsample_factor", "timestep_conditioning", "patch_size", "patch_size_t", "resnet_norm_eps",
		"scaling_factor", "encoder_causal", "decoder_causal", "spatial_compression_ratio",
		"temporal_compression_ratio", NULL};
	double eps = 1e-6, factor = 1;
	bool causal = true;

	TRY(vfm_json_only_keys(o, "", keys, err));
	*c = (struct vae_config){.z_dim = 128, .patch = 4};
	TRY(vae_config_int(o, "latent_channels", 1, VAE_Z_MAX, &c->z_dim, err));
	TRY(vae_config_int(o, "patch_size", 1, VAE_PATCH_MAX, &c->patch, err));
	TRY(expect_int(o, "patch_size_t", 1, err));
	TRY(vae_config_rgb(o, err));
	TRY(vae_config_bool(o, "encoder_causal", &causal, err));
	if (!causal)
		return vfm_fail(err, VFM_EUSAGE, "encoder_causal: false is not supported");
	TRY(vae_config_bool(o, "decoder_causal", &c->ltx.causal, err));
	TRY(vae_config_bool(o, "timestep_conditioning", &c->ltx.timestep, err));
	TRY(vfm_json_f64(o, "", "resnet_norm_eps", false, &eps, err));
	TRY(vfm_json_f64(o, "", "scaling_factor", false, &factor, err));
	if (!(eps > 0 && eps < 1) || !(factor > 1e-6 && factor < 1e6))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected a positive number",
			eps > 0 && eps < 1 ? "scaling_factor" : "resnet_norm_eps");
	c->ltx.eps = (float)eps;
	TRY(read_encoder(c, o, err));
	TRY(read_decoder(c, o, err));
	TRY(vae_ltx_finish(c, err));
	TRY(check_ratio(o, "spatial_compression_ratio", c->ratio * c->patch, err));
	TRY(check_ratio(o, "temporal_compression_ratio", c->ratio_t, err));
	return vae_ltx_scaling(c, w, "latents_mean", "latents_std", factor, err);
}
