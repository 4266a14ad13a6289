/* The start of the videos of vfm-sample: the picture of --image, or the arrays of the prompts. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/dataset/index.h"
#include "data/record/clip_reader.h"
#include "data/record/record.h"
#include "encoder/vae/condition.h"
#include "io/file.h"
#include "io/input.h"
#include "io/json.h"
#include "io/npy.h"
#include "sample.h"
#include "spec/layout/patch.h"
#include "spec/model/dtype.h"

#define MAX_FILE ((size_t)1 << 32)

/* ---- the pictures of --image and --last-image ---- */

/* Reads the first picture of a file at the size of the videos. */
static int read_picture(const struct sample_job *j, const char *file, uint8_t *rgb, struct vfm_err *err)
{
	const struct vfm_clip_opts o = {.width = j->width, .height = j->height, .most = 1, .threads = 1};
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
static int choose_given(const struct sample_job *j, int64_t *frames, int32_t dims[3], struct vfm_err *err)
{
	const struct vfm_model_spec *m = &j->net.c.model;
	const int64_t makes = j->geometry.stride[0] + m->channels;

	*frames = m->cond_channels ? j->frames : 1;
	if (m->cond_channels && m->cond_channels != makes)
		return vfm_fail(err, VFM_EUSAGE,
			"the model reads conditions of %lld channels; mask and latents of '%s' have %lld",
			(long long)m->cond_channels, j->encoder_ids.tokenizer.name, (long long)makes);
	if (j->o->last_image && *frames < 2)
		return vfm_fail(err, VFM_EUSAGE, "a video of one picture has no other for --last-image");
	if (vfm_geometry_latent(&j->geometry, *frames, j->height, j->width, dims, err) < 0)
		return VFM_EUSAGE;
	if (!m->cond_channels && m->patch[0] != dims[0])
		return vfm_fail(err, VFM_EUSAGE, "a picture is %d latent frames, the patch of the model %lld", dims[0],
			(long long)m->patch[0]);
	return 0;
}

/* Encodes the pictures to p->x. */
static int encode_latents(struct sample_job *j, const struct vfm_pictures *pictures, struct vfm_err *err)
{
	const int64_t channels = j->net.c.model.channels;
	const int64_t mask = j->net.c.model.cond_channels ? j->geometry.stride[0] : 0;
	const struct vfm_encoder_handle *video = &j->encoders.video;
	struct vfm_encode_given given = {.id = "picture", .p = *pictures};
	struct sample_picture *p = &j->picture;
	struct vfm_encoded x = {0};
	size_t area, frame;

	TRY(choose_given(j, &given.frames, p->dims, err));
	area = (size_t)p->dims[1] * (size_t)p->dims[2];
	frame = (size_t)p->dims[0] * area;
	p->bytes = (size_t)(mask + channels) * frame * sizeof(float);
	p->x = vfm_big_alloc(p->bytes, "the latents of the picture", err);
	if (!p->x)
		return VFM_EENV;
	if (mask)
		vfm_condition_mask(&j->geometry, pictures->n, given.frames, p->dims[0], area, p->x);
	TRY(video->ops->encode_given(video->ctx, &given, &x, err));
	memcpy(p->x + (size_t)mask * frame, x.data, x.npy.data_bytes);
	vfm_encoded_release(&x);
	return 0;
}

/* Encodes the pictures to p->rows. */
static int encode_rows(struct sample_job *j, const struct vfm_pictures *pictures, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &j->net.c.model;
	const struct vfm_encoder_handle *image = &j->encoders.image;
	struct sample_picture *p = &j->picture;
	struct vfm_encoded x = {0};

	p->rows_bytes = (size_t)m->image_len * (size_t)m->image_dim * sizeof(float);
	p->rows = vfm_big_alloc(p->rows_bytes, "the image rows", err);
	if (!p->rows)
		return VFM_EENV;
	TRY(image->ops->encode_image(image->ctx, 0, "picture", pictures, &x, err));
	memcpy(p->rows, x.data, x.npy.data_bytes);
	vfm_encoded_release(&x);
	return 0;
}

static int load_pictures(struct sample_job *j, struct vfm_err *err)
{
	const int n = j->o->last_image ? 2 : 1;
	const size_t size = (size_t)j->height * (size_t)j->width * 3, bytes = (size_t)n * size;
	uint8_t *rgb = vfm_big_alloc(bytes, "the pictures", err);
	const struct vfm_pictures p = {.rgb = rgb, .n = n, .height = j->height, .width = j->width};
	int rc;

	if (!rgb)
		return VFM_EENV;
	rc = read_picture(j, j->o->image, rgb, err);
	if (rc >= 0 && n > 1)
		rc = read_picture(j, j->o->last_image, rgb + size, err);
	if (rc >= 0)
		rc = encode_latents(j, &p, err);
	if (rc >= 0 && vfm_encoder_image_option(&j->o->encoder))
		rc = encode_rows(j, &p, err);
	vfm_big_free(rgb, bytes);
	return rc;
}

int picture_load(struct sample_job *j, struct vfm_err *err)
{
	int rc = j->o->image && j->net.leader ? load_pictures(j, err) : 0;

	if (rc < 0)
		vfm_err_context(err, "--image");
	return vfm_job_agree(&j->x->job, rc, err);
}

void picture_release(struct sample_picture *p)
{
	vfm_big_free(p->x, p->x ? p->bytes : 0);
	vfm_big_free(p->rows, p->rows ? p->rows_bytes : 0);
	*p = (struct sample_picture){0};
}

/* ---- arrays of the prompts ---- */

/* The line of --prompts that an item comes from; NULL: none. */
static const json_t *prompt_line(const struct item *it)
{
	return json_object_get(it->rec, "prompt");
}

int check_given(const struct sample_job *j, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &j->net.c.model;
	const struct {
		bool needed;
		const char *key, *why, *option;
	} needs[] = {
		{m->cond_channels && !j->o->image, "cond", "the model reads a condition (model.cond_channels)",
			"--image FILE"},
		{m->image_dim && !vfm_encoder_image_option(&j->o->encoder), "image",
			"the model reads image rows (model.image_dim)",
			j->o->image ? "--image-encoder PATH" : "--image FILE with --image-encoder PATH"},
		{j->o->first_frame, "latent", "--first-frame takes a latent", "--image FILE instead"},
	};

	if (j->o->last_image && !m->cond_channels)
		return vfm_fail(
			err, VFM_EUSAGE, "--last-image: the model reads no condition (model.cond_channels is 0)");
	if (vfm_encoder_image_option(&j->o->encoder) && !m->image_dim)
		return vfm_fail(err, VFM_EUSAGE, "%s: the model reads no image rows (model.image_dim is 0)",
			vfm_encoder_image_option(&j->o->encoder));
	for (size_t i = 0; i < j->items.n; i++)
		for (int k = 0; k < 3; k++) {
			const json_t *part = json_object_get(prompt_line(&j->items.v[i]), needs[k].key);

			if (needs[k].needed && !vfm_rec_str(part, "path", NULL))
				return vfm_fail(err, VFM_EUSAGE,
					"prompt %zu: %s: give %s, or %s.path in its line of --prompts", i, needs[k].why,
					needs[k].option, needs[k].key);
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

/* Reads the array of a section; dimensions of `want` that are not 0 must agree.  The caller releases it, also after a
 * failure. */
static int read_array(
	struct file_array *a, const json_t *part, const char *what, int ndim, const int64_t *want, struct vfm_err *err)
{
	const char *path = vfm_rec_str(part, "path", NULL);
	struct vfm_buf b = {0};
	struct vfm_npy n;
	int rc;

	*a = (struct file_array){0};
	if (!path)
		return vfm_fail(err, VFM_EUSAGE, "%s.path is missing", what);
	TRY_OUT(vfm_read_regular(path, MAX_FILE, &b.data, &b.len, err));
	b.cap = b.len + 1;
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
static int check_section_encoder(
	const struct sample_job *j, enum vfm_encoder_kind e, const json_t *part, const char *what, struct vfm_err *err)
{
	const json_t *o = json_object_get(part, "maker");
	struct vfm_encoder_id m = {0};

	if (o && !json_is_null(o))
		TRY(vfm_encoder_id_from_json(&m, o, what, err));
	return vfm_encoder_id_check(e, &m, what, &j->encoder_ids.of[e], "the model", err);
}

static int read_cond(const struct sample_job *j, const json_t *line, float *tokens, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &j->net.c.model;
	const json_t *part = json_object_get(line, "cond");
	struct file_array a;
	int32_t patch[3];
	int rc;

	vfm_model_patch(m, patch);
	if (j->picture.x) {
		vfm_patchify(j->picture.x, VFM_NPY_F32, (int32_t)m->cond_channels, j->dims, patch, tokens, VFM_F32);
		return 0;
	}
	TRY(check_section_encoder(j, VFM_ENCODER_TOKENIZER, part, "cond", err));
	rc = read_array(&a, part, "cond", 4, (int64_t[]){m->cond_channels, j->dims[0], j->dims[1], j->dims[2]}, err);
	if (rc >= 0)
		vfm_patchify(a.x, VFM_NPY_F32, (int32_t)m->cond_channels, j->dims, patch, tokens, VFM_F32);
	release_array(&a);
	return rc;
}

static int read_image(const struct sample_job *j, const json_t *line, float *rows, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &j->net.c.model;
	const json_t *part = json_object_get(line, "image");
	struct file_array a;
	int rc;

	if (j->picture.rows) {
		memcpy(rows, j->picture.rows, j->picture.rows_bytes);
		return 0;
	}
	TRY(check_section_encoder(j, VFM_ENCODER_IMAGE, part, "image", err));
	rc = read_array(&a, part, "image", 2, (int64_t[]){m->image_len, m->image_dim}, err);
	if (rc >= 0)
		memcpy(rows, a.x, a.bytes);
	release_array(&a);
	return rc;
}

/* Writes the tokens of the first patch of frames of x [C, frames, h, w], which it moves together. */
static int patch_first(const struct sample_job *j, float *x, int64_t frames, float *tokens, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &j->net.c.model;
	const size_t frame = (size_t)j->dims[1] * (size_t)j->dims[2], part_of = frame * (size_t)m->patch[0];
	int32_t patch[3], dims[3];

	vfm_model_patch(m, patch);
	memcpy(dims, (int32_t[]){patch[0], j->dims[1], j->dims[2]}, sizeof(dims));
	if (frames < patch[0])
		return vfm_fail(err, VFM_EINPUT, "latent has %lld frames, the patch of the model %d", (long long)frames,
			patch[0]);
	for (int64_t c = 1; c < m->channels; c++)
		memmove(x + (size_t)c * part_of, x + (size_t)(c * frames) * frame, part_of * sizeof(float));
	vfm_patchify(x, VFM_NPY_F32, (int32_t)m->channels, dims, patch, tokens, VFM_F32);
	return 0;
}

/* The first patch of latent frames of `latent`, which may have any number of frames. */
static int read_first(const struct sample_job *j, const json_t *line, float *tokens, struct vfm_err *err)
{
	const json_t *part = json_object_get(line, "latent");
	struct file_array a;
	int rc;

	if (j->picture.x)
		return patch_first(j, j->picture.x, j->picture.dims[0], tokens, err);
	TRY(check_section_encoder(j, VFM_ENCODER_TOKENIZER, part, "latent", err));
	rc = read_array(&a, part, "latent", 4, (int64_t[]){j->net.c.model.channels, 0, j->dims[1], j->dims[2]}, err);
	if (rc >= 0)
		rc = patch_first(j, a.x, a.shape[1], tokens, err);
	release_array(&a);
	return rc;
}

struct sizes {
	size_t cond, image, first; /* elements of a prompt */
};

static int read_prompt(struct given_pictures *g, const struct sample_job *j, const struct item *it,
	const struct sizes *z, int i, struct vfm_err *err)
{
	const json_t *line = prompt_line(it);
	int rc = 0;

	if (g->cond)
		rc = read_cond(j, line, g->cond + (size_t)i * z->cond, err);
	if (g->image && rc >= 0)
		rc = read_image(j, line, g->image + (size_t)i * z->image, err);
	if (g->first && rc >= 0)
		rc = read_first(j, line, g->first + (size_t)i * z->first, err);
	return rc < 0 ? vfm_err_context(err, "prompt %d of the batch", i) : 0;
}

int given_load(struct given_pictures *g, struct vfm_sample_request *r, const struct sample_job *j,
	const struct item *items, int n, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &j->net.c.model;
	const size_t tokens = (size_t)(j->dims[0] / m->patch[0]) * (size_t)(j->dims[1] / m->patch[1]) *
		(size_t)(j->dims[2] / m->patch[2]);
	const bool first_frame = j->o->first_frame || (j->o->image && !m->cond_channels);
	const struct sizes z = {tokens * (size_t)vfm_model_cond_dim(m), (size_t)(m->image_len * m->image_dim),
		first_frame ? tokens / (size_t)(j->dims[0] / m->patch[0]) * (size_t)vfm_model_patch_dim(m) : 0};
	float **const array[] = {&g->cond, &g->image, &g->first};
	const size_t each[] = {z.cond, z.image, z.first};
	int rc = 0;

	for (int k = 0; k < 3 && rc == 0; k++) {
		g->bytes[k] = each[k] * (size_t)n * sizeof(float);
		*array[k] = g->bytes[k] ? vfm_big_alloc(g->bytes[k], "what the prompts give", err) : NULL;
		rc = g->bytes[k] && !*array[k] ? VFM_EENV : 0;
	}
	for (int i = 0; i < n && rc == 0 && j->net.together->rank == 0; i++)
		rc = read_prompt(g, j, &items[i], &z, i, err);
	TRY(vfm_agree(j->net.together, rc, err));
	for (int k = 0; k < 3; k++)
		if (*array[k])
			TRY(vfm_broadcast(
				j->net.together, NULL, vfm_t1(*array[k], VFM_U8, (int64_t)g->bytes[k]), 0, err));
	r->cond = g->cond;
	r->image = g->image;
	if (!g->first)
		return 0;
	g->frames = vfm_calloc((size_t)n, sizeof(*g->frames));
	for (int i = 0; i < n; i++)
		g->frames[i] = g->first + (size_t)i * z.first;
	r->first_frame = g->frames;
	return 0;
}

void given_release(struct given_pictures *g)
{
	vfm_big_free(g->cond, g->bytes[0]);
	vfm_big_free(g->image, g->bytes[1]);
	vfm_big_free(g->first, g->bytes[2]);
	free(g->frames);
	*g = (struct given_pictures){0};
}
