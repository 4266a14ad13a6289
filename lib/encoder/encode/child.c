/* Encoders that are children (vfm-exec(7)). */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "encoder/encode/encoder_impl.h"
#include "encoder/exec/outside.h"
#include "encoder/exec/payload.h"

struct child_encoder {
	struct vfm_exec *exec;
	enum vfm_exec_op op; /* the request to it */
	int pictures;        /* of a video, that it encodes to image rows */
	bool f32;
	bool may_be_null; /* a text may have no rows */
};

/* Widens the array of an answer if float32 is wanted. */
static int finish_array(const struct child_encoder *c, struct vfm_encoded *out, struct vfm_err *err)
{
	return c->f32 ? vfm_encoded_widen(out, err) : 0;
}

/* ---- videos ---- */

static int child_encode_clip(void *ctx, struct vfm_encode_clip *e, struct vfm_encoded *out, struct vfm_err *err)
{
	const struct child_encoder *c = ctx;
	const struct vfm_hello *h = vfm_exec_hello(c->exec);
	struct vfm_exec_slot *slot = vfm_exec_slot(c->exec, e->worker);
	struct vfm_outside_frames f;
	size_t picture;

	TRY(vfm_outside_read(slot, e->reader, &h->geometry, e->patch_t, &f, err));
	e->frames = f.shape[0];
	picture = (size_t)f.shape[1] * (size_t)f.shape[2] * 3;
	for (int i = 0; e->pictures && i < e->given; i++)
		TRY(vfm_exec_read_input(slot, i ? (size_t)(e->frames - 1) * picture : 0,
			e->pictures + (size_t)i * picture, picture, err));
	TRY(vfm_outside_encode(slot, h, &f, e->id, 0, &out->npy, &out->data, err));
	for (int i = 0; i < 4; i++)
		if (out->npy.shape[i] > UINT16_MAX)
			return vfm_fail(err, VFM_EINPUT, "too large to be one sample: a dimension of %lld",
				(long long)out->npy.shape[i]);
	return finish_array(c, out, err);
}

static const char *missing_op(void *ctx, int given)
{
	static const unsigned needs[] = {VFM_EXEC_ENCODE, VFM_EXEC_ENCODE_GIVEN, VFM_EXEC_ENCODE_GIVEN_LAST};
	const struct child_encoder *c = ctx;

	for (int i = 0; i <= given; i++)
		if (!(vfm_exec_hello(c->exec)->ops & needs[i]))
			return vfm_exec_op_name(needs[i]);
	return NULL;
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

/* The slot's input still holds a clip that was encoded last; the child takes its other pictures for grey. */
static int child_encode_given(void *ctx, const struct vfm_encode_given *e, struct vfm_encoded *out, struct vfm_err *err)
{
	const struct child_encoder *c = ctx;
	const struct vfm_hello *h = vfm_exec_hello(c->exec);
	struct vfm_exec_slot *slot = vfm_exec_slot(c->exec, e->worker);
	const struct vfm_outside_frames f = {
		.shape = {e->frames, e->p.height, e->p.width, 3}, .fps = e->clip ? e->clip->fps : 0};
	const int given = e->clip || e->frames > 1 ? e->p.n : 0;
	const char *lacks = missing_op(ctx, given);

	if (lacks)
		return vfm_fail(err, VFM_EUSAGE, "'%s' lacks '%s'", h->name, lacks);
	if (!e->clip)
		TRY(write_given_frames(slot, &e->p, e->frames, err));
	TRY(vfm_outside_encode(slot, h, &f, e->id, given, &out->npy, &out->data, err));
	return finish_array(c, out, err);
}

static int child_decode(void *ctx, int worker, const float *latent, const int32_t dims[3], int64_t frames,
	const struct vfm_picture_sink *to, struct vfm_err *err)
{
	const struct child_encoder *c = ctx;
	const struct vfm_hello *h = vfm_exec_hello(c->exec);
	const uint8_t *pictures;

	TRY(vfm_outside_decode(vfm_exec_slot(c->exec, worker), h, latent, dims, frames, &pictures, err));
	return vfm_pass_pictures(to, pictures, frames,
		(size_t)dims[1] * (size_t)h->geometry.stride[1] * (size_t)dims[2] * (size_t)h->geometry.stride[2] * 3,
		err);
}

/* ---- texts and pictures ---- */

static int child_encode_text(void *ctx, int worker, const char *text, struct vfm_encoded *out, struct vfm_err *err)
{
	const struct child_encoder *c = ctx;

	TRY(vfm_outside_text(vfm_exec_slot(c->exec, worker), vfm_exec_hello(c->exec), text, c->may_be_null, &out->npy,
		&out->data, err));
	return out->npy.shape[0] ? finish_array(c, out, err) : 0;
}

static int child_encode_image(void *ctx, int worker, const char *id, const struct vfm_pictures *p,
	struct vfm_encoded *out, struct vfm_err *err)
{
	const struct child_encoder *c = ctx;
	const struct vfm_outside_frames f = {.shape = {p->n, p->height, p->width, 3}};
	struct vfm_exec_slot *slot = vfm_exec_slot(c->exec, worker);

	TRY(vfm_exec_input(slot, 0, p->rgb, (size_t)p->n * (size_t)p->height * (size_t)p->width * 3, err));
	TRY(vfm_outside_image(slot, vfm_exec_hello(c->exec), &f, id, &out->npy, &out->data, err));
	return finish_array(c, out, err);
}

/* ---- opening ---- */

static int wait_for_hello(void *ctx, struct vfm_encoder_id *id, struct vfm_err *err)
{
	const struct child_encoder *c = ctx;

	TRY(vfm_exec_wait(c->exec, err));
	*id = vfm_outside_encoder_id(vfm_exec_hello(c->exec), c->op, c->pictures);
	return 0;
}

static int count_threads(void *ctx, int64_t jobs)
{
	const struct child_encoder *c = ctx;

	(void)jobs;
	return vfm_exec_threads(c->exec, vfm_par_threads());
}

static int make_slots(void *ctx, int n, struct vfm_err *err)
{
	const struct child_encoder *c = ctx;

	(void)err;
	vfm_exec_make_slots(c->exec, n);
	return 0;
}

static void close_child(void *ctx)
{
	struct child_encoder *c = ctx;

	vfm_exec_close(c->exec);
	free(c);
}

static const struct vfm_encoder_ops child_ops = {
	.encode_clip = child_encode_clip,
	.encode_given = child_encode_given,
	.lacks = missing_op,
	.decode = child_decode,
	.encode_text = child_encode_text,
	.encode_image = child_encode_image,
	.wait = wait_for_hello,
	.threads = count_threads,
	.make_workers = make_slots,
	.close = close_child,
};

int vfm_child_start(struct vfm_encoder_handle *h, const struct vfm_encoder_opts *o, const char *command,
	enum vfm_exec_op op, bool may_be_null, struct vfm_err *err)
{
	struct vfm_exec_opts opts = o->children;
	struct child_encoder *c = vfm_calloc(1, sizeof(*c));

	*c = (struct child_encoder){.op = op, .pictures = o->pictures, .f32 = o->f32, .may_be_null = may_be_null};
	*h = (struct vfm_encoder_handle){.ops = &child_ops, .ctx = c};
	opts.command = command;
	opts.capability = vfm_exec_op_name(op);
	return vfm_exec_start(&c->exec, &opts, err);
}
