/* run.c - sets a run up, and loops over steps, checkpoints, evaluations and signals. */
#include "train/run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "ckpt/find.h"
#include "ckpt/prune.h"
#include "ckpt/save.h"
#include "comm/coll/comm.h"
#include "data/loader/loader.h"
#include "device/ops/tensor.h"
#include "io/file.h"
#include "spec/cost/hw.h"
#include "spec/model/linears.h"
#include "spec/model/model.h"
#include "train/job/plan_check.h"
#include "train/predict/oom_hints.h"
#include "train/run/experts.h"
#include "train/run/held_out.h"
#include "train/run/metrics.h"
#include "train/run/origin.h"
#include "train/run/preview.h"
#include "train/run/readers.h"
#include "train/run/skipped.h"
#include "train/step/state.h"

/* The work of a run between two steps, for the record of the first of them. */
struct evaluation {
	int64_t step; /* completed steps; 0: none has been evaluated */
	struct vfm_held_out_loss held_out;
	char previews[64]; /* as in struct vfm_step_record */
};

struct train_run {
	const struct vfm_config *c;
	const struct vfm_run_opts *o;
	struct vfm_context *x;
	struct vfm_job *job;
	struct vfm_mesh *mesh;
	struct vfm_stream *stream;
	struct vfm_plan *plan;
	struct vfm_loader *loader;
	struct vfm_shard_cache *cache;
	int64_t read_bytes; /* by the loader, until the last step */
	struct vfm_oom_hints oom_hints;
	struct vfm_trainer *tr;
	struct vfm_held_out *held_out; /* NULL: none */
	struct vfm_previews *previews; /* NULL: none */
	struct vfm_experts experts;    /* {0}: one network */
	int trained;                   /* the network of the last update; -1: none */
	double exchange_s;             /* since then, if the next one trains the other network */
	struct vfm_step_record part;   /* of a step that trains two networks, before the second; step 0: none */
	struct vfm_metrics metrics;
	struct vfm_saver saver;
	char *ckpt_dir;
	json_t *config;
	struct vfm_identity id;
	struct vfm_origin origin;
	int lock;
	bool locked, new_lock, new_dir; /* the file .lock and RUN itself are of this start; on rank 0 */
	int64_t first, last;            /* steps completed before this run; total steps */
	int64_t saved;                  /* step of the newest checkpoint, -1: none */
	struct evaluation evaluated;    /* the last one */
	bool closed;                    /* on_step has returned VFM_EPIPE; on rank 0 */
	bool stopping, piped;           /* after a signal; after EPIPE on stdout */
	bool recording;                 /* this start has its records; on rank 0 */
	struct vfm_skipped skipped;
	int64_t size[3]; /* frames, height, width of the longest sample in the first pack, on rank 0; zeros: unknown */
	struct vfm_progress progress;
};

static bool is_root(const struct train_run *r)
{
	return r->mesh->rank == 0;
}

/* ---- setting up ---- */

/* Opens and locks a file.  Again if a refused run has removed it meanwhile (remove_unused_dir). */
static int lock_file(struct train_run *r, const char *path, struct vfm_err *err)
{
	do {
		if (r->lock >= 0)
			close(r->lock);
		r->new_lock = access(path, F_OK) != 0;
		r->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
		if (r->lock < 0)
			return vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", path);
		if (!vfm_lock(r->lock, r->o->stop))
			return vfm_fail(err, VFM_EENV, "another vfm-train is running in '%s'", r->o->dir);
	} while (!vfm_is_same_file(r->lock, path));
	r->locked = true;
	return 0;
}

static int make_dir(struct train_run *r, struct vfm_err *err)
{
	char *lock = vfm_strfmt("%s/.lock", r->o->dir);
	bool is_new = access(r->o->dir, F_OK) != 0;
	int rc = vfm_mkdir_p(r->o->dir, err);

	if (rc == 0) {
		r->new_dir = is_new;
		rc = lock_file(r, lock, err);
	}
	if (rc == 0) {
		vfm_temp_sweep(r->o->dir);
		vfm_ckpt_sweep(r->ckpt_dir);
	}
	free(lock);
	return rc;
}

/* After a run that was refused: removes the lock, and the folder if it is empty, that this start has made. */
static void remove_unused_dir(const struct train_run *r)
{
	char *lock = vfm_strfmt("%s/.lock", r->o->dir);

	if (r->locked && r->new_lock && !r->recording)
		unlink(lock);
	if (r->locked && r->new_dir && !r->recording)
		rmdir(r->o->dir);
	free(lock);
}

/* Warns of arrays in the data that the model does not read. */
static void check_conditions(const struct vfm_plan_header *h, const char *path, const struct vfm_model_spec *m)
{
	if (h->cond_channels && !m->cond_channels)
		vfm_warn("the model does not read the conditions of %s: model.cond_channels is 0", path);
	if (h->image_dim && !m->image_dim)
		vfm_warn("the model does not read the image rows of %s: model.image_dim is 0", path);
	if (h->text2_dim && !m->text2_dim)
		vfm_warn("the model does not read the second texts of %s: model.text2_dim is 0", path);
	if (!h->text2_dim && m->text2_dim)
		vfm_warn("no sample of %s has a second text, which the model reads: model.text2_dim is %lld", path,
			(long long)m->text2_dim);
}

