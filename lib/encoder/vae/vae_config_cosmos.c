/* vae_config_cosmos.c - reads config.json of AutoencoderKLCosmos. */
#include <string.h>

#include "encoder/vae/vae_impl.h"
#include "io/json.h"

enum { RATIO_MAX = 64, RESOLUTION_MAX = 1 << 16, RESOLUTIONS_MAX = 16 };

/* The values of config.json that give the blocks. */
struct cosmos_keys {
	int space, time; /* compression ratios */
	int resolution, attn[RESOLUTIONS_MAX], n_attn;
};

/* The number of times that 2 divides ratio / patch; -1: something else does. */
static int count_halvings(int ratio, int patch)
{
	int n = 0;

	while (patch < ratio)
		patch *= 2, n++;
	return patch == ratio ? n : -1;
}

static int read_widths(
	struct vae_cosmos_part *p, const json_t *o, const char *key, const int standard[4], struct vfm_err *err)
{
	const json_t *a;
	size_t n;

	TRY(vae_config_array(o, key, VAE_LEVELS_MAX + 1, &a, &n, err));
	if (a && n < 2)
		return vfm_fail(err, VFM_EUSAGE, "%s: expected at least two elements", key);
	memcpy(p->dim, standard, 4 * sizeof(*standard));
	p->blocks = a ? (int)n - 1 : 3;
	return vae_config_ints(a, key, 1, VAE_DIM_MAX, p->dim, err);
}

static bool attends(const struct cosmos_keys *k, int resolution)
{
	for (int i = 0; i < k->n_attn; i++)
		if (k->attn[i] == resolution)
			return true;
	return false;
}

/* The blocks as CosmosEncoder3d and CosmosDecoder3d of diffusers arrange them.  All but the last may resample.  The
 * resolution, which only says where attention is, halves or doubles after each of them. */
static void arrange_blocks(struct vae_config *c, const struct cosmos_keys *k, int space, int time)
{
	const int finest = k->resolution / c->patch;

	for (int part = 0; part < VAE_PARTS; part++) {
		struct vae_cosmos_part *p = &c->cosmos.part[part];
		const int last = p->blocks - 1;

		for (int i = 0; i <= last; i++) {
			if (part == VAE_ENCODER) {
				p->attn[i] = attends(k, finest >> i);
				p->space[i] = i < last && i < space;
				p->time[i] = i < last && i < time;
			} else {
				p->attn[i] = attends(k, finest >> last << i);
				p->time[i] = i < last && i > 0 && i <= time;
				p->space[i] = p->time[i] || (i < last && i < space && space > time);
			}
		}
	}
}

/* The decoder doubles height and width wherever it doubles time, but never time in its first block, so not all ratios
 * can be reached. */
static int check_ratios(
	const struct vae_config *c, const struct cosmos_keys *k, int space, int time, struct vfm_err *err)
{
	for (int part = 0; part < VAE_PARTS; part++) {
		const struct vae_cosmos_part *p = &c->cosmos.part[part];
		int s = 0, t = 0;

		for (int i = 0; i < p->blocks; i++)
			s += p->space[i], t += p->time[i];
		if (s != space || t != time)
			return vfm_fail(err, VFM_EUSAGE,
				"spatial_compression_ratio %d, temporal_compression_ratio %d: the %d blocks of the %s "
				"reach %d and %d",
				k->space, k->time, p->blocks, part == VAE_ENCODER ? "encoder" : "decoder",
				c->patch << s, c->patch << t);
	}
	return 0;
}

static int read_blocks(struct vae_config *c, const json_t *o, struct vfm_err *err)
{
	static const int standard[VAE_PARTS][4] = {{128, 256, 512, 512}, {256, 512, 512, 512}};
	struct cosmos_keys k = {.space = 8, .time = 8, .resolution = 1024, .attn = {32}, .n_attn = 1};
	struct vae_cosmos_part *part = c->cosmos.part;
	const json_t *a;
	size_t n;
	int space, time;

	TRY(read_widths(&part[VAE_ENCODER], o, "encoder_block_out_channels", standard[0], err));
	TRY(read_widths(&part[VAE_DECODER], o, "decode_block_out_channels", standard[1], err));
	for (int i = 0, last = part[VAE_DECODER].blocks; i < last - i; i++) { /* the decoder begins with the last */
		const int dim = part[VAE_DECODER].dim[i];

		part[VAE_DECODER].dim[i] = part[VAE_DECODER].dim[last - i];
		part[VAE_DECODER].dim[last - i] = dim;
	}
	TRY(vae_config_int(o, "resolution", 1, RESOLUTION_MAX, &k.resolution, err));
	TRY(vae_config_array(o, "attention_resolutions", RESOLUTIONS_MAX, &a, &n, err));
	k.n_attn = a ? (int)n : k.n_attn;
	TRY(vae_config_ints(a, "attention_resolutions", 1, RESOLUTION_MAX, k.attn, err));
	TRY(vae_config_int(o, "spatial_compression_ratio", 1, RATIO_MAX, &k.space, err));
	TRY(vae_config_int(o, "temporal_compression_ratio", 1, RATIO_MAX, &k.time, err));
	space = count_halvings(k.space, c->patch);
	time = count_halvings(k.time, c->patch);
	if (space < 0 || time < 0)
		return vfm_fail(err, VFM_EUSAGE, "%s: %d is not patch_size, %d, times a power of two",
			space < 0 ? "spatial_compression_ratio" : "temporal_compression_ratio",
			space < 0 ? k.space : k.time, c->patch);
	c->ratio = 1 << space;
	c->ratio_t = 1 << time;
	c->step = k.time;
	arrange_blocks(c, &k, space, time);
	return check_ratios(c, &k, space, time, err);
}

