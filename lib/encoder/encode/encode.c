#include "encoder/encode/encode.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/dataset/binding.h"
#include "data/dataset/extra.h"
#include "data/record/bucket.h"
#include "data/record/caption.h"
#include "data/record/clip_reader.h"
#include "data/record/record.h"
#include "data/record/sample_key.h"
#include "encoder/exec/outside.h"
#include "encoder/vae/condition.h"
#include "io/json.h"
#include "io/npy.h"
#include "spec/model/dtype.h"

#define MAX_LATENT ((size_t)1 << 30) /* maximum float32 bytes per record */

/* ---- pictures ---- */

struct enc {
	const struct vfm_encode *e;
	struct vfm_maker maker;
	struct vfm_clip_reader clip;
	size_t picture;     /* bytes */
	int given;          /* pictures: 1, the first; 2, the first and the last */
	uint8_t *pictures;  /* [given, height, width, 3]; NULL: not needed */
	int64_t frames;     /* that the latents cover */
	struct vfm_npy npy; /* [C, T, h, w] */
	const void *data;   /* its elements */
	float *latent;      /* of the built-in tokenizer: [T, C, h, w] */
	size_t latent_cap;
	uint16_t *half; /* [C, T, h, w] */
};

/* Checks the elements of a built-in encoder, which errors call `what`, before a file exists.  Writes the file; *sha256
 * binds it to its record. */
static int save_array(const char *path, const char *what, const struct vfm_npy *n, const void *data,
	char sha256[VFM_SHA256_HEX], struct vfm_err *err)
{
	TRY(vfm_npy_check_finite(n, data, what, err));
	return vfm_npy_save(path, n, data, sha256, err);
}

/* Encodes one group of n pictures to the next latent frame. */
static int encode_group(struct enc *c, const uint8_t *rgb, int n, struct vfm_err *err)
{
	const size_t frame = (size_t)(c->npy.shape[0] * c->npy.shape[2] * c->npy.shape[3]);
	const size_t had = (size_t)c->npy.shape[1], want = (had + 1) * frame;

	if (want > MAX_LATENT / sizeof(float) || had == UINT16_MAX)
		return vfm_fail(err, VFM_EINPUT,
			"too long to be one sample (over %lld frames of %dx%d): split it, or say --frames",
			(long long)c->clip.pictures, c->clip.width, c->clip.height);
	vfm_grow(&c->latent, &c->latent_cap, want, sizeof(float));
	TRY(vfm_tokenizer_encode(
		&c->e->tokenizer, rgb, n, c->clip.height, c->clip.width, c->latent + had * frame, err));
	c->npy.shape[1]++;
	if (c->pictures && c->given > 1 && c->npy.shape[1] % c->e->patch[0] == 0) /* others are dropped */
		memcpy(c->pictures + c->picture, rgb + (size_t)(n - 1) * c->picture, c->picture);
	return 0;
}

/* Reads all pictures, a group for each latent frame, so that memory holds one group.  Drops the latent frames at the
 * end that do not fill a patch. */
static int encode_groups(struct enc *c, uint8_t *rgb, int group, struct vfm_err *err)
{
	int n = 0, rc;

	while ((rc = vfm_clip_next(&c->clip, rgb + (size_t)n * c->picture, err)) == 1) {
		if (c->pictures && c->clip.pictures == 1)
			memcpy(c->pictures, rgb, c->picture);
		if (++n < group)
			continue;
		TRY(encode_group(c, rgb, n, err));
		n = 0;
	}
	TRY(rc);
	TRY(n ? encode_group(c, rgb, n, err) : 0);
	TRY(vfm_clip_whole_patches(&c->clip, &c->maker.geometry, c->e->patch[0], &c->frames, err));
	c->npy.shape[1] = vfm_geometry_latent_frames(&c->maker.geometry, c->frames);
	return 0;
}

/* [T, C, h, w] float -> [C, T, h, w] half */
static int transpose_latent(struct enc *c, struct vfm_err *err)
{
	const size_t ch = (size_t)c->npy.shape[0], t = (size_t)c->npy.shape[1],
		     n = (size_t)(c->npy.shape[2] * c->npy.shape[3]);

	c->npy.type = VFM_NPY_F16;
	c->npy.data_bytes = ch * t * n * sizeof(*c->half);
	c->half = vfm_big_alloc(c->npy.data_bytes, "the latents", err);
	if (!c->half)
		return VFM_EENV;
	for (size_t k = 0; k < ch; k++)
		for (size_t i = 0; i < t; i++)
			vfm_f16s_from_f32(c->half + (k * t + i) * n, c->latent + (i * ch + k) * n, n);
	c->data = c->half;
	return 0;
}

