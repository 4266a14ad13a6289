/* origin.c - loads the newest usable checkpoint, the initial weights, or draws weights from the seed. */
#include "train/run/origin.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "ckpt/adapters.h"
#include "ckpt/check.h"
#include "comm/coll/comm.h"
#include "device/ops/tensor.h"
#include "spec/model/linears.h"
#include "train/run/candidates.h"
#include "train/step/state.h"

static bool origin_is_root(const struct vfm_origin *o)
{
	return o->job->world->rank == 0;
}

/* ---- weights ---- */

/* c: the checkpoint that the weights are from; NULL: the seed. */
static int take_encoders(struct vfm_origin *o, const struct vfm_ckpt *c, struct vfm_err *err)
{
	TRY(vfm_identity_forced(&o->forced, o->id, c, o->plan_forced, err));
	return c ? vfm_identity_keep_encoders(o->id, c, err) : 0;
}

/* Collective: opens a file or checkpoint of weights, and checks that it fits.  adapters: they may be those of adapters.
 * *sha: its sha256, of *c, which the caller frees and closes. */
static int open_weights(
	struct vfm_origin *o, const char *path, bool adapters, struct vfm_ckpt **c, char **sha, struct vfm_err *err)
{
	int rc = vfm_ckpt_open(c, path, err);

	if (rc == 0 && !adapters && vfm_ckpt_is_adapters(*c))
		rc = vfm_fail(err, VFM_EUSAGE, "'%s' holds adapters, not a model (vfm-ckpt merge makes one)", path);
	if (rc == 0)
		rc = vfm_identity_init(o->id, *c, o->run->allow_change, err);
	if (rc == 0 && origin_is_root(o)) {
		*sha = vfm_calloc(1, VFM_SHA256_HEX);
		rc = vfm_ckpt_sha256(*c, *sha, err);
	}
	TRY(vfm_job_agree(o->job, rc, err));
	return vfm_job_broadcast(o->job, sha, err);
}

/* Collective: loads the base model of the adapters of a checkpoint, which its state names.  now: where the model is
 * today; NULL: there. */
static int load_base(struct vfm_origin *o, const struct vfm_ckpt *adapters, const char *now, struct vfm_err *err)
{
	const json_t *init = json_object_get(adapters->state, "init");
	const char *was = json_string_value(json_object_get(init, "sha256")),
		   *part = json_string_value(json_object_get(init, "part")),
		   *path = now ? now : json_string_value(json_object_get(init, "path"));
	struct vfm_ckpt *c = NULL;
	char *sha = NULL;
	int rc = 0;

	if (!path || !was)
		rc = vfm_fail(err, VFM_EUSAGE, "%s does not name the base model of its adapters", adapters->path);
	TRY_OUT(vfm_job_agree(o->job, rc, err));
	rc = open_weights(o, path, false, &c, &sha, err);
	if (rc < 0) {
		vfm_err_context(err, "the base model of %s (--init tells where it is)", adapters->path);
		goto out;
	}
	if (strcmp(sha, was) != 0)
		rc = vfm_fail(err, VFM_EUSAGE, "%s is not the base model of %s: sha256 %s -> %s", c->path,
			adapters->path, was, sha);
	TRY_OUT(vfm_job_agree(o->job, rc, err));
	rc = vfm_state_load_weights(vfm_trainer_params(o->tr), c, part ? part : "model", err);
	rc = vfm_job_agree(o->job, rc, err);
out:
	free(sha);
	vfm_ckpt_close(c);
	return rc;
}

/* Returns what a run records of the weights of c. */
static json_t *describe(const struct vfm_ckpt *c, const char *part, const char *sha)
{
	char *real = realpath(c->path, NULL); /* a later command may run in another folder */
	json_t *o = json_pack("{s:s,s:s,s:s*}", "path", real ? real : c->path, "sha256", sha, "layout", c->layout);

	free(real);
	if (!c->plain) {
		json_object_set_new(o, "part", json_string(part));
		json_object_set_new(o, "step", json_integer(c->step));
	}
	return o;
}