static int read_patches(struct vae_config *c, const json_t *o, struct vfm_err *err)
{
	const char *type = "haar";

	TRY(vae_config_int(o, "patch_size", 1, VAE_PATCH_MAX, &c->patch, err));
	TRY(vfm_json_str(o, "", "patch_type", false, &type, err));
	c->cosmos.haar = !strcmp(type, "haar");
	if (!c->cosmos.haar && strcmp(type, "rearrange") != 0)
		return vfm_fail(err, VFM_EUSAGE, "patch_type: expected haar or rearrange, got %s", type);
	if (c->cosmos.haar && count_halvings(c->patch, 1) < 0)
		return vfm_fail(err, VFM_EUSAGE, "patch_size: wavelets need a power of two, got %d", c->patch);
	c->patch_t = c->patch;
	TRY(vae_config_rgb(o, err));
	c->in_channels = c->out_channels = 3 * c->patch * c->patch * c->patch;
	return 0;
}

/* Reads [z_dim, n] values, of n latent frames, to [n, z_dim].  Returns n; 0: the key is null. */
static int read_frame_scaling(
	const struct vae_config *c, const json_t *o, const char *key, bool positive, float *to, struct vfm_err *err)
{
	float all[VAE_SCALING_MAX];
	const json_t *a;
	size_t n;
	int frames;

	if (!json_object_get(o, key))
		return vfm_fail(err, VFM_EUSAGE,
			"%s: missing; the default of diffusers belongs to one model, CV8x8x8, so expected values or "
			"null",
			key);
	TRY(vae_config_array(o, key, VAE_SCALING_MAX, &a, &n, err));
	if (a && (!n || n % (size_t)c->z_dim))
		return vfm_fail(err, VFM_EUSAGE,
			"%s: expected %d elements, as latent_channels says, or a multiple; got %zu", key, c->z_dim, n);
	TRY(vae_config_floats(a, key, positive, all, err));
	frames = (int)n / c->z_dim;
	for (int t = 0; t < frames; t++)
		for (int k = 0; k < c->z_dim; k++)
			to[t * c->z_dim + k] = all[k * frames + t];
	return frames;
}

/* As the pipelines of Cosmos in diffusers read them. */
static int read_cosmos_scaling(struct vae_config *c, const json_t *o, struct vfm_err *err)
{
	int of_std;

	TRY(c->scaling_frames = read_frame_scaling(c, o, "latents_mean", false, c->mean, err));
	TRY(of_std = read_frame_scaling(c, o, "latents_std", true, c->std, err));
	if (of_std != c->scaling_frames)
		return vfm_fail(err, VFM_EUSAGE, "latents_std: expected %d elements, as latents_mean has, got %d",
			c->scaling_frames * c->z_dim, of_std * c->z_dim);
	for (int k = 0; k < c->z_dim && !of_std; k++)
		c->std[k] = 1;
	return 0;
}

int vae_config_cosmos(struct vae_config *c, struct vfm_weights *w, const json_t *o, struct vfm_err *err)
{
	static const char *const keys[] = {"_class_name", "_diffusers_version", "_name_or_path", "in_channels",
		"out_channels", "latent_channels", "encoder_block_out_channels", "decode_block_out_channels",
		"attention_resolutions", "resolution", "num_layers", "patch_size", "patch_type", "scaling_factor",
		"spatial_compression_ratio", "temporal_compression_ratio", "latents_mean", "latents_std", NULL};
	double factor = 1;

	(void)w;
	TRY(vfm_json_only_keys(o, "", keys, err));
	*c = (struct vae_config){.family = VAE_COSMOS, .z_dim = 16, .num_res_blocks = 2, .patch = 4};
	TRY(vae_config_int(o, "latent_channels", 1, VAE_Z_MAX, &c->z_dim, err));
	TRY(vae_config_int(o, "num_layers", 1, VAE_RES_MAX, &c->num_res_blocks, err));
	TRY(vfm_json_f64(o, "", "scaling_factor", false, &factor, err));
	if (factor != 1) /* diffusers ignores it */
		return vfm_fail(err, VFM_EUSAGE, "scaling_factor: expected 1, got %g", factor);
	TRY(read_patches(c, o, err));
	TRY(read_blocks(c, o, err));
	return read_cosmos_scaling(c, o, err);
}
