/* vae_config.c - reads config.json of Wan, or infers it from the shapes of a release; chooses the reader of a class. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "encoder/vae/vae_impl.h"
#include "io/json.h"

enum { MULT_MAX = 64 };

/* ---- values of config.json ---- */

int vae_config_int(const json_t *o, const char *key, int min, int max, int *out, struct vfm_err *err)
{
	return vfm_json_i32(o, "", key, false, min, max, out, err);
}

int vae_config_array(const json_t *o, const char *key, size_t max, const json_t **a, size_t *n, struct vfm_err *err)
{
	*a = json_object_get(o, key);
	*n = 0;
	if (!*a || json_is_null(*a)) {
		*a = NULL;
		return 0;
	}
	if (!json_is_array(*a) || json_array_size(*a) > max)
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an array of at most %zu elements", key, max);
	*n = json_array_size(*a);
	return 0;
}

int vae_config_ints(const json_t *a, const char *key, int64_t min, int64_t max, int *out, struct vfm_err *err)
{
	for (size_t i = 0; i < json_array_size(a); i++) {
		const json_t *v = json_array_get(a, i);

		if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max)
			return vfm_fail(err, VFM_EUSAGE, "%s[%zu]: expected an integer from %lld to %lld", key, i,
				(long long)min, (long long)max);
		out[i] = (int)json_integer_value(v);
	}
	return 0;
}

int vae_config_floats(const json_t *a, const char *key, bool positive, float *out, struct vfm_err *err)
{
	for (size_t i = 0; i < json_array_size(a); i++) {
		const json_t *v = json_array_get(a, i);
		const double x = json_number_value(v);

		if (!json_is_number(v) || !isfinite((float)x) || (positive && (float)x <= 0))
			return vfm_fail(
				err, VFM_EUSAGE, "%s[%zu]: expected a %snumber", key, i, positive ? "positive " : "");
		out[i] = (float)x;
	}
	return 0;
}

int vae_config_rgb(const json_t *o, struct vfm_err *err)
{
	static const char *const keys[] = {"in_channels", "out_channels"};

	for (int i = 0; i < 2; i++) {
		int channels = 3;

		TRY(vae_config_int(o, keys[i], 1, VAE_DIM_MAX, &channels, err));
		if (channels != 3)
			return vfm_fail(err, VFM_EUSAGE, "%s: expected 3, RGB, got %d", keys[i], channels);
	}
	return 0;
}

int vae_config_bools(const json_t *a, const char *key, bool *out, struct vfm_err *err)
{
	for (size_t i = 0; i < json_array_size(a); i++) {
		if (!json_is_boolean(json_array_get(a, i)))
			return vfm_fail(err, VFM_EUSAGE, "%s[%zu]: expected true or false", key, i);
		out[i] = json_is_true(json_array_get(a, i));
	}
	return 0;
}

int vae_config_bool(const json_t *o, const char *key, bool *out, struct vfm_err *err)
{
	const json_t *v = json_object_get(o, key);

	if (v && !json_is_boolean(v))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected true or false", key);
	*out = v ? json_is_true(v) : *out;
	return 0;
}

/* ---- Wan ---- */

static int read_levels(struct vae_config *c, const json_t *o, struct vfm_err *err)
{
	const json_t *a;
	size_t n;

	TRY(vae_config_array(o, "dim_mult", VAE_LEVELS_MAX, &a, &n, err));
	if (a && !n)
		return vfm_fail(err, VFM_EUSAGE, "dim_mult: expected at least one element");
	c->wan.levels = a ? (int)n : c->wan.levels;
	TRY(vae_config_ints(a, "dim_mult", 1, MULT_MAX, c->wan.dim_mult, err));
	TRY(vae_config_array(o, "temperal_downsample", VAE_LEVELS_MAX, &a, &n, err));
	TRY(vae_config_bools(a, "temperal_downsample", c->wan.temporal_down, err));
	if (a ? (int)n != c->wan.levels - 1 : c->wan.levels != 4)
		return vfm_fail(err, VFM_EUSAGE,
			"temperal_downsample: expected %d elements, one less than dim_mult has", c->wan.levels - 1);
	return 0;
}

static int read_scaling(
	struct vae_config *c, const json_t *o, const char *key, bool positive, float *out, struct vfm_err *err)
{
	const json_t *a;
	size_t n;

