/* The prompts of vfm-sample in batches: their texts, their latents, the files and records of their videos. */
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
#include "spec/layout/patch.h"

enum { MAX_TOKENS = 1 << 24 }; /* of a video */

/* ---- files and records ---- */

/* Adds the record of an item to those that print_records prints. */
static void queue_record(struct sample_job *j, struct item *it)
{
	json_object_set_new(it->rec, "seed", json_integer(j->o->seed));
	if (j->o->image)
		json_object_set_new(it->rec, "picture", json_string(j->o->image));
	if (j->o->last_image)
		json_object_set_new(it->rec, "last_picture", json_string(j->o->last_image));
	json_object_set_new(it->rec, "encoders", vfm_encoder_ids_json(&j->encoder_ids));
	if (j->forced)
		json_object_set(it->rec, "forced", j->forced);
	vfm_json_text(&j->records, it->rec, 0);
	vfm_buf_add(&j->records, "\n", 1);
}

/* Rank 0 prints the queued records of all ranks in the order of the prompts.  Collective. */
static int print_records(struct sample_job *j, struct vfm_err *err)
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
			j->frames > 1 ? (double)j->o->fps_num / j->o->fps_den : 0, false, &j->encoder_ids.tokenizer}));
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

/* Writes the files of an item from its latent of n elements and queues its record.  An item that failed has a record
 * that says why, and the result is 0. */
static int finish_item(struct sample_job *j, struct item *it, const float *latent, size_t n, struct vfm_err *err)
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

/* ---- texts ---- */

/* Encodes a caption and appends the rows that the model reads to *rows.  Returns their number; -1: it failed. */
static int32_t encode_prompt(
	struct sample_job *j, struct item *it, const char *caption, struct vfm_buf *rows, int *rc, struct vfm_err *err)
{
	const int64_t most = j->net.c.model.text_len;
	const struct vfm_encoder_handle *text = &j->encoders.text;
	struct vfm_encoded x = {0};
	int encoded = text->ops->encode_text(text->ctx, 0, caption, &x, err);
	int64_t n = x.npy.shape[0];

	if (encoded < 0) {
		*rc = encoded == VFM_EINPUT ? 0 : encoded;
		free(it->why);
		it->why = vfm_strdup(err->msg);
		return -1;
	}
	if (n > most && !j->logged_cut) {
		vfm_info("a prompt has %lld text rows; of each prompt the first %lld are read (model.text_len)",
			(long long)n, (long long)most);
		j->logged_cut = true;
	}
	n = n < most ? n : most;
	vfm_buf_add(rows, x.data, (size_t)n * (size_t)j->net.c.model.text_dim * sizeof(float));
	vfm_encoded_release(&x);
	return (int32_t)n;
}

/* The concatenated texts of a batch; an empty text has no rows. */
struct texts {
	float *rows; /* [cu[n], text_dim] */
	size_t bytes;
	int32_t *cu; /* [n + 1] */
};

/* The leader encodes.  Collective over the ranks that sample together. */
static int encode_prompts(
	struct texts *t, struct sample_job *j, struct item *it, int n, bool negatives, struct vfm_err *err)
{
	const size_t row = (size_t)j->net.c.model.text_dim * sizeof(float);
	const bool reads_text = j->net.c.model.cross_attention || j->net.c.model.pooled_text;
	struct vfm_buf rows = {0};
	int rc = 0;

