/* vae.c - opens files of video autoencoders, identifies them, and loads and unloads their parts. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "encoder/vae/vae_impl.h"
#include "io/hash.h"

static void add_text(struct vfm_sha256 *sha, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_text(struct vfm_sha256 *sha, const char *format, ...)
{
	char text[160];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	vfm_sha256_add(sha, text, strlen(text));
}

static void identify_wan(struct vfm_vae *v, struct vfm_sha256 *sha)
{
	const struct vae_wan *c = &v->c.wan;
	const struct vfm_vae_tile *t = &v->tile;

	add_text(sha, "residual %d dtype %s tile %dx%d stride %dx%d", c->residual, vfm_dtype_name(v->dtype), t->height,
		t->width, t->stride_height, t->stride_width);
	for (int i = 0; i < c->levels; i++)
		add_text(sha, " level %d %d", c->dim_mult[i], c->temporal_down[i]);
	snprintf(v->id.version, sizeof(v->id.version), "%s:%s%s", c->residual ? "2.2" : "2.1", vfm_dtype_name(v->dtype),
		t->height ? ":tiled" : "");
}

/* The version is the compression, as in the names of the models: CV8x8x8. */
static void identify_cosmos(struct vfm_vae *v, struct vfm_sha256 *sha)
{
	const struct vae_config *c = &v->c;
	const int32_t *s = v->geometry.stride;

	add_text(sha, "cosmos dtype %s %s patch %d scaling of %d", vfm_dtype_name(v->dtype),
		c->cosmos.haar ? "haar" : "rearrange", c->patch, c->scaling_frames);
	for (int i = 0; i < VAE_PARTS; i++)
		for (int j = 0; j < c->cosmos.part[i].blocks; j++)
			add_text(sha, " block %d %d %d", c->cosmos.part[i].attn[j], c->cosmos.part[i].space[j],
				c->cosmos.part[i].time[j]);
	snprintf(v->id.version, sizeof(v->id.version), "cv%dx%dx%d:%s", s[0], s[1], s[2], vfm_dtype_name(v->dtype));
}

static void identify_ltx(struct vfm_vae *v, struct vfm_sha256 *sha)
{
	const struct vae_ltx *c = &v->c.ltx;

	add_text(sha, "ltx dtype %s patch %d eps %g causal %d timestep %d %g %g", vfm_dtype_name(v->dtype), v->c.patch,
		(double)c->eps, c->causal, c->timestep, (double)VAE_DECODE_TIMESTEP, (double)VAE_DECODE_NOISE);
	for (int i = 0; i < VAE_PARTS; i++)
		for (int j = 0; j < c->part[i].levels; j++)
			add_text(sha, " level %d %d %d", c->part[i].sampler[j], c->part[i].factor[j],
				c->part[i].residual[j]);
	snprintf(v->id.version, sizeof(v->id.version), "%s:%s", c->timestep ? "timestep" : "plain",
		vfm_dtype_name(v->dtype));
}

static void identify_hunyuan(struct vfm_vae *v, struct vfm_sha256 *sha)
{
	const struct vae_hunyuan *c = &v->c.hunyuan;

	add_text(sha, "hunyuan dtype %s", vfm_dtype_name(v->dtype));
	for (int i = 0; i < VAE_PARTS; i++)
		for (int j = 0; j < c->blocks; j++)
			add_text(sha, " block %d %d", c->part[i].space[j], c->part[i].time[j]);
	snprintf(v->id.version, sizeof(v->id.version), "1.5:%s", vfm_dtype_name(v->dtype));
}

/* What the families differ in here. */
static const struct {
	const char *title, *id;
	void (*identify)(struct vfm_vae *v, struct vfm_sha256 *sha); /* sets the version */
	bool tiles;                                                  /* enable_tiling of diffusers is implemented */
} families[] = {
	[VAE_WAN] = {"Wan 2.1", "wan-vae", identify_wan, true},
	[VAE_COSMOS] = {"Cosmos", "cosmos-vae", identify_cosmos, false},
	[VAE_LTX] = {"LTX-Video", "ltx-vae", identify_ltx, false},
	[VAE_HUNYUAN] = {"HunyuanVideo 1.5", "hunyuan-vae", identify_hunyuan, false},
};

enum { TITLE = 64 };
static const char *vae_title(const struct vae_config *c, char title[TITLE])
{
	snprintf(title, TITLE, "the VAE of %s", c->wan.residual ? "Wan 2.2" : families[c->family].title);
	return title;
}

/* Everything that changes results is in the sha256. */
static int vae_identity(struct vfm_vae *v, const struct vfm_weights *w, struct vfm_err *err)
{
	const struct vae_config *c = &v->c;
	const size_t scaling = (size_t)c->scaling_frames * (size_t)c->z_dim * sizeof(float);
	struct vfm_sha256 *sha;
	char hex[VFM_SHA256_HEX];

	TRY(c->ltx.original ? vfm_weights_sha256_used(w, hex, err) : vfm_weights_sha256(w, hex, err));
	sha = vfm_sha256_new();
	vfm_sha256_add(sha, hex, strlen(hex));
	vfm_sha256_add(sha, c->mean, scaling);
	vfm_sha256_add(sha, c->std, scaling);
	v->id = (struct vfm_encoder_id){.geometry = v->geometry};
	snprintf(v->id.name, sizeof(v->id.name), "%s", families[c->family].id);
	families[c->family].identify(v, sha);
	vfm_sha256_end(sha, v->id.sha256);
	return 0;
}

