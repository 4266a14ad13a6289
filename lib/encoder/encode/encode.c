/* encode.c - feeds clips and captions to the encoders, saves their arrays and sets the record's keys. */
#include "encoder/encode/encode.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/record/binding.h"
#include "data/record/bucket.h"
#include "data/record/caption.h"
#include "data/record/clip_reader.h"
#include "data/record/extra.h"
#include "data/record/record.h"
#include "data/record/sample_key.h"
#include "encoder/vae/condition.h"
#include "io/json.h"
#include "io/npy.h"
#include "spec/model/dtype.h"

/* ---- pictures ---- */

struct enc {
	const struct vfm_encode *e;
	const struct vfm_encoder_handle *video;
	struct vfm_clip_reader reader;
	struct vfm_encode_clip clip;
	struct vfm_encoded latents;
	char *dir_id; /* "DIR/ID" */
};

/* Checks the elements, which errors call `what`, before a file exists.  Writes the file; *sha256 binds it to its
 * record.
 */
static int save_array(const char *path, const char *what, const struct vfm_encoded *x, char sha256[VFM_SHA256_HEX],
	struct vfm_err *err)
{
	TRY(vfm_npy_check_finite(&x->npy, x->data, what, err));
	return vfm_npy_save(path, &x->npy, x->data, sha256, err);
}

static struct vfm_pictures given_of(const struct enc *c)
{
	return (struct vfm_pictures){
		.rgb = c->clip.pictures, .n = c->clip.given, .height = c->reader.height, .width = c->reader.width};
}

/* ---- conditions ---- */

/* Writes the condition of the given pictures and sets rec["cond"]. */
static int encode_condition(struct enc *c, json_t *rec, struct vfm_err *err)
{
	const struct vfm_extra_kind *kind = &vfm_extra_kinds[VFM_EXTRA_COND];
	const struct vfm_encode_given given = {.id = c->clip.id,
		.worker = c->clip.worker,
		.p = given_of(c),
		.frames = c->clip.frames,
		.clip = &c->reader};
	struct vfm_encoded *x = &c->latents;
	char sha256[VFM_SHA256_HEX], *path, *what;
	struct vfm_npy n;
	int rc;

	vfm_encoded_release(x);
	TRY(c->video->ops->encode_given(c->video->ctx, &given, x, err));
	path = vfm_strfmt("%s.%s", c->dir_id, kind->part);
	what = vfm_strfmt("'%s': the condition in %s", c->reader.src, vfm_npy_type_name(x->npy.type));
	rc = vfm_npy_check_finite(&x->npy, x->data, what, err);
	if (rc >= 0)
		rc = vfm_condition_save(
			path, &c->video->id.geometry, given.p.n, given.frames, &x->npy, x->data, &n, sha256, err);
	free(what);
	if (rc >= 0)
		json_object_set_new(rec, kind->key,
			json_pack("{s:s,s:s,s:[I,I,I,I],s:s,s:i,s:o}", "path", path, "sha256", sha256, "shape",
				(json_int_t)n.shape[0], (json_int_t)n.shape[1], (json_int_t)n.shape[2],
				(json_int_t)n.shape[3], "dtype", vfm_npy_type_name(n.type), "given", 1, "maker",
				vfm_encoder_id_json(&c->video->id)));
	if (rc >= 0 && given.p.n > 1)
		json_object_set_new(json_object_get(rec, kind->key), "given_last", json_integer(1));
	free(path);
	return rc;
}

/* ---- image rows ---- */

