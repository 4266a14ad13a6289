/* inputs.c - what a video starts from besides noise and texts: pictures, and the arrays that lines of prompts name. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/dataset/index.h"
#include "data/record/binding.h"
#include "data/record/clip_reader.h"
#include "data/record/record.h"
#include "encoder/vae/condition.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/input.h"
#include "io/json.h"
#include "io/npy.h"
#include "spec/layout/patch.h"
#include "spec/model/dtype.h"
#include "train/sample/sampling_impl.h"

#define MAX_FILE ((size_t)1 << 32)

/* ---- pictures ---- */

/* Reads the first picture of a file at a size. */
static int read_picture(const char *file, int width, int height, uint8_t *rgb, struct vfm_err *err)
{
	const struct vfm_clip_opts o = {.width = width, .height = height, .most = 1, .threads = 1};
	json_t *rec = json_pack("{s:s}", "src", file);
	struct vfm_clip_reader r = {0};
	int rc;

	if (!rec)
		return vfm_fail(err, VFM_EUSAGE, "the name is not UTF-8");
	rc = vfm_clip_open(&r, rec, &o, err);
	if (rc >= 0)
		rc = vfm_clip_next(&r, rgb, err);
	if (rc == 0)
		rc = vfm_fail(err, VFM_EINPUT, "'%s' has no picture", file);
	vfm_clip_close(&r);
	json_decref(rec);
	return rc < 0 ? rc : 0;
}

/* Sets the number of pictures and of latent frames that the model is given. */
static int choose_given(const struct vfm_sampling *s, const struct vfm_sample_picture *p, int64_t *frames,
	int32_t dims[3], struct vfm_err *err)
{
	const struct vfm_model_spec *m = &s->c->model;
	const int64_t makes = s->geometry.stride[0] + m->channels;

	*frames = m->cond_channels ? p->frames : 1;
	if (m->cond_channels && m->cond_channels != makes)
		return vfm_fail(err, VFM_EUSAGE,
			"the model reads conditions of %lld channels; mask and latents of '%s' have %lld",
			(long long)m->cond_channels, s->encoder_ids.tokenizer.name, (long long)makes);
	if (p->last_image && *frames < 2)
		return vfm_fail(err, VFM_EUSAGE, "a video of one picture has no other for --last-image");
	if (vfm_geometry_latent(&s->geometry, *frames, p->height, p->width, dims, err) < 0)
		return VFM_EUSAGE;
	if (!m->cond_channels && m->patch[0] != dims[0])
		return vfm_fail(err, VFM_EUSAGE, "a picture is %d latent frames, the patch of the model %lld", dims[0],
			(long long)m->patch[0]);
	return 0;
}

/* Encodes the pictures to p->x. */
static int encode_latents(struct vfm_sampling *s, const struct vfm_pictures *pictures, struct vfm_err *err)
{
	const int64_t channels = s->c->model.channels;
	const int64_t mask = s->c->model.cond_channels ? s->geometry.stride[0] : 0;
	const struct vfm_encoder_handle *video = &s->encoders.video;
	struct vfm_encode_given given = {.id = "picture", .p = *pictures};
	struct vfm_sample_picture *p = &s->picture;
	struct vfm_encoded x = {0};
	size_t area, frame;

	TRY(choose_given(s, p, &given.frames, p->dims, err));
	area = (size_t)p->dims[1] * (size_t)p->dims[2];
	frame = (size_t)p->dims[0] * area;
	p->bytes = (size_t)(mask + channels) * frame * sizeof(float);
	p->x = vfm_big_alloc(p->bytes, "the latents of the picture", err);
	if (!p->x)
		return VFM_EENV;
	if (mask)
		vfm_condition_mask(&s->geometry, pictures->n, given.frames, p->dims[0], area, p->x);
	TRY(video->ops->encode_given(video->ctx, &given, &x, err));
	memcpy(p->x + (size_t)mask * frame, x.data, x.npy.data_bytes);
	vfm_encoded_release(&x);
	return 0;
}

