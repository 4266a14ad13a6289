/* decode.c - checks a record's latents, runs the decoder, and writes the pictures to a video or PNG meanwhile. */
#include "encoder/encode/decode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "data/record/binding.h"
#include "data/record/record.h"
#include "data/record/sample_key.h"
#include "io/input.h"
#include "io/json.h"
#include "io/npy.h"
#include "media/av/video_out.h"
#include "spec/model/dtype.h"

enum { ROOM = 64 }; /* bytes that a conversion may read after a picture */

#define MAX_FILE     ((size_t)4 << 30)  /* bytes of a file of latents */
#define MAX_PICTURES ((size_t)16 << 30) /* bytes of the pictures of a record */
#define SAME_RATE    0.001              /* records have rates with three decimals */

struct dec {
	const struct vfm_decode *d;
	json_t *rec;
	const json_t *latent; /* of the record */
	struct vfm_npy npy;
	float *x; /* [C, T, h, w] */
	size_t x_bytes;
	int32_t dims[3]; /* T, h, w */
	int64_t frames;
	int width, height;
	json_t *forced; /* NULL: none */
};

/* ---- the latents ---- */

/* Compares the encoder of the latents with the decoder. */
static int check_decoder(struct dec *c, const char *path, struct vfm_err *err)
{
	const struct vfm_encoder_id *own = &c->d->encoder->id;
	const json_t *named = json_object_get(c->latent, "maker");
	char made[VFM_ENCODER_ID_LABEL], used[VFM_ENCODER_ID_LABEL];
	struct vfm_encoder_id latent_id = {.name = ""};
	json_t *entries;

	if (named && !json_is_null(named))
		TRY(vfm_rec_blame(vfm_encoder_id_from_json(&latent_id, named, "latent.maker", err), err));
	if (vfm_encoder_id_compare(&latent_id, own) != VFM_ENCODER_ID_DIFFERENT)
		return 0;
	vfm_encoder_id_label_pair(&latent_id, own, made, used);
	if (!c->d->force)
		return vfm_fail(err, VFM_EINPUT,
			"the latents were made by '%s', but '%s' would decode them (--force does so)", made, used);
	entries = json_array();
	json_array_append_new(
		entries, vfm_forced_entry("vfm-curate decode", VFM_ENCODER_TOKENIZER, path, &latent_id, own));
	vfm_forced_add(&c->forced, entries);
	json_decref(entries);
	return 0;
}

/* Reads the file of the latents and compares it with its digest. */
static int read_latent(struct dec *c, const char *path, struct vfm_err *err)
{
	char *file = NULL;
	size_t len = 0;
	int rc;

	TRY(vfm_read_regular(path, MAX_FILE, &file, &len, err));
	TRY_OUT(vfm_binding_check(vfm_rec_str(c->latent, "sha256", ""), file, len, path, err));
	TRY_OUT(vfm_npy_parse(&c->npy, file, len, len, path, err));
	if (c->npy.ndim != 4 ||
		(c->npy.type != VFM_NPY_F16 && c->npy.type != VFM_NPY_BF16 && c->npy.type != VFM_NPY_F32))
		TRY_OUT(vfm_fail(err, VFM_EINPUT,
			"'%s': expected [channels, time, height, width] of float16, bfloat16 or float32", path));
	TRY_OUT(vfm_npy_check_finite(&c->npy, file + c->npy.header_bytes, path, err));
	c->x_bytes = vfm_npy_count(&c->npy) * sizeof(float);
	c->x = vfm_big_alloc(c->x_bytes, "the latents", err);
	TRY_OUT(c->x ? 0 : VFM_EENV);
	vfm_dtype_convert(
		VFM_F32, c->x, vfm_dtype_of_npy(c->npy.type), file + c->npy.header_bytes, vfm_npy_count(&c->npy));
out:
	free(file);
	return rc;
}

/* Sets the sizes of latents and pictures; the decoder's geometry and the record must agree on them. */
static int check_latent_sizes(struct dec *c, struct vfm_err *err)
{
	const struct vfm_geometry *g = &c->d->encoder->id.geometry;
	const int64_t *shape = c->npy.shape, width = shape[3] * g->stride[2], height = shape[2] * g->stride[1];
	int64_t stated = width;

	if (shape[0] != g->channels)
		return vfm_fail(err, VFM_EINPUT, "the latents have %lld channels, the decoder '%s' has %d",
			(long long)shape[0], c->d->encoder->id.name, g->channels);
	for (int i = 1; i < 4; i++)
		if (shape[i] < 1 || shape[i] > UINT16_MAX)
			return vfm_fail(err, VFM_EINPUT, "the latents have a dimension of %lld", (long long)shape[i]);
	c->frames = vfm_geometry_pictures(g, shape[1]);
	TRY(vfm_rec_blame(vfm_json_i64(c->latent, "latent", "frames", false, 1, c->frames, &c->frames, err), err));
	if (vfm_geometry_latent_frames(g, c->frames) != shape[1])
		return vfm_fail(err, VFM_EINPUT,
			"latent.frames: %lld latent frames of the decoder '%s' are not %lld pictures",
			(long long)shape[1], c->d->encoder->id.name, (long long)c->frames);
	TRY(vfm_rec_blame(vfm_json_i64(c->latent, "latent", "width", false, width, width, &stated, err), err));
	TRY(vfm_rec_blame(vfm_json_i64(c->latent, "latent", "height", false, height, height, &stated, err), err));
	if (width > 16384 || height > 16384 || (size_t)c->frames > MAX_PICTURES / ((size_t)width * (size_t)height * 3))
		return vfm_fail(err, VFM_EINPUT, "too large to be decoded: %lld pictures of %lldx%lld",
			(long long)c->frames, (long long)width, (long long)height);
	for (int i = 0; i < 3; i++)
		c->dims[i] = (int32_t)shape[i + 1];
	c->width = (int)width;
	c->height = (int)height;
	return 0;
}

