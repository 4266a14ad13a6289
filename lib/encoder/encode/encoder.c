/* encoder.c - opens the set of encoders that the options name, and converts their arrays. */
#include "encoder/encode/encoder.h"

#include <string.h>

#include "base/mem.h"
#include "encoder/encode/encoder_impl.h"
#include "encoder/vae/vae.h"
#include "spec/model/dtype.h"

/* ---- options ---- */

int vfm_encoder_check_opts(const struct vfm_encoder_opts *o, struct vfm_err *err)
{
	if (!!o->exec + !!o->tokenizer + !!o->vae > 1)
		return vfm_fail(err, VFM_EUSAGE, "expected one of --tokenizer, --vae and --exec");
	if (!!o->text_exec + !!o->text + !!o->text_encoder > 1)
		return vfm_fail(err, VFM_EUSAGE, "expected one of %s", o->text_options);
	if (!o->vae && (o->vae_dtype || o->tile))
		return vfm_fail(err, VFM_EUSAGE, "%s: it needs --vae", o->tile ? "--vae-tile" : "--vae-dtype");
	if (!o->text_encoder && (o->text_dtype || o->text_rows != INT64_MIN || o->text_raw || o->text_stream))
		return vfm_fail(err, VFM_EUSAGE, "%s: it needs --text-encoder",
			o->text_dtype            ? "--text-dtype"
				: o->text_raw    ? "--text-raw"
				: o->text_stream ? "--text-stream"
						 : "--text-rows");
	if (o->image_exec && o->image_encoder)
		return vfm_fail(err, VFM_EUSAGE, "expected one of --image-encoder and --image-exec");
	if (o->text2 && o->text2_exec)
		return vfm_fail(err, VFM_EUSAGE, "expected one of --text2 and --text2-exec");
	if (o->device && !o->vae && !o->text_encoder && !o->image_encoder)
		return vfm_fail(err, VFM_EUSAGE, "--device: it needs --vae%s",
			o->text_options ? ", --text-encoder or --image-encoder" : "");
	if (o->exec || o->text_exec || o->image_exec || o->text2_exec)
		return 0;
	return vfm_exec_refuse_opts(&o->children,
		o->text_options ? "--exec CMD, --text-exec CMD, --text2-exec CMD or --image-exec CMD" : "--exec CMD",
		err);
}

/* ---- opening ---- */

int vfm_encoder_read_geometry(struct vfm_geometry *g, const struct vfm_encoder_opts *o, struct vfm_err *err)
{
	struct vfm_encoder_set s = {0};
	int rc;

	if (o->vae)
		return vfm_vae_read_geometry(g, o->vae, err);
	rc = vfm_encoder_open(&s,
		&(struct vfm_encoder_opts){
			.tokenizer = o->tokenizer, .exec = o->exec, .encodes = true, .children = o->children},
		err);
	*g = s.video.id.geometry;
	vfm_encoder_close(&s);
	return rc;
}

enum { ENCODERS = 4 };

static void list_encoders(struct vfm_encoder_set *s, struct vfm_encoder_handle *all[ENCODERS])
{
	all[0] = &s->video;
	all[1] = &s->text;
	all[2] = &s->image;
	all[3] = &s->text2;
}

/* Waits for an encoder that loads its weights. */
static int wait_for_encoder(struct vfm_encoder_handle *h, struct vfm_err *err)
{
	return h->ops && h->ops->wait ? h->ops->wait(h->ctx, &h->id, err) : 0;
}

int vfm_encoder_open(struct vfm_encoder_set *s, const struct vfm_encoder_opts *o, struct vfm_err *err)
{
	struct vfm_encoder_handle *all[ENCODERS];

	if (o->text_exec)
		TRY(vfm_child_start(&s->text, o, o->text_exec, VFM_EXEC_TEXT_ENCODE, false, err));
	if (o->text2_exec)
		TRY(vfm_child_start(&s->text2, o, o->text2_exec, VFM_EXEC_TEXT_ENCODE, true, err));
	if (o->image_exec)
		TRY(vfm_child_start(&s->image, o, o->image_exec, VFM_EXEC_IMAGE_ENCODE, false, err));
	if (o->exec)
		TRY(vfm_child_start(&s->video, o, o->exec, o->decodes ? VFM_EXEC_DECODE : VFM_EXEC_ENCODE, false, err));
	if (o->vae || o->text_encoder || o->image_encoder)
		TRY(vfm_native_open(s, o, err));
	if (o->tokenizer)
		TRY(vfm_builtin_open_video(&s->video, o->tokenizer, o->f32, err));
	if (o->text)
		TRY(vfm_builtin_open_text(&s->text, o->text, o->f32, err));
	if (o->text2)
		TRY(vfm_builtin_open_text(&s->text2, o->text2, o->f32, err));
	list_encoders(s, all);
	for (int i = 0; i < ENCODERS; i++)
		TRY(wait_for_encoder(all[i], err));
	return 0;
}

int vfm_encoder_threads(const struct vfm_encoder_set *s, int64_t jobs)
{
	const struct vfm_encoder_handle *const all[ENCODERS] = {&s->video, &s->text, &s->image, &s->text2};
	int busy = 0;

	for (int i = 0; i < ENCODERS; i++) {
		int n = all[i]->ops && all[i]->ops->threads ? all[i]->ops->threads(all[i]->ctx, jobs) : 0;

		busy = n > busy ? n : busy;
	}
	return busy ? busy : jobs ? (int)jobs : 1;
}

int vfm_encoder_make_workers(struct vfm_encoder_set *s, int n, struct vfm_err *err)
{
	struct vfm_encoder_handle *all[ENCODERS];

	list_encoders(s, all);
	for (int i = 0; i < ENCODERS; i++)
		if (all[i]->ops && all[i]->ops->make_workers)
			TRY(all[i]->ops->make_workers(all[i]->ctx, n, err));
	return 0;
}

