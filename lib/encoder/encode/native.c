/* The native encoders: an autoencoder, a text encoder and an image encoder of this process, with a device and a thread
 * of their own.
 *
 * The thread owns the device.  It serves calls of any thread: the work of a clip and given pictures first, otherwise
 * all waiting texts in one batch.  With one_model, it frees the device memory of the other models before a call.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/dev/dev.h"
#include "device/open/open.h"
#include "encoder/encode/encoder_impl.h"
#include "encoder/image/clip_vision.h"
#include "encoder/text/t5.h"
#include "encoder/vae/vae.h"
#include "io/task.h"

enum {
	BATCH = 64,      /* texts that are encoded together at most */
	NATIVE_JOBS = 4, /* some of so many records are read or written while another is computed */
	RING = 8         /* decoded pictures that wait for the caller */
};

/* The model that a call computes with. */
enum native_model { MODEL_NONE, MODEL_ENCODER, MODEL_DECODER, MODEL_TEXT, MODEL_IMAGE };

/* A call that waits for the thread. */
struct encoder_call {
	struct encoder_call *next;
	enum native_model model;
	int (*work)(struct vfm_native *e, void *arg, struct vfm_err *err); /* NULL: a text */
	void *arg;
	struct vfm_err *err; /* may be NULL */
	int rc;
	bool done;
};
struct queue { /* in the order of arrival */
	struct encoder_call *first, **last;
	int n;
};

struct vfm_native {
	struct vfm_encoder_opts o;
	enum vfm_dtype vae_dtype, text_dtype;
	struct vfm_vae_tile tile;

	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work, done, clip_ended;
	struct queue clips, texts;
	bool stop;
	bool in_clip;          /* begin has returned, end has not been called */
	int64_t clips_waiting; /* callers of begin */

	/* of the thread */
	struct vfm_device device;
	struct vfm_vae *vae;
	struct vfm_vae_session *session; /* of the clip; NULL with tiles */
	int height, width;               /* of its pictures */
	struct vfm_t5 *t5;
	struct vfm_clip_vision *vision;
	enum native_model last; /* model of the last call; MODEL_NONE: none has device memory */

	struct vfm_encoder_id video_id, text_id, image_id;
	int encoders; /* that are open: of videos, of texts, of pictures */
};

/* ---- calls ---- */

static void enqueue_call(struct queue *q, struct encoder_call *c)
{
	*q->last = c;
	q->last = &c->next;
	q->n++;
}

static struct encoder_call *dequeue_call(struct queue *q)
{
	struct encoder_call *c = q->first;

	q->first = c->next;
	if (!q->first)
		q->last = &q->first;
	q->n--;
	c->next = NULL;
	return c;
}

static void start_call(struct vfm_native *e, struct encoder_call *c)
{
	pthread_mutex_lock(&e->lock);
	enqueue_call(c->work ? &e->clips : &e->texts, c);
	pthread_cond_signal(&e->work);
	pthread_mutex_unlock(&e->lock);
}

/* Has the thread do the work with a model, or with work NULL encode the text, and waits for it. */
static int call_thread(struct vfm_native *e, enum native_model model,
	int (*work)(struct vfm_native *, void *, struct vfm_err *), void *arg, struct vfm_err *err)
{
	struct encoder_call c = {.model = model, .work = work, .arg = arg, .err = err};

	start_call(e, &c);
	pthread_mutex_lock(&e->lock);
	while (!c.done)
		pthread_cond_wait(&e->done, &e->lock);
	pthread_mutex_unlock(&e->lock);
	return c.rc;
}

/* ---- video ---- */

struct push {
	const uint8_t *rgb;
	int64_t n;
	float *latent;
	int64_t made;
};
struct given_call {
	const struct vfm_pictures *p;
	int64_t frames;
	float *latent;
};
/* The thread decodes while the caller passes the pictures on; `ring` has those between. */
struct decode_call {
	struct encoder_call call;
	struct vfm_native *e;
	const float *latent;
	const int32_t *dims;
	int64_t frames;
	size_t size;          /* bytes of a picture */
	uint8_t *ring;        /* [RING, size] */
	int64_t made, taken;  /* pictures */
	bool stop;            /* the caller takes no more */
	pthread_cond_t space; /* a picture has been taken, or stop */
};

