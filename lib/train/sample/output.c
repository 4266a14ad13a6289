/* output.c - writes the files and records of sampled items. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "encoder/encode/decode.h"
#include "encoder/encode/encode.h"
#include "io/file.h"
#include "io/json.h"
#include "media/av/video_out.h"
#include "train/sample/sampling_impl.h"

enum { OUTPUT_CRF = 10 };

/* ---- records ---- */

/* Adds the record of an item to those that sampling_print_records prints. */
static void queue_record(struct vfm_sampling *s, struct vfm_sample_item *it)
{
	struct vfm_encoder_ids ids = s->encoder_ids;

	json_object_set_new(it->rec, "seed", json_integer(it->p.seed));
	if (it->p.image)
		json_object_set_new(it->rec, "picture", json_string(it->p.image));
	if (it->p.last_image)
		json_object_set_new(it->rec, "last_picture", json_string(it->p.last_image));
	if (!it->in.n_text2 && !it->in.n_negative2)
		ids.text2 = (struct vfm_encoder_id){0};
	json_object_set_new(it->rec, "encoders", vfm_encoder_ids_json(&ids));
	if (s->forced)
		json_object_set(it->rec, "forced", s->forced);
	vfm_json_text(&s->records, it->rec, 0);
	vfm_buf_add(&s->records, "\n", 1);
}

int sampling_print_records(struct vfm_sampling *s, struct vfm_err *err)
{
	char *all = NULL;
	size_t *off = NULL, n;
	int rc = 0;

	TRY(vfm_comm_gather_bytes(
		s->job->world, s->records.data ? s->records.data : "", s->records.len, &all, &off, err));
	vfm_buf_clear(&s->records);
	n = off[s->job->world->size];
	if (s->job->world->rank == 0 && n)
		rc = s->print(s->ctx, all, n, err);
	free(all);
	free(off);
	return rc;
}

/* An item without a video; its record says why. */
static void add_failure(struct vfm_sampling *s, struct vfm_sample_item *it, const char *why)
{
	json_object_set_new(it->rec, "error", vfm_json_shown(why));
	if (!s->o->in_training)
		vfm_error("%s: %s", json_string_value(json_object_get(it->rec, "id")), why);
	else if (!s->warned)
		vfm_warn("a sample of the run has no file: %s", why);
	s->warned = true;
	s->failed++;
	queue_record(s, it);
}

/* ---- files ---- */

/* Writes the latents of an item to `path` and describes them in its record as `vfm-curate encode` does. */
static int write_latent(
	struct vfm_sampling *s, struct vfm_sample_item *it, const char *path, const float *latent, struct vfm_err *err)
{
	const struct vfm_npy n = {
		.type = VFM_NPY_F32, .ndim = 4, .shape = {s->c->model.channels, it->dims[0], it->dims[1], it->dims[2]}};
	const struct vfm_prompt *p = &it->p;
	char sha256[VFM_SHA256_HEX];

	TRY(vfm_npy_save(path, &n, latent, sha256, err));
	json_object_set_new(it->rec, "latent",
		vfm_latent_json(&(struct vfm_latent_file){path, sha256, &n, p->frames, p->width, p->height,
			p->frames > 1 ? (double)p->fps_num / p->fps_den : 0, false, &s->encoder_ids.tokenizer}));
	return 0;
}

/* "r/sample-000000.latent.npy" of "r/sample-000000.mp4"; the caller frees it. */
static char *latent_path(const char *video)
{
	const char *dot = strrchr(video, '.');

	return vfm_strfmt("%.*s.latent.npy", (int)(dot - video), video);
}

/* Sets the keys of a video that is complete. */
static void describe_video(struct vfm_sample_item *it, const struct vfm_video_out_facts *facts, int64_t frames)
{
	char rate[32];

	snprintf(rate, sizeof(rate), "%d/%d", it->p.fps_num, it->p.fps_den);
	json_object_set_new(it->rec, "src", json_string(it->path));
	json_object_set_new(it->rec, "kind", json_string(frames > 1 ? "video" : "image"));
	json_object_set_new(it->rec, "width", json_integer(facts->width));
	json_object_set_new(it->rec, "height", json_integer(facts->height));
	json_object_set_new(it->rec, "frames", json_integer(frames));
	json_object_set_new(it->rec, "fps", json_string(rate));
}

static int write_video(struct vfm_sampling *s, struct vfm_sample_item *it, const float *latent, struct vfm_err *err)
{
	const struct vfm_prompt *p = &it->p;
	const char *slash = strrchr(it->path, '/');
	const struct vfm_decoded_file f = {.path = it->path,
		.opts = {.width = p->width,
			.height = p->height,
			.fps_num = p->fps_num,
			.fps_den = p->fps_den,
			.crf = OUTPUT_CRF},
		.most = !vfm_name_ends(it->path, ".png") || strchr(slash ? slash : it->path, '%') ? p->frames : 1};
	struct vfm_video_out_facts facts;

	TRY(vfm_decode_latent(&s->encoders.video, 0, latent, it->dims, p->frames, &f, &facts, err));
	describe_video(it, &facts, f.most);
	return 0;
}

/* Writes the files of an item.  VFM_EINPUT: this item failed. */
static int write_item(struct vfm_sampling *s, struct vfm_sample_item *it, const float *latent, struct vfm_err *err)
{
	char *path;
	int rc;

	if (vfm_name_ends(it->path, ".npy"))
		return write_latent(s, it, it->path, latent, err);
	if (s->o->keep_latents) {
		path = latent_path(it->path);
		rc = write_latent(s, it, path, latent, err);
		free(path);
		TRY(rc);
	}
	return write_video(s, it, latent, err);
}

int sampling_finish_item(
	struct vfm_sampling *s, struct vfm_sample_item *it, const float *latent, size_t n, struct vfm_err *err)
{
	int64_t bad = vfm_dtype_count_nonfinite(VFM_F32, latent, n);
	double start = vfm_now();
	struct vfm_err why = {0};
	int rc;

	if (it->why) {
		add_failure(s, it, it->why);
		return 0;
	}
	if (bad) {
		vfm_fail(&why, VFM_EINPUT, "%lld values of the latent are NaN or infinite", (long long)bad);
		add_failure(s, it, why.msg);
		return 0;
	}
	rc = write_item(s, it, latent, &why);
	s->decode_s += vfm_now() - start;
	if (rc >= 0) {
		queue_record(s, it);
	} else if (rc == VFM_EINPUT || s->o->in_training) {
		add_failure(s, it, why.msg);
	} else {
		*err = why;
		return rc;
	}
	return 0;
}