void vfm_encoder_unload(struct vfm_encoder_set *s)
{
	struct vfm_encoder_handle *all[ENCODERS];

	list_encoders(s, all);
	for (int i = 0; i < ENCODERS; i++)
		if (all[i]->ops && all[i]->ops->unload)
			all[i]->ops->unload(all[i]->ctx);
}

void vfm_encoder_close_one(struct vfm_encoder_handle *h)
{
	if (h->ops && h->ops->close)
		h->ops->close(h->ctx);
	*h = (struct vfm_encoder_handle){0};
}

void vfm_encoder_close(struct vfm_encoder_set *s)
{
	struct vfm_encoder_handle *all[ENCODERS];

	list_encoders(s, all);
	for (int i = 0; i < ENCODERS; i++)
		vfm_encoder_close_one(all[i]);
}

struct vfm_encoder_ids vfm_encoder_set_ids(const struct vfm_encoder_set *s)
{
	return (struct vfm_encoder_ids){
		.tokenizer = s->video.id, .text = s->text.id, .image = s->image.id, .text2 = s->text2.id};
}

/* ---- arrays ---- */

void vfm_encoded_release(struct vfm_encoded *x)
{
	vfm_big_free(x->memory, x->memory ? x->npy.data_bytes : 0);
	*x = (struct vfm_encoded){0};
}

/* Allocates the memory of *x for the elements of npy, which the caller writes. */
static int alloc_encoded(struct vfm_encoded *x, struct vfm_npy npy, const char *what, struct vfm_err *err)
{
	npy.data_bytes = vfm_npy_count(&npy) * vfm_npy_type_size(npy.type);
	x->npy = npy;
	x->memory = vfm_big_alloc(npy.data_bytes, what, err);
	x->data = x->memory;
	return x->memory ? 0 : VFM_EENV;
}

int vfm_encoded_alloc_frames(
	float **x, size_t *bytes, const struct vfm_geometry *g, const struct vfm_encode_given *e, struct vfm_err *err)
{
	const size_t area = (size_t)(e->p.height / g->stride[1]) * (size_t)(e->p.width / g->stride[2]);

	*bytes = (size_t)vfm_geometry_latent_frames(g, e->frames) * area * (size_t)g->channels * sizeof(float);
	*x = vfm_big_alloc(*bytes, "the latents of a picture", err);
	return *x ? 0 : VFM_EENV;
}

int vfm_pass_pictures(
	const struct vfm_picture_sink *to, const uint8_t *rgb, int64_t n, size_t size, struct vfm_err *err)
{
	for (int64_t i = 0; i < n; i++)
		TRY(to->take(to->ctx, rgb + (size_t)i * size, err));
	return 0;
}

void vfm_swap_planes(const float *x, size_t a, size_t b, size_t area, float *out)
{
	for (size_t i = 0; i < a; i++)
		for (size_t k = 0; k < b; k++)
			memcpy(out + (k * a + i) * area, x + (i * b + k) * area, area * sizeof(float));
}

int vfm_encoded_set_latents(struct vfm_encoded *out, const float *latent, const struct vfm_geometry *g, int64_t frames,
	int height, int width, bool f32, struct vfm_err *err)
{
	const struct vfm_npy npy = {.type = f32 ? VFM_NPY_F32 : VFM_NPY_F16,
		.ndim = 4,
		.shape = {g->channels, vfm_geometry_latent_frames(g, frames), height / g->stride[1],
			width / g->stride[2]}};
	const size_t ch = (size_t)npy.shape[0], t = (size_t)npy.shape[1], n = (size_t)(npy.shape[2] * npy.shape[3]);

	TRY(alloc_encoded(out, npy, "the latents", err));
	if (f32) {
		vfm_swap_planes(latent, t, ch, n, out->memory);
		return 0;
	}
	for (size_t k = 0; k < ch; k++)
		for (size_t i = 0; i < t; i++)
			vfm_dtype_convert(VFM_F16, (uint16_t *)out->memory + (k * t + i) * n, VFM_F32,
				latent + (i * ch + k) * n, n);
	return 0;
}

int vfm_encoded_set_clip(struct vfm_encoded *out, struct vfm_encode_clip *c, const float *latent,
	const struct vfm_geometry *g, bool f32, struct vfm_err *err)
{
	TRY(vfm_clip_whole_patches(c->reader, g, c->patch_t, &c->frames, err));
	return vfm_encoded_set_latents(out, latent, g, c->frames, c->reader->height, c->reader->width, f32, err);
}

int vfm_encoded_set_rows(
	struct vfm_encoded *out, const float *rows, int64_t n, int64_t dim, enum vfm_npy_type type, struct vfm_err *err)
{
	TRY(alloc_encoded(
		out, (struct vfm_npy){.type = type, .ndim = 2, .shape = {n, dim}}, "the rows of a text", err));
	vfm_dtype_convert(vfm_dtype_of_npy(type), out->memory, VFM_F32, rows, (size_t)n * (size_t)dim);
	return 0;
}

int vfm_encoded_widen(struct vfm_encoded *x, struct vfm_err *err)
{
	const struct vfm_encoded narrow = *x;
	struct vfm_npy npy = narrow.npy;

	npy.type = VFM_NPY_F32;
	TRY(alloc_encoded(x, npy, "an array of a child", err));
	vfm_dtype_convert(
		VFM_F32, x->memory, vfm_dtype_of_npy(narrow.npy.type), narrow.data, vfm_npy_count(&narrow.npy));
	return 0;
}