/* Encodes the pictures to p->rows. */
static int encode_rows(struct vfm_sampling *s, const struct vfm_pictures *pictures, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &s->c->model;
	const struct vfm_encoder_handle *image = &s->encoders.image;
	struct vfm_sample_picture *p = &s->picture;
	struct vfm_encoded x = {0};
	bool same;

	p->rows_bytes = (size_t)m->image_len * (size_t)m->image_dim * sizeof(float);
	p->rows = vfm_big_alloc(p->rows_bytes, "the image rows", err);
	if (!p->rows)
		return VFM_EENV;
	TRY(image->ops->encode_image(image->ctx, 0, "picture", pictures, &x, err));
	if (x.npy.data_bytes == p->rows_bytes)
		memcpy(p->rows, x.data, p->rows_bytes);
	else
		vfm_fail(err, VFM_EUSAGE, "'%s' makes %lld image rows, the model reads %lld", image->id.name,
			(long long)x.npy.shape[0], (long long)m->image_len);
	same = x.npy.data_bytes == p->rows_bytes;
	vfm_encoded_release(&x);
	return same ? 0 : VFM_EUSAGE;
}

static int encode_pictures(struct vfm_sampling *s, struct vfm_err *err)
{
	const struct vfm_sample_picture *q = &s->picture;
	const int n = q->last_image ? 2 : 1;
	const size_t size = (size_t)q->height * (size_t)q->width * 3, bytes = (size_t)n * size;
	uint8_t *rgb = vfm_big_alloc(bytes, "the pictures", err);
	const struct vfm_pictures p = {.rgb = rgb, .n = n, .height = q->height, .width = q->width};
	int rc;

	if (!rgb)
		return VFM_EENV;
	rc = read_picture(q->image, q->width, q->height, rgb, err);
	if (rc >= 0 && n > 1)
		rc = read_picture(q->last_image, q->width, q->height, rgb + size, err);
	if (rc >= 0)
		rc = encode_latents(s, &p, err);
	if (rc >= 0 && sampling_makes_rows(s))
		rc = encode_rows(s, &p, err);
	vfm_big_free(rgb, bytes);
	return rc;
}

static bool is_same_name(const char *a, const char *b)
{
	return a == b || (a && b && !strcmp(a, b));
}

int sampling_load_picture(struct vfm_sampling *s, const struct vfm_sample_item *it, struct vfm_err *err)
{
	struct vfm_sample_picture *p = &s->picture;
	const struct vfm_prompt *q = &it->p;
	int rc;

	if (!q->image ||
		(p->image && is_same_name(p->image, q->image) && is_same_name(p->last_image, q->last_image) &&
			p->width == q->width && p->height == q->height && p->frames == q->frames))
		return 0;
	sampling_release_picture(p);
	*p = (struct vfm_sample_picture){.image = q->image,
		.last_image = q->last_image,
		.width = q->width,
		.height = q->height,
		.frames = q->frames};
	rc = encode_pictures(s, err);
	if (rc < 0) {
		sampling_release_picture(p);
		return q->image == s->o->prompt.image ? vfm_err_context(err, "--image")
						      : vfm_err_context(err, "prompt %zu: image", (size_t)(it - s->v));
	}
	return 0;
}

void sampling_release_picture(struct vfm_sample_picture *p)
{
	vfm_big_free(p->x, p->x ? p->bytes : 0);
	vfm_big_free(p->rows, p->rows ? p->rows_bytes : 0);
	*p = (struct vfm_sample_picture){0};
}

/* ---- arrays of the prompts ---- */

/* The line of a file of prompts that an item comes from; NULL: none. */
static const json_t *prompt_line(const struct vfm_sample_item *it)
{
	return json_object_get(it->rec, "prompt");
}

bool sampling_names_text2(const struct vfm_sample_item *it)
{
	return json_is_object(json_object_get(prompt_line(it), "text2"));
}

/* Returns whether an item has image rows: with joint attention, those of a picture that it starts with or of its line;
 * other models always read them. */
static bool has_image_rows(const struct vfm_sampling *s, const struct vfm_sample_item *it)
{
	const struct vfm_model_spec *m = &s->c->model;

	return m->image_dim &&
		(!vfm_model_arch(m)->joint || it->p.image || s->o->first_frame ||
			json_is_object(json_object_get(prompt_line(it), "image")));
}