	TRY(vae_config_array(o, key, VAE_Z_MAX, &a, &n, err));
	if (a && (int)n != c->z_dim)
		return vfm_fail(err, VFM_EUSAGE, "%s: expected %d elements, as z_dim says, got %zu", key, c->z_dim, n);
	if (!a && c->z_dim != 16) /* the defaults of the class are those of 16 channels */
		return vfm_fail(err, VFM_EUSAGE, "%s: missing", key);
	return vae_config_floats(a, key, positive, out, err);
}

/* Keys that change nothing here, or that follow from others. */
static int check_vae_rest(const struct vae_config *c, const json_t *o, struct vfm_err *err)
{
	const int patch = c->patch;
	int t = 1, s = patch, have_t = 4, have_s = 8;
	const json_t *a;
	double dropout;
	size_t n;

	TRY(vae_config_array(o, "attn_scales", VAE_LEVELS_MAX, &a, &n, err));
	if (n)
		return vfm_fail(err, VFM_EUSAGE, "attn_scales: attention between the levels is not supported");
	TRY(vfm_json_f64(o, "", "dropout", false, &dropout, err)); /* of training */
	for (int i = 0; i < c->wan.levels - 1; i++) {
		t *= c->wan.temporal_down[i] ? 2 : 1;
		s *= 2;
	}
	TRY(vae_config_int(o, "scale_factor_temporal", 1, 1 << 10, &have_t, err));
	TRY(vae_config_int(o, "scale_factor_spatial", 1, 1 << 10, &have_s, err));
	if (json_is_integer(json_object_get(o, "scale_factor_temporal")) && have_t != t)
		return vfm_fail(
			err, VFM_EUSAGE, "scale_factor_temporal: %d, but temperal_downsample gives %d", have_t, t);
	if (json_is_integer(json_object_get(o, "scale_factor_spatial")) && have_s != s)
		return vfm_fail(
			err, VFM_EUSAGE, "scale_factor_spatial: %d, but dim_mult and patch_size give %d", have_s, s);
	if (c->in_channels != 3 * patch * patch || c->out_channels != c->in_channels)
		return vfm_fail(err, VFM_EUSAGE,
			"in_channels %d and out_channels %d: expected %d, RGB in patches of %d x %d", c->in_channels,
			c->out_channels, 3 * patch * patch, patch, patch);
	return 0;
}

static int read_wan_json(struct vae_config *c, const json_t *o, struct vfm_err *err)
{
	static const char *const keys[] = {"_class_name", "_diffusers_version", "_name_or_path", "base_dim",
		"decoder_base_dim", "z_dim", "dim_mult", "num_res_blocks", "attn_scales", "temperal_downsample",
		"dropout", "latents_mean", "latents_std", "is_residual", "in_channels", "out_channels", "patch_size",
		"scale_factor_temporal", "scale_factor_spatial", NULL};

	TRY(vfm_json_only_keys(o, "", keys, err));
	*c = (struct vae_config){.z_dim = 16,
		.num_res_blocks = 2,
		.patch = 1,
		.in_channels = 3,
		.out_channels = 3,
		.wan = {.base_dim = 96, .levels = 4, .dim_mult = {1, 2, 4, 4}, .temporal_down = {false, true, true}}};
	TRY(vae_config_bool(o, "is_residual", &c->wan.residual, err));
	TRY(vae_config_int(o, "base_dim", 1, VAE_DIM_MAX, &c->wan.base_dim, err));
	c->wan.decoder_base_dim = c->wan.base_dim;
	TRY(vae_config_int(o, "decoder_base_dim", 1, VAE_DIM_MAX, &c->wan.decoder_base_dim, err));
	TRY(vae_config_int(o, "z_dim", 1, VAE_Z_MAX, &c->z_dim, err));
	TRY(vae_config_int(o, "num_res_blocks", 1, VAE_RES_MAX, &c->num_res_blocks, err));
	TRY(vae_config_int(o, "in_channels", 1, VAE_DIM_MAX, &c->in_channels, err));
	TRY(vae_config_int(o, "out_channels", 1, VAE_DIM_MAX, &c->out_channels, err));
	TRY(vae_config_int(o, "patch_size", 1, VAE_PATCH_MAX, &c->patch, err));
	TRY(read_levels(c, o, err));
	if (c->z_dim == 16)
		vae_release_scaling(c);
	TRY(read_scaling(c, o, "latents_mean", false, c->mean, err));
	TRY(read_scaling(c, o, "latents_std", true, c->std, err));
	return check_vae_rest(c, o, err);
}