static int begin_session(struct vfm_native *e, void *arg, struct vfm_err *err)
{
	(void)arg;
	return vfm_vae_encode_begin(&e->session, e->vae, e->height, e->width, err);
}

static int push_pictures(struct vfm_native *e, void *arg, struct vfm_err *err)
{
	struct push *p = arg;

	if (!e->session) {
		TRY(vfm_vae_encode(e->vae, p->rgb, p->n, e->height, e->width, p->latent, err));
		p->made = vfm_geometry_latent_frames(&e->video_id.geometry, p->n);
		return 0;
	}
	p->made = vfm_vae_encode_push(e->session, p->rgb, p->n, p->latent, err);
	return p->made < 0 ? (int)p->made : 0;
}

static int end_session(struct vfm_native *e, void *arg, struct vfm_err *err)
{
	(void)arg;
	(void)err;
	vfm_vae_end(e->session);
	e->session = NULL;
	return 0;
}

static int encode_given_pictures(struct vfm_native *e, void *arg, struct vfm_err *err)
{
	const struct given_call *g = arg;

	return vfm_vae_encode_given(e->vae, g->p, g->frames, g->latent, err);
}

/* Hands a picture to the caller; waits while the ring is full. */
static int put_picture(void *ctx, const uint8_t *rgb, struct vfm_err *err)
{
	struct decode_call *d = ctx;
	struct vfm_native *e = d->e;
	bool stop;

	pthread_mutex_lock(&e->lock);
	while (d->made - d->taken == RING && !d->stop)
		pthread_cond_wait(&d->space, &e->lock);
	stop = d->stop;
	pthread_mutex_unlock(&e->lock);
	if (stop)
		return vfm_fail(err, VFM_EENV, "internal: the pictures are not wanted");
	memcpy(d->ring + (size_t)(d->made % RING) * d->size, rgb, d->size);
	pthread_mutex_lock(&e->lock);
	d->made++;
	pthread_cond_broadcast(&e->done);
	pthread_mutex_unlock(&e->lock);
	return 0;
}

static int decode_latent(struct vfm_native *e, void *arg, struct vfm_err *err)
{
	struct decode_call *d = arg;
	const struct vfm_picture_sink to = {put_picture, d};
	const struct vfm_geometry *g = &e->video_id.geometry;
	const size_t area = (size_t)d->dims[1] * (size_t)d->dims[2], t = (size_t)d->dims[0],
		     bytes = area * t * (size_t)g->channels * sizeof(float);
	float *x;
	int rc;

	if (d->frames != vfm_geometry_pictures(g, d->dims[0]))
		return vfm_fail(err, VFM_EUSAGE, "internal: %d latent frames are no %lld pictures", d->dims[0],
			(long long)d->frames);
	x = vfm_big_alloc(bytes, "the latents of a video", err);
	if (!x)
		return VFM_EENV;
	vfm_swap_planes(d->latent, (size_t)g->channels, t, area, x);
	rc = vfm_vae_decode_to(e->vae, x, d->dims[0], d->dims[1], d->dims[2], &to, err);
	vfm_big_free(x, bytes);
	return rc;
}

/* Waits until no clip is in work and reserves the autoencoder. */
static void reserve_video(struct vfm_native *e)
{
	pthread_mutex_lock(&e->lock);
	e->clips_waiting++;
	while (e->in_clip)
		pthread_cond_wait(&e->clip_ended, &e->lock);
	e->clips_waiting--;
	e->in_clip = true;
	pthread_mutex_unlock(&e->lock);
}

static void release_video(struct vfm_native *e)
{
	pthread_mutex_lock(&e->lock);
	e->in_clip = false;
	pthread_cond_signal(&e->clip_ended);
	pthread_cond_signal(&e->work); /* texts may have waited for the clip */
	pthread_mutex_unlock(&e->lock);
}