static int encode_built_in(struct enc *c, struct vfm_err *err)
{
	const struct vfm_geometry *g = &c->maker.geometry;
	const size_t bytes = c->picture * (size_t)g->stride[0];
	uint8_t *rgb = vfm_big_alloc(bytes, "the pictures", err);
	int rc;

	if (!rgb)
		return VFM_EENV;
	c->npy = (struct vfm_npy){
		.ndim = 4, .shape = {g->channels, 0, c->clip.height / g->stride[1], c->clip.width / g->stride[2]}};
	rc = encode_groups(c, rgb, g->stride[0], err);
	vfm_big_free(rgb, bytes);
	return rc < 0 ? rc : transpose_latent(c, err);
}

/* Encodes with the autoencoder of this process: c->latent as of the built-in tokenizer, for conditions. */
static int encode_native(struct enc *c, struct vfm_err *err)
{
	const struct vfm_geometry *g = &c->maker.geometry;
	struct vfm_coder_latent l = {0};
	int rc = vfm_coder_encode_clip(c->e->video, &c->clip, c->e->patch[0], c->pictures, c->given, &l, err);

	c->latent = l.x;
	TRY(rc);
	TRY(vfm_clip_whole_patches(&c->clip, g, c->e->patch[0], &c->frames, err));
	c->npy = (struct vfm_npy){.ndim = 4,
		.shape = {g->channels, vfm_geometry_latent_frames(g, c->frames), c->clip.height / g->stride[1],
			c->clip.width / g->stride[2]}};
	return transpose_latent(c, err);
}

static int encode_outside(
	struct enc *c, const char *id, struct vfm_exec_slot *slot, struct vfm_outside_frames *read, struct vfm_err *err)
{
	const struct vfm_hello *h = vfm_exec_hello(c->e->exec);
	struct vfm_outside_frames f;

	TRY(vfm_outside_read(slot, &c->clip, &h->geometry, c->e->patch[0], &f, err));
	c->frames = f.shape[0];
	*read = f;
	for (int i = 0; c->pictures && i < c->given; i++)
		TRY(vfm_exec_read_input(slot, i ? (size_t)(f.shape[0] - 1) * c->picture : 0,
			c->pictures + (size_t)i * c->picture, c->picture, err));
	TRY(vfm_outside_encode(slot, h, &f, id, 0, &c->npy, &c->data, err));
	for (int i = 0; i < 4; i++)
		if (c->npy.shape[i] > UINT16_MAX)
			return vfm_fail(err, VFM_EINPUT, "too large to be one sample: a dimension of %lld",
				(long long)c->npy.shape[i]);
	return 0;
}

/* ---- conditions ---- */

/* Encodes the given pictures with grey ones in the places of the others to c->half. */
static int encode_grey(struct enc *c, struct vfm_err *err)
{
	const struct vfm_pictures p = {
		.rgb = c->pictures, .n = c->given, .height = c->clip.height, .width = c->clip.width};

	TRY(c->e->video ? c->e->video->encode_given(c->e->video->ctx, &p, c->frames, c->latent, err)
			: vfm_condition_encode(&c->e->tokenizer, &p, c->frames, c->latent, err));
	vfm_big_free(c->half, c->npy.data_bytes);
	c->half = NULL;
	return transpose_latent(c, err);
}

/* Writes the condition of the given pictures and sets rec["cond"].  frames: those of the latents, in the slot. */
static int encode_condition(struct enc *c, json_t *rec, const char *id, struct vfm_exec_slot *slot,
	const struct vfm_outside_frames *frames, struct vfm_err *err)
{
	const struct vfm_encode *e = c->e;
	char sha256[VFM_SHA256_HEX], *path, *what;
	struct vfm_npy n;
	int rc;

	if (slot)
		TRY(vfm_outside_encode(slot, vfm_exec_hello(e->exec), frames, id, c->given, &c->npy, &c->data, err));
	else
		TRY(encode_grey(c, err));
	path = vfm_strfmt("%s/%s.%s", e->dir, id, vfm_extra_kinds[VFM_EXTRA_COND].part);
	what = vfm_strfmt("'%s': the condition in %s", c->clip.src, vfm_npy_type_name(c->npy.type));
	rc = vfm_npy_check_finite(&c->npy, c->data, what, err);
	if (rc >= 0)
		rc = vfm_condition_save(
			path, &c->maker.geometry, c->given, c->frames, &c->npy, c->data, &n, sha256, err);
	free(what);
	if (rc >= 0)
		json_object_set_new(rec, vfm_extra_kinds[VFM_EXTRA_COND].key,
			json_pack("{s:s,s:s,s:[I,I,I,I],s:s,s:i,s:o}", "path", path, "sha256", sha256, "shape",
				(json_int_t)n.shape[0], (json_int_t)n.shape[1], (json_int_t)n.shape[2],
				(json_int_t)n.shape[3], "dtype", vfm_npy_type_name(n.type), "given", 1, "maker",
				vfm_maker_json(&c->maker)));
	if (rc >= 0 && c->given > 1)
		json_object_set_new(
			json_object_get(rec, vfm_extra_kinds[VFM_EXTRA_COND].key), "given_last", json_integer(1));
	free(path);
	return rc;
}