/* ---- shapes of a release ---- */

/* Returns dimension `dim` of a tensor of 5 or 4 dimensions; 0: there is none. */
static int dim_of(const struct vfm_weights *w, const char *name, int dim)
{
	char full[VAE_NAME + 16];
	const struct vfm_weight *t;

	snprintf(full, sizeof(full), "%s.weight", name);
	t = vfm_weights_find(w, full);
	return t && t->ndim >= 4 && t->shape[dim] > 0 && t->shape[dim] <= VAE_DIM_MAX ? (int)t->shape[dim] : 0;
}

static int block_dim(
	const struct vae_config *c, const struct vfm_weights *w, int level, int index, enum vae_tensor t, int dim)
{
	char name[VAE_NAME];

	vae_name(name, c, &(struct vae_place){.part = VAE_ENCODER, .level = level, .index = index}, t);
	return dim_of(w, name, dim);
}

/* Counts levels and blocks by the names of the encoder. */
static void infer_levels(struct vae_config *c, const struct vfm_weights *w)
{
	int out;

	while (c->num_res_blocks < VAE_RES_MAX && block_dim(c, w, 0, c->num_res_blocks, VAE_CONV1, 0))
		c->num_res_blocks++;
	for (; c->wan.levels < VAE_LEVELS_MAX; c->wan.levels++) {
		out = block_dim(c, w, c->wan.levels, 0, VAE_CONV1, 0);
		if (!out || !c->wan.base_dim || out % c->wan.base_dim)
			return;
		c->wan.dim_mult[c->wan.levels] = out / c->wan.base_dim;
		c->wan.temporal_down[c->wan.levels] =
			block_dim(c, w, c->wan.levels, c->num_res_blocks, VAE_TIME_CONV, 0) > 0;
	}
}

/* Wan's releases have no configuration; tensors that contradict the result are reported by vfm_weights_check. */
static int infer_release(struct vae_config *c, const struct vfm_weights *w, struct vfm_err *err)
{
	int wide;

	*c = (struct vae_config){.wan.original = true};
	c->wan.residual = dim_of(w, "encoder.downsamples.0.downsamples.0.residual.2", 0) > 0;
	c->wan.base_dim = dim_of(w, "encoder.conv1", 0);
	c->in_channels = c->out_channels = dim_of(w, "encoder.conv1", 1);
	c->z_dim = dim_of(w, "conv2", 0);
	wide = dim_of(w, "decoder.conv1", 0);
	infer_levels(c, w);
	if (!c->wan.base_dim || !c->z_dim || !c->wan.levels || !c->num_res_blocks || !wide)
		return vfm_fail(err, VFM_EUSAGE,
			"these are not the weights of a VAE: no config.json, and not the tensors of a release of Wan "
			"(encoder.conv1, encoder.downsamples, decoder.conv1, conv2) or LTX-Video "
			"(vae.encoder.conv_in)");
	c->wan.decoder_base_dim = wide / c->wan.dim_mult[c->wan.levels - 1];
	for (c->patch = 1; c->patch < VAE_PATCH_MAX && 3 * c->patch * c->patch < c->in_channels;)
		c->patch++;
	if (3 * c->patch * c->patch != c->in_channels)
		return vfm_fail(err, VFM_EUSAGE, "encoder.conv1 takes %d channels, not RGB in patches", c->in_channels);
	if (!vae_release_scaling(c))
		return vfm_fail(err, VFM_EUSAGE,
			"no release has %d channels, so mean and std of the latents are unknown; a folder of diffusers "
			"names them in config.json",
			c->z_dim);
	return 0;
}

/* The shortcuts average and repeat whole channels; the decoder of Wan 2.1 halves channels when it upsamples. */
static int check_vae_dims(const struct vae_config *c, struct vfm_err *err)
{
	for (int i = 0; i < c->wan.levels; i++) {
		const bool down = i < c->wan.levels - 1;
		const int in = i ? c->wan.dim_mult[i - 1] : 1, out = c->wan.dim_mult[i];
		const int factor = (down ? 4 : 1) * (down && c->wan.temporal_down[i] ? 2 : 1);
		/* of the decoder: from level i + 1 to level i */
		const int up_factor = i ? 4 * (c->wan.temporal_down[i - 1] ? 2 : 1) : 1;
		const int up_in = c->wan.dim_mult[i + 1 < c->wan.levels ? i + 1 : i];

		if (!c->wan.residual && i && c->wan.decoder_base_dim * out % 2)
			return vfm_fail(err, VFM_EUSAGE, "decoder_base_dim: %d x %d channels cannot be halved",
				c->wan.decoder_base_dim, out);
		if (c->wan.residual && (in * factor % out || (i && out * up_factor % up_in)))
			return vfm_fail(err, VFM_EUSAGE,
				"dim_mult[%d]: %d does not divide the channels of the shortcut", i, out);
	}
	return 0;
}

