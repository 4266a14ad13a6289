#include "picture.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/clip_reader.h"
#include "data/condition.h"

/* Reads the first picture of --image at the size of the videos; the caller frees *rgb of `bytes` bytes. */
static int read_picture(const struct job *j, uint8_t **rgb, size_t bytes, struct vfm_err *err)
{
	const struct vfm_clip_opts o = {.width = j->width, .height = j->height, .most = 1, .threads = 1};
	json_t *rec = json_pack("{s:s}", "src", j->o->image);
	struct vfm_clip_reader r = {0};
	int rc;

	*rgb = NULL;
	if (!rec)
		return vfm_fail(err, VFM_EUSAGE, "the name is not UTF-8");
	rc = vfm_clip_open(&r, rec, &o, err);
	if (rc >= 0) {
		*rgb = vfm_big_alloc(bytes, "the picture", err);
		rc = *rgb ? vfm_clip_next(&r, *rgb, err) : VFM_EENV;
	}
	if (rc == 0)
		rc = vfm_fail(err, VFM_EINPUT, "'%s' has no picture", j->o->image);
	vfm_clip_close(&r);
	json_decref(rec);
	return rc < 0 ? rc : 0;
}

/* Sets the number of pictures and of latent frames that the model is given. */
static int choose_given(const struct job *j, int64_t *frames, int32_t dims[3], struct vfm_err *err)
{
	const struct vfm_model_spec *m = &j->net.c.model;
	const int64_t makes = j->geometry.stride[0] + m->channels;

	*frames = m->cond_channels ? j->frames : 1;
	if (m->cond_channels && m->cond_channels != makes)
		return vfm_fail(err, VFM_EUSAGE,
			"the model reads conditions of %lld channels; mask and latents of '%s' have %lld",
			(long long)m->cond_channels, j->makers.tokenizer.name, (long long)makes);
	if (vfm_geometry_latent(&j->geometry, *frames, j->height, j->width, dims, err) < 0)
		return VFM_EUSAGE;
	if (!m->cond_channels && m->patch[0] != dims[0])
		return vfm_fail(err, VFM_EUSAGE, "a picture is %d latent frames, the patch of the model %lld", dims[0],
			(long long)m->patch[0]);
	return 0;
}

/* Encodes the picture rgb to p->x. */
static int encode_picture(struct job *j, const uint8_t *rgb, struct vfm_err *err)
{
	const int64_t channels = j->net.c.model.channels;
	const int64_t mask = j->net.c.model.cond_channels ? j->geometry.stride[0] : 0;
	struct sample_picture *p = &j->picture;
	size_t area, frame;
	int64_t frames;

	TRY(choose_given(j, &frames, p->dims, err));
	area = (size_t)p->dims[1] * (size_t)p->dims[2];
	frame = (size_t)p->dims[0] * area;
	p->bytes = (size_t)(mask + channels) * frame * sizeof(float);
	p->x = vfm_big_alloc(p->bytes, "the latents of the picture", err);
	if (!p->x)
		return VFM_EENV;
	if (mask)
		vfm_condition_mask(&j->geometry, 1, p->dims[0], area, p->x);
	return vfm_codec_encode_picture(&j->codec, rgb, j->height, j->width, frames, p->x + (size_t)mask * frame, err);
}

/* Encodes the picture rgb to p->rows. */
static int encode_rows(struct job *j, const uint8_t *rgb, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &j->net.c.model;
	struct sample_picture *p = &j->picture;

	p->rows_bytes = (size_t)m->image_len * (size_t)m->image_dim * sizeof(float);
	p->rows = vfm_big_alloc(p->rows_bytes, "the image rows", err);
	return p->rows ? vfm_codec_encode_image(&j->codec, rgb, j->height, j->width, p->rows, err) : VFM_EENV;
}

static int load_picture(struct job *j, struct vfm_err *err)
{
	const size_t bytes = (size_t)j->height * (size_t)j->width * 3;
	uint8_t *rgb = NULL;
	int rc = read_picture(j, &rgb, bytes, err);

	if (rc >= 0)
		rc = encode_picture(j, rgb, err);
	if (rc >= 0 && j->o->image_command)
		rc = encode_rows(j, rgb, err);
	vfm_big_free(rgb, rgb ? bytes : 0);
	return rc;
}

int picture_load(struct job *j, struct vfm_err *err)
{
	int rc = j->o->image && j->net.leader ? load_picture(j, err) : 0;

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