static int open_run_plan(struct train_run *r, struct vfm_err *err)
{
	r->plan = vfm_plan_open_checked(r->o->plan, r->c, r->job->world->size, &r->last, err);
	if (!r->plan)
		return err->code;
	r->skipped.plan = r->plan;
	if (r->o->low_noise)
		TRY(vfm_turns_of(&r->experts.turns, r->c, vfm_plan_header(r->plan), err));
	if (is_root(r))
		check_conditions(vfm_plan_header(r->plan), r->o->plan, &r->c->model);
	return 0;
}

/* Collective: rank 0 broadcasts whether it hashes more of the plan.  Returns 1, 0, or a negative code. */
static int tell_hashing(struct train_run *r, bool more, struct vfm_err *err)
{
	int64_t flag = more;

	TRY(vfm_broadcast(r->job->world, NULL, vfm_t1(&flag, VFM_I64, 1), 0, err));
	return (int)flag;
}

static int tick_hashing(void *ctx, struct vfm_err *err)
{
	int rc = tell_hashing(ctx, true, err);

	return rc < 0 ? rc : 0;
}

/* Collective: rank 0 hashes the plan into sha, which takes minutes for a large plan.  After each block it broadcasts
 * that it is at work, so that the failure detector of the other ranks does not declare it failed. */
static int hash_plan(struct train_run *r, char *sha, struct vfm_err *err)
{
	int rc = 1, end;

	if (is_root(r)) {
		rc = vfm_plan_sha256(r->plan, sha, tick_hashing, r, err);
		end = tell_hashing(r, false, rc < 0 ? NULL : err);
		return rc < 0 ? rc : end;
	}
	while (rc > 0)
		rc = tell_hashing(r, false, err);
	return rc;
}

/* Collective.  On another node, the same path may be another file.  own: a digest of the file. */
static int compare_plans(struct train_run *r, const char *own, const char *path, struct vfm_err *err)
{
	char *root = NULL;
	int rc;

	if (is_root(r))
		root = vfm_strdup(own);
	TRY_OUT(vfm_job_broadcast(r->job, &root, err));
	if (strcmp(own, root) != 0)
		rc = vfm_fail(err, VFM_EUSAGE, "'%s' is not the file that rank 0 has under this name", path);
	rc = vfm_job_agree(r->job, rc, err);
out:
	free(root);
	return rc;
}

/* Collective: rank 0 reads the whole plan while the others wait. */
static int identify(struct train_run *r, struct vfm_err *err)
{
	const struct vfm_plan_header *h = vfm_plan_header(r->plan);
	char *sha = is_root(r) ? vfm_calloc(1, VFM_SHA256_HEX) : NULL, digest[VFM_SHA256_HEX];
	int rc;

	r->id = (struct vfm_identity){.config = r->c,
		.config_json = r->config,
		.plan_path = r->o->plan,
		.plan_steps = h->steps,
		.last = r->last,
		.encoders = h->encoder_ids};
	vfm_plan_digest(r->plan, digest);
	TRY_OUT(compare_plans(r, digest, r->o->plan, err));
	TRY_OUT(vfm_job_agree(r->job, hash_plan(r, sha, err), err));
	TRY_OUT(vfm_job_broadcast(r->job, &sha, err));
	memcpy(r->id.plan_sha256, sha, VFM_SHA256_HEX);
	if (r->o->plan_sha256 && strcmp(sha, r->o->plan_sha256) != 0)
		rc = vfm_job_agree(r->job,
			vfm_fail(err, VFM_EUSAGE, "'%s' has another sha256 than the list of phases says: %s, not %s",
				r->o->plan, sha, r->o->plan_sha256),
			err);
out:
	free(sha);
	return rc;
}

/* Collective. */
static int open_held_out(struct train_run *r, struct vfm_err *err)
{
	if (!r->o->held_out)
		return 0;
	r->held_out = vfm_held_out_open(r->o->held_out, r->plan, r->c, r->cache, err);
	TRY(vfm_job_agree(r->job, r->held_out ? 0 : err->code, err));
	r->id.held_out_path = r->o->held_out;
	r->id.held_out_sha256 = vfm_held_out_sha256(r->held_out);
	return compare_plans(r, r->id.held_out_sha256, r->o->held_out, err);
}

/* Collective.  Before the trainer takes memory, which text encoders need. */
static int open_previews(struct train_run *r, struct vfm_err *err)
{
	const struct vfm_preview_run p = {.x = r->x,
		.c = r->c,
		.name = r->o->dir,
		.plan = r->plan,
		.held_out = r->o->held_out,
		.encoders = &r->id.encoders,
		.cache = r->cache,
		.stop = r->o->stop,
		.boundary = r->o->low_noise ? r->c->experts.boundary : 0};

	return vfm_previews_open(&r->previews, &r->o->preview, &p, err);
}

static int open_trainer(struct train_run *r, struct vfm_err *err)
{
	vfm_oom_hints_install(&r->oom_hints, r->c, r->mesh, r->stream->dev);
	r->tr = vfm_trainer_new(r->c, r->mesh, r->stream, err);
	return r->tr ? 0 : err->code;
}