const struct vfm_geometry *vfm_native_geometry(const struct vfm_native *e)
{
	return &e->video_id.geometry;
}

bool vfm_native_takes_whole(const struct vfm_native *e)
{
	return e->tile.width;
}

int vfm_native_begin(struct vfm_native *e, int height, int width, struct vfm_err *err)
{
	int rc = 0;

	reserve_video(e);
	e->height = height;
	e->width = width;
	if (!vfm_native_takes_whole(e))
		rc = call_thread(e, MODEL_ENCODER, begin_session, NULL, err);
	if (rc < 0)
		release_video(e);
	return rc;
}

int64_t vfm_native_push(struct vfm_native *e, const uint8_t *rgb, int64_t n, float *latent, struct vfm_err *err)
{
	struct push p = {.rgb = rgb, .n = n, .latent = latent};
	int rc = call_thread(e, MODEL_ENCODER, push_pictures, &p, err);

	return rc < 0 ? rc : p.made;
}

void vfm_native_end(struct vfm_native *e)
{
	call_thread(e, MODEL_ENCODER, end_session, NULL, NULL);
	release_video(e);
}

static int native_encode_clip(void *ctx, struct vfm_encode_clip *c, struct vfm_encoded *out, struct vfm_err *err)
{
	struct vfm_native *e = ctx;
	float *latent = NULL;
	int rc = vfm_native_encode_window(e, c, &latent, err);

	if (rc >= 0)
		rc = vfm_encoded_set_clip(out, c, latent, vfm_native_geometry(e), e->o.f32, err);
	free(latent);
	return rc;
}

static int native_encode_given(
	void *ctx, const struct vfm_encode_given *given, struct vfm_encoded *out, struct vfm_err *err)
{
	struct vfm_native *e = ctx;
	const struct vfm_geometry *g = vfm_native_geometry(e);
	struct given_call call = {&given->p, given->frames, NULL};
	size_t bytes;
	int rc;

	TRY(vfm_encoded_alloc_frames(&call.latent, &bytes, g, given, err));
	reserve_video(e);
	rc = call_thread(e, MODEL_ENCODER, encode_given_pictures, &call, err);
	release_video(e);
	if (rc >= 0)
		rc = vfm_encoded_set_latents(
			out, call.latent, g, given->frames, given->p.height, given->p.width, e->o.f32, err);
	vfm_big_free(call.latent, bytes);
	return rc;
}

/* Passes the pictures of a call on until it has ended.  Returns the first failure of `to`. */
static int take_pictures(struct decode_call *d, const struct vfm_picture_sink *to, struct vfm_err *err)
{
	struct vfm_native *e = d->e;
	int rc = 0;

	pthread_mutex_lock(&e->lock);
	while (!d->call.done || (d->made > d->taken && rc >= 0)) {
		if (d->made == d->taken || rc < 0) {
			pthread_cond_wait(&e->done, &e->lock);
			continue;
		}
		pthread_mutex_unlock(&e->lock);
		rc = to->take(to->ctx, d->ring + (size_t)(d->taken % RING) * d->size, err);
		pthread_mutex_lock(&e->lock);
		d->taken++;
		d->stop = rc < 0;
		pthread_cond_signal(&d->space);
	}
	pthread_mutex_unlock(&e->lock);
	return rc;
}

static int native_decode(void *ctx, int worker, const float *latent, const int32_t dims[3], int64_t frames,
	const struct vfm_picture_sink *to, struct vfm_err *err)
{
	struct vfm_native *e = ctx;
	const int32_t *stride = e->video_id.geometry.stride;
	const size_t size = (size_t)dims[1] * (size_t)stride[1] * (size_t)dims[2] * (size_t)stride[2] * 3;
	struct vfm_err why = {0};
	struct decode_call d = {.call = {.model = MODEL_DECODER, .work = decode_latent, .err = &why},
		.e = e,
		.latent = latent,
		.dims = dims,
		.frames = frames,
		.size = size,
		.ring = vfm_big_alloc(RING * size, "pictures", err)};
	int rc;

	(void)worker;
	if (!d.ring)
		return VFM_EENV;
	d.call.arg = &d;
	pthread_cond_init(&d.space, NULL);
	reserve_video(e);
	start_call(e, &d.call);
	rc = take_pictures(&d, to, err);
	release_video(e);
	if (rc >= 0 && d.call.rc < 0) {
		rc = d.call.rc;
		if (err)
			*err = why;
	}
	pthread_cond_destroy(&d.space);
	vfm_big_free(d.ring, RING * size);
	return rc;
}