/* How a prompt gets a picture. */
static const char *picture_option(const struct vfm_sampling *s)
{
	return s->o->in_training ? "an image (--i FILE, or \"image\" in JSON)" : "--image FILE";
}

static int check_item_inputs(const struct vfm_sampling *s, const struct vfm_sample_item *it, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &s->c->model;
	const struct {
		bool needed;
		const char *key, *why, *option;
	} needs[] = {
		{m->cond_channels && !it->p.image, "cond", "the model reads a condition (model.cond_channels)",
			picture_option(s)},
		{has_image_rows(s, it) && !(it->p.image && sampling_makes_rows(s)), "image",
			"the model reads image rows (model.image_dim)",
			it->p.image                 ? "--image-encoder PATH"
				: s->o->in_training ? "a picture with --image-encoder PATH"
						    : "--image FILE with --image-encoder PATH"},
		{s->o->first_frame, "latent", "--first-frame takes a latent", "--image FILE instead"},
	};

	if (it->p.last_image && !it->p.image)
		return vfm_fail(err, VFM_EUSAGE, "--last-image: it needs --image");
	if (it->p.last_image && !m->cond_channels)
		return vfm_fail(
			err, VFM_EUSAGE, "--last-image: the model reads no condition (model.cond_channels is 0)");
	for (size_t k = 0; k < sizeof(needs) / sizeof(needs[0]); k++) {
		const json_t *part = json_object_get(prompt_line(it), needs[k].key);

		if (needs[k].needed && !vfm_rec_str(part, "path", NULL))
			return vfm_fail(err, VFM_EUSAGE, "%s: give %s, or %s.path in its line of --prompts",
				needs[k].why, needs[k].option, needs[k].key);
	}
	if (m->text2_dim && sampling_names_text2(it) && !*it->p.caption)
		return vfm_fail(err, VFM_EUSAGE, "text2: the null text has no second text");
	return 0;
}

static void warn_guided_twice(const struct vfm_sampling *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->v[i].p.cfg != 1) {
			vfm_warn("the network is distilled for guidance (%g), and --cfg %g guides it once more; "
				 "--cfg 1 would not",
				s->o->sampler.guidance, s->v[i].p.cfg);
			return;
		}
}

int sampling_check_inputs(struct vfm_sampling *s, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &s->c->model;
	bool two = false;

	if (sampling_makes_rows(s) && !m->image_dim)
		return vfm_fail(err, VFM_EUSAGE, "%s: the model reads no image rows (model.image_dim is 0)",
			vfm_encoder_image_option(&s->o->encoder));
	if (vfm_encoder_text2_option(&s->o->encoder) && !m->text2_dim)
		return vfm_fail(err, VFM_EUSAGE, "%s: the model reads no second text (model.text2_dim is 0)",
			vfm_encoder_text2_option(&s->o->encoder));
	if (s->o->reads_guidance && !m->guidance_dim)
		return vfm_fail(
			err, VFM_EUSAGE, "--guidance: the network reads no guidance scale (model.guidance_dim is 0)");
	for (size_t i = 0; i < s->n; i++)
		two = two || s->v[i].p.last_image;
	if (m->guidance_dim && !s->o->in_training && s->job->world->rank == 0)
		warn_guided_twice(s);
	for (size_t i = 0; i < s->n; i++) {
		struct vfm_sample_item *it = &s->v[i];

		if (it->in.ready)
			continue;
		if (check_item_inputs(s, it, err) < 0)
			return vfm_err_context(err, "prompt %zu", i);
		if (sampling_makes_rows(s) && it->p.image && two && !it->p.last_image)
			return vfm_fail(err, VFM_EUSAGE,
				"prompt %zu gives one picture, another prompt two: the model reads the image rows of "
				"as many for all",
				i);
		it->given_first = s->o->first_frame || (it->p.image && !m->cond_channels);
		if (it->given_first && !vfm_model_takes_given(m))
			return vfm_fail(err, VFM_EUSAGE,
				"prompt %zu: the model reads no mask of given frames (model.mask_channels is 1)", i);
	}
	return 0;
}