/* Collective.  As the weights of a run that trains adapters: those of other adapters, and their base model. */
static int init_adapters(struct vfm_origin *o, struct vfm_ckpt *c, const char *sha, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(o->tr);

	TRY(load_base(o, c, NULL, err));
	TRY(vfm_job_agree(o->job, vfm_state_load_adapters(ps, c, o->run->init_part, err), err));
	o->of_init = json_deep_copy(json_object_get(c->state, "init"));
	json_object_set_new(o->of_init, "adapters", describe(c, o->run->init_part, sha));
	return 0;
}

struct target_count {
	const struct vfm_tuning *tuning;
	const struct vfm_ckpt *c;
	int targets, found, parts; /* parts: fused layers of which c has only a part */
};

static void count_target(void *ctx, const struct vfm_linear_shape *l)
{
	struct target_count *k = ctx;
	const struct vfm_ckpt_tensor *a;
	int64_t n = 0;
	char name[160];

	vfm_linear_name(l, "", name, sizeof(name));
	if (!l->blocks || !vfm_tuning_adapts(k->tuning, name))
		return;
	k->targets++;
	vfm_linear_name(l, ".lora_A.weight", name, sizeof(name));
	a = vfm_ckpt_find(k->c, name);
	k->found += a != NULL;
	for (int i = 0; a && i < a->n_pieces; i++)
		n += a->piece[i].numel;
	k->parts += a && n < a->numel;
}

/* Checks that the configuration trains the adapters of c. */
static int check_adapters(
	const struct vfm_origin *o, const struct vfm_ckpt *c, int64_t rank, double alpha, struct vfm_err *err)
{
	const struct vfm_tuning *t = &o->config->tuning;
	struct target_count k = {t, c, 0, 0, 0};
	struct vfm_named others = {0};

	if (t->rank != rank)
		return vfm_fail(err, VFM_EUSAGE, "lora.rank is %lld, but the adapters of %s have rank %lld",
			(long long)t->rank, c->path, (long long)rank);
	if (vfm_tuning_scale(t) != alpha / (double)rank)
		return vfm_fail(err, VFM_EUSAGE, "lora.alpha is %g, but the adapters of %s have alpha %g", t->alpha,
			c->path, alpha);
	for (int i = 0; i < c->n; i++) {
		const char *name = c->t[i].name;
		char *layer = vfm_strfmt("%.*s", (int)(strlen(name) - strlen(".lora_A.weight")), name);

		if (!vfm_tuning_adapts(t, layer) && strstr(name, ".lora_A."))
			vfm_named_add(&others, layer);
		free(layer);
	}
	if (others.n)
		return vfm_fail(err, VFM_EUSAGE,
			"%s has adapters of %lld layers that lora.targets='%s' does not cover (vfm-ckpt merge adds "
			"them to the base model): %s",
			c->path, (long long)others.n, t->targets.text, others.names);
	vfm_model_linears(&o->config->model, &(struct vfm_pack_sums){0}, 0, o->config->model.layers, count_target, &k);
	vfm_info("adapters of %s: rank %lld, alpha %g; %d layers%s", c->path, (long long)rank, alpha, k.found,
		k.found < k.targets ? "" : ", all of lora.targets");
	if (k.found < k.targets)
		vfm_info(
			"%d other layers of lora.targets have no adapter there, and get new ones", k.targets - k.found);
	if (k.parts)
		vfm_info("%d fused layers have adapters of some outputs there, and get new ones for the others",
			k.parts);
	return 0;
}