/* ---- the file ---- */

/* Sets the rate of the video, 0/0 if it is unknown, and *resampled to the rate of the pictures that encode took; 0: it
 * took every frame. */
static void find_rate(const struct dec *c, struct vfm_video_out_opts *o, double *resampled)
{
	const double fps = json_number_value(json_object_get(c->latent, "fps"));
	int num = 0, den = 0;
	bool same;

	sscanf(vfm_rec_str(c->rec, "fps", ""), "%d/%d", &num, &den);
	same = num > 0 && den > 0 && fabs((double)num / den - fps) <= SAME_RATE;
	*resampled = 0;
	if (!(fps > 0 && fps <= 1000))
		return;
	o->fps_num = same ? num : (int)lround(fps * 1000);
	o->fps_den = same ? den : 1000;
	if (json_is_true(json_object_get(c->latent, "resampled")))
		*resampled = fps;
}

/* A clip in the output folder must not be replaced by its own reconstruction. */
static int check_not_source(const struct dec *c, const char *path, struct vfm_err *err)
{
	const char *src = vfm_rec_str(c->rec, "src", NULL);
	struct stat a, b;

	if (src && stat(src, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
		return vfm_fail(err, VFM_EINPUT, "'%s' is the clip itself: choose another folder (-d)", path);
	return 0;
}

/* A file that is written while its pictures are decoded. */
struct picture_file {
	const struct vfm_decoded_file *f;
	size_t picture;          /* bytes */
	uint8_t *rgb;            /* a picture, and ROOM */
	int64_t n;               /* pictures so far */
	struct vfm_video_out *v; /* NULL before the first picture */
};

static int write_picture(void *ctx, const uint8_t *rgb, struct vfm_err *err)
{
	struct picture_file *w = ctx;

	if (w->n++ >= w->f->most)
		return 0;
	if (!w->v)
		TRY(vfm_video_out_open(&w->v, w->f->path, &w->f->opts, err));
	memcpy(w->rgb, rgb, w->picture);
	return vfm_video_out_write(w->v, w->rgb, err);
}

int vfm_decode_latent(const struct vfm_encoder_handle *decoder, int worker, const float *latent, const int32_t dims[3],
	int64_t frames, const struct vfm_decoded_file *f, struct vfm_video_out_facts *facts, struct vfm_err *err)
{
	struct picture_file w = {.f = f, .picture = (size_t)f->opts.width * (size_t)f->opts.height * 3};
	int rc;

	w.rgb = vfm_big_alloc(w.picture + ROOM, "a picture", err);
	if (!w.rgb)
		return VFM_EENV;
	rc = decoder->ops->decode(
		decoder->ctx, worker, latent, dims, frames, &(struct vfm_picture_sink){write_picture, &w}, err);
	vfm_big_free(w.rgb, w.picture + ROOM);
	if (rc >= 0) {
		*facts = vfm_video_out_facts(w.v);
		return vfm_video_out_close(w.v, err);
	}
	vfm_video_out_abort(w.v);
	return rc;
}

static void set_reconstruction(struct dec *c, const char *path, const struct vfm_video_out_facts *f, double resampled)
{
	json_t *o = json_pack("{s:s,s:s,s:i,s:i,s:I}", "path", path, "codec", f->codec, "width", f->width, "height",
		f->height, "frames", (json_int_t)c->frames);

	if (resampled > 0)
		json_object_set_new(o, "fps", json_real(resampled));
	if (c->forced)
		json_object_set(o, "forced", c->forced);
	json_object_set_new(c->rec, "reconstruction", o);
}

static int decode_to_file(struct dec *c, const char *id, int worker, struct vfm_err *err)
{
	const bool image = c->frames == 1 && !strcmp(vfm_rec_str(c->rec, "kind", ""), "image");
	char *path = vfm_strfmt("%s/%s.%s", c->d->dir, id, image ? "png" : vfm_video_out_extension(c->d->video_codec));
	struct vfm_decoded_file f = {.path = path,
		.opts = {.width = c->width,
			.height = c->height,
			.codec = image ? "png" : c->d->video_codec,
			.crf = c->d->crf,
			.threads = c->d->threads},
		.most = c->frames};
	struct vfm_video_out_facts facts;
	double resampled;
	int rc;

	find_rate(c, &f.opts, &resampled);
	TRY_OUT(check_not_source(c, path, err));
	TRY_OUT(vfm_decode_latent(c->d->encoder, worker, c->x, c->dims, c->frames, &f, &facts, err));
	set_reconstruction(c, path, &facts, resampled);
out:
	free(path);
	return rc;
}

int vfm_decode_media(json_t *rec, const struct vfm_decode *d, int worker, struct vfm_err *err)
{
	struct dec c = {.d = d, .rec = rec, .latent = json_object_get(rec, "latent")};
	const char *path = vfm_rec_str(c.latent, "path", NULL), *id = vfm_rec_str(rec, "id", NULL);
	int rc;

	TRY(vfm_sample_key_check(id, err));
	if (!path)
		return vfm_fail(err, VFM_EINPUT, "latent.path: missing (expected a file of latents, as encode writes)");
	TRY_OUT(check_decoder(&c, path, err));
	TRY_OUT(read_latent(&c, path, err));
	TRY_OUT(check_latent_sizes(&c, err));
	rc = decode_to_file(&c, id, worker, err);
out:
	vfm_big_free(c.x, c.x ? c.x_bytes : 0);
	json_decref(c.forced);
	return rc;
}