/* An array of a file. */
struct file_array {
	float *x;
	size_t bytes;
	int64_t shape[4];
};

static void release_array(struct file_array *a)
{
	vfm_big_free(a->x, a->x ? a->bytes : 0);
}

/* Reads the array of a section.  Its digest, if it has one, and the dimensions of `want` that are not 0 must agree.  The
 * caller releases it, also after a failure. */
static int read_array(
	struct file_array *a, const json_t *part, const char *what, int ndim, const int64_t *want, struct vfm_err *err)
{
	const char *path = vfm_rec_str(part, "path", NULL);
	char sha256[VFM_SHA256_HEX];
	struct vfm_buf b = {0};
	struct vfm_npy n;
	int rc;

	*a = (struct file_array){0};
	if (!path)
		return vfm_fail(err, VFM_EUSAGE, "%s.path is missing", what);
	TRY(vfm_binding_digest(sha256, part, what, "sha256", err));
	TRY_OUT(vfm_read_regular(path, MAX_FILE, &b.data, &b.len, err));
	b.cap = b.len + 1;
	TRY_OUT(vfm_binding_check(sha256, b.data, b.len, path, err));
	TRY_OUT(vfm_npy_parse(&n, b.data, b.len, b.len, path, err));
	TRY_OUT(vfm_sample_array_check(&n, ndim, b.data + n.header_bytes, path, err));
	for (int i = 0; i < ndim && rc >= 0; i++) {
		a->shape[i] = n.shape[i];
		if (want[i] && n.shape[i] != want[i])
			rc = vfm_fail(err, VFM_EINPUT, "'%s': dimension %d is %lld, expected %lld", path, i,
				(long long)n.shape[i], (long long)want[i]);
	}
	TRY_OUT(rc);
	a->bytes = vfm_npy_count(&n) * sizeof(float);
	a->x = vfm_big_alloc(a->bytes, path, err);
	TRY_OUT(a->x ? 0 : VFM_EENV);
	vfm_dtype_convert(VFM_F32, a->x, vfm_dtype_of_npy(n.type), b.data + n.header_bytes, vfm_npy_count(&n));
out:
	vfm_buf_release(&b);
	return rc;
}

/* Compares the encoder of a section with that of the model's data. */
static int check_section_encoder(const struct vfm_sampling *s, enum vfm_encoder_kind e, const json_t *part,
	const char *what, struct vfm_err *err)
{
	const json_t *o = json_object_get(part, "maker");
	struct vfm_encoder_id m = {0};

	if (o && !json_is_null(o))
		TRY(vfm_encoder_id_from_json(&m, o, what, err));
	return vfm_encoder_id_check(e, &m, what, &s->encoder_ids.of[e], "the model", err);
}

static int read_cond(const struct vfm_sampling *s, const struct vfm_sample_item *it, float *tokens, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &s->c->model;
	const json_t *part = json_object_get(prompt_line(it), "cond");
	struct file_array a;
	int32_t patch[3];
	int rc;

	vfm_model_patch(m, patch);
	if (it->p.image) {
		vfm_patchify(s->picture.x, VFM_NPY_F32, (int32_t)m->cond_channels, it->dims, patch, tokens, VFM_F32);
		return 0;
	}
	TRY(check_section_encoder(s, VFM_ENCODER_TOKENIZER, part, "cond", err));
	rc = read_array(&a, part, "cond", 4, (int64_t[]){m->cond_channels, it->dims[0], it->dims[1], it->dims[2]}, err);
	if (rc >= 0)
		vfm_patchify(a.x, VFM_NPY_F32, (int32_t)m->cond_channels, it->dims, patch, tokens, VFM_F32);
	release_array(&a);
	return rc;
}