/* ---- texts ---- */

struct text {
	const char *words;
	float *rows;
	int64_t n;
};

/* Converts the rows of a text, which it frees, unless rc reports a failure. */
static int take_text_rows(
	const struct vfm_native *e, struct text *t, int rc, struct vfm_encoded *out, struct vfm_err *err)
{
	const bool f32 = e->o.f32 || e->text_dtype != VFM_BF16;

	if (rc >= 0)
		rc = vfm_encoded_set_rows(out, t->rows, t->n, e->text_id.dim, f32 ? VFM_NPY_F32 : VFM_NPY_BF16, err);
	free(t->rows);
	return rc;
}

static int native_encode_text(void *ctx, int worker, const char *words, struct vfm_encoded *out, struct vfm_err *err)
{
	struct text t = {.words = words};
	int rc = call_thread(ctx, MODEL_TEXT, NULL, &t, err);

	(void)worker;
	return take_text_rows(ctx, &t, rc, out, err);
}

/* Enqueues all texts before the thread can take one, so that it encodes full batches. */
static void native_encode_texts(
	void *ctx, const char *const *words, int n, struct vfm_encoded *rows, int *rc, struct vfm_err *err)
{
	struct vfm_native *e = ctx;
	struct encoder_call *c = vfm_calloc((size_t)n, sizeof(*c));
	struct text *t = vfm_calloc((size_t)n, sizeof(*t));

	pthread_mutex_lock(&e->lock);
	for (int i = 0; i < n; i++) {
		t[i].words = words[i];
		c[i] = (struct encoder_call){.model = MODEL_TEXT, .arg = &t[i], .err = &err[i]};
		enqueue_call(&e->texts, &c[i]);
	}
	pthread_cond_signal(&e->work);
	for (int i = 0; i < n; i++)
		while (!c[i].done)
			pthread_cond_wait(&e->done, &e->lock);
	pthread_mutex_unlock(&e->lock);
	for (int i = 0; i < n; i++)
		rc[i] = take_text_rows(e, &t[i], c[i].rc, &rows[i], &err[i]);
	free(t);
	free(c);
}

/* Counts the tokens of each text before it computes, so that a bad one fails alone. */
static int keep_good_texts(struct vfm_native *e, struct encoder_call **c, int n)
{
	int good = 0;

	for (int i = 0; i < n; i++) {
		int64_t rows = vfm_t5_count(e->t5, ((struct text *)c[i]->arg)->words, c[i]->err);

		c[i]->rc = rows < 0 ? (int)rows : 0;
		if (rows >= 0)
			c[good++] = c[i];
	}
	return good;
}

/* Encodes the texts of n calls together. */
static void encode_text_batch(struct vfm_native *e, struct encoder_call *const *calls, int n)
{
	struct encoder_call *c[BATCH];
	const char *words[BATCH];
	float *rows[BATCH] = {0};
	int64_t n_rows[BATCH];
	struct vfm_err err = {0};
	int rc;

	memcpy(c, calls, (size_t)n * sizeof(*c));
	n = keep_good_texts(e, c, n);
	for (int i = 0; i < n; i++)
		words[i] = ((struct text *)c[i]->arg)->words;
	rc = n ? vfm_t5_encode(e->t5, words, n, rows, n_rows, &err) : 0;
	for (int i = 0; i < n; i++) {
		struct text *t = c[i]->arg;

		c[i]->rc = rc;
		t->rows = rc < 0 ? NULL : rows[i];
		t->n = rc < 0 ? 0 : n_rows[i];
		if (rc < 0 && c[i]->err)
			*c[i]->err = err;
	}
}