/* ---- image rows ---- */

struct vfm_maker vfm_encode_image_maker(const struct vfm_encode *e)
{
	return e->image_exec ? vfm_outside_image_encoder(vfm_exec_hello(e->image_exec), e->last_frame ? 2 : 1)
			     : (struct vfm_maker){.name = ""};
}

/* Writes the image rows of the given pictures and sets rec["image"]. */
static int encode_image_rows(struct enc *c, json_t *rec, const char *id, int worker, struct vfm_err *err)
{
	const struct vfm_extra_kind *kind = &vfm_extra_kinds[VFM_EXTRA_IMAGE];
	struct vfm_exec_slot *slot = vfm_exec_slot(c->e->image_exec, worker);
	const struct vfm_maker maker = vfm_encode_image_maker(c->e);
	const struct vfm_outside_frames f = {.shape = {c->given, c->clip.height, c->clip.width, 3}};
	char sha256[VFM_SHA256_HEX], *path;
	struct vfm_npy n;
	const void *data;
	int rc;

	TRY(vfm_exec_input(slot, 0, c->pictures, (size_t)c->given * c->picture, err));
	TRY(vfm_outside_image(slot, vfm_exec_hello(c->e->image_exec), &f, id, &n, &data, err));
	path = vfm_strfmt("%s/%s.%s", c->e->dir, id, kind->part);
	rc = vfm_npy_save(path, &n, data, sha256, err);
	if (rc >= 0)
		json_object_set_new(rec, kind->key,
			json_pack("{s:s,s:s,s:[I,I],s:s,s:o}", "path", path, "sha256", sha256, "shape",
				(json_int_t)n.shape[0], (json_int_t)n.shape[1], "dtype", vfm_npy_type_name(n.type),
				"maker", vfm_maker_json(&maker)));
	free(path);
	return rc;
}

json_t *vfm_latent_json(const struct vfm_latent_file *f)
{
	const int64_t *shape = f->npy->shape;
	const double fps = f->resampled ? f->fps : round(f->fps * 1000) / 1000;
	json_t *o = json_pack("{s:s,s:s,s:[I,I,I,I],s:s,s:I,s:i,s:i,s:o,s:o}", "path", f->path, "sha256", f->sha256,
		"shape", (json_int_t)shape[0], (json_int_t)shape[1], (json_int_t)shape[2], (json_int_t)shape[3],
		"dtype", vfm_npy_type_name(f->npy->type), "frames", (json_int_t)f->frames, "width", f->width, "height",
		f->height, "fps", f->fps > 0 ? json_real(fps) : json_null(), "maker", vfm_maker_json(f->maker));

	if (f->resampled)
		json_object_set_new(o, "resampled", json_true());
	return o;
}

struct vfm_maker vfm_encode_tokenizer(const struct vfm_encode *e)
{
	if (e->video)
		return e->video->maker;
	return e->exec ? vfm_outside_tokenizer(vfm_exec_hello(e->exec)) : vfm_tokenizer_maker(&e->tokenizer);
}

static int save_latents(const struct enc *c, const char *path, char sha256[VFM_SHA256_HEX], struct vfm_err *err)
{
	char *what = vfm_strfmt("'%s': the latents in float16", c->clip.src);
	int rc = save_array(path, what, &c->npy, c->data, sha256, err);

	free(what);
	return rc;
}

/* Takes size and frames from the record's bucket, as far as they are asked for.  VFM_EINPUT: it has none, or one that
 * the tokenizer does not take. */