static int read_image(const struct vfm_sampling *s, const struct vfm_sample_item *it, float *rows, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &s->c->model;
	const json_t *part = json_object_get(prompt_line(it), "image");
	struct file_array a;
	int rc;

	if (it->p.image && s->picture.rows) {
		memcpy(rows, s->picture.rows, s->picture.rows_bytes);
		return 0;
	}
	TRY(check_section_encoder(s, VFM_ENCODER_IMAGE, part, "image", err));
	rc = read_array(&a, part, "image", 2, (int64_t[]){m->image_len, m->image_dim}, err);
	if (rc >= 0)
		memcpy(rows, a.x, a.bytes);
	release_array(&a);
	return rc;
}

/* Compares the digest of the caption that a second text was made from, if its section has one, with the prompt. */
static int check_text2_prompt(const struct vfm_sample_item *it, const json_t *part, struct vfm_err *err)
{
	char made[VFM_SHA256_HEX], hex[VFM_SHA256_HEX];

	TRY(vfm_binding_digest(made, part, "text2", "caption_sha256", err));
	vfm_sha256_of(it->p.caption, strlen(it->p.caption), hex);
	if (!made[0] || strcmp(made, hex) == 0)
		return 0;
	return vfm_fail(err, VFM_EINPUT, "the second text was made from another caption (text2.caption_sha256)");
}

/* Reads the second text that the line of an item names. */
static int read_text2(struct vfm_sampling *s, struct vfm_sample_item *it, struct vfm_err *err)
{
	const json_t *part = json_object_get(prompt_line(it), "text2");
	const int64_t dim = s->c->model.text2_dim;
	struct file_array a;
	int64_t n;
	int rc;

	if (!dim || !sampling_names_text2(it))
		return 0;
	TRY(check_text2_prompt(it, part, err));
	TRY(check_section_encoder(s, VFM_ENCODER_TEXT2, part, "text2", err));
	rc = read_array(
		&a, part, "text2", 2, (int64_t[]){vfm_model_arch(&s->c->model)->text2_vector ? 1 : 0, dim}, err);
	if (rc >= 0) {
		n = sampling_cut_text2(s, a.shape[0]);
		it->in.n_text2 = (int32_t)n;
		it->in.text2 = vfm_calloc((size_t)(n * dim), sizeof(*it->in.text2));
		memcpy(it->in.text2, a.x, (size_t)(n * dim) * sizeof(*it->in.text2));
	}
	release_array(&a);
	return rc;
}

/* Writes the tokens of the first patch of frames of x [C, frames, h, w], which it moves together. */
static int patch_first(const struct vfm_sampling *s, const struct vfm_sample_item *it, float *x, int64_t frames,
	float *tokens, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &s->c->model;
	const size_t frame = (size_t)it->dims[1] * (size_t)it->dims[2], part_of = frame * (size_t)m->patch[0];
	int32_t patch[3], dims[3];

	vfm_model_patch(m, patch);
	memcpy(dims, (int32_t[]){patch[0], it->dims[1], it->dims[2]}, sizeof(dims));
	if (frames < patch[0])
		return vfm_fail(err, VFM_EINPUT, "latent has %lld frames, the patch of the model %d", (long long)frames,
			patch[0]);
	for (int64_t c = 1; c < m->channels; c++)
		memmove(x + (size_t)c * part_of, x + (size_t)(c * frames) * frame, part_of * sizeof(float));
	vfm_patchify(x, VFM_NPY_F32, (int32_t)m->channels, dims, patch, tokens, VFM_F32);
	return 0;
}

/* The first patch of latent frames of `latent`, which may have any number of frames. */
static int read_first(
	const struct vfm_sampling *s, const struct vfm_sample_item *it, float *tokens, struct vfm_err *err)
{
	const json_t *part = json_object_get(prompt_line(it), "latent");
	struct file_array a;
	int rc;

	if (it->p.image)
		return patch_first(s, it, s->picture.x, s->picture.dims[0], tokens, err);
	TRY(check_section_encoder(s, VFM_ENCODER_TOKENIZER, part, "latent", err));
	rc = read_array(&a, part, "latent", 4, (int64_t[]){s->c->model.channels, 0, it->dims[1], it->dims[2]}, err);
	if (rc >= 0)
		rc = patch_first(s, it, a.x, a.shape[1], tokens, err);
	release_array(&a);
	return rc;
}

/* ---- items ---- */