/* Refuses to begin two networks where one has begun. */
static int check_two_networks(const struct train_run *r, struct vfm_err *err)
{
	int64_t step;

	TRY(vfm_ckpt_latest(r->ckpt_dir, &step, err));
	return step < 0
		? 0
		: vfm_fail(err, VFM_EUSAGE, "'%s' trains one network: --low-noise needs another -o RUN", r->o->dir);
}

/* Refuses to begin one network where two have begun. */
static int check_one_network(const struct train_run *r, struct vfm_err *err)
{
	char *low = vfm_strfmt("%s/%s/run.json", r->o->dir, vfm_expert_names[VFM_EXPERT_LOW]),
	     *own = vfm_strfmt("%s/run.json", r->o->dir);
	json_t *was = access(own, F_OK) == 0 ? vfm_json_load(own, 1 << 20, NULL) : NULL;
	int rc = 0;

	if (access(low, F_OK) == 0)
		rc = vfm_fail(
			err, VFM_EUSAGE, "'%s' trains two networks: give --init and --low-noise as before", r->o->dir);
	else if (json_object_get(was, "expert"))
		rc = vfm_fail(err, VFM_EUSAGE,
			"'%s' is one of two networks of a run, and does not continue alone (--init)", r->o->dir);
	json_decref(was);
	free(own);
	free(low);
	return rc;
}

/* Collective. */
static int begin(struct train_run *r, struct vfm_err *err)
{
	r->origin = (struct vfm_origin){.job = r->job,
		.tr = r->tr,
		.config = r->c,
		.run = r->o,
		.ckpt_dir = r->ckpt_dir,
		.plan_forced = vfm_plan_header(r->plan)->forced,
		.id = &r->id};
	if (r->o->low_noise) {
		TRY(vfm_job_agree(r->job, is_root(r) ? check_two_networks(r, err) : 0, err));
		TRY(vfm_experts_begin(&r->experts, &r->origin, &r->first, &r->saved, &r->skipped.n, err));
		memcpy(r->size, r->experts.v[VFM_EXPERT_HIGH].origin.size, sizeof(r->size));
		return 0;
	}
	TRY(vfm_job_agree(r->job, is_root(r) ? check_one_network(r, err) : 0, err));
	TRY(vfm_origin_begin(&r->origin, err));
	memcpy(r->size, r->origin.size, sizeof(r->size));
	r->first = r->origin.first;
	r->saved = r->origin.saved;
	r->skipped.n = r->origin.skipped;
	return 0;
}

/* Of the packs of a step, those of the network that it trains first come first (loader.h). */
static int turn_of_pack(const void *ctx, int64_t step, int64_t pack)
{
	const struct vfm_turns *t = ctx;

	return vfm_turns_at(t, step, pack) != vfm_turns_first(t, step);
}

static int open_loader(struct train_run *r, struct vfm_err *err)
{
	struct vfm_loader_opts lo = {.max_damaged = r->c->data.max_damaged,
		.cache = r->cache,
		.seed = r->c->train.seed,
		.cond = r->c->model.cond_channels > 0,
		.image = r->c->model.image_dim > 0 && vfm_plan_header(r->plan)->image_dim > 0,
		.first_step = r->first,
		.plan_sha256 = r->id.plan_sha256,
		.n_parts = (int32_t)r->mesh->p.cp,
		.part = (int32_t)r->mesh->coord[VFM_AX_CP]};

	if (r->o->low_noise && vfm_turns_divide(&r->experts.turns)) {
		lo.turn_of = turn_of_pack;
		lo.turn_ctx = &r->experts.turns;
	}
	if (r->first >= r->last) {
		if (is_root(r))
			vfm_info("%s: all %lld steps are done", r->o->dir, (long long)r->last);
		return 0;
	}
	r->loader = vfm_readers_open(r->plan, r->c, r->mesh, &lo, err);
	return r->loader ? 0 : err->code;
}

enum { PLANNED_STEPS = 64 };

/* Counts the longest pack that the plan allows, as if all cp ranks computed it.  Its tokens are those of the header, as
 * one sample; its samples and their text are the most of the first steps.  The plan does not tell the shapes of
 * samples: frames have about 256 patches. */
static int find_largest_pack(const struct train_run *r, struct vfm_pack_sums *p, struct vfm_err *err)
{
	const struct vfm_plan_header *h = vfm_plan_header(r->plan);
	/* With parts, the largest share of a rank is that of a sample in a pack of the most parts. */
	double cp = (double)r->mesh->p.cp, of = h->cp && h->cp < cp ? h->cp : cp;
	double n = h->context * (double)(h->cp ? h->cp : 1), frame = n < 256 ? n : 256;
	struct vfm_plan_step s = {0};
	int32_t samples = 1;
	int rc = 0;

	for (int64_t i = r->first; i < r->last && i < r->first + PLANNED_STEPS && rc == 0; i++) {
		rc = vfm_plan_step(r->plan, i, &s, err);
		for (int32_t k = 0; k < s.n_packs && rc == 0; k++)
			if (s.packs[k].n_samples > samples)
				samples = s.packs[k].n_samples;
	}
	vfm_plan_step_release(&s);
	*p = (struct vfm_pack_sums){.tokens = n * cp / of,
		.pairs_full = n * n * cp / of,
		.pairs_spatial = n * frame * cp / of,
		.pairs_temporal = n * n / frame * cp / of,
		.samples = samples,
		.segments = samples};
	p->text_rows = samples * (double)r->c->model.text_len;
	p->pairs_cross = p->tokens * (double)r->c->model.text_len;
	p->pairs_joint = pow(n + (double)r->c->model.text_len, 2) * cp / of;
	return rc;
}

