/* identity.c - records plan, encoders and configuration, and compares them when a run resumes. */
#include "train/run/identity.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "ckpt/adapters.h"
#include "train/step/state.h"

static const struct {
	const char *name;
	enum vfm_run_difference change;
} change_names[] = {
	{"model", VFM_CHANGE_MODEL},
	{"diffusion", VFM_CHANGE_DIFFUSION},
	{"schedule", VFM_CHANGE_SCHEDULE},
	{"plan", VFM_CHANGE_PLAN},
	{"encoders", VFM_CHANGE_ENCODERS},
	{"captions", VFM_CHANGE_CAPTIONS},
};
enum { N_CHANGES = sizeof(change_names) / sizeof(change_names[0]) };

int vfm_change_parse(unsigned *changes, const char *list, struct vfm_err *err)
{
	*changes = 0;
	for (const char *p = list; *p;) {
		size_t n = strcspn(p, ",");
		int i = 0;

		while (i < N_CHANGES && (strlen(change_names[i].name) != n || strncmp(change_names[i].name, p, n) != 0))
			i++;
		if (i == N_CHANGES)
			return vfm_fail(err, VFM_EUSAGE,
				"expected a list of model, diffusion, schedule, plan, encoders and captions, got '%s'",
				list);
		*changes |= change_names[i].change;
		p += n + (p[n] == ',');
	}
	return 0;
}

json_t *vfm_identity_json(const struct vfm_identity *id)
{
	json_t *held_out = id->held_out_path
		? json_pack("{s:s,s:s}", "path", id->held_out_path, "sha256", id->held_out_sha256)
		: NULL;

	return json_pack("{s:{s:s,s:s,s:I}, s:o, s:o*, s:O*, s:O*}", "plan", "path", id->plan_path, "sha256",
		id->plan_sha256, "steps", (json_int_t)id->plan_steps, "encoders", vfm_encoder_ids_json(&id->encoders),
		"held_out", held_out, "forced", id->forced, "init", id->init);
}

/* ---- comparing ---- */

struct run_comparison {
	unsigned allowed, refused; /* bits of enum vfm_run_difference */
	struct vfm_buf refusals;   /* their texts, separated by "; " */
};

/* Records a change and frees its text.  change: its kind, 0 if always allowed. */
static void note_change(struct run_comparison *k, unsigned change, char *text)
{
	if (change & ~k->allowed) {
		vfm_buf_addf(&k->refusals, "%s%s", k->refused ? "; " : "", text);
		k->refused |= change;
	} else {
		vfm_info("%s", text);
	}
	free(text);
}

static int end_comparison(
	struct run_comparison *k, const char *verb, const struct vfm_ckpt *c, const char *hint, struct vfm_err *err)
{
	struct vfm_buf names = {0};
	int rc = 0;

	for (int i = 0; i < N_CHANGES; i++)
		if (k->refused & change_names[i].change)
			vfm_buf_addf(&names, "%s%s", names.len ? "," : "", change_names[i].name);
	if (k->refused)
		rc = vfm_fail(err, VFM_EUSAGE, "cannot %s '%s': %s (--allow-change %s accepts this%s%s)", verb, c->path,
			k->refusals.data, names.data,
			k->refused & VFM_CHANGE_MODEL ? " if the tensors keep their shapes" : "", hint);
	vfm_buf_release(&names);
	vfm_buf_release(&k->refusals);
	return rc;
}

/* Returns whether a key affects the learning rate.  These keys are compared by their effect on completed steps. */
static bool is_schedule_key(const char *section, const char *key)
{
	static const char *const keys[] = {"steps", "lr", "min_lr", "warmup_steps", "schedule"};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (!strcmp(section, "train") && !strcmp(key, keys[i]))
			return true;
	return false;
}

/* Changes of the learning rate schedule. */
struct schedule_change {
	bool other_lr; /* the learning rate of a completed step differs */
	int64_t was;   /* steps of the run that wrote the checkpoint */
	bool by_plan;  /* both runs take the number of steps from their plans */
	bool constant; /* constant in both runs: steps and min_lr have no effect */
};

static unsigned change_of_key(const char *section, const char *key, const struct schedule_change *ch)
{
	bool end = !strcmp(key, "steps") || !strcmp(key, "min_lr");

	if (!strcmp(section, "model") || !strcmp(section, "lora") ||
		(!strcmp(section, "train") && !strcmp(key, "freeze")))
		return VFM_CHANGE_MODEL;
	if (!strcmp(section, "diffusion"))
		return VFM_CHANGE_DIFFUSION;
	if (!strcmp(section, "data") && !strcmp(key, "captions"))
		return VFM_CHANGE_CAPTIONS;
	return ch->other_lr && is_schedule_key(section, key) && !(end && ch->constant) ? VFM_CHANGE_SCHEDULE : 0;
}

