/* The built-in encoders: the wavelet tokenizer and the bytes of a text. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "encoder/encode/encoder_impl.h"
#include "encoder/text/textbytes.h"
#include "encoder/vae/wavelet.h"

struct builtin {
	bool f32;
	/* of an encoder of videos */
	struct vfm_wavelet wavelet;
	struct vfm_geometry geometry;
	/* of an encoder of texts */
	char *spec;
	struct vfm_textbytes **encoders; /* [n], one for each worker: they cache rows */
	int n;
};

/* ---- videos ---- */

struct builtin_clip {
	const struct builtin *v;
	const struct vfm_encode_clip *c;
	size_t picture;    /* bytes */
	size_t cells;      /* of a latent frame, all channels */
	int64_t t;         /* latent frames */
	float *latent;     /* [t, C, h, w] */
	size_t latent_cap; /* elements */
};

/* Encodes one group of n pictures to the next latent frame. */
static int encode_group(struct builtin_clip *b, const uint8_t *rgb, int n, struct vfm_err *err)
{
	const struct vfm_clip_reader *r = b->c->reader;
	const size_t had = (size_t)b->t, want = (had + 1) * b->cells;

	if (want > VFM_ENCODED_MAX / sizeof(float) || had == UINT16_MAX)
		return vfm_fail(err, VFM_EINPUT,
			"too long to be one sample (over %lld frames of %dx%d): split it, or say --frames",
			(long long)r->pictures, r->width, r->height);
	vfm_grow(&b->latent, &b->latent_cap, want, sizeof(float));
	TRY(vfm_wavelet_encode(&b->v->wavelet, rgb, n, r->height, r->width, b->latent + had * b->cells, err));
	b->t++;
	if (b->c->pictures && b->c->given > 1 && b->t % b->c->patch_t == 0) /* others are dropped */
		memcpy(b->c->pictures + b->picture, rgb + (size_t)(n - 1) * b->picture, b->picture);
	return 0;
}

/* Reads all pictures, a group for each latent frame, so that memory holds one group. */
static int encode_groups(struct builtin_clip *b, uint8_t *rgb, int group, struct vfm_err *err)
{
	int n = 0, rc;

	while ((rc = vfm_clip_next(b->c->reader, rgb + (size_t)n * b->picture, err)) == 1) {
		if (b->c->pictures && b->c->reader->pictures == 1)
			memcpy(b->c->pictures, rgb, b->picture);
		if (++n < group)
			continue;
		TRY(encode_group(b, rgb, n, err));
		n = 0;
	}
	TRY(rc);
	return n ? encode_group(b, rgb, n, err) : 0;
}

static int builtin_encode_clip(void *ctx, struct vfm_encode_clip *c, struct vfm_encoded *out, struct vfm_err *err)
{
	const struct builtin *v = ctx;
	const struct vfm_geometry *g = &v->geometry;
	const int height = c->reader->height, width = c->reader->width;
	struct builtin_clip b = {.v = v,
		.c = c,
		.picture = (size_t)height * (size_t)width * 3,
		.cells = (size_t)g->channels * (size_t)(height / g->stride[1]) * (size_t)(width / g->stride[2])};
	const size_t bytes = b.picture * (size_t)g->stride[0];
	uint8_t *rgb = vfm_big_alloc(bytes, "the pictures", err);
	int rc = rgb ? encode_groups(&b, rgb, g->stride[0], err) : VFM_EENV;

	vfm_big_free(rgb, rgb ? bytes : 0);
	if (rc >= 0)
		rc = vfm_encoded_set_clip(out, c, b.latent, g, v->f32, err);
	free(b.latent);
	return rc;
}

static int builtin_encode_given(
	void *ctx, const struct vfm_encode_given *e, struct vfm_encoded *out, struct vfm_err *err)
{
	const struct builtin *v = ctx;
	float *x;
	size_t bytes;
	int rc;

	TRY(vfm_encoded_alloc_frames(&x, &bytes, &v->geometry, e, err));
	rc = vfm_condition_encode(&v->wavelet, &e->p, e->frames, x, err);
	if (rc >= 0)
		rc = vfm_encoded_set_latents(out, x, &v->geometry, e->frames, e->p.height, e->p.width, v->f32, err);
	vfm_big_free(x, bytes);
	return rc;
}