/* Writes the image rows of the given pictures and sets rec["image"]. */
static int encode_image_rows(struct enc *c, json_t *rec, struct vfm_err *err)
{
	const struct vfm_extra_kind *kind = &vfm_extra_kinds[VFM_EXTRA_IMAGE];
	const struct vfm_encoder_handle *image = &c->e->encoders->image;
	const struct vfm_pictures p = given_of(c);
	char sha256[VFM_SHA256_HEX], *path;
	struct vfm_encoded x = {0};
	int rc;

	TRY(image->ops->encode_image(image->ctx, c->clip.worker, c->clip.id, &p, &x, err));
	path = vfm_strfmt("%s.%s", c->dir_id, kind->part);
	rc = save_array(path, "the image rows", &x, sha256, err);
	if (rc >= 0)
		json_object_set_new(rec, kind->key,
			json_pack("{s:s,s:s,s:[I,I],s:s,s:o}", "path", path, "sha256", sha256, "shape",
				(json_int_t)x.npy.shape[0], (json_int_t)x.npy.shape[1], "dtype",
				vfm_npy_type_name(x.npy.type), "maker", vfm_encoder_id_json(&image->id)));
	vfm_encoded_release(&x);
	free(path);
	return rc;
}

/* ---- latents ---- */

json_t *vfm_latent_json(const struct vfm_latent_file *f)
{
	const int64_t *shape = f->npy->shape;
	const double fps = f->resampled ? f->fps : round(f->fps * 1000) / 1000;
	json_t *o = json_pack("{s:s,s:s,s:[I,I,I,I],s:s,s:I,s:i,s:i,s:o,s:o}", "path", f->path, "sha256", f->sha256,
		"shape", (json_int_t)shape[0], (json_int_t)shape[1], (json_int_t)shape[2], (json_int_t)shape[3],
		"dtype", vfm_npy_type_name(f->npy->type), "frames", (json_int_t)f->frames, "width", f->width, "height",
		f->height, "fps", f->fps > 0 ? json_real(fps) : json_null(), "maker",
		vfm_encoder_id_json(f->encoder_id));

	if (f->resampled)
		json_object_set_new(o, "resampled", json_true());
	return o;
}

/* Writes the latents of the clip and sets rec["latent"].  resampled: of struct vfm_latent_file. */
static int save_latents(const struct enc *c, json_t *rec, bool resampled, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s.latent.npy", c->dir_id), sha256[VFM_SHA256_HEX];
	char *what = vfm_strfmt("'%s': the latents in %s", c->reader.src, vfm_npy_type_name(c->latents.npy.type));
	int rc = save_array(path, what, &c->latents, sha256, err);

	if (rc >= 0)
		json_object_set_new(rec, "latent",
			vfm_latent_json(&(struct vfm_latent_file){path, sha256, &c->latents.npy, c->clip.frames,
				c->reader.width, c->reader.height, c->reader.fps, resampled, &c->video->id}));
	free(what);
	free(path);
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
	struct enc c = {.e = e, .video = &e->encoders->video};
	struct vfm_encode_clip *clip = &c.clip;
	const char *id = vfm_rec_str(rec, "id", NULL);
	struct vfm_bucket bucket;
	size_t given = 0; /* bytes */
	int rc;

	TRY(vfm_sample_key_check(id, err));
	if (e->bucket_size || e->bucket_frames)
		TRY(apply_encode_bucket(&o, &bucket, rec, e, &c.video->id.geometry, err));
	vfm_geometry_multiple(&c.video->id.geometry, e->patch, o.multiple);
	c.dir_id = vfm_strfmt("%s/%s", e->dir, id);
	TRY_OUT(vfm_clip_open(&c.reader, rec, &o, err));
	*clip = (struct vfm_encode_clip){.id = id,
		.worker = worker,
		.reader = &c.reader,
		.patch_t = e->patch[0],
		.given = e->last_frame ? 2 : 1};
	if (e->condition || e->encoders->image.ops) {
		given = (size_t)clip->given * (size_t)c.reader.height * (size_t)c.reader.width * 3;
		clip->pictures = vfm_big_alloc(given, "the given pictures", err);
		TRY_OUT(clip->pictures ? 0 : VFM_EENV);
	}
	TRY_OUT(c.video->ops->encode_clip(c.video->ctx, clip, &c.latents, err));
	if (e->bucket_frames)
		TRY_OUT(vfm_bucket_check_frames(&bucket, clip->frames, err));
	if (e->last_frame && clip->frames < 2)
		TRY_OUT(vfm_fail(err, VFM_EINPUT,
			"'%s' gives one picture, which has no last one besides (--last-frame)", c.reader.src));
	TRY_OUT(save_latents(&c, rec, o.fps > 0 && !c.reader.is_image, err));
	if (e->condition)
		TRY_OUT(encode_condition(&c, rec, err));
	if (e->encoders->image.ops)
		TRY_OUT(encode_image_rows(&c, rec, err));
out:
	vfm_big_free(clip->pictures, clip->pictures ? given : 0);
	vfm_clip_close(&c.reader);
	vfm_encoded_release(&c.latents);
	free(c.dir_id);
	return rc;
}

