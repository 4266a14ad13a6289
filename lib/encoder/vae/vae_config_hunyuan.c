/* vae_config_hunyuan.c - reads config.json of AutoencoderKLHunyuanVideo15 of diffusers, and of AutoencoderKLConv3D of
 * the release of HunyuanVideo 1.5. */
#include <math.h>
#include <string.h>

#include "encoder/vae/vae_impl.h"
#include "io/json.h"

/* By struct vae_hunyuan.original */
static const char *const space_keys[] = {"spatial_compression_ratio", "ffactor_spatial"},
			 *const time_keys[] = {"temporal_compression_ratio", "ffactor_temporal"};

/* The values of config.json that give the blocks. */
struct hunyuan_keys {
	int space, time;           /* compression ratios */
	int dim[VAE_LEVELS_MAX];   /* of the encoder's blocks; the decoder has them in reverse */
	bool down_match, up_match; /* the sampler of a block gives the channels of the next one */
};

/* Returns log2(n); -1: n is no power of two. */
static int log2_of(int n)
{
	int k = 0;

	while (1 << k < n)
		k++;
	return 1 << k == n ? k : -1;
}

/* The blocks as HunyuanVideo15Encoder3D and HunyuanVideo15Decoder3D of diffusers arrange them: the first `space` blocks
 * resample, of the encoder the last `time` of them also in time, of the decoder the first. */
static void arrange_hunyuan(struct vae_config *c, const struct hunyuan_keys *k, int space, int time)
{
	const int n = c->hunyuan.blocks;

	for (int part = 0; part < VAE_PARTS; part++) {
		struct vae_hunyuan_part *p = &c->hunyuan.part[part];
		const bool match = part == VAE_ENCODER ? k->down_match : k->up_match;

		for (int i = 0; i < n; i++) {
			const int next = i + 1 < n ? i + 1 : i;

			p->inner[i] = k->dim[part == VAE_ENCODER ? i : n - 1 - i];
			p->space[i] = i < space;
			p->time[i] = p->space[i] && (part == VAE_ENCODER ? i >= space - time : i < time);
			p->dim[i + 1] =
				p->space[i] && match ? k->dim[part == VAE_ENCODER ? next : n - 1 - next] : p->inner[i];
		}
		p->dim[0] = p->inner[0];
	}
}

/* Channels that samplers can move, average and repeat. */
static int check_hunyuan_dims(const struct vae_config *c, struct vfm_err *err)
{
	const struct vae_hunyuan *h = &c->hunyuan;
	const struct vae_hunyuan_part *e = &h->part[VAE_ENCODER], *d = &h->part[VAE_DECODER];
	const int last = e->dim[h->blocks], first = d->dim[0];

	for (int i = 0; i < h->blocks; i++) {
		const int in = e->inner[i], out = e->dim[i + 1], from = d->inner[i], to = d->dim[i + 1];
		const int down = e->time[i] ? 8 : 4, up = d->time[i] ? 8 : 4;

		if (e->space[i] && (out % down || 4 * in % out))
			return vfm_fail(err, VFM_EUSAGE,
				"block_out_channels[%d]: the downsampling cannot make %d channels of %d", i, out, in);
		if (d->space[i] && (from % up || 4 * to % from))
			return vfm_fail(err, VFM_EUSAGE,
				"block_out_channels[%d]: the upsampling cannot make %d channels of %d",
				h->blocks - 1 - i, to, from);
	}
	if (last % (2 * c->z_dim) || first % c->z_dim)
		return vfm_fail(err, VFM_EUSAGE,
			"latent_channels: expected a divisor of half the last element of block_out_channels, %d; "
			"got %d",
			last, c->z_dim);
	return 0;
}