static int builtin_decode(void *ctx, int worker, const float *latent, const int32_t dims[3], int64_t frames,
	const struct vfm_picture_sink *to, struct vfm_err *err)
{
	const struct builtin *v = ctx;
	const int32_t *stride = v->geometry.stride;
	const size_t size = (size_t)dims[1] * (size_t)stride[1] * (size_t)dims[2] * (size_t)stride[2] * 3,
		     bytes = (size_t)frames * size;
	uint8_t *rgb = vfm_big_alloc(bytes, "pictures", err);
	int rc;

	(void)worker;
	if (!rgb)
		return VFM_EENV;
	rc = vfm_wavelet_decode(&v->wavelet, latent, dims[0], dims[1], dims[2], frames, rgb, err);
	if (rc >= 0)
		rc = vfm_pass_pictures(to, rgb, frames, size, err);
	vfm_big_free(rgb, bytes);
	return rc;
}

/* ---- texts ---- */

static int builtin_encode_text(void *ctx, int worker, const char *text, struct vfm_encoded *out, struct vfm_err *err)
{
	const struct builtin *t = ctx;
	const int64_t n = vfm_textbytes_rows(text),
		      dim = vfm_textbytes_dim(t->encoders[worker]); /* at most 512 x 8192 */
	float *rows = vfm_malloc((size_t)(n * dim) * sizeof(*rows));
	int rc;

	vfm_textbytes_encode(t->encoders[worker], text, rows);
	rc = vfm_encoded_set_rows(out, rows, n, dim, t->f32 ? VFM_NPY_F32 : VFM_NPY_F16, err);
	free(rows);
	return rc;
}

/* Makes the encoders of n workers, as far as they are missing. */
static int make_text_encoders(void *ctx, int n, struct vfm_err *err)
{
	struct builtin *t = ctx;

	if (!t->spec || n <= t->n)
		return 0;
	t->encoders = vfm_realloc(t->encoders, (size_t)n, sizeof(*t->encoders));
	for (; t->n < n; t->n++)
		TRY(vfm_textbytes_new(&t->encoders[t->n], t->spec, err));
	return 0;
}

static void close_builtin(void *ctx)
{
	struct builtin *t = ctx;

	for (int i = 0; i < t->n; i++)
		vfm_textbytes_free(t->encoders[i]);
	free(t->encoders);
	free(t->spec);
	free(t);
}

/* ---- opening ---- */

static const struct vfm_encoder_ops builtin_ops = {
	.encode_clip = builtin_encode_clip,
	.encode_given = builtin_encode_given,
	.decode = builtin_decode,
	.encode_text = builtin_encode_text,
	.make_workers = make_text_encoders,
	.close = close_builtin,
};

int vfm_builtin_open_video(struct vfm_encoder_handle *h, const char *spec, bool f32, struct vfm_err *err)
{
	struct builtin *v = vfm_calloc(1, sizeof(*v));

	*h = (struct vfm_encoder_handle){.ops = &builtin_ops, .ctx = v};
	TRY(vfm_wavelet_parse(&v->wavelet, spec, err));
	h->id = vfm_wavelet_id(&v->wavelet);
	v->geometry = h->id.geometry;
	v->f32 = f32;
	return 0;
}

int vfm_builtin_open_text(struct vfm_encoder_handle *h, const char *spec, bool f32, struct vfm_err *err)
{
	struct builtin *t = vfm_calloc(1, sizeof(*t));

	*h = (struct vfm_encoder_handle){.ops = &builtin_ops, .ctx = t};
	t->spec = vfm_strdup(spec);
	t->f32 = f32;
	TRY(make_text_encoders(t, 1, err));
	h->id = vfm_textbytes_id(t->encoders[0]);
	return 0;
}