/* ---- given pictures ---- */

struct image_call {
	const struct vfm_pictures *p;
	float *rows; /* [p->n rows of a picture, dim] */
};

static int encode_picture_rows(struct vfm_native *e, void *arg, struct vfm_err *err)
{
	const struct image_call *c = arg;
	const struct vfm_pictures *p = c->p;
	const struct vfm_encoder_id *id = vfm_clip_vision_id(e->vision);
	const size_t size = (size_t)p->height * (size_t)p->width * 3, rows = (size_t)id->rows * (size_t)id->dim;

	for (int i = 0; i < p->n; i++)
		TRY(vfm_clip_vision_encode(
			e->vision, p->rgb + (size_t)i * size, p->height, p->width, c->rows + (size_t)i * rows, err));
	return 0;
}

/* The rows of the pictures follow each other. */
static int native_encode_image(void *ctx, int worker, const char *id, const struct vfm_pictures *p,
	struct vfm_encoded *out, struct vfm_err *err)
{
	struct vfm_native *e = ctx;
	const struct vfm_encoder_id *m = &e->image_id;
	const size_t bytes = (size_t)m->rows * (size_t)m->dim * sizeof(float);
	struct image_call c = {.p = p, .rows = vfm_big_alloc(bytes, "the rows of a picture", err)};
	int rc;

	(void)worker;
	(void)id;
	if (!c.rows)
		return VFM_EENV;
	rc = call_thread(e, MODEL_IMAGE, encode_picture_rows, &c, err);
	if (rc >= 0)
		rc = vfm_encoded_set_rows(out, c.rows, m->rows, m->dim, e->o.f32 ? VFM_NPY_F32 : VFM_NPY_BF16, err);
	vfm_big_free(c.rows, bytes);
	return rc;
}

/* ---- the thread ---- */

/* Returns whether texts should be encoded now: no clip waits for the device, or there is a full batch.  With one_model,
 * texts wait until the clip has ended. */
static bool is_time_for_texts(const struct vfm_native *e)
{
	const bool full = e->texts.n >= BATCH && !(e->o.one_model && e->in_clip);

	return e->texts.n && !e->clips.n && ((!e->in_clip && !e->clips_waiting) || full || e->stop);
}

static void unload_models(struct vfm_native *e)
{
	vfm_vae_unload(e->vae);
	vfm_t5_unload(e->t5);
	vfm_clip_vision_unload(e->vision);
	vfm_dev_trim(e->device.stream);
}

/* Frees the memory of the other models if there may be only one.  MODEL_NONE: of all. */
static void change_model(struct vfm_native *e, enum native_model to)
{
	if (e->last != to && e->last != MODEL_NONE && (e->o.one_model || to == MODEL_NONE))
		unload_models(e);
	e->last = to;
}

static void serve_calls(struct vfm_native *e)
{
	struct encoder_call *batch[BATCH];
	int n;

	pthread_mutex_lock(&e->lock);
	for (;;) {
		while (!e->clips.n && !is_time_for_texts(e) && !e->stop)
			pthread_cond_wait(&e->work, &e->lock);
		if (!e->clips.n && !e->texts.n)
			break;
		if (e->clips.n)
			batch[0] = dequeue_call(&e->clips), n = 1;
		else
			for (n = 0; n < BATCH && e->texts.n; n++)
				batch[n] = dequeue_call(&e->texts);
		pthread_mutex_unlock(&e->lock);
		change_model(e, batch[0]->model);
		if (batch[0]->work)
			batch[0]->rc = batch[0]->work(e, batch[0]->arg, batch[0]->err);
		else
			encode_text_batch(e, batch, n);
		pthread_mutex_lock(&e->lock);
		for (int i = 0; i < n; i++)
			batch[i]->done = true;
		pthread_cond_broadcast(&e->done);
	}
	pthread_mutex_unlock(&e->lock);
}