/* Elements of the arrays of an item. */
static size_t cond_elements(const struct vfm_sampling *s, const struct vfm_sample_item *it)
{
	return (size_t)(sampling_tokens(it) * vfm_model_cond_dim(&s->c->model));
}
static size_t image_elements(const struct vfm_sampling *s, const struct vfm_sample_item *it)
{
	const struct vfm_model_spec *m = &s->c->model;

	return has_image_rows(s, it) ? (size_t)(m->image_len * m->image_dim) : 0;
}
static size_t first_elements(const struct vfm_sampling *s, const struct vfm_sample_item *it)
{
	return it->given_first ? (size_t)((int64_t)it->grid[1] * it->grid[2] * vfm_model_patch_dim(&s->c->model)) : 0;
}

static int prepare_arrays(struct vfm_sampling *s, struct vfm_sample_item *it, struct vfm_err *err)
{
	const struct {
		size_t n;
		float **x;
		int (*read)(const struct vfm_sampling *, const struct vfm_sample_item *, float *, struct vfm_err *);
	} arrays[] = {{cond_elements(s, it), &it->in.cond, read_cond},
		{image_elements(s, it), &it->in.image, read_image}, {first_elements(s, it), &it->in.first, read_first}};

	for (size_t k = 0; k < sizeof(arrays) / sizeof(arrays[0]); k++) {
		if (!arrays[k].n)
			continue;
		*arrays[k].x = vfm_calloc(arrays[k].n, sizeof(float));
		TRY(arrays[k].read(s, it, *arrays[k].x, err));
	}
	return read_text2(s, it, err);
}

int sampling_prepare_item(struct vfm_sampling *s, struct vfm_sample_item *it, struct vfm_err *err)
{
	if (it->in.ready)
		return 0;
	if (!it->in.has_texts)
		TRY(sampling_encode_texts(s, err));
	TRY(sampling_load_picture(s, it, err));
	if (prepare_arrays(s, it, err) < 0)
		return vfm_err_context(err, "prompt %zu", (size_t)(it - s->v));
	it->in.ready = true;
	return 0;
}

void sampling_release_inputs(struct vfm_sample_inputs *in)
{
	free(in->text);
	free(in->negative);
	free(in->text2);
	free(in->negative2);
	free(in->cond);
	free(in->image);
	free(in->first);
	*in = (struct vfm_sample_inputs){0};
}

/* ---- batches ---- */

/* Copies the arrays of the items one after another; size [n]: their elements. */
static void join_array(float *all, const struct vfm_sample_item *it, int n, size_t offset, const size_t *size)
{
	for (int i = 0; i < n; i++) {
		const float *x = *(float *const *)((const char *)&it[i].in + offset);

		if (size[i] && x)
			memcpy(all, x, size[i] * sizeof(*x));
		all += size[i];
	}
}

/* Allocates, joins on the leader and broadcasts an array. */
static int share_array(float **all, size_t *bytes, const struct vfm_sampling *s, const struct vfm_sample_item *it,
	int n, size_t offset, const size_t *size, struct vfm_err *err)
{
	size_t total = 0;

	for (int i = 0; i < n; i++)
		total += size[i];
	if (!total)
		return 0;
	*bytes = total * sizeof(float);
	*all = vfm_big_alloc(*bytes, "what the prompts give", err);
	TRY(vfm_agree(s->together, *all ? 0 : VFM_EENV, err));
	if (s->leader)
		join_array(*all, it, n, offset, size);
	return vfm_broadcast(s->together, NULL, vfm_t1(*all, VFM_U8, (int64_t)*bytes), 0, err);
}

/* Texts of a batch: where an item has the rows and their number, and their features. */
struct text_kind {
	size_t rows, count;
	int64_t dim;
};