	t->cu = vfm_calloc((size_t)n + 1, sizeof(*t->cu));
	for (int i = 0; i < n && j->net.leader; i++) {
		const char *text = negatives ? it[i].negative : it[i].caption;
		int32_t k = 0;

		if (*text && reads_text && rc == 0 && (!negatives || vfm_sampler_is_guided(&j->o->sampler)))
			k = encode_prompt(j, &it[i], text, &rows, &rc, err);
		t->cu[i + 1] = t->cu[i] + (k > 0 ? k : 0);
	}
	rc = vfm_agree(j->net.together, rc, err);
	if (rc == 0)
		rc = vfm_broadcast(j->net.together, NULL, vfm_t1(t->cu, VFM_I32, n + 1), 0, err);
	t->bytes = (size_t)t->cu[n] * row + sizeof(float);
	t->rows = rc == 0 ? vfm_big_alloc(t->bytes, "the texts", err) : NULL;
	if (rc == 0)
		rc = vfm_agree(j->net.together, t->rows ? 0 : VFM_EENV, err);
	if (rc == 0 && t->rows && rows.len)
		memcpy(t->rows, rows.data, rows.len);
	if (rc == 0)
		rc = vfm_broadcast(j->net.together, NULL, vfm_t1(t->rows, VFM_U8, (int64_t)t->bytes), 0, err);
	vfm_buf_release(&rows);
	return rc;
}

static void release_texts(struct texts *t)
{
	if (t->rows)
		vfm_big_free(t->rows, t->bytes);
	free(t->cu);
}

/* The diffusion of videos of so many tokens. */
static struct vfm_diffusion diffusion_of(const struct sample_job *j, int64_t tokens)
{
	struct vfm_diffusion d = j->net.c.diffusion;

	d.shift = vfm_diffusion_shift(&d, tokens);
	d.shift_tokens = 0;
	return d;
}

/* ---- batches ---- */

/* Samples a batch of prompts.  The leader writes the files.  Collective over the ranks that sample together. */
static int sample_batch(struct sample_job *j, size_t first, int n, const int32_t grid[3], struct vfm_err *err)
{
	const struct vfm_model_spec *m = &j->net.c.model;
	struct vfm_sample_job sj = vfm_sample_net_job(&j->net, j->x);
	const struct vfm_diffusion d = diffusion_of(j, (int64_t)grid[0] * grid[1] * grid[2]);
	int32_t patch[3];
	size_t per = (size_t)(grid[0] * grid[1] * grid[2]) * (size_t)vfm_model_patch_dim(m);
	uint64_t *id = vfm_calloc((size_t)n, sizeof(*id));
	int32_t(*grids)[3] = vfm_calloc((size_t)n, sizeof(*grids));
	struct texts text = {0}, against = {0};
	struct given_pictures given = {0};
	float *tokens = vfm_big_alloc(per * (size_t)n * sizeof(float), "the latents", err);
	float *latent = vfm_big_alloc(per * sizeof(float), "a latent", err);
	struct vfm_sample_request r = {.n = n, .id = id, .grid = (const int32_t(*)[3])grids};
	int rc = VFM_EENV;

	if (!tokens || !latent)
		goto out;
	vfm_model_patch(m, patch);
	sj.diffusion = &d;
	TRY_OUT(encode_prompts(&text, j, &j->items.v[first], n, false, err));
	TRY_OUT(encode_prompts(&against, j, &j->items.v[first], n, true, err));
	r.text = text.rows;
	r.cu_text = text.cu;
	r.negative = against.rows;
	r.cu_negative = against.cu;
	TRY_OUT(given_load(&given, &r, j, &j->items.v[first], n, err));
	for (int i = 0; i < n; i++) {
		id[i] = first + (size_t)i;
		memcpy(grids[i], grid, sizeof(grids[i]));
	}
	TRY_OUT(vfm_sampler_run(&j->o->sampler, &sj, &r, tokens, err));
	for (int i = 0; i < n && j->net.leader; i++) {
		vfm_unpatchify(tokens + (size_t)i * per, (int32_t)m->channels, j->dims, patch, latent);
		TRY_OUT(finish_item(j, &j->items.v[first + (size_t)i], latent, per, err));
	}
out:
	vfm_big_free(latent, per * sizeof(float));
	vfm_big_free(tokens, per * (size_t)n * sizeof(float));
	release_texts(&text);
	release_texts(&against);
	given_release(&given);
	free(grids);
	free(id);
	return rc;
}

