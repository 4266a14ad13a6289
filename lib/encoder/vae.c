#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "encoder/vae_impl.h"

/* Everything that changes results is in the sha256. */
static int vae_identity(struct vfm_vae *v, const struct vfm_weights *w, struct vfm_err *err)
{
	const struct vae_config *c = &v->c;
	const struct vfm_vae_tile *t = &v->tile;
	struct vfm_sha256 *sha;
	char hex[VFM_SHA256_HEX], text[160];

	TRY(vfm_weights_sha256(w, hex, err));
	sha = vfm_sha256_new();
	vfm_sha256_add(sha, hex, strlen(hex));
	vfm_sha256_add(sha, c->mean, (size_t)c->z_dim * sizeof(float));
	vfm_sha256_add(sha, c->std, (size_t)c->z_dim * sizeof(float));
	snprintf(text, sizeof(text), "residual %d dtype %s tile %dx%d stride %dx%d", c->residual,
		vfm_dtype_name(v->dtype), t->height, t->width, t->stride_height, t->stride_width);
	vfm_sha256_add(sha, text, strlen(text));
	for (int i = 0; i < c->levels; i++) {
		snprintf(text, sizeof(text), " level %d %d", c->dim_mult[i], c->temporal_down[i]);
		vfm_sha256_add(sha, text, strlen(text));
	}
	v->maker = (struct vfm_maker){.name = "wan-vae", .geometry = v->geometry};
	snprintf(v->maker.version, sizeof(v->maker.version), "%s:%s%s", c->residual ? "2.2" : "2.1",
		vfm_dtype_name(v->dtype), t->height ? ":tiled" : "");
	vfm_sha256_end(sha, v->maker.sha256);
	return 0;
}

static int check_vae_tile(const struct vfm_vae *v, struct vfm_err *err)
{
	const struct vfm_vae_tile *t = &v->tile;
	const int n = v->geometry.stride[1];

	if (!t->height && !t->width)
		return 0;
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

static void derive_geometry(struct vfm_vae *v)
{
	const struct vae_config *c = &v->c;
	int t = 1;

	v->ratio = 1;
	for (int i = 0; i < c->levels - 1; i++) {
		t *= c->temporal_down[i] ? 2 : 1;
		v->ratio *= 2;
	}
	v->geometry = (struct vfm_geometry){.stride = {t, (int32_t)v->ratio * c->patch, (int32_t)v->ratio * c->patch},
		.channels = c->z_dim,
		.first = 1,
		.step = VAE_GROUP,
		.scaling = "mean-std"};
}

/* Plans both parts, since the tensors of both must be there, and loads those that are wanted. */
static int load_vae_parts(struct vfm_vae *v, struct vfm_weights *w, const struct vfm_vae_opts *o, struct vfm_err *err)
{
	const bool skip[VAE_PARTS] = {o->no_encoder, o->no_decoder};

	for (int i = 0; i < VAE_PARTS; i++)
		vae_net_plan(&v->net[i], &v->c, i, w);
	TRY(vfm_weights_check(w, v->c.residual ? "the VAE of Wan 2.2" : "the VAE of Wan 2.1", err));
	for (int i = 0; i < VAE_PARTS; i++) {
		if (skip[i])
			vae_net_free(&v->net[i]);
		else
			TRY(vae_net_load(&v->net[i], v->s, v->dtype, &v->mem[i], &v->bytes[i], err));
	}
	return 0;
}

int vfm_vae_open(struct vfm_vae **out, struct vfm_stream *s, const struct vfm_vae_opts *o, struct vfm_err *err)
{
	struct vfm_weights *w = NULL;
	struct vfm_vae *v;
	int rc;

	if (o->dtype != VFM_F32 && o->dtype != VFM_BF16)
		return vfm_fail(
			err, VFM_EUSAGE, "the VAE computes in f32 or bf16, not in %s", vfm_dtype_name(o->dtype));
	v = vfm_calloc(1, sizeof(*v));
	*v = (struct vfm_vae){.s = s, .dtype = o->dtype, .tile = o->tile};
	TRY_OUT(vfm_weights_open(&w, o->path, err));
	TRY_OUT(vae_config_read(&v->c, w, err));
	derive_geometry(v);
	TRY_OUT(check_vae_tile(v, err));
	TRY_OUT(load_vae_parts(v, w, o, err));
	TRY_OUT(vae_identity(v, w, err));
	*out = v;
	v = NULL;
out:
	vfm_weights_close(w);
	vfm_vae_close(v);
	return rc;
}

void vfm_vae_close(struct vfm_vae *v)
{
	if (!v)
		return;
	vfm_dev_drop_copies(v->s);
	for (int i = 0; i < VAE_PARTS; i++) {
		if (v->mem[i])
			vfm_dev_free(v->s, v->mem[i], v->bytes[i]);
		vae_net_free(&v->net[i]);
	}
	free(v);
}

const struct vfm_geometry *vfm_vae_geometry(const struct vfm_vae *v)
{
	return &v->geometry;
}

const struct vfm_maker *vfm_vae_maker(const struct vfm_vae *v)
{
	return &v->maker;
}