/* Logs the plan, if there is one, on the first rank of each pp stage. */
static void log_recompute(const struct train_run *r)
{
	const struct vfm_recompute_plan *plan = vfm_trainer_recompute(r->tr);
	const int *at = r->mesh->coord;
	char text[VFM_RECOMPUTE_TEXT], stage[32] = "";

	if (!plan->made || at[VFM_AX_DP] || at[VFM_AX_CP] || at[VFM_AX_TP])
		return;
	if (r->mesh->size[VFM_AX_PP] > 1)
		snprintf(stage, sizeof(stage), ", pp stage %d", at[VFM_AX_PP]);
	vfm_recompute_text(plan, text, sizeof(text));
	vfm_info("recompute%s: %s", stage, text);
}

/* Collective. */
static int plan_recompute(struct train_run *r, struct vfm_err *err)
{
	const struct vfm_plan_header *h = vfm_plan_header(r->plan);
	struct vfm_load load = {.packs = h->batch / r->mesh->p.dp / (h->cp ? r->mesh->p.cp : 1),
		.host_bytes = vfm_params_host_memory(r->mesh, r->stream->dev)};

	if (r->c->train.recompute != VFM_RECOMPUTE_AUTO || r->first >= r->last)
		return 0;
	TRY(vfm_job_agree(r->job, find_largest_pack(r, &load.largest, err), err));
	TRY(vfm_job_agree(r->job, vfm_trainer_plan(r->tr, &load, err), err));
	log_recompute(r);
	return 0;
}

static int remove_end(const struct train_run *r, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/end.json", r->o->dir);
	int rc = unlink(path) != 0 && errno != ENOENT ? vfm_fail_errno(err, VFM_EENV, "cannot remove '%s'", path) : 0;

	free(path);
	return rc;
}

static int open_records(struct train_run *r, struct vfm_err *err)
{
	const struct vfm_recompute_plan *plan = vfm_trainer_recompute(r->tr);
	json_t *id = vfm_identity_json(&r->id);
	int rc = vfm_json_save(r->o->dir, "config.json", r->config, 2, err);
	char text[VFM_RECOMPUTE_TEXT];

	if (plan->made) {
		vfm_recompute_text(plan, text, sizeof(text));
		json_object_set_new(id, "recompute", json_string(text));
	}

	if (rc == 0)
		rc = vfm_json_save(r->o->dir, "run.json", id, 2, err);
	json_decref(id);
	if (rc == 0 && r->o->low_noise)
		rc = vfm_experts_record(&r->experts, err);
	TRY(rc);
	TRY(remove_end(r, err));
	TRY(vfm_metrics_open(&r->metrics, r->o->dir, r->first, err));
	r->recording = true;
	return vfm_trackers_start(r->o->trackers, r->o->dir, err);
}

static int set_up(struct train_run *r, struct vfm_err *err)
{
	/* Check as much as possible before writing to RUN. */
	TRY(vfm_job_agree(r->job, r->o->low_noise ? 0 : vfm_experts_refuse(r->c, err), err));
	TRY(vfm_job_agree(r->job, open_run_plan(r, err), err));
	TRY(identify(r, err));
	TRY(vfm_job_agree(r->job, vfm_mesh_add_views(r->mesh, vfm_plan_header(r->plan)->cp, err), err));
	TRY(vfm_job_agree(r->job, vfm_shard_cache_open(&r->cache, &r->o->cache, err), err));
	TRY(open_held_out(r, err));
	TRY(open_previews(r, err));
	TRY(vfm_job_agree(r->job, is_root(r) ? make_dir(r, err) : 0, err));
	TRY(vfm_job_mark(r->job, r->o->dir, err));
	TRY(vfm_job_agree(r->job, open_trainer(r, err), err));
	TRY(begin(r, err));
	TRY(vfm_job_agree(r->job, open_loader(r, err), err));
	TRY(plan_recompute(r, err));
	return vfm_job_agree(r->job, is_root(r) ? open_records(r, err) : 0, err);
}

/* ---- running ---- */

/* Starts the save of the network in the trainer: that of the run, or an expert. */
static int save_network(struct train_run *r, int64_t steps_done, const struct vfm_expert *e, struct vfm_err *err)
{
	json_t *state = vfm_identity_json(e ? &e->id : &r->id);
	struct vfm_ckpt_spec spec = {.dir = e ? e->ckpt_dir : r->ckpt_dir,
		.step = steps_done,
		.config = e ? e->config : r->config,
		.state = state,
		.keep_last = e ? 0 : (int)r->c->ckpt.keep,
		.keep_every = r->c->ckpt.keep_every};
	int rc;

	if (e)
		json_object_set_new(state, "updates", json_integer(vfm_experts_updates(&r->experts, e, steps_done)));
	if (r->skipped.n)
		json_object_set_new(state, "skipped", json_integer(r->skipped.n));
	if (r->size[0])
		json_object_set_new(state, "sample",
			json_pack("{s:I,s:I,s:I}", "frames", (json_int_t)r->size[0], "height", (json_int_t)r->size[1],
				"width", (json_int_t)r->size[2]));
	/* The records on disk must match the checkpoint: no missing steps after a resume. */
	rc = vfm_job_agree(r->job, is_root(r) ? vfm_metrics_flush(&r->metrics, err) : 0, err);
	if (rc == 0)
		rc = vfm_job_agree(r->job, vfm_saver_start(&r->saver, r->tr, &spec, err), err);
	if (rc == 0)
		vfm_info("checkpoint of step %lld: %.4g MiB of this rank, blocked training for %.1f ms",
			(long long)steps_done, (double)r->saver.bytes / 0x1p20, r->saver.stall_s * 1e3);
	json_decref(state);
	return rc;
}