/* Collective. */
static int report_failures(struct sample_job *j, struct vfm_err *err)
{
	int64_t failed = j->net.leader ? j->failed : 0;
	int rc = 0;

	TRY(vfm_all_reduce(j->x->job.world, NULL, vfm_t1(&failed, VFM_I64, 1), err));
	if (failed)
		rc = vfm_fail(err, VFM_EINPUT, "%lld of %zu videos failed and have no file; their records say why",
			(long long)failed, j->items.n);
	return vfm_job_agree(&j->x->job, rc, err);
}

/* Shows the progress of a batch: `done` evaluations are complete. */
static void show_evaluations(void *ctx, int64_t done, int64_t total)
{
	struct sample_job *j = ctx;

	(void)total;
	vfm_progress_step(&j->progress, j->passes[done] - j->shown);
	j->shown = j->passes[done];
}

/* Sets j->evals and j->passes.  A guided evaluation takes two passes of the network, unless two groups of ranks compute
 * them. */
static int count_passes(struct sample_job *j, int64_t tokens, struct vfm_err *err)
{
	const struct vfm_diffusion d = diffusion_of(j, tokens);
	const struct vfm_sampler *s = &j->o->sampler;
	struct vfm_solver_plan plan;
	struct vfm_solver_eval e;
	int rc = vfm_solver_plan_make(&plan, &s->solver, &d, err);

	j->evals = rc < 0 ? 0 : plan.evals;
	j->passes = vfm_calloc((size_t)j->evals + 1, sizeof(*j->passes));
	for (int64_t k = 0; k < j->evals; k++) {
		vfm_solver_at(&plan, k, &e);
		j->passes[k + 1] = j->passes[k] + (vfm_sampler_cfg(s, &plan, &e) != 1 && !j->o->net.split_cfg ? 2 : 1);
	}
	vfm_solver_plan_release(&plan);
	return rc;
}

/* Returns the number of prompts of a batch: as many as fit in --context, at least one. */
static int64_t batch_size(const struct sample_job *j, int64_t tokens)
{
	bool both = vfm_sampler_is_guided(&j->o->sampler) && !j->o->net.split_cfg;
	int64_t n = j->o->context / (tokens * (both ? 2 : 1));

	return n < 1 ? 1 : n;
}

/* Samples the batches of all groups of ranks, one batch of each group at a time. */
static int sample_batches(struct sample_job *j, int64_t batch, const int32_t grid[3], struct vfm_err *err)
{
	struct vfm_err why;
	int rc, printed;

	for (size_t i = 0; i < j->items.n; i += (size_t)(batch * j->net.groups)) {
		size_t first = i + (size_t)(batch * j->net.group);
		int64_t n = first < j->items.n ? (int64_t)(j->items.n - first) : 0;

		j->shown = 0;
		rc = n ? sample_batch(j, first, (int)(n < batch ? n : batch), grid, err) : 0;
		show_evaluations(j, j->evals, j->evals);
		printed = print_records(j, &why);
		if (rc >= 0 && printed < 0) {
			rc = printed;
			*err = why;
		}
		/* All ranks learn of a failure on one rank, such as a failed write. */
		TRY(vfm_job_agree(&j->x->job, rc, err));
	}
	return 0;
}

int sample_all(struct sample_job *j, struct vfm_err *err)
{
	int64_t tokens, batch, rounds;
	int32_t patch[3], grid[3];

	vfm_model_patch(&j->net.c.model, patch);
	tokens = vfm_patch_grid(j->dims, patch, grid, err);
	if (tokens < 0)
		return VFM_EUSAGE;
	if (tokens > MAX_TOKENS)
		return vfm_fail(err, VFM_EUSAGE, "a video of %lld tokens is too large; at most %d", (long long)tokens,
			MAX_TOKENS);
	TRY(count_passes(j, tokens, err));
	batch = batch_size(j, tokens);
	rounds = ((int64_t)j->items.n + batch * j->net.groups - 1) / (batch * j->net.groups);
	j->o->sampler.progress = show_evaluations;
	j->o->sampler.ctx = j;
	vfm_progress_start(&j->progress, "passes", j->passes[j->evals] * rounds);
	TRY(sample_batches(j, batch, grid, err));
	vfm_progress_end(&j->progress);
	return report_failures(j, err);
}