static int open_models(struct vfm_native *e, struct vfm_err *err)
{
	const struct vfm_device_opts where = {
		.local_rank = e->o.local_rank, .local_size = e->o.local_rank + 1, .size = 1};

	TRY(vfm_device_open_rank(&e->device, e->o.device, &where, err));
	if (e->o.vae) {
		TRY(vfm_vae_open(&e->vae, e->device.stream,
			&(struct vfm_vae_opts){.path = e->o.vae,
				.dtype = e->vae_dtype,
				.tile = e->tile,
				.no_encoder = !e->o.encodes,
				.no_decoder = !e->o.decodes},
			err));
		e->video_id = *vfm_vae_id(e->vae);
	}
	if (e->o.text_encoder) {
		TRY(vfm_t5_open(&e->t5, e->device.stream,
			&(struct vfm_t5_opts){.path = e->o.text_encoder,
				.dtype = e->text_dtype,
				.max_len = e->o.text_rows,
				.clean = !e->o.text_raw,
				.stream = e->o.text_stream},
			err));
		TRY(vfm_t5_id(e->t5, &e->text_id, err));
	}
	if (e->o.image_encoder) {
		TRY(vfm_clip_vision_open(&e->vision, e->device.stream, e->o.image_encoder, err));
		e->image_id = *vfm_clip_vision_id(e->vision);
		e->image_id.rows *= e->o.pictures;
	}
	return 0;
}

/* Opens the models, tells the opener, and serves calls until close_native. */
static void *run_native(void *arg)
{
	struct encoder_call *open = arg;
	struct vfm_native *e = open->arg;
	int rc = open_models(e, open->err);

	pthread_mutex_lock(&e->lock);
	open->rc = rc;
	open->done = true;
	pthread_cond_broadcast(&e->done);
	pthread_mutex_unlock(&e->lock);
	if (rc >= 0)
		serve_calls(e);
	vfm_vae_end(e->session);
	vfm_clip_vision_close(e->vision);
	vfm_t5_close(e->t5);
	vfm_vae_close(e->vae);
	vfm_device_close(&e->device);
	return NULL;
}

/* ---- open and close ---- */

enum { TILE_MIN = 64, TILE_STEP = 32, TILE_MAX = 65536 };

static bool is_tile_side(int n)
{
	return n >= TILE_MIN && n <= TILE_MAX && n % TILE_STEP == 0;
}

static bool parse_tile(const char *s, int *width, int *height)
{
	int end = 0;

	return strspn(s, "0123456789x") == strlen(s) && sscanf(s, "%5dx%5d%n", width, height, &end) == 2 && !s[end] &&
		is_tile_side(*width) && is_tile_side(*height);
}

static int parse_encoder_opts(struct vfm_native *e, struct vfm_err *err)
{
	struct vfm_vae_tile *t = &e->tile;

	if (vfm_dtype_parse(e->o.vae_dtype, &e->vae_dtype, err) < 0)
		return vfm_err_context(err, "--vae-dtype");
	if (vfm_dtype_parse(e->o.text_dtype, &e->text_dtype, err) < 0)
		return vfm_err_context(err, "--text-dtype");
	if ((e->vae_dtype != VFM_F32 && e->vae_dtype != VFM_BF16) ||
		(e->text_dtype != VFM_F32 && e->text_dtype != VFM_BF16))
		return vfm_fail(err, VFM_EUSAGE, "--vae-dtype, --text-dtype: expected fp32 or bf16");
	if (e->o.text_rows < 1 || e->o.text_rows > 65535)
		return vfm_fail(
			err, VFM_EUSAGE, "--text-rows: expected 1 to 65535, got %lld", (long long)e->o.text_rows);
	if (!e->o.tile)
		return 0;
	if (!parse_tile(e->o.tile, &t->width, &t->height))
		return vfm_fail(err, VFM_EUSAGE,
			"--vae-tile: expected WIDTHxHEIGHT of at least 64, multiples of 32 up to %d, got '%s'",
			TILE_MAX, e->o.tile);
	t->stride_width = t->width / 4 * 3;
	t->stride_height = t->height / 4 * 3;
	return 0;
}