/* Collective.  Loads adapters of another program for the base model, which is loaded. */
static int init_lora(struct vfm_origin *o, struct vfm_ckpt *base, struct vfm_err *err)
{
	const struct vfm_attach a = {
		.path = o->run->init_lora, .part = "model", .scale = 1, .skip_missing = o->run->skip_missing};
	struct vfm_ckpt *c = NULL;
	char *sha = NULL;
	int64_t rank;
	double alpha;
	const bool silent = vfm_log_thread_silent();
	int rc;

	vfm_log_set_thread_silent(silent || !origin_is_root(o));
	rc = vfm_ckpt_open_adapters(&c, base, &a, &rank, &alpha, err);
	vfm_log_set_thread_silent(silent);
	if (rc == 0)
		rc = check_adapters(o, c, rank, alpha, err);
	if (rc == 0 && origin_is_root(o)) {
		sha = vfm_calloc(1, VFM_SHA256_HEX);
		rc = vfm_ckpt_sha256(c, sha, err);
	}
	TRY_OUT(vfm_job_agree(o->job, rc, err));
	TRY_OUT(vfm_job_broadcast(o->job, &sha, err));
	TRY_OUT(vfm_job_agree(o->job, vfm_state_load_some_adapters(vfm_trainer_params(o->tr), c, err), err));
	json_object_set_new(o->of_init, "adapters", describe(c, "model", sha));
out:
	free(sha);
	vfm_ckpt_close(c);
	return rc;
}

/* Returns the adapters of another program that a run began with, from the state of a checkpoint or run.json; or
 * NULL. */
static const char *lora_of(const json_t *state)
{
	const json_t *adapters = json_object_get(json_object_get(state, "init"), "adapters");

	return json_object_get(adapters, "part") ? NULL : json_string_value(json_object_get(adapters, "path"));
}

/* Collective: loads the weights of another run or of a file, and initializes the optimizer. */
static int init_weights(struct vfm_origin *o, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(o->tr);
	struct vfm_ckpt *c = NULL;
	char *sha = NULL;
	const bool adapters = o->config->tuning.rank > 0 && !o->run->init_lora;
	int rc = open_weights(o, o->run->init, adapters, &c, &sha, err);

	if (rc < 0)
		goto out;
	if (vfm_ckpt_is_adapters(c)) {
		TRY_OUT(init_adapters(o, c, sha, err));
	} else {
		TRY_OUT(vfm_job_agree(o->job, vfm_state_load_weights(ps, c, o->run->init_part, err), err));
		o->of_init = describe(c, o->run->init_part, sha);
		if (o->run->init_lora)
			TRY_OUT(init_lora(o, c, err));
	}
	TRY_OUT(vfm_job_agree(o->job, vfm_optim_start(vfm_trainer_optim(o->tr), err), err));
	rc = vfm_job_agree(o->job, take_encoders(o, c, err), err);
	if (rc == 0)
		vfm_info("the weights are those of %s", c->path);
out:
	free(sha);
	vfm_ckpt_close(c);
	return rc;
}

/* ---- checkpoints of the run ---- */

/* Compares the run with a checkpoint that it resumes from. */
static int check_identity(struct vfm_origin *o, const struct vfm_ckpt *c, struct vfm_err *err)
{
	char *hint = vfm_path_is_inside(c->path, o->ckpt_dir)
		? vfm_strfmt("; another -o RUN starts from step 0")
		: vfm_strfmt("; --init '%s' begins a new run with its weights", c->path);
	int rc = vfm_identity_resume(o->id, c, o->run->allow_change, hint, err);

	free(hint);
	return rc;
}

/* Collective.  As vfm_job_agree on the results of reading a checkpoint, but returns 1, with the message in *err, if the
 * worst failure is damage of the checkpoint. */
static int agree_damage(struct vfm_origin *o, int rc, bool damaged, struct vfm_err *err)
{
	int64_t any = damaged;

	rc = vfm_job_agree(o->job, rc, err);
	if (rc != VFM_EUSAGE)
		return rc;
	TRY(vfm_all_reduce(o->job->world, NULL, vfm_t1(&any, VFM_I64, 1), err));
	return any ? 1 : rc;
}

/* Of a run that began with those of another run, --init names them; else it may tell where the base model is today. */
static const char *base_now(const struct vfm_origin *o, const struct vfm_ckpt *c)
{
	return json_object_get(json_object_get(c->state, "init"), "adapters") && !lora_of(c->state) ? NULL
												    : o->run->init;
}