/* ---- text ---- */

/* Encodes one caption of vfm_captions_of into the file `path`; *entry describes it, and the caller owns it.  A caption
 * without rows has no file, and *entry is null. */
static int write_text(json_t **entry, const struct vfm_encoder_handle *text, const json_t *caption, const char *path,
	int worker, struct vfm_err *err)
{
	const char *words = caption ? json_string_value(caption) : "";
	char sha256[VFM_SHA256_HEX], caption_sha256[VFM_SHA256_HEX];
	struct vfm_encoded x = {0};
	int rc;

	TRY(text->ops->encode_text(text->ctx, worker, words, &x, err));
	if (!x.npy.shape[0]) {
		*entry = json_null();
		return 0;
	}
	rc = save_array(
		path, x.npy.type == VFM_NPY_F16 ? "the text's rows in float16" : "the text's rows", &x, sha256, err);
	if (rc >= 0) {
		vfm_caption_sha256(caption, caption_sha256);
		*entry = json_pack("{s:s,s:s,s:s,s:[I,I],s:s}", "path", path, "sha256", sha256, "caption_sha256",
			caption_sha256, "shape", (json_int_t)x.npy.shape[0], (json_int_t)x.npy.shape[1], "dtype",
			vfm_npy_type_name(x.npy.type));
	}
	vfm_encoded_release(&x);
	return rc;
}

int vfm_encode_text(json_t *rec, const struct vfm_encode *e, int worker, struct vfm_err *err)
{
	const char *id = vfm_rec_str(rec, "id", NULL);
	json_t *text, *entry = NULL, *several = NULL;
	char part[VFM_TEXT_PART];
	struct vfm_captions c;

	TRY(vfm_sample_key_check(id, err));
	TRY(vfm_captions_of(&c, rec, err));
	if (*c.list[0].name)
		several = json_object();
	for (int i = 0; i < c.n; i++) {
		char *path = vfm_strfmt("%s/%s.%s", e->dir, id, vfm_text_part(part, c.list[i].name));
		int rc = write_text(&entry, &e->encoders->text, c.list[i].value, path, worker, err);

		free(path);
		if (rc < 0) {
			json_decref(several);
			return rc;
		}
		if (several)
			json_object_set_new(several, c.list[i].name, entry);
	}
	text = several ? json_pack("{s:o}", "captions", several) : entry;
	json_object_set_new(text, "maker", vfm_encoder_id_json(&e->encoders->text.id));
	json_object_set_new(rec, "text", text);
	return 0;
}

int vfm_encode_text2(json_t *rec, const struct vfm_encode *e, int worker, struct vfm_err *err)
{
	const struct vfm_extra_kind *kind = &vfm_extra_kinds[VFM_EXTRA_TEXT2];
	const struct vfm_encoder_handle *text2 = &e->encoders->text2;
	const char *id = vfm_rec_str(rec, "id", NULL);
	struct vfm_captions c;
	json_t *entry = NULL;
	char *path;
	int rc;

	if (!text2->ops)
		return 0;
	TRY(vfm_sample_key_check(id, err));
	TRY(vfm_captions_of(&c, rec, err));
	path = vfm_strfmt("%s/%s.%s", e->dir, id, kind->part);
	rc = write_text(&entry, text2, c.list[0].value, path, worker, err);
	free(path);
	TRY(rc);
	if (json_is_object(entry))
		json_object_set_new(entry, "maker", vfm_encoder_id_json(&text2->id));
	json_object_set_new(rec, kind->key, entry);
	return 0;
}