/* Collective.  Waits for the save in progress, and removes old checkpoints of both networks, so that there are always
 * two of the same step. */
static int prune_experts(struct train_run *r, struct vfm_err *err)
{
	const struct vfm_ckpt_prune p = {
		.keep_last = (int)r->c->ckpt.keep, .keep_every = r->c->ckpt.keep_every, .spare = -1};
	struct vfm_err why;

	TRY(vfm_job_agree(r->job, vfm_saver_wait(&r->saver, err), err));
	for (int k = 0; k < VFM_EXPERTS && is_root(r) && r->c->ckpt.keep > 0; k++)
		if (vfm_ckpt_prune(r->experts.v[k].ckpt_dir, &p, &why) < 0)
			vfm_warn("old checkpoints stay: %s", why.msg);
	return 0;
}

/* Starts a save; writing the files overlaps with the following steps, of two networks those of the second. */
static int start_save(struct train_run *r, int64_t steps_done, struct vfm_err *err)
{
	struct vfm_experts *x = &r->experts;

	r->saved = steps_done;
	if (!r->o->low_noise)
		return save_network(r, steps_done, NULL, err);
	TRY(prune_experts(r, err)); /* the last save of both is complete */
	TRY(save_network(r, steps_done, &x->v[x->active], err));
	TRY(vfm_experts_enter(x, !x->active, err)); /* while the files of the first are written */
	TRY(vfm_job_agree(r->job, vfm_saver_wait(&r->saver, err), err));
	return save_network(r, steps_done, &x->v[x->active], err);
}

static int next_pack(void *ctx, struct vfm_pack **p, struct vfm_err *err)
{
	struct train_run *r = ctx;
	int rc = vfm_loader_next(r->loader, p, err);

	if (rc > 0 && is_root(r) && !r->size[0])
		vfm_readers_size(r->size, *p, &r->c->model, &r->id.encoders.tokenizer.geometry);
	return rc == 0 ? vfm_fail(err, VFM_EUSAGE, "%s ended before step %lld", r->o->plan, (long long)r->last) : rc;
}

static void pack_done(void *ctx, struct vfm_pack *p)
{
	struct train_run *r = ctx;

	vfm_loader_release(r->loader, p);
}

static double learning_rate(struct train_run *r, int64_t step)
{
	return r->o->low_noise ? vfm_experts_prepare(&r->experts, step, r->last)
			       : vfm_lr_at(&r->c->train, step, r->last);
}

/* Returns the packs of this rank that train the active network in a step. */
static int64_t count_own_packs(const struct train_run *r, int64_t step)
{
	int64_t dp = r->mesh->p.dp;

	if (!r->o->low_noise || !vfm_turns_divide(&r->experts.turns))
		return vfm_loader_packs_per_step(r->loader);
	return (vfm_turns_packs(&r->experts.turns, r->experts.active, step) + dp - 1) / dp;
}

/* Enqueues a step of the active network.  The steps of the trainer that are in flight are the ones not yet reported,
 * the same on all ranks. */
static int enqueue_update(struct train_run *r, int64_t step, struct vfm_err *err)
{
	struct vfm_loader_stats before = vfm_loader_stats(r->loader), after;
	const int64_t n = count_own_packs(r, step);
	struct vfm_pack_source loaded = {next_pack, pack_done, r};
	struct vfm_pack_source packs = vfm_oom_hints_source(&r->oom_hints, &loaded, n);
	struct vfm_step_stats *stats;
	struct vfm_rank_stats *own;

	TRY(vfm_trainer_step(r->tr, step, n, &packs, learning_rate(r, step), err));
	stats = vfm_trainer_stats_of(r->tr, vfm_trainer_in_flight(r->tr) - 1);
	stats->network = r->experts.active;
	stats->exchange_s = r->exchange_s;
	r->exchange_s = 0;
	r->trained = r->experts.active;
	own = &stats->rank;
	after = vfm_loader_stats(r->loader);
	own->data_wait_s = after.wait_s - before.wait_s;
	own->read_bytes = (double)(after.file_bytes - r->read_bytes);
	own->replaced = (double)(after.replaced - before.replaced) * (double)r->mesh->p.dp / r->mesh->world_size;
	r->read_bytes = after.file_bytes;
	return 0;
}

