/* The output of vfm-sample: videos, latents and records. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "encoder/encode/encode.h"
#include "io/file.h"
#include "io/json.h"
#include "io/npy.h"
#include "media/av/video_out.h"
#include "sample.h"

/* Adds the record of an item to those that print_records prints. */
static void queue_record(struct sample_job *j, struct item *it)
{
	json_object_set_new(it->rec, "seed", json_integer(j->o->seed));
	if (j->o->image)
		json_object_set_new(it->rec, "picture", json_string(j->o->image));
	if (j->o->last_image)
		json_object_set_new(it->rec, "last_picture", json_string(j->o->last_image));
	json_object_set_new(it->rec, "encoders", vfm_makers_json(&j->makers));
	if (j->forced)
		json_object_set(it->rec, "forced", j->forced);
	vfm_json_text(&j->records, it->rec, 0);
	vfm_buf_add(&j->records, "\n", 1);
}

int print_records(struct sample_job *j, struct vfm_err *err)
{
	char *all = NULL;
	size_t *off = NULL, n;
	int rc;

	TRY(vfm_comm_gather_bytes(
		j->x->job.world, j->records.data ? j->records.data : "", j->records.len, &all, &off, err));
	vfm_buf_clear(&j->records);
	n = off[j->x->job.world->size];
	rc = 0;
	if (j->x->job.world->rank == 0 && (fwrite(all, 1, n, stdout) != n || fflush(stdout) != 0))
		rc = vfm_fail_errno(err, errno == EPIPE ? VFM_EPIPE : VFM_EENV, "cannot write the records");
	free(all);
	free(off);
	return rc;
}

/* An item without a video; its record says why. */
static void add_failure(struct sample_job *j, struct item *it, const char *why)
{
	json_object_set_new(it->rec, "error", vfm_json_shown(why));
	vfm_error("%s: %s", json_string_value(json_object_get(it->rec, "id")), why);
	j->failed++;
	queue_record(j, it);
}

/* Writes the latents of an item to `path` and describes them in its record as `vfm-curate encode` does. */
static int write_latent(
	struct sample_job *j, struct item *it, const char *path, const float *latent, struct vfm_err *err)
{
	const struct vfm_npy n = {
		.type = VFM_NPY_F32, .ndim = 4, .shape = {j->net.c.model.channels, j->dims[0], j->dims[1], j->dims[2]}};
	char sha256[VFM_SHA256_HEX];

	TRY(vfm_npy_save(path, &n, latent, sha256, err));
	json_object_set_new(it->rec, "latent",
		vfm_latent_json(&(struct vfm_latent_file){path, sha256, &n, j->frames, j->width, j->height,
			j->frames > 1 ? (double)j->o->fps_num / j->o->fps_den : 0, false, &j->makers.tokenizer}));
	return 0;
}

/* "r/sample-000000.latent.npy" of "r/sample-000000.mp4"; the caller frees it. */
static char *latent_path(const char *video)
{
	const char *dot = strrchr(video, '.');

	return vfm_strfmt("%.*s.latent.npy", (int)(dot - video), video);
}

static int write_video(struct sample_job *j, struct item *it, const float *latent, struct vfm_err *err)
{
	struct vfm_video_out_opts o = {
		.width = j->width, .height = j->height, .fps_num = j->o->fps_num, .fps_den = j->o->fps_den, .crf = 10};
	size_t picture = (size_t)j->width * (size_t)j->height * 3;
	int64_t n = !vfm_name_ends(it->path, ".png") || strchr(it->path, '%') ? j->frames : 1;
	uint8_t *rgb = vfm_big_alloc(picture * (size_t)j->frames, "pictures", err);
	struct vfm_video_out_facts facts;
	struct vfm_video_out *v = NULL;
	char rate[32];
	int rc;

	if (!rgb)
		return VFM_EENV;
	TRY_OUT(j->encoders.video.ops->decode(j->encoders.video.ctx, 0, latent, j->dims, j->frames, rgb, err));
	TRY_OUT(vfm_video_out_open(&v, it->path, &o, err));
	for (int64_t f = 0; f < n; f++)
		TRY_OUT(vfm_video_out_write(v, rgb + (size_t)f * picture, err));
	facts = vfm_video_out_facts(v);
	rc = vfm_video_out_close(v, err);
	v = NULL;
	TRY_OUT(rc);
	snprintf(rate, sizeof(rate), "%d/%d", j->o->fps_num, j->o->fps_den);
	json_object_set_new(it->rec, "src", json_string(it->path));
	json_object_set_new(it->rec, "kind", json_string(n > 1 ? "video" : "image"));
	json_object_set_new(it->rec, "width", json_integer(facts.width));
	json_object_set_new(it->rec, "height", json_integer(facts.height));
	json_object_set_new(it->rec, "frames", json_integer(n));
	json_object_set_new(it->rec, "fps", json_string(rate));
out:
	vfm_video_out_abort(v);
	vfm_big_free(rgb, picture * (size_t)j->frames);
	return rc;
}

/* Writes the files of an item.  VFM_EINPUT: this item failed. */
static int write_item(struct sample_job *j, struct item *it, const float *latent, struct vfm_err *err)
{
	char *path;
	int rc;

	if (vfm_name_ends(it->path, ".npy"))
		return write_latent(j, it, it->path, latent, err);
	if (j->o->keep_latents) {
		path = latent_path(it->path);
		rc = write_latent(j, it, path, latent, err);
		free(path);
		TRY(rc);
	}
	return write_video(j, it, latent, err);
}

int finish_item(struct sample_job *j, struct item *it, const float *latent, size_t n, struct vfm_err *err)
{
	int64_t bad = vfm_dtype_count_nonfinite(VFM_F32, latent, n);
	struct vfm_err why = {0};
	int rc;

	if (it->why) {
		add_failure(j, it, it->why);
		return 0;
	}
	if (bad) {
		vfm_fail(&why, VFM_EINPUT, "%lld values of the latent are NaN or infinite", (long long)bad);
		add_failure(j, it, why.msg);
		return 0;
	}
	rc = write_item(j, it, latent, &why);
	if (rc == VFM_EINPUT)
		add_failure(j, it, why.msg);
	else if (rc >= 0)
		queue_record(j, it);
	else
		*err = why;
	return rc == VFM_EINPUT ? 0 : rc;
}
