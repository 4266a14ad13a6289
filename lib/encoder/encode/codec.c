#include "encoder/encode/codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "encoder/exec/outside.h"
#include "encoder/vae/condition.h"

int vfm_codec_open_decoder(
	struct vfm_codec *c, const char *spec, const char *command, const struct vfm_exec_opts *o, struct vfm_err *err)
{
	struct vfm_exec_opts opts = *o;

	opts.command = command;
	opts.capability = "decode";
	return command ? vfm_exec_start(&c->exec, &opts, err) : vfm_tokenizer_parse(&c->tokenizer, spec, err);
}

int vfm_codec_open_text(
	struct vfm_codec *c, const char *command, const struct vfm_exec_opts *o, int64_t dim, struct vfm_err *err)
{
	struct vfm_exec_opts opts = *o;
	char spec[32];

	snprintf(spec, sizeof(spec), "bytes:%lld", (long long)dim);
	opts.command = command;
	opts.capability = "text-encode";
	return command ? vfm_exec_start(&c->text_exec, &opts, err) : vfm_textbytes_new(&c->text, spec, err);
}

int vfm_codec_open_image(
	struct vfm_codec *c, const char *command, const struct vfm_exec_opts *o, int pictures, struct vfm_err *err)
{
	struct vfm_exec_opts opts = *o;

	c->pictures = pictures;
	opts.command = command;
	opts.capability = "image-encode";
	return vfm_exec_start(&c->image_exec, &opts, err);
}

/* Waits for the hello of children that one thread will ask. */
static int wait_for_child(struct vfm_exec *x, struct vfm_err *err)
{
	if (!x)
		return 0;
	TRY(vfm_exec_wait(x, err));
	vfm_exec_make_slots(x, 1);
	return 0;
}

int vfm_codec_wait(struct vfm_codec *c, int64_t channels, int64_t dim, struct vfm_err *err)
{
	struct vfm_maker maker;

	TRY(wait_for_child(c->exec, err));
	TRY(wait_for_child(c->text_exec, err));
	TRY(wait_for_child(c->image_exec, err));
	maker = vfm_codec_tokenizer(c);
	if (vfm_geometry_is_known(&maker.geometry) && maker.geometry.channels != channels)
		return vfm_fail(err, VFM_EUSAGE, "the decoder '%s' has %d channels, the model %lld", maker.name,
			maker.geometry.channels, (long long)channels);
	maker = vfm_codec_text_maker(c);
	if (maker.dim && maker.dim != dim)
		return vfm_fail(err, VFM_EUSAGE, "the text encoder '%s' has rows of width %d, the model reads %lld",
			maker.name, maker.dim, (long long)dim);
	return 0;
}

void vfm_codec_release(struct vfm_codec *c)
{
	vfm_exec_close(c->exec);
	vfm_exec_close(c->text_exec);
	vfm_exec_close(c->image_exec);
	vfm_textbytes_free(c->text);
	free(c->rows);
	*c = (struct vfm_codec){0};
}

struct vfm_maker vfm_codec_tokenizer(const struct vfm_codec *c)
{
	if (c->video)
		return c->video->maker;
	if (c->exec)
		return vfm_outside_tokenizer(vfm_exec_hello(c->exec));
	return c->tokenizer.channels ? vfm_tokenizer_maker(&c->tokenizer) : (struct vfm_maker){.name = ""};
}

struct vfm_maker vfm_codec_text_maker(const struct vfm_codec *c)
{
	if (c->texts)
		return c->texts->maker;
	if (c->text_exec)
		return vfm_outside_text_encoder(vfm_exec_hello(c->text_exec));
	return c->text ? vfm_textbytes_maker(c->text) : (struct vfm_maker){.name = ""};
}

struct vfm_maker vfm_codec_image_maker(const struct vfm_codec *c)
{
	return c->image_exec ? vfm_outside_image_encoder(vfm_exec_hello(c->image_exec), c->pictures)
			     : (struct vfm_maker){.name = ""};
}

int64_t vfm_codec_embed(struct vfm_codec *c, const char *text, const float **rows, struct vfm_err *err)
{
	struct vfm_npy npy = {.ndim = 2};
	const void *data = NULL;
	size_t n;

	if (c->texts) {
		free(c->rows);
		c->rows = NULL;
		c->rows_cap = 0;
		npy.shape[0] = c->texts->embed(c->texts->ctx, text, &c->rows, err);
		*rows = c->rows;
		return npy.shape[0];
	}
	if (c->text_exec) {
		TRY(vfm_outside_text(
			vfm_exec_slot(c->text_exec, 0), vfm_exec_hello(c->text_exec), text, &npy, &data, err));
	} else {
		npy.shape[0] = vfm_textbytes_rows(text);
		npy.shape[1] = vfm_textbytes_dim(c->text);
	}
	n = vfm_npy_count(&npy);
	vfm_grow(&c->rows, &c->rows_cap, n, sizeof(float));
	if (data)
		vfm_npy_to_f32(&npy, data, c->rows);
	else
		vfm_textbytes_embed(c->text, text, c->rows);
	*rows = c->rows;
	return npy.shape[0];
}