/* Makes the record of step k in flight. */
static struct vfm_step_record record_of(const struct train_run *r, int k)
{
	const struct vfm_step_stats *s = vfm_trainer_stats_of(r->tr, k);
	const struct vfm_train_config *c = r->o->low_noise ? &r->experts.v[s->network].c.train : &r->c->train;
	struct vfm_step_record rec = {.step = s->step + 1,
		.s = *s,
		.update = {{.network = r->o->low_noise ? vfm_expert_names[s->network] : NULL,
			.loss = s->loss,
			.grad_norm = s->grad_norm,
			.lr = vfm_lr_at(c, s->step, r->last)}},
		.updates = 1,
		.ranks = r->mesh->world_size,
		.weighted = vfm_diffusion_has_mse(&r->c->diffusion),
		.peak_tflops = vfm_hw_peak(r->stream->dev->name, r->c->train.dtype)};

	if (rec.step == r->evaluated.step) {
		rec.held_out = r->evaluated.held_out;
		memcpy(rec.previews, r->evaluated.previews, sizeof(rec.previews));
	}
	return rec;
}

/* Each rank counts a replaced sample as 1 / ranks that use the pack.  A fraction means that some of them, on another
 * node, read the sample undamaged. */
static int check_replaced(double replaced, int64_t step, struct vfm_err *err)
{
	if (fabs(replaced - round(replaced)) < 1e-6)
		return 0;
	return vfm_fail(err, VFM_EENV,
		"step %lld: a sample is damaged on one node and whole on another, so that ranks of one pack used "
		"different "
		"samples",
		(long long)step);
}

/* Collective.  Reduces the statistics of the steps in flight over the ranks.  *n: number of steps that all ranks have
 * read. */
static int reduce_stats(struct train_run *r, int *n, struct vfm_err *err)
{
	struct vfm_rank_stats s[VFM_STEPS_IN_FLIGHT] = {0};
	int known = vfm_trainer_have_read(r->tr);

	for (int k = 0; k < known; k++)
		s[k] = vfm_trainer_stats_of(r->tr, k)->rank;
	*n = vfm_rank_stats_reduce(r->job->world, s, vfm_trainer_in_flight(r->tr), known, err);
	for (int k = 0; k < *n; k++) {
		struct vfm_step_stats *step = vfm_trainer_stats_of(r->tr, k);

		step->rank = s[k];
		TRY(check_replaced(s[k].replaced, step->step + 1, err));
	}
	return *n < 0 ? *n : 0;
}

/* After the reader of stdout has exited, steps are still written to metrics.jsonl. */
static int report(struct train_run *r, const struct vfm_step_record *rec, struct vfm_err *err)
{
	json_t *o = vfm_step_json(rec);
	int rc;

	if (r->o->phase)
		json_object_set_new(o, "stage", json_string(r->o->phase));
	rc = vfm_metrics_add(&r->metrics, rec, o, err);

	if (rc == 0 && r->o->on_step && !r->closed)
		rc = r->o->on_step(r->o->ctx, o, err);
	json_decref(o);
	r->closed = r->closed || rc == VFM_EPIPE;
	return rc == VFM_EPIPE ? 0 : rc;
}

/* Joins the record of an update to the one before of the same step.  Returns whether the step is complete; ends: the
 * run ends with this update. */
static bool complete_record(struct train_run *r, struct vfm_step_record *rec, bool ends)
{
	struct vfm_step_record first = r->part;

	r->part.step = 0;
	if (first.step) {
		vfm_step_record_add(&first, rec);
		*rec = first;
		return true;
	}
	if (ends || !r->o->low_noise || !vfm_turns_packs(&r->experts.turns, !rec->s.network, rec->s.step))
		return true;
	r->part = *rec;
	return false;
}

/* Collective.  Counts step k in flight if it was not applied.  A failure ends the run after this step. */
static int count_skipped(struct train_run *r, int k, struct vfm_step_record *rec, struct vfm_err *err)
{
	int rc;

	if (vfm_step_is_finite(&rec->s))
		return 0;
	rc = vfm_skipped_add(&r->skipped, r->tr, k, rec->update[0].network, err);
	rec->skipped = r->skipped.n;
	return rc;
}

/* Collective.  Rank 0 reports the first n steps in flight; all ranks then agree on stopping and failures. */
static int report_all(struct train_run *r, int n, struct vfm_err *err)
{
	int64_t flags[3] = {0}; /* stop, piped, failed */
	struct vfm_err why = {0};
	int rc = 0, ends = 0, done, steps = 0;

	for (done = 0; done < n && ends == 0; done++) {
		struct vfm_step_record rec = record_of(r, done);

		ends = count_skipped(r, done, &rec, &why);
		if (!complete_record(r, &rec, ends < 0))
			continue;
		steps++;
		snprintf(r->progress.note, sizeof(r->progress.note), "loss %.4g", rec.s.loss);
		if (rc == 0 && is_root(r))
			rc = report(r, &rec, err);
	}
	vfm_trainer_drop(r->tr, done);
	vfm_trackers_poll(r->o->trackers);
	flags[1] = r->closed; /* stop without a message */
	if (rc == 0)
		rc = vfm_saver_poll(&r->saver, err);
	flags[0] = flags[1] || (r->o->stop && *r->o->stop);
	flags[2] = rc < 0;
	TRY(vfm_all_reduce(r->job->world, NULL, vfm_t1(flags, VFM_I64, 3), err));
	r->stopping = r->stopping || flags[0] > 0;
	r->piped = r->piped || flags[1] > 0;
	vfm_progress_step(&r->progress, steps);
	if (flags[2])
		return vfm_job_agree(r->job, rc, err);
	if (ends == 0)
		return 0;
	*err = why;
	vfm_trainer_drop(r->tr, vfm_trainer_in_flight(r->tr)); /* the steps after it do not count */
	return vfm_job_agree(r->job, ends, err);
}

