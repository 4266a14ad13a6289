/* The pictures of --image and --last-image. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/record/clip_reader.h"
#include "encoder/vae/condition.h"
#include "sample.h"

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
			(long long)m->cond_channels, j->makers.tokenizer.name, (long long)makes);
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
	if (rc >= 0 && j->o->encoder.image_exec)
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