static int read_hunyuan_blocks(struct vae_config *c, const json_t *o, struct vfm_err *err)
{
	struct hunyuan_keys k = {
		.space = 16, .time = 4, .dim = {128, 256, 512, 1024, 1024}, .down_match = true, .up_match = true};
	const char *space_key = space_keys[c->hunyuan.original], *time_key = time_keys[c->hunyuan.original];
	const json_t *a;
	int space, time;
	size_t n;

	TRY(vae_config_array(o, "block_out_channels", VAE_LEVELS_MAX, &a, &n, err));
	if (a && !n)
		return vfm_fail(err, VFM_EUSAGE, "block_out_channels: expected at least one element");
	c->hunyuan.blocks = a ? (int)n : 5;
	TRY(vae_config_ints(a, "block_out_channels", 1, VAE_DIM_MAX, k.dim, err));
	TRY(vae_config_int(o, space_key, 1, VFM_GEOMETRY_STRIDE_MAX, &k.space, err));
	TRY(vae_config_int(o, time_key, 1, VFM_GEOMETRY_STRIDE_MAX, &k.time, err));
	TRY(vae_config_bool(o, "downsample_match_channel", &k.down_match, err));
	TRY(vae_config_bool(o, "upsample_match_channel", &k.up_match, err));
	space = log2_of(k.space);
	time = log2_of(k.time);
	if (space < 0 || time < 0 || time > space)
		return vfm_fail(err, VFM_EUSAGE, "%s: expected a power of two%s, got %d",
			space < 0 ? space_key : time_key, space < 0 || time < 0 ? "" : " up to that of space",
			space < 0 ? k.space : k.time);
	if (space > c->hunyuan.blocks - (k.down_match || k.up_match))
		return vfm_fail(err, VFM_EUSAGE, "%s: block_out_channels has %d elements, too few for %d", space_key,
			c->hunyuan.blocks, k.space);
	c->ratio = k.space;
	c->ratio_t = c->step = k.time;
	arrange_hunyuan(c, &k, space, time);
	return check_hunyuan_dims(c, err);
}

static int read_hunyuan(struct vae_config *c, const json_t *o, bool original, struct vfm_err *err)
{
	double factor = 1.03682;

	*c = (struct vae_config){.family = VAE_HUNYUAN,
		.z_dim = 32,
		.num_res_blocks = 2,
		.patch = 1,
		.patch_t = 1,
		.in_channels = 3,
		.out_channels = 3,
		.scaling_frames = 1,
		.hunyuan = {.original = original}};
	TRY(vae_config_rgb(o, err));
	TRY(vae_config_int(o, "latent_channels", 1, VAE_Z_MAX, &c->z_dim, err));
	TRY(vae_config_int(o, "layers_per_block", 1, VAE_RES_MAX, &c->num_res_blocks, err));
	TRY(vfm_json_f64(o, "", "scaling_factor", original, &factor, err));
	if (!(factor > 1e-6 && factor < 1e6))
		return vfm_fail(err, VFM_EUSAGE, "scaling_factor: expected a positive number, got %g", factor);
	for (int k = 0; k < c->z_dim; k++)
		c->std[k] = (float)(1 / factor);
	return read_hunyuan_blocks(c, o, err);
}

int vae_config_hunyuan(struct vae_config *c, struct vfm_weights *w, const json_t *o, struct vfm_err *err)
{
	static const char *const keys[] = {"_class_name", "_diffusers_version", "_name_or_path", "in_channels",
		"out_channels", "latent_channels", "block_out_channels", "layers_per_block",
		"spatial_compression_ratio", "temporal_compression_ratio", "downsample_match_channel",
		"upsample_match_channel", "scaling_factor", NULL};

	(void)w;
	TRY(vfm_json_only_keys(o, "", keys, err));
	return read_hunyuan(c, o, false, err);
}

/* sample_size and sample_tsize are sizes of tiles. */
int vae_config_hunyuan_release(struct vae_config *c, struct vfm_weights *w, const json_t *o, struct vfm_err *err)
{
	static const char *const keys[] = {"_class_name", "_diffusers_version", "_name_or_path", "in_channels",
		"out_channels", "latent_channels", "block_out_channels", "layers_per_block", "ffactor_spatial",
		"ffactor_temporal", "downsample_match_channel", "upsample_match_channel", "scaling_factor",
		"shift_factor", "sample_size", "sample_tsize", NULL};
	const json_t *shift = json_object_get(o, "shift_factor");

	(void)w;
	TRY(vfm_json_only_keys(o, "", keys, err));
	if (shift && !json_is_null(shift) && json_number_value(shift) != 0)
		return vfm_fail(err, VFM_EUSAGE, "shift_factor: expected null or 0");
	return read_hunyuan(c, o, true, err);
}