/* Reads the steps in flight, in their order; blocks for all but the newest, and for that too if `all`. */
static int read_steps(struct train_run *r, bool all, struct vfm_err *err)
{
	for (;;) {
		int unread = vfm_trainer_in_flight(r->tr) - vfm_trainer_have_read(r->tr);

		if (unread == 0 || (unread == 1 && !all && !vfm_trainer_done(r->tr)))
			return 0;
		TRY(vfm_trainer_read(r->tr, err));
	}
}

/* Collective.  Reads and reports the completed steps.  Blocks for the newest step if `all`; otherwise that step stays
 * in flight while it runs on any rank. */
static int drain_steps(struct train_run *r, bool all, struct vfm_err *err)
{
	int n;

	TRY(read_steps(r, all, err));
	TRY(reduce_stats(r, &n, err));
	return report_all(r, n, err);
}

/* Local, after a failed step: reports the completed steps before it, with the statistics of this rank. */
static void report_rest(struct train_run *r)
{
	for (int k = 0; k < vfm_trainer_in_flight(r->tr) && is_root(r); k++) {
		struct vfm_step_record rec;

		if (k == vfm_trainer_have_read(r->tr) &&
			(!vfm_trainer_done(r->tr) || vfm_trainer_read(r->tr, NULL) < 0))
			return;
		rec = record_of(r, k);
		if (complete_record(r, &rec, false) && report(r, &rec, NULL) < 0)
			return;
	}
}

/* Returns the two networks, or NULL. */
static struct vfm_experts *networks(struct train_run *r)
{
	return r->o->low_noise ? &r->experts : NULL;
}

/* Collective.  Generates samples after a step. */
static int generate_previews(struct train_run *r, struct evaluation *e, struct vfm_err *err)
{
	char *dir;
	int rc;

	snprintf(e->previews, sizeof(e->previews), "samples/step-%08lld", (long long)e->step);
	dir = vfm_strfmt("%s/%s", r->o->dir, e->previews);
	rc = vfm_previews_run(r->previews, r->tr, networks(r), e->step, dir, &r->metrics.events, err);
	free(dir);
	return rc;
}

/* Returns whether work that is done every so many steps, and after the last, is due after a step.  every 0: only then.
 */
static bool is_step_due(const struct train_run *r, int64_t steps_done, int64_t every)
{
	return steps_done == r->last || (every && steps_done % every == 0);
}

/* Collective.  Evaluates the held-out data and generates samples after the newest step, as far as they are due. */
static int evaluate_run(struct train_run *r, int64_t steps_done, struct vfm_err *err)
{
	const int64_t every = r->c->eval.every;
	bool evaluates = r->held_out && is_step_due(r, steps_done, every),
	     samples = r->previews &&
		is_step_due(r, steps_done, r->c->eval.sample_every ? r->c->eval.sample_every : every);

	if (!evaluates && !samples)
		return 0;
	r->evaluated = (struct evaluation){.step = steps_done};
	TRY(read_steps(r, true, err));
	if (evaluates)
		TRY(vfm_held_out_run(r->held_out, r->tr, networks(r), &r->evaluated.held_out, err));
	return samples ? generate_previews(r, &r->evaluated, err) : 0;
}

/* Collective.  Makes a network active, after the steps of the other. */
static int enter_expert(struct train_run *r, int next, struct vfm_err *err)
{
	double start;

	if (next == r->experts.active)
		return 0;
	TRY(drain_steps(r, true, err));
	start = vfm_now();
	TRY(vfm_experts_enter(&r->experts, next, err));
	if (r->trained >= 0 && r->trained != next) /* else after a save or an evaluation */
		r->exchange_s = vfm_now() - start;
	return 0;
}

/* Collective.  Makes the network active that a step trains first. */
static int begin_step(struct train_run *r, int64_t step, struct vfm_err *err)
{
	return r->o->low_noise ? enter_expert(r, vfm_turns_first(&r->experts.turns, step), err) : 0;
}

/* Collective.  Enqueues a step, of two networks those that it trains. */
static int enqueue_step(struct train_run *r, int64_t step, struct vfm_err *err)
{
	int next = !r->experts.active;

	TRY(enqueue_update(r, step, err));
	if (!r->o->low_noise || !vfm_turns_packs(&r->experts.turns, next, step))
		return 0;
	TRY(enter_expert(r, next, err));
	return enqueue_update(r, step, err);
}

/* Runs the remaining steps.  *step: number of completed steps. */
static int run_steps(struct train_run *r, int64_t *step, struct vfm_err *err)
{
	while (*step < r->last && !r->stopping) {
		bool due = is_step_due(r, *step + 1, r->c->ckpt.every);

		TRY(begin_step(r, *step, err));
		if (r->stopping) /* learnt there */
			return r->saved < *step ? start_save(r, *step, err) : 0;
		TRY(enqueue_step(r, *step, err));
		++*step;
		TRY(evaluate_run(r, *step, err));
		TRY(drain_steps(r, due || r->evaluated.step == *step, err));
		if (r->stopping && vfm_trainer_in_flight(r->tr))
			TRY(drain_steps(r, true, err));
		if (due || r->stopping)
			TRY(start_save(r, *step, err));
	}
	return 0;
}