/* o NULL: a release. */
static int read_wan(struct vae_config *c, struct vfm_weights *w, const json_t *o, struct vfm_err *err)
{
	TRY(o ? read_wan_json(c, o, err) : infer_release(c, w, err));
	c->family = VAE_WAN;
	c->patch_t = 1;
	c->scaling_frames = 1;
	c->step = VAE_WAN_GROUP;
	c->ratio = c->ratio_t = 1;
	for (int i = 0; i < c->wan.levels - 1; i++) {
		c->ratio *= 2;
		c->ratio_t *= c->wan.temporal_down[i] ? 2 : 1;
	}
	if (c->ratio_t > VAE_WAN_GROUP) /* a group would not fill a latent frame */
		return vfm_fail(err, VFM_EUSAGE, "more than two levels halve time (temperal_downsample)");
	if (c->ratio * c->patch > VFM_GEOMETRY_STRIDE_MAX)
		return vfm_fail(err, VFM_EUSAGE,
			"dim_mult, patch_size: a latent covers %d x %d pixels; at most %d are supported",
			c->ratio * c->patch, c->ratio * c->patch, VFM_GEOMETRY_STRIDE_MAX);
	return check_vae_dims(c, err);
}

/* ---- any ---- */

static const struct {
	const char *name;
	int (*read)(struct vae_config *c, struct vfm_weights *w, const json_t *o, struct vfm_err *err);
} classes[] = {
	{"AutoencoderKLWan", read_wan},
	{"AutoencoderKLCosmos", vae_config_cosmos},
	{"AutoencoderKLLTXVideo", vae_config_ltx},
	{"AutoencoderKLHunyuanVideo15", vae_config_hunyuan},
	{"AutoencoderKLConv3D", vae_config_hunyuan_release},
};
enum { CLASSES = sizeof(classes) / sizeof(classes[0]) };

static int read_class(struct vae_config *c, struct vfm_weights *w, const json_t *o, struct vfm_err *err)
{
	struct vfm_buf all = {0};
	const char *name = NULL;
	int rc;

	TRY(vfm_json_str(o, "", "_class_name", true, &name, err));
	for (int i = 0; i < CLASSES; i++)
		if (!strcmp(name, classes[i].name))
			return classes[i].read(c, w, o, err);
	for (int i = 0; i < CLASSES; i++)
		vfm_buf_addf(&all, "%s%s", i == 0 ? "" : i == CLASSES - 1 ? " or " : ", ", classes[i].name);
	rc = vfm_fail(err, VFM_EUSAGE, "_class_name: expected %s, got %s", all.data, name);
	vfm_buf_release(&all);
	return rc;
}

/* Reads a release, which has no configuration of its autoencoder; *found: it is one. */
static int read_release(struct vae_config *c, struct vfm_weights *w, bool *found, struct vfm_err *err)
{
	*found = true;
	if (vae_is_ltx_release(w))
		return vae_config_ltx_release(c, w, err);
	/* The folder of a release may have the config.json of its transformer. */
	if (!vfm_weights_config(w) ||
		(vfm_weights_has(w, "encoder.conv1.weight") && !vfm_weights_has(w, "encoder.conv_in.weight")))
		return read_wan(c, w, NULL, err);
	*found = false;
	return 0;
}

int vae_config_read(struct vae_config *c, struct vfm_weights *w, struct vfm_err *err)
{
	bool found;
	int rc = read_release(c, w, &found, err);

	if (found)
		return rc < 0 ? vfm_err_context(err, "%s", vfm_weights_path(w)) : 0;
	rc = read_class(c, w, vfm_weights_config(w), err);
	return rc < 0 ? vfm_err_context(err, "%s: config.json", vfm_weights_path(w)) : 0;
}