static void compare_key(struct run_comparison *k, unsigned change, const char *section, const char *key,
	const json_t *was, const json_t *is, bool recorded)
{
	struct vfm_buf a = {0}, b = {0};

	vfm_json_text(&a, was, 0);
	vfm_json_text(&b, is, 0);
	note_change(k, change,
		vfm_strfmt("%s.%s: %s%s -> %s", section, key, a.data, recorded ? "" : " (not recorded)", b.data));
	vfm_buf_release(&a);
	vfm_buf_release(&b);
}

/* Returns the configuration that c records, with the defaults of keys that it lacks; the caller releases it.  A
 * configuration that this program refuses is returned as it is. */
static json_t *read_recorded_config(const struct vfm_ckpt *c)
{
	struct vfm_config old;
	struct vfm_err ignore;

	if (vfm_config_saved(&old, c->config, &ignore) < 0)
		return json_incref((json_t *)(uintptr_t)c->config);
	return vfm_config_to_json(&old);
}

/* `only` NULL: all sections.  Sections that c lacks are not compared. */
static void compare_config(struct run_comparison *k, const struct vfm_identity *id, const struct vfm_ckpt *c,
	const char *only, const struct schedule_change *ch)
{
	json_t *recorded = read_recorded_config(c), *keys, *is;
	const char *section, *key;

	json_object_foreach((json_t *)(uintptr_t)id->config_json, section, keys)
	{
		const json_t *had = json_object_get(c->config, section);

		if ((only && strcmp(only, section) != 0) || !had)
			continue;
		json_object_foreach(keys, key, is)
		{
			const json_t *was = json_object_get(json_object_get(recorded, section), key);

			/* 1 equals 1.0 */
			if (!was || json_equal(was, is) ||
				(json_is_number(was) && json_is_number(is) &&
					json_number_value(was) == json_number_value(is)))
				continue;
			compare_key(k, change_of_key(section, key, ch), section, key, was, is,
				json_object_get(had, key) != NULL);
		}
	}
	json_decref(recorded);
}

/* Reads the learning rate keys of the run that wrote c, as far as c records them. */
static int read_schedule(struct vfm_config *old, const struct vfm_ckpt *c, struct vfm_err *err)
{
	const json_t *train = json_object_get(c->config, "train");
	json_t *mine = json_object(), *section = json_pack("{s:o}", "train", mine);
	const char *key;
	json_t *v;
	int rc;

	json_object_foreach((json_t *)(uintptr_t)train, key, v) if (is_schedule_key("train", key))
		json_object_set(mine, key, v);
	rc = vfm_config_json(old, section, err);
	json_decref(section);
	return rc < 0 ? vfm_err_context(err, "%s: config", c->path) : 0;
}

static int compare_schedule(
	const struct vfm_identity *id, const struct vfm_ckpt *c, struct schedule_change *ch, struct vfm_err *err)
{
	const json_t *plan_steps = json_object_get(json_object_get(c->state, "plan"), "steps");
	struct vfm_config old = *id->config;

	TRY(read_schedule(&old, c, err));
	*ch = (struct schedule_change){.was = old.train.steps};
	ch->constant =
		old.train.schedule == VFM_SCHEDULE_CONSTANT && id->config->train.schedule == VFM_SCHEDULE_CONSTANT;
	ch->by_plan = !old.train.steps && !id->config->train.steps;
	if (!ch->was)
		ch->was = json_is_integer(plan_steps) ? json_integer_value(plan_steps) : id->last;
	for (int64_t s = 0; s < c->step && !ch->other_lr; s++)
		ch->other_lr = vfm_lr_at(&old.train, s, ch->was) != vfm_lr_at(&id->config->train, s, id->last);
	return 0;
}

static void compare_plan(struct run_comparison *k, const struct vfm_identity *id, const struct vfm_ckpt *c)
{
	const json_t *plan = json_object_get(c->state, "plan");
	const char *path = json_string_value(json_object_get(plan, "path")),
		   *sha = json_string_value(json_object_get(plan, "sha256"));

	if (!path || !sha)
		vfm_info("%s does not name its plan: nothing tells whether it was this one", c->path);
	else if (strcmp(sha, id->plan_sha256) != 0)
		note_change(k, VFM_CHANGE_PLAN,
			vfm_strfmt("plan '%s' (sha256 %s) -> '%s' (sha256 %s)", path, sha, id->plan_path,
				id->plan_sha256));
	else if (strcmp(path, id->plan_path) != 0)
		note_change(k, 0, vfm_strfmt("plan '%s' -> '%s', the same content", path, id->plan_path));
}

/* Held-out data does not affect the weights, but its losses can only be compared if it is the same. */
static void compare_held_out(struct run_comparison *k, const struct vfm_identity *id, const struct vfm_ckpt *c)
{
	const json_t *had = json_object_get(c->state, "held_out");
	const char *sha = json_string_value(json_object_get(had, "sha256"));

	if (sha && id->held_out_sha256 && strcmp(sha, id->held_out_sha256) != 0)
		note_change(k, 0,
			vfm_strfmt("held-out plan (sha256 %s) -> '%s' (sha256 %s)", sha, id->held_out_path,
				id->held_out_sha256));
}