/* Collective: resumes from a checkpoint.  Returns 1, with the reason in *err, if the checkpoint is damaged. */
static int load_checkpoint(struct vfm_origin *o, const char *path, struct vfm_err *err)
{
	struct vfm_ckpt *c = NULL;
	int rc = vfm_candidate_open(&c, path, err);

	rc = agree_damage(o, rc, rc == VFM_EUSAGE, err);
	if (rc != 0)
		goto out;
	TRY_OUT(vfm_job_agree(o->job, check_identity(o, c, err), err));
	if (o->config->tuning.rank > 0)
		TRY_OUT(load_base(o, c, base_now(o, c), err));
	rc = vfm_state_load(o->tr, c, err);
	rc = agree_damage(o, rc, c->damaged, err);
	if (rc != 0)
		goto out;
	TRY_OUT(vfm_job_agree(o->job, take_encoders(o, c, err), err));
	o->first = c->step;
	o->of_init = json_deep_copy(json_object_get(c->state, "init"));
	o->skipped = json_integer_value(json_object_get(c->state, "skipped"));
	vfm_state_size(o->size, c);
	if (json_object_get(c->state, "updates"))
		o->updates = json_integer_value(json_object_get(c->state, "updates"));
out:
	vfm_ckpt_close(c);
	return rc;
}

/* ---- the configuration of initial weights ---- */

/* Returns --init, or --init-lora, of the run in dir as its run.json records it, which the caller frees; NULL: none. */
static char *read_init_path(const char *dir, bool lora)
{
	char *path = vfm_strfmt("%s/run.json", dir), *init = NULL;
	json_t *was = access(path, F_OK) == 0 ? vfm_json_load(path, 1 << 20, NULL) : NULL;
	const char *text =
		lora ? lora_of(was) : json_string_value(json_object_get(json_object_get(was, "init"), "path"));

	if (text)
		init = vfm_strdup(text);
	json_decref(was);
	free(path);
	return init;
}

static bool began_with_init(const char *dir)
{
	char *init = read_init_path(dir, false);
	bool has = init != NULL;

	free(init);
	return has;
}

/* Sets rank and alpha of the adapters that the run begins with; saved: `from` is a checkpoint of the run. */
static int read_initial_lora(
	struct vfm_config *c, struct vfm_ckpt *from, bool saved, const struct vfm_attach *lora, struct vfm_err *err)
{
	const json_t *was = json_object_get(from->config, "lora");
	const bool silent = vfm_log_thread_silent();
	struct vfm_ckpt *adapters = NULL;
	int rc = 0;

	if (saved && (lora->path || lora_of(from->state))) {
		c->tuning.rank = json_integer_value(json_object_get(was, "rank"));
		c->tuning.alpha = json_number_value(json_object_get(was, "alpha"));
	} else if (!saved && lora->path && vfm_ckpt_is_adapters(from)) {
		rc = vfm_fail(err, VFM_EUSAGE, "--init-lora: %s holds adapters, not their base model", from->path);
	} else if (!saved && lora->path) {
		vfm_log_set_thread_silent(true); /* the start of the run warns */
		rc = vfm_ckpt_open_adapters(&adapters, from, lora, &c->tuning.rank, &c->tuning.alpha, err);
		vfm_log_set_thread_silent(silent);
	}
	vfm_ckpt_close(adapters);
	return rc;
}

int vfm_config_initial(
	struct vfm_config *c, const char *path, const struct vfm_attach *lora, const char *dir, struct vfm_err *err)
{
	/* the objective of the training, and its noise */
	static const char *const keys[] = {"kind", "t_min", "t_max"};
	struct vfm_ckpt *from = NULL;
	struct vfm_config had = *c;
	json_t *json, *diffusion;
	bool saved;
	int rc;