static void init_native(struct vfm_native *e)
{
	e->clips.last = &e->clips.first;
	e->texts.last = &e->texts.first;
	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->work, NULL);
	pthread_cond_init(&e->done, NULL);
	pthread_cond_init(&e->clip_ended, NULL);
}

static void free_native(struct vfm_native *e)
{
	pthread_mutex_destroy(&e->lock);
	pthread_cond_destroy(&e->work);
	pthread_cond_destroy(&e->done);
	pthread_cond_destroy(&e->clip_ended);
	free(e);
}

/* Sets the options with their defaults.  The tasks of a node have a GPU each. */
static int set_native_opts(struct vfm_native *e, const struct vfm_encoder_opts *o, struct vfm_err *err)
{
	struct vfm_task task;

	e->o = *o;
	e->o.device = o->device ? o->device : vfm_device_default;
	e->o.vae_dtype = o->vae_dtype ? o->vae_dtype : "fp32";
	e->o.text_dtype = o->text_dtype ? o->text_dtype : "bf16";
	e->o.text_rows = o->text_rows == INT64_MIN ? 512 : o->text_rows;
	if (o->local_rank < 0) {
		TRY(vfm_task_read(&task, err));
		e->o.local_rank = (int)task.local;
	}
	return parse_encoder_opts(e, err);
}

static int start_native(struct vfm_native *e, struct vfm_err *err)
{
	struct encoder_call open = {.arg = e, .err = err};

	if (pthread_create(&e->thread, NULL, run_native, &open) != 0)
		return vfm_fail(err, VFM_EENV, "cannot start a thread for the encoders");
	pthread_mutex_lock(&e->lock);
	while (!open.done)
		pthread_cond_wait(&e->done, &e->lock);
	pthread_mutex_unlock(&e->lock);
	if (open.rc < 0)
		pthread_join(e->thread, NULL);
	return open.rc;
}

static int only_change_model(struct vfm_native *e, void *arg, struct vfm_err *err)
{
	(void)e;
	(void)arg;
	(void)err;
	return 0;
}

static void unload_native(void *ctx)
{
	call_thread(ctx, MODEL_NONE, only_change_model, NULL, NULL);
}

static int choose_native_threads(void *ctx, int64_t jobs)
{
	(void)ctx;
	return jobs ? 0 : NATIVE_JOBS;
}

/* Ends the thread when no encoder is left. */
static void close_native(void *ctx)
{
	struct vfm_native *e = ctx;

	if (--e->encoders > 0)
		return;
	pthread_mutex_lock(&e->lock);
	e->stop = true;
	pthread_cond_signal(&e->work);
	pthread_mutex_unlock(&e->lock);
	pthread_join(e->thread, NULL);
	free_native(e);
}

static const struct vfm_encoder_ops native_ops = {
	.encode_clip = native_encode_clip,
	.encode_given = native_encode_given,
	.decode = native_decode,
	.encode_text = native_encode_text,
	.encode_texts = native_encode_texts,
	.encode_image = native_encode_image,
	.threads = choose_native_threads,
	.unload = unload_native,
	.close = close_native,
};

int vfm_native_open(struct vfm_encoder_set *s, const struct vfm_encoder_opts *o, struct vfm_err *err)
{
	struct vfm_native *e = vfm_calloc(1, sizeof(*e));
	int rc;

	init_native(e);
	rc = set_native_opts(e, o, err);
	if (rc >= 0)
		rc = start_native(e, err);
	if (rc < 0) {
		free_native(e);
		return rc;
	}
	e->encoders = !!o->vae + !!o->text_encoder + !!o->image_encoder;
	if (o->vae)
		s->video = (struct vfm_encoder_handle){.ops = &native_ops, .ctx = e, .id = e->video_id};
	if (o->text_encoder)
		s->text = (struct vfm_encoder_handle){.ops = &native_ops, .ctx = e, .id = e->text_id};
	if (o->image_encoder)
		s->image = (struct vfm_encoder_handle){.ops = &native_ops, .ctx = e, .id = e->image_id};
	return 0;
}