int vfm_codec_decode(const struct vfm_codec *c, int worker, const float *latent, const int32_t dims[3], int64_t frames,
	uint8_t *rgb, struct vfm_err *err)
{
	const struct vfm_hello *h;
	const uint8_t *pictures;

	if (c->video)
		return c->video->decode(c->video->ctx, latent, dims, frames, rgb, err);
	if (!c->exec)
		return vfm_tokenizer_decode(&c->tokenizer, latent, dims[0], dims[1], dims[2], frames, rgb, err);
	h = vfm_exec_hello(c->exec);
	TRY(vfm_outside_decode(vfm_exec_slot(c->exec, worker), h, latent, dims, frames, &pictures, err));
	memcpy(rgb, pictures,
		(size_t)frames * (size_t)dims[1] * (size_t)h->geometry.stride[1] * (size_t)dims[2] *
			(size_t)h->geometry.stride[2] * 3);
	return 0;
}

/* Encodes with the built-in tokenizer or that of this process. */
static int encode_here(
	struct vfm_codec *c, const struct vfm_pictures *p, int64_t frames, float *latent, struct vfm_err *err)
{
	const struct vfm_geometry g = vfm_codec_tokenizer(c).geometry;
	const size_t area = (size_t)(p->height / g.stride[1]) * (size_t)(p->width / g.stride[2]),
		     t = (size_t)vfm_geometry_latent_frames(&g, frames),
		     bytes = t * area * (size_t)g.channels * sizeof(float);
	float *x = vfm_big_alloc(bytes, "the latents of a picture", err);
	int rc;

	if (!x)
		return VFM_EENV;
	rc = c->video ? c->video->encode_given(c->video->ctx, p, frames, x, err)
		      : vfm_condition_encode(&c->tokenizer, p, frames, x, err);
	if (rc >= 0)
		vfm_swap_planes(x, t, (size_t)g.channels, area, latent);
	vfm_big_free(x, bytes);
	return rc;
}

/* Writes the given pictures and grey ones to the slot's input. */
static int write_given_frames(
	struct vfm_exec_slot *s, const struct vfm_pictures *p, int64_t frames, struct vfm_err *err)
{
	const size_t size = (size_t)p->height * (size_t)p->width * 3;
	uint8_t *grey = vfm_big_alloc(size, "a picture", err);
	int rc = grey ? vfm_exec_input(s, 0, p->rgb, size, err) : VFM_EENV;

	if (grey)
		memset(grey, VFM_CONDITION_GREY, size);
	for (int64_t i = 1; i < frames && rc >= 0; i++)
		rc = vfm_exec_input(s, (size_t)i * size, p->n > 1 && i == frames - 1 ? p->rgb + size : grey, size, err);
	vfm_big_free(grey, grey ? size : 0);
	return rc;
}

int vfm_codec_encode_pictures(
	struct vfm_codec *c, const struct vfm_pictures *p, int64_t frames, float *latent, struct vfm_err *err)
{
	const struct vfm_outside_frames f = {.shape = {frames, p->height, p->width, 3}};
	const int given = frames > 1 ? p->n : 0;
	const unsigned needs[] = {VFM_EXEC_ENCODE, VFM_EXEC_ENCODE_GIVEN, VFM_EXEC_ENCODE_GIVEN_LAST};
	const struct vfm_hello *h;
	struct vfm_exec_slot *s;
	struct vfm_npy npy;
	const void *data;

	if (!c->exec)
		return encode_here(c, p, frames, latent, err);
	h = vfm_exec_hello(c->exec);
	s = vfm_exec_slot(c->exec, 0);
	for (int i = 0; i <= given; i++)
		if (!(h->ops & needs[i]))
			return vfm_fail(err, VFM_EUSAGE, "'%s' lacks '%s'", h->name, vfm_exec_op_name(needs[i]));
	TRY(write_given_frames(s, p, frames, err));
	TRY(vfm_outside_encode(s, h, &f, "picture", given, &npy, &data, err));
	vfm_npy_to_f32(&npy, data, latent);
	return 0;
}

int vfm_codec_encode_image(struct vfm_codec *c, const struct vfm_pictures *p, float *rows, struct vfm_err *err)
{
	const struct vfm_outside_frames f = {.shape = {p->n, p->height, p->width, 3}};
	struct vfm_exec_slot *s = vfm_exec_slot(c->image_exec, 0);
	struct vfm_npy npy;
	const void *data;

	TRY(vfm_exec_input(s, 0, p->rgb, (size_t)p->n * (size_t)p->height * (size_t)p->width * 3, err));
	TRY(vfm_outside_image(s, vfm_exec_hello(c->image_exec), &f, "picture", &npy, &data, err));
	vfm_npy_to_f32(&npy, data, rows);
	return 0;
}