static int loop(struct train_run *r, struct vfm_err *err)
{
	int64_t step = r->first;
	int rc;

	vfm_progress_start(&r->progress, "steps", r->last);
	vfm_progress_step(&r->progress, r->first);
	rc = run_steps(r, &step, err);
	if (rc < 0)
		report_rest(r);
	vfm_progress_end(&r->progress);
	TRY(rc);
	if (step == r->first && r->saved < step)
		TRY(start_save(r, step, err)); /* a run of no steps still saves its weights */
	TRY(r->o->low_noise ? prune_experts(r, err) : vfm_job_agree(r->job, vfm_saver_wait(&r->saver, err), err));
	if (step >= r->last)
		return 0;
	r->job->agreed = true;
	if (r->piped)
		return vfm_fail(err, VFM_ESIGNAL, "%s", "");
	return vfm_fail(err, VFM_ESIGNAL, "stopped after step %lld of %lld; the same command resumes there",
		(long long)step, (long long)r->last);
}

/* Logs how many samples of this rank had no caption with a weight in data.captions, how many were replaced, and what
 * the rank waited for. */
static void report_data(const struct train_run *r)
{
	struct vfm_loader_stats s = r->loader ? vfm_loader_stats(r->loader) : (struct vfm_loader_stats){0};
	struct vfm_buf causes = {0};

	for (int i = 0; i < VFM_LOAD_CAUSES; i++)
		vfm_buf_addf(&causes, "%s %s %.0f %%", i ? "," : "", vfm_load_causes[i],
			100 * s.wait_by_s[i] / (s.wait_s > 0 ? s.wait_s : 1));
	if (s.wait_s > 0.1)
		vfm_info("waited %.1f s for data:%s", s.wait_s, causes.data);
	vfm_buf_release(&causes);
	if (s.replaced)
		vfm_info("%lld of the %lld samples that this rank read stood for damaged ones (data.max_damaged)",
			(long long)s.replaced, (long long)s.samples);
	if (s.unlisted)
		vfm_info("%lld of the %lld samples that this rank read had no caption with a weight (data.captions)",
			(long long)s.unlisted, (long long)s.samples);
}

/* Writes end.json, after the last record.  Does not wait for the trackers, which read it. */
static void record_end(const struct train_run *r, int rc, const struct vfm_err *err)
{
	const char *status = rc == 0 ? "done" : rc == VFM_ESIGNAL ? "stopped" : "failed";
	int64_t step = r->progress.done > r->first ? r->progress.done : r->first;
	struct vfm_err why = {0};
	struct timespec now;
	json_t *message, *end;

	if (!r->recording)
		return;
	message = rc == 0 ? NULL : vfm_json_string(err->msg, strlen(err->msg), "the message", NULL);
	clock_gettime(CLOCK_REALTIME, &now);
	end = json_pack("{s:i, s:s, s:I, s:I, s:o*, s:f}", "v", 1, "status", status, "step", (json_int_t)step, "steps",
		(json_int_t)r->last, "message", message, "time",
		(double)now.tv_sec + (double)(now.tv_nsec / 1000) * 1e-6);
	if (vfm_json_save(r->o->dir, "end.json", end, 2, &why) < 0)
		vfm_warn("%s", why.msg);
	json_decref(end);
	vfm_trackers_end(r->o->trackers, rc, r->job->world->size);
}

static void tear_down(struct train_run *r, int rc, const struct vfm_err *err)
{
	report_data(r);
	vfm_saver_release(&r->saver);
	vfm_metrics_close(&r->metrics);
	record_end(r, rc, err);
	vfm_loader_close(r->loader);
	vfm_previews_free(r->previews);
	vfm_held_out_close(r->held_out);
	vfm_shard_cache_close(r->cache);
	vfm_plan_close(r->plan);
	vfm_experts_release(&r->experts);
	vfm_trainer_free(r->tr);
	vfm_oom_hints_remove(&r->oom_hints);
	json_decref(r->config);
	vfm_origin_release(&r->origin);
	free(r->ckpt_dir);
	remove_unused_dir(r);
	if (r->lock >= 0)
		close(r->lock);
}

int vfm_run(struct vfm_context *x, const struct vfm_config *c, const struct vfm_run_opts *o, struct vfm_err *err)
{
	struct train_run r = {.c = c,
		.o = o,
		.x = x,
		.job = &x->job,
		.mesh = &x->mesh,
		.stream = x->device.stream,
		.lock = -1,
		.saved = -1,
		.trained = -1,
		.skipped = {.job = &x->job, .mesh = &x->mesh, .most = c->train.skip_nonfinite},
		.config = vfm_config_to_json(c),
		.ckpt_dir = vfm_strfmt("%s/ckpt", o->dir)};
	int rc;

	vfm_info("%s: %s, %lld parameters", x->device.dev->t->name, x->device.dev->descr,
		(long long)vfm_model_params(&c->model));
	rc = set_up(&r, err);
	if (rc == 0)
		rc = loop(&r, err);
	vfm_job_failed(r.job, rc, err);
	tear_down(&r, rc, err);
	return rc;
}