/* Broadcasts the numbers of rows, then the rows, of texts of a kind; *cu [n + 1], size [n]: elements. */
static int share_text(float **all, int32_t **cu, size_t *bytes, size_t *size, const struct vfm_sampling *s,
	const struct vfm_sample_item *it, int n, const struct text_kind *k, struct vfm_err *err)
{
	*cu = vfm_calloc((size_t)n + 1, sizeof(**cu));
	for (int i = 0; i < n && s->leader; i++)
		(*cu)[i + 1] = (*cu)[i] + *(const int32_t *)(const void *)((const char *)&it[i].in + k->count);
	TRY(vfm_broadcast(s->together, NULL, vfm_t1(*cu, VFM_I32, n + 1), 0, err));
	for (int i = 0; i < n; i++)
		size[i] = (size_t)((*cu)[i + 1] - (*cu)[i]) * (size_t)k->dim;
	return share_array(all, bytes, s, it, n, k->rows, size, err);
}

#define IN_OFFSET(field) offsetof(struct vfm_sample_inputs, field)

static int share_texts(struct batch_inputs *b, size_t *size, const struct vfm_sampling *s,
	const struct vfm_sample_item *it, int n, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &s->c->model;
	const struct text_kind kinds[] = {{IN_OFFSET(text), IN_OFFSET(n_text), m->text_dim},
		{IN_OFFSET(negative), IN_OFFSET(n_negative), m->text_dim},
		{IN_OFFSET(text2), IN_OFFSET(n_text2), m->text2_dim},
		{IN_OFFSET(negative2), IN_OFFSET(n_negative2), m->text2_dim}};
	float **const all[] = {&b->text, &b->negative, &b->text2, &b->negative2};
	int32_t **const cu[] = {&b->cu_text, &b->cu_negative, &b->cu_text2, &b->cu_negative2};
	const int n_kinds = m->text2_dim ? 4 : 2;

	for (int k = 0; k < n_kinds; k++)
		TRY(share_text(all[k], cu[k], &b->bytes[k], size, s, it, n, &kinds[k], err));
	return 0;
}

static int share_given(struct batch_inputs *b, size_t *size, const struct vfm_sampling *s,
	const struct vfm_sample_item *it, int n, struct vfm_err *err)
{
	for (int i = 0; i < n; i++)
		size[i] = cond_elements(s, &it[i]);
	TRY(share_array(&b->cond, &b->bytes[4], s, it, n, IN_OFFSET(cond), size, err));
	for (int i = 0; i < n; i++)
		size[i] = image_elements(s, &it[i]);
	TRY(share_array(&b->image, &b->bytes[5], s, it, n, IN_OFFSET(image), size, err));
	for (int i = 0; i < n; i++)
		size[i] = first_elements(s, &it[i]);
	TRY(share_array(&b->first, &b->bytes[6], s, it, n, IN_OFFSET(first), size, err));
	if (!b->first)
		return 0;
	b->frames = vfm_calloc((size_t)n, sizeof(*b->frames));
	for (size_t i = 0, at = 0; i < (size_t)n; at += size[i++])
		b->frames[i] = size[i] ? b->first + at : NULL;
	return 0;
}

int sampling_join_inputs(struct batch_inputs *b, struct vfm_sample_request *r, const struct vfm_sampling *s,
	const struct vfm_sample_item *it, int n, struct vfm_err *err)
{
	size_t *size = vfm_calloc((size_t)n, sizeof(*size));
	int rc = share_texts(b, size, s, it, n, err);

	if (rc >= 0)
		rc = share_given(b, size, s, it, n, err);
	free(size);
	r->text = b->text;
	r->cu_text = b->cu_text;
	r->negative = b->negative;
	r->cu_negative = b->cu_negative;
	r->text2 = b->text2;
	r->cu_text2 = b->cu_text2;
	r->negative2 = b->negative2;
	r->cu_negative2 = b->cu_negative2;
	r->cond = b->cond;
	r->image = b->image;
	r->first_frame = b->frames;
	return rc;
}

void batch_inputs_release(struct batch_inputs *b)
{
	float *const all[] = {b->text, b->negative, b->text2, b->negative2, b->cond, b->image, b->first};

	for (int k = 0; k < 7; k++)
		vfm_big_free(all[k], all[k] ? b->bytes[k] : 0);
	free(b->cu_text);
	free(b->cu_negative);
	free(b->cu_text2);
	free(b->cu_negative2);
	free(b->frames);
	*b = (struct batch_inputs){0};
}