	if (!path && !(dir && began_with_init(dir)))
		return 0;
	if (dir)
		TRY(vfm_candidates_newest(dir, &from, NULL, err));
	if (!from && !path)
		return 0;
	saved = from != NULL;
	if (!from)
		TRY(vfm_ckpt_open(&from, path, err));
	json = json_object();
	if (json_object_get(from->config, "model"))
		json_object_set(json, "model", json_object_get(from->config, "model"));
	diffusion = json_object();
	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
		json_object_set(
			diffusion, keys[i], json_object_get(json_object_get(from->config, "diffusion"), keys[i]));
	json_object_set_new(json, "diffusion", diffusion);
	TRY_OUT(vfm_ckpt_want_model(from, err));
	rc = vfm_config_json(&had, json, err);
	if (rc == 0) {
		c->model = had.model;
		c->diffusion = had.diffusion;
		rc = read_initial_lora(c, from, saved, lora, err);
	} else {
		vfm_err_context(err, "%s: configuration", from->path);
	}
out:
	json_decref(json);
	vfm_ckpt_close(from);
	return rc;
}

/* ---- what there is ---- */

/* RUN/run.json of an earlier start tells whether the run began with other weights than those of the seed. */
static int check_begun(const struct vfm_origin *o, struct vfm_err *err)
{
	char *init = o->run->init ? NULL : read_init_path(o->run->dir, false),
	     *lora = o->run->init_lora ? NULL : read_init_path(o->run->dir, true);
	int rc = 0;

	if (init)
		rc = vfm_fail(err, VFM_EUSAGE,
			"'%s' began with --init '%s' and has no checkpoint yet: give the same --init, or remove "
			"'%s/run.json' to begin with the weights of the seed",
			o->run->dir, init, o->run->dir);
	else if (lora)
		rc = vfm_fail(err, VFM_EUSAGE,
			"'%s' began with --init-lora '%s' and has no checkpoint yet: give it again, or remove "
			"'%s/run.json'",
			o->run->dir, lora, o->run->dir);
	free(init);
	free(lora);
	return rc;
}

/* Collective.  Loads the first candidate that is not damaged.  *from: its path; NULL: there is none. */
static int load_candidate(struct vfm_origin *o, struct vfm_candidates *k, char **from, struct vfm_err *err)
{
	int rc = 1;

	while (rc == 1) {
		const char *next = origin_is_root(o) ? vfm_candidates_next(k) : NULL;

		free(*from);
		*from = next ? vfm_strdup(next) : NULL;
		TRY(vfm_job_broadcast(o->job, from, err));
		rc = *from ? load_checkpoint(o, *from, err) : 0;
		if (rc == 1 && origin_is_root(o))
			vfm_candidates_reject(k, err->msg);
	}
	TRY(rc);
	return vfm_job_agree(o->job, origin_is_root(o) ? vfm_candidates_accept(k, err) : 0, err);
}

int vfm_origin_begin(struct vfm_origin *o, struct vfm_err *err)
{
	struct vfm_candidates k = {0};
	char *from = NULL;
	int rc;

	o->saved = o->updates = -1;
	rc = origin_is_root(o) ? vfm_candidates_list(&k, o->run->dir, o->ckpt_dir, o->run->resume, err) : 0;

	TRY_OUT(vfm_job_agree(o->job, rc, err));
	TRY_OUT(load_candidate(o, &k, &from, err));
	if (from) {
		vfm_info("resuming after step %lld from %s", (long long)o->first, from);
		if (o->run->init && !o->config->tuning.rank)
			vfm_info("--init %s is not read: the run has begun", o->run->init);
		if (vfm_path_is_inside(from, o->ckpt_dir))
			o->saved = o->first;
	} else {
		TRY_OUT(vfm_job_agree(o->job, origin_is_root(o) ? check_begun(o, err) : 0, err));
		if (o->config->tuning.rank > 0 && !o->run->init)
			rc = vfm_fail(err, VFM_EUSAGE, "lora.rank: adapters need a base model (--init)");
		TRY_OUT(rc);
		rc = o->run->init ? init_weights(o, err) : take_encoders(o, NULL, err);
	}
	o->id->init = o->of_init;
	o->id->forced = o->forced;
out:
	vfm_candidates_release(&k);
	free(from);
	return rc;
}

void vfm_origin_release(struct vfm_origin *o)
{
	json_decref(o->of_init);
	json_decref(o->forced);
	o->of_init = o->forced = NULL;
}