static int compare_encoders(
	struct run_comparison *k, const struct vfm_identity *id, const struct vfm_ckpt *c, struct vfm_err *err)
{
	struct vfm_encoder_ids had, have = id->encoders;
	struct vfm_err why;

	TRY(vfm_state_encoders(&had, c, err));
	for (enum vfm_encoder_kind e = 0; e < VFM_ENCODER_KINDS; e++)
		if (vfm_encoder_id_check(e, &had.of[e], "the checkpoint", &have.of[e], "the plan", &why) < 0)
			note_change(k, VFM_CHANGE_ENCODERS, vfm_strdup(why.msg));
	return 0;
}

int vfm_identity_keep_encoders(struct vfm_identity *id, const struct vfm_ckpt *c, struct vfm_err *err)
{
	struct vfm_encoder_ids had;

	TRY(vfm_state_encoders(&had, c, err));
	for (enum vfm_encoder_kind e = 0; e < VFM_ENCODER_KINDS; e++) {
		char label[VFM_ENCODER_ID_LABEL];

		if (id->encoders.of[e].name[0] || !had.of[e].name[0])
			continue;
		vfm_encoder_id_label(&had.of[e], label);
		vfm_info("the plan names no %s: it is taken for that of the checkpoint, '%s'",
			vfm_encoder_kinds[e].name, label);
	}
	vfm_encoder_ids_fill(&id->encoders, &had);
	return 0;
}

int vfm_identity_forced(json_t **forced, const struct vfm_identity *id, const struct vfm_ckpt *c, const json_t *plan,
	struct vfm_err *err)
{
	struct vfm_encoder_ids had = {0}, have = id->encoders;
	json_t *own = json_array();

	*forced = NULL;
	if (c && vfm_state_encoders(&had, c, err) < 0) {
		json_decref(own);
		return VFM_EUSAGE;
	}
	for (enum vfm_encoder_kind e = 0; e < VFM_ENCODER_KINDS; e++)
		if (vfm_encoder_id_compare(&had.of[e], &have.of[e]) == VFM_ENCODER_ID_DIFFERENT)
			json_array_append_new(own, vfm_forced_entry("vfm-train", e, c->path, &had.of[e], &have.of[e]));
	vfm_forced_add(forced, c ? json_object_get(c->state, "forced") : NULL);
	vfm_forced_add(forced, plan);
	vfm_forced_add(forced, own);
	json_decref(own);
	return 0;
}

int vfm_identity_resume(const struct vfm_identity *id, const struct vfm_ckpt *c, unsigned allowed, const char *hint,
	struct vfm_err *err)
{
	struct run_comparison k = {.allowed = allowed};
	struct schedule_change schedule;

	TRY(compare_schedule(id, c, &schedule, err));
	TRY(compare_encoders(&k, id, c, err));
	compare_plan(&k, id, c);
	compare_held_out(&k, id, c);
	compare_config(&k, id, c, NULL, &schedule);
	if (schedule.by_plan && schedule.was != id->last)
		note_change(&k, schedule.other_lr ? VFM_CHANGE_SCHEDULE : 0,
			vfm_strfmt("steps of the plan: %lld -> %lld", (long long)schedule.was, (long long)id->last));
	TRY(end_comparison(&k, "resume from", c, hint, err));
	if (c->step > id->last)
		return vfm_fail(err, VFM_EUSAGE, "%s has done %lld steps already, but train.steps is %lld", c->path,
			(long long)c->step, (long long)id->last);
	return 0;
}

/* Weights that do not name their encoders match every plan.  Files of other programs never name them. */
static int log_unnamed_encoders(const struct vfm_identity *id, const struct vfm_ckpt *c, struct vfm_err *err)
{
	struct vfm_encoder_ids had, have = id->encoders;
	struct vfm_buf names = {0};

	if (c->plain)
		return 0;
	TRY(vfm_state_encoders(&had, c, err));
	for (enum vfm_encoder_kind e = 0; e < VFM_ENCODER_KINDS; e++)
		if (have.of[e].name[0] && !had.of[e].name[0])
			vfm_buf_addf(&names, "%s%s", names.len ? ", " : "", vfm_encoder_kinds[e].name);
	if (names.len)
		vfm_info("%s does not name the encoders of its data (%s): not compared with those of the plan", c->path,
			names.data);
	vfm_buf_release(&names);
	return 0;
}

int vfm_identity_init(const struct vfm_identity *id, const struct vfm_ckpt *c, unsigned allowed, struct vfm_err *err)
{
	struct run_comparison k = {.allowed = allowed};

	TRY(compare_encoders(&k, id, c, err));
	TRY(log_unnamed_encoders(id, c, err));
	compare_config(&k, id, c, "model", &(struct schedule_change){0});
	if (vfm_ckpt_is_adapters(c))
		compare_config(&k, id, c, "lora", &(struct schedule_change){0});
	return end_comparison(&k, "take the weights of", c, "", err);
}