static int apply_encode_bucket(struct vfm_clip_opts *o, struct vfm_bucket *b, const json_t *rec,
	const struct vfm_encode *e, const struct vfm_geometry *g, struct vfm_err *err)
{
	char name[VFM_BUCKET_NAME];
	struct vfm_rec_media m;
	int32_t multiple[2];

	TRY(vfm_rec_media(rec, &m, err));
	TRY(vfm_bucket_read(b, rec, err));
	vfm_geometry_multiple(g, e->patch, multiple);
	if (b->width % multiple[1] || b->height % multiple[0] ||
		vfm_geometry_fit_patch(g, b->frames, e->patch[0]) != b->frames)
		return vfm_fail(err, VFM_EINPUT,
			"bucket %s: it does not fit this tokenizer and --patch; vfm-curate bucket needs the same",
			vfm_bucket_name(b, name));
	if (e->bucket_size) {
		o->width = b->width;
		o->height = b->height;
	}
	if (e->bucket_frames) {
		o->most = b->frames;
		TRY(m.is_image ? 0 : vfm_bucket_rate(b, &o->fps, err));
	}
	return 0;
}

int vfm_encode_media(json_t *rec, const struct vfm_encode *e, int worker, struct vfm_err *err)
{
	struct vfm_clip_opts o = {.width = e->width,
		.height = e->height,
		.fps = e->fps,
		.most = e->frames,
		.timeout_s = e->timeout_s,
		.threads = e->threads};
	struct vfm_exec_slot *slot = e->exec ? vfm_exec_slot(e->exec, worker) : NULL;
	struct enc c = {.e = e, .maker = vfm_encode_tokenizer(e), .given = e->last_frame ? 2 : 1};
	struct vfm_outside_frames frames;
	const char *id = vfm_rec_str(rec, "id", NULL);
	char sha256[VFM_SHA256_HEX];
	struct vfm_bucket bucket;
	char *path = NULL;
	int rc;

	TRY(vfm_sample_key_check(id, err));
	if (e->bucket_size || e->bucket_frames)
		TRY(apply_encode_bucket(&o, &bucket, rec, e, &c.maker.geometry, err));
	vfm_geometry_multiple(&c.maker.geometry, e->patch, o.multiple);
	TRY_OUT(vfm_clip_open(&c.clip, rec, &o, err));
	c.picture = (size_t)c.clip.height * (size_t)c.clip.width * 3;
	if ((e->condition && !slot) || e->image_exec) {
		c.pictures = vfm_big_alloc((size_t)c.given * c.picture, "the given pictures", err);
		TRY_OUT(c.pictures ? 0 : VFM_EENV);
	}
	TRY_OUT(slot               ? encode_outside(&c, id, slot, &frames, err)
			: e->video ? encode_native(&c, err)
				   : encode_built_in(&c, err));
	if (e->bucket_frames)
		TRY_OUT(vfm_bucket_check_frames(&bucket, c.frames, err));
	if (e->last_frame && c.frames < 2)
		TRY_OUT(vfm_fail(err, VFM_EINPUT,
			"'%s' gives one picture, which has no last one besides (--last-frame)", c.clip.src));
	path = vfm_strfmt("%s/%s.latent.npy", e->dir, id);
	/* Arrays of children are checked when they are read. */
	TRY_OUT(e->exec ? vfm_npy_save(path, &c.npy, c.data, sha256, err) : save_latents(&c, path, sha256, err));
	json_object_set_new(rec, "latent",
		vfm_latent_json(&(struct vfm_latent_file){path, sha256, &c.npy, c.frames, c.clip.width, c.clip.height,
			c.clip.fps, o.fps > 0 && !c.clip.is_image, &c.maker}));
	if (e->condition)
		TRY_OUT(encode_condition(&c, rec, id, slot, &frames, err));
	if (e->image_exec)
		TRY_OUT(encode_image_rows(&c, rec, id, worker, err));
out:
	vfm_big_free(c.pictures, c.pictures ? (size_t)c.given * c.picture : 0);
	vfm_clip_close(&c.clip);
	vfm_big_free(c.half, c.half ? c.npy.data_bytes : 0);
	free(c.latent);
	free(path);
	return rc;
}

/* ---- text ---- */

struct vfm_maker vfm_encode_text_maker(const struct vfm_encode *e)
{
	if (e->texts)
		return e->texts->maker;
	return e->text_exec ? vfm_outside_text_encoder(vfm_exec_hello(e->text_exec))
			    : vfm_textbytes_maker(e->embedders[0]);
}