static int check_vae_tile(const struct vfm_vae *v, struct vfm_err *err)
{
	const struct vfm_vae_tile *t = &v->tile;
	const int n = v->geometry.stride[1];
	char title[TITLE];

	if (!t->height && !t->width)
		return 0;
	if (!families[v->c.family].tiles) /* enable_tiling of AutoencoderKLCosmos in diffusers has no effect */
		return vfm_fail(err, VFM_EUSAGE, "%s has no tiles: it encodes and decodes whole frames",
			vae_title(&v->c, title));
	if (t->stride_height < n || t->stride_width < n || t->height < t->stride_height || t->width < t->stride_width)
		return vfm_fail(err, VFM_EUSAGE,
			"tiles of %dx%d, %dx%d apart: expected at least %d, and sizes that are not smaller than the "
			"distances",
			t->height, t->width, t->stride_height, t->stride_width, n);
	if (t->height % n || t->width % n || t->stride_height % n || t->stride_width % n)
		return vfm_fail(err, VFM_EUSAGE, "tiles of %dx%d, %dx%d apart: expected multiples of %d", t->height,
			t->width, t->stride_height, t->stride_width, n);
	return 0;
}

static struct vfm_geometry derive_geometry(const struct vae_config *c)
{
	const int t = c->ratio_t * c->patch_t, space = c->ratio * c->patch;

	struct vfm_geometry g = {.stride = {t, space, space},
		.channels = c->z_dim,
		.first = 1,
		.step = c->step,
		.max_frames = c->scaling_frames > 1 ? 1 + (c->scaling_frames - 1) * t : 0,
		.scaling = "mean-std"};
	if (!c->scaling_frames)
		strcpy(g.scaling, "none");
	return g;
}

/* Plans both parts, because the tensors of both must be present, and keeps the parts that are wanted. */
static int plan_vae_parts(struct vfm_vae *v, const struct vfm_vae_opts *o, struct vfm_err *err)
{
	const bool skip[VAE_PARTS] = {o->no_encoder, o->no_decoder};
	char title[TITLE];

	for (int i = 0; i < VAE_PARTS; i++)
		vae_net_plan(&v->net[i], &v->c, i, v->dtype, v->weights);
	TRY(vfm_weights_check(v->weights, vae_title(&v->c, title), err));
	for (int i = 0; i < VAE_PARTS; i++)
		if (skip[i])
			vae_net_free(&v->net[i]);
	return 0;
}

int vae_load_part(struct vfm_vae *v, enum vae_part part, struct vfm_err *err)
{
	if (v->mem[part])
		return 0;
	return vae_net_load(&v->net[part], v->s, v->dtype, &v->mem[part], &v->bytes[part], err);
}

/* Opens the weights of a VAE in `path`, which may be the folder of a whole release, and reads their configuration. */
static int open_vae_files(struct vfm_weights **w, struct vae_config *c, const char *path, struct vfm_err *err)
{
	static const char *const names[] = {"vae", "Wan2.1_VAE.pth", "Wan2.2_VAE.pth", NULL};
	char *within = vfm_weights_within(path, names);
	int rc = vfm_weights_open(w, within, err);

	if (rc >= 0)
		rc = vae_config_read(c, *w, err);
	free(within);
	return rc;
}

int vfm_vae_read_geometry(struct vfm_geometry *g, const char *path, struct vfm_err *err)
{
	struct vae_config *c = vfm_calloc(1, sizeof(*c));
	struct vfm_weights *w = NULL;
	int rc = open_vae_files(&w, c, path, err);

	if (rc >= 0)
		*g = derive_geometry(c);
	vfm_weights_close(w);
	free(c);
	return rc;
}

int vfm_vae_open(struct vfm_vae **out, struct vfm_stream *s, const struct vfm_vae_opts *o, struct vfm_err *err)
{
	struct vfm_vae *v;
	int rc;

	if (o->dtype != VFM_F32 && o->dtype != VFM_BF16)
		return vfm_fail(
			err, VFM_EUSAGE, "the VAE computes in f32 or bf16, not in %s", vfm_dtype_name(o->dtype));
	v = vfm_calloc(1, sizeof(*v));
	*v = (struct vfm_vae){.s = s, .dtype = o->dtype, .tile = o->tile};
	TRY_OUT(open_vae_files(&v->weights, &v->c, o->path, err));
	v->geometry = derive_geometry(&v->c);
	TRY_OUT(check_vae_tile(v, err));
	TRY_OUT(plan_vae_parts(v, o, err));
	TRY_OUT(vae_identity(v, v->weights, err));
	*out = v;
	v = NULL;
out:
	vfm_vae_close(v);
	return rc;
}

void vfm_vae_unload(struct vfm_vae *v)
{
	for (int i = 0; v && i < VAE_PARTS; i++) {
		vfm_dev_free(v->s, v->mem[i], v->bytes[i]);
		v->mem[i] = NULL;
	}
}

void vfm_vae_close(struct vfm_vae *v)
{
	if (!v)
		return;
	vfm_vae_unload(v);
	for (int i = 0; i < VAE_PARTS; i++)
		vae_net_free(&v->net[i]);
	vfm_weights_close(v->weights);
	free(v);
}

const struct vfm_encoder_id *vfm_vae_id(const struct vfm_vae *v)
{
	return &v->id;
}