/* Embeds words with the built-in encoder into the file `path`. */
static int write_built_in_text(struct vfm_npy *npy, const char *words, const char *path, struct vfm_textbytes *embedder,
	char sha256[VFM_SHA256_HEX], struct vfm_err *err)
{
	uint16_t *half;
	float *rows;
	size_t n;
	int rc;

	*npy = (struct vfm_npy){
		.type = VFM_NPY_F16, .ndim = 2, .shape = {vfm_textbytes_rows(words), vfm_textbytes_dim(embedder)}};
	n = vfm_npy_count(npy); /* at most 512 x 8192 */
	npy->data_bytes = n * sizeof(*half);
	rows = vfm_malloc(n * sizeof(*rows));
	half = vfm_malloc(n * sizeof(*half));
	vfm_textbytes_embed(embedder, words, rows);
	vfm_f16s_from_f32(half, rows, n);
	rc = save_array(path, "the text's rows in float16", npy, half, sha256, err);
	free(rows);
	free(half);
	return rc;
}

/* Embeds words with the text encoder of this process into the file `path`. */
static int write_native_text(struct vfm_npy *npy, const char *words, const char *path, const struct vfm_text_coder *t,
	char sha256[VFM_SHA256_HEX], struct vfm_err *err)
{
	uint16_t *half;
	float *rows;
	int64_t n = t->embed(t->ctx, words, &rows, err);
	int rc;

	if (n < 0)
		return (int)n;
	*npy = (struct vfm_npy){.type = t->bf16 ? VFM_NPY_BF16 : VFM_NPY_F32, .ndim = 2, .shape = {n, t->maker.dim}};
	npy->data_bytes = vfm_npy_count(npy) * vfm_npy_type_size(npy->type);
	half = t->bf16 ? vfm_malloc(npy->data_bytes) : NULL;
	if (half)
		vfm_dtype_convert(VFM_BF16, half, VFM_F32, rows, vfm_npy_count(npy));
	rc = save_array(path, "the text's rows", npy, half ? (const void *)half : rows, sha256, err);
	free(rows);
	free(half);
	return rc;
}

/* Embeds one caption of vfm_captions_of into the file `path`; *entry describes it, and the caller owns it. */
static int write_text(json_t **entry, const json_t *caption, const char *path, const struct vfm_encode *e, int worker,
	struct vfm_err *err)
{
	const char *words = caption ? json_string_value(caption) : "";
	char sha256[VFM_SHA256_HEX], caption_sha256[VFM_SHA256_HEX];
	struct vfm_npy npy;
	const void *data;

	if (e->text_exec) {
		TRY(vfm_outside_text(
			vfm_exec_slot(e->text_exec, worker), vfm_exec_hello(e->text_exec), words, &npy, &data, err));
		TRY(vfm_npy_save(path, &npy, data, sha256, err));
	} else if (e->texts) {
		TRY(write_native_text(&npy, words, path, e->texts, sha256, err));
	} else {
		TRY(write_built_in_text(&npy, words, path, e->embedders[worker], sha256, err));
	}
	vfm_caption_sha256(caption, caption_sha256);
	*entry = json_pack("{s:s,s:s,s:s,s:[I,I],s:s}", "path", path, "sha256", sha256, "caption_sha256",
		caption_sha256, "shape", (json_int_t)npy.shape[0], (json_int_t)npy.shape[1], "dtype",
		vfm_npy_type_name(npy.type));
	return 0;
}

int vfm_encode_text(json_t *rec, const struct vfm_encode *e, int worker, struct vfm_err *err)
{
	const char *id = vfm_rec_str(rec, "id", NULL);
	struct vfm_maker maker = vfm_encode_text_maker(e);
	json_t *text, *entry = NULL, *several = NULL;
	char part[VFM_TEXT_PART];
	struct vfm_captions c;

	TRY(vfm_sample_key_check(id, err));
	TRY(vfm_captions_of(&c, rec, err));
	if (*c.list[0].name)
		several = json_object();
	for (int i = 0; i < c.n; i++) {
		char *path = vfm_strfmt("%s/%s.%s", e->dir, id, vfm_text_part(part, c.list[i].name));
		int rc = write_text(&entry, c.list[i].value, path, e, worker, err);

		free(path);
		if (rc < 0) {
			json_decref(several);
			return rc;
		}
		if (several)
			json_object_set_new(several, c.list[i].name, entry);
	}
	text = several ? json_pack("{s:o}", "captions", several) : entry;
	json_object_set_new(text, "maker", vfm_maker_json(&maker));
	json_object_set_new(rec, "text", text);
	return 0;
}
