/* sample_net.c - opens one or two checkpoints with adapters, checks them, and loads weights on the mesh. */
#include "train/sample/sample_net.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/num.h"
#include "ckpt/adapters.h"
#include "ckpt/check.h"
#include "comm/coll/comm.h"
#include "data/record/encoder_id.h"
#include "io/json.h"
#include "spec/model/linears.h"
#include "spec/model/model.h"
#include "train/step/state.h"

#define TIME_EPS 1e-6

enum { CONFIG_MAX = 4 << 20 };

/* ---- checkpoints ---- */

/* Reads the configuration of a checkpoint. */
static int read_sample_config(struct vfm_config *c, const struct vfm_ckpt *ckpt, const char *dtype, struct vfm_err *err)
{
	char spec[32];

	TRY(vfm_ckpt_want_model(ckpt, err));
	if (!json_object_get(ckpt->config, "model"))
		return vfm_fail(err, VFM_EUSAGE,
			"'%s' has no configuration of its model; give a checkpoint directory or a run", ckpt->path);
	vfm_config_defaults(c);
	c->train.residual = VFM_F32; /* of weights of other programs, which do not record it */
	TRY(vfm_config_json(c, ckpt->config, err));
	snprintf(spec, sizeof(spec), "train.dtype=%s", dtype);
	TRY(vfm_config_set(c, spec, err));
	/* Of the training precision, only the dtype of the residual stream applies, and only with --dtype bf16. */
	c->train.fp8 = VFM_FP8_NONE;
	c->train.master = VFM_MASTER_F32;
	if (c->train.dtype != VFM_BF16)
		c->train.residual = VFM_F32;
	return vfm_config_check(c, err);
}

/* Returns the part that exists in a checkpoint with this configuration. */
static const char *available_part(const char *part, const struct vfm_config *c)
{
	return !strcmp(part, "ema") && c->train.ema_decay == 0 ? "model" : part;
}

/* Opens the model that the adapters of a checkpoint were trained for.  Rank 0 compares its hash; world NULL:
 * none does. */
static int open_base(struct vfm_ckpt **base, const struct vfm_ckpt *adapters, const char **part,
	const struct vfm_comm *world, struct vfm_err *err)
{
	const json_t *init = json_object_get(adapters->state, "init");
	const char *path = json_string_value(json_object_get(init, "path")),
		   *was = json_string_value(json_object_get(init, "sha256")),
		   *trained = json_string_value(json_object_get(init, "part"));
	char sha[VFM_SHA256_HEX];

	if (!path || !was)
		return vfm_fail(err, VFM_EUSAGE, "%s does not name the base model of its adapters", adapters->path);
	if (vfm_ckpt_open(base, path, err) < 0)
		return vfm_err_context(err, "the base model of %s (if it is elsewhere: --ckpt BASE --lora %s)",
			adapters->path, adapters->path);
	*part = trained ? trained : "model";
	if (!world || world->rank > 0)
		return 0;
	TRY(vfm_ckpt_sha256(*base, sha, err));
	return strcmp(sha, was) == 0 ? 0
				     : vfm_fail(err, VFM_EUSAGE, "%s is not the base model of %s: sha256 %s -> %s",
					       (*base)->path, adapters->path, was, sha);
}

/* Splits PATH[:SCALE]; the caller frees *path. */
static void split_scale(const char *text, char **path, double *scale)
{
	char *colon;

	*path = vfm_strdup(text);
	colon = strrchr(*path, ':');
	if (colon && vfm_parse_f64(colon + 1, scale, NULL) == 0)
		*colon = 0;
	else
		*scale = 1;
}

/* Adds the adapters PATH[:SCALE] to the weights of c. */
static int attach_adapters(
	struct vfm_ckpt *c, const struct vfm_strlist *lora, const char *part, bool skip_missing, struct vfm_err *err)
{
	for (int i = 0; i < lora->n; i++) {
		struct vfm_attach o = {.part = part, .skip_missing = skip_missing};
		char *path;
		int rc;

		split_scale(lora->v[i], &path, &o.scale);
		o.path = path;
		rc = vfm_ckpt_attach(c, &o, err);
		if (rc == 0)
			vfm_info("adapters of %s, scale %g", path, o.scale);
		free(path);
		TRY(rc);
	}
	return 0;
}

/* Opens a network and its base model, if the checkpoint holds adapters.  *c: its configuration. */
static int open_network_weights(struct vfm_sample_weights *w, const char *path, const char *part, const char *dtype,
	struct vfm_config *c, const struct vfm_comm *world, struct vfm_err *err)
{
	TRY(vfm_ckpt_open(&w->ckpt, path, err));
	TRY(read_sample_config(c, w->ckpt, dtype, err));
	w->part = w->own = available_part(part, c);
	if (!vfm_ckpt_is_adapters(w->ckpt))
		return 0;
	TRY(open_base(&w->base, w->ckpt, &w->part, world, err));
	return vfm_ckpt_attach(w->base, &(struct vfm_attach){.path = w->ckpt->path, .part = w->own, .scale = 1}, err);
}

/* Opens network i and adds the adapters of the options. */
static int open_network(struct vfm_sample_net *n, int i, const char *path, struct vfm_config *c,
	const struct vfm_comm *world, struct vfm_err *err)
{
	struct vfm_sample_weights *w = &n->of[i];

	TRY(open_network_weights(w, path, n->o->part, n->o->dtype, c, world, err));
	return attach_adapters(w->base ? w->base : w->ckpt, &n->o->lora[i], w->own, n->o->skip_missing, err);
}

/* Compares the keys of a section of the configurations of two networks, whose paths are `of`; `only` NULL: all keys. */
static int compare_section(const json_t *a, const json_t *b, const char *section, const char *only,
	const char *const of[2], struct vfm_err *err)
{
	const char *key;
	json_t *v;

	json_object_foreach(json_object_get(a, section), key, v)
	{
		json_t *w = json_object_get(json_object_get(b, section), key);
		struct vfm_buf x = {0}, y = {0};

		if (json_equal(v, w) || (only && strcmp(key, only) != 0))
			continue;
		vfm_json_text(&x, v, 0);
		vfm_json_text(&y, w, 0);
		vfm_fail(err, VFM_EUSAGE, "the two networks differ: %s.%s is %s in %s and %s in %s", section, key,
			x.data, of[0], y.data, of[1]);
		vfm_buf_release(&x);
		vfm_buf_release(&y);
		return VFM_EUSAGE;
	}
	return 0;
}

static int compare_network_encoders(const struct vfm_sample_net *n, struct vfm_err *err)
{
	struct vfm_encoder_ids a, b;

	TRY(vfm_state_encoders(&a, n->of[0].ckpt, err));
	TRY(vfm_state_encoders(&b, n->of[1].ckpt, err));
	return vfm_encoder_ids_check(&a, n->of[0].ckpt->path, &b, n->of[1].ckpt->path, err);
}

/* VFM_EUSAGE: the models or kinds of diffusion differ. */
static int compare_networks(
	const struct vfm_config *c, const struct vfm_config *other, const char *const of[2], struct vfm_err *err)
{
	json_t *a = vfm_config_to_json(c), *b = vfm_config_to_json(other);
	int rc = compare_section(a, b, "model", NULL, of, err);

	if (rc == 0)
		rc = compare_section(a, b, "diffusion", "kind", of, err);
	json_decref(a);
	json_decref(b);
	return rc;
}

/* Opens the second network, which must have the model of the first. */
static int open_low_noise(struct vfm_sample_net *n, const struct vfm_comm *world, struct vfm_err *err)
{
	struct vfm_config low;

	TRY(open_network(n, 1, n->o->low_noise, &low, world, err));
	TRY(compare_networks(&n->c, &low, (const char *[]){n->of[0].ckpt->path, n->of[1].ckpt->path}, err));
	return compare_network_encoders(n, err);
}

int vfm_sample_net_pair(const char *run, char **high, char **low, double *boundary, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/high/config.json", run), *other = vfm_strfmt("%s/low/config.json", run);
	json_t *config = NULL;
	int rc = access(path, F_OK) == 0 && access(other, F_OK) == 0;

	if (rc) {
		config = vfm_json_load(path, CONFIG_MAX, err);
		*boundary = 0;
		rc = config
			? vfm_json_f64(json_object_get(config, "experts"), "experts", "boundary", false, boundary, err)
			: err->code;
		if (rc < 0)
			vfm_err_context(err, "'%s'", path);
		else
			rc = *boundary > 0; /* phases may have these names, too */
	}
	if (rc == 1) {
		*high = vfm_strfmt("%s/high", run);
		*low = vfm_strfmt("%s/low", run);
	}
	json_decref(config);
	free(path);
	free(other);
	return rc;
}

static int check_boundary(const struct vfm_sample_net_opts *o, const struct vfm_sampler *s, struct vfm_err *err)
{
	if (!o->low_noise && s->boundary > 0)
		return vfm_fail(err, VFM_EUSAGE, "boundary: it needs a second checkpoint, for low noise");
	if (o->low_noise && !(s->boundary > 0))
		return vfm_fail(err, VFM_EUSAGE, "two networks need a boundary above 0");
	return 0;
}

/* ---- ranges of t ---- */

/* The range of t that the files of a network were trained for, as its checkpoint, base model and adapters record it. */
struct trained_range {
	double t[2];         /* all files; [0, 1] if none records it */
	bool known;          /* a file records it */
	struct vfm_buf text; /* "X was trained for t from 0.875 to 1, Y for t from 0 to 1" */
};

static void add_trained_range(struct trained_range *r, const struct vfm_ckpt *c)
{
	char lo[VFM_REAL_TEXT], hi[VFM_REAL_TEXT];
	double t[2];

	if (!c || !vfm_ckpt_time_range(c, t))
		return;
	vfm_buf_addf(&r->text, "%s%s %sfor t from %s to %s", r->known ? ", " : "", c->path,
		r->known ? "" : "was trained ", vfm_real_text(lo, t[0]), vfm_real_text(hi, t[1]));
	r->known = true;
	r->t[0] = fmax(r->t[0], t[0]);
	r->t[1] = fmin(r->t[1], t[1]);
}

/* The caller releases the text. */
static struct trained_range read_trained_range(const struct vfm_sample_weights *w, const struct vfm_strlist *lora)
{
	const struct vfm_ckpt_how raw = {.raw = true};
	struct trained_range r = {.t = {0, 1}};

	add_trained_range(&r, w->ckpt);
	add_trained_range(&r, w->base);
	for (int i = 0; i < lora->n; i++) {
		struct vfm_ckpt *adapters = NULL;
		char *path;
		double scale;

		split_scale(lora->v[i], &path, &scale);
		if (vfm_ckpt_open_as(&adapters, path, &raw, NULL) == 0) /* not a folder of PEFT */
			add_trained_range(&r, adapters);
		vfm_ckpt_close(adapters);
		free(path);
	}
	if (!r.known)
		vfm_buf_addf(&r.text, "%s does not record its range of t", w->ckpt->path);
	return r;
}

/* Returns whether all files were trained for t from a to b. */
static bool range_covers(const struct trained_range *r, double a, double b)
{
	return r->t[0] <= a + TIME_EPS && r->t[1] >= b - TIME_EPS;
}

/* Each network must have been trained for the t that it computes.  The two ranges must not overlap, unless both are
 * all of t. */
static int check_two_ranges(const struct vfm_sample_net *n, const struct trained_range *high,
	const struct trained_range *low, double boundary, bool root, struct vfm_err *err)
{
	const double *h = high->t, *l = low->t;
	char at[VFM_REAL_TEXT];

	if (range_covers(high, boundary, 1) && range_covers(low, 0, boundary) &&
		(!high->known || !low->known || l[1] <= h[0] + TIME_EPS || (h[0] <= 0 && l[1] >= 1)))
		return 0;
	vfm_real_text(at, boundary);
	if (!n->o->force)
		return vfm_fail(err, VFM_EUSAGE,
			"the two networks do not divide t at the boundary %s: %s; %s (--force samples with them)", at,
			high->text.data, low->text.data);
	if (root)
		vfm_warn("the two networks do not divide t at the boundary %s: %s; %s", at, high->text.data,
			low->text.data);
	return 0;
}

static int check_time_ranges(struct vfm_sample_net *n, const struct vfm_sampler *s, bool root, struct vfm_err *err)
{
	struct trained_range high, low;
	int rc = 0;

	if (n->c.diffusion.kind != VFM_FLOW)
		return 0;
	high = read_trained_range(&n->of[0], &n->o->lora[0]);
	if (n->of[1].ckpt) {
		low = read_trained_range(&n->of[1], &n->o->lora[1]);
		rc = check_two_ranges(n, &high, &low, s->boundary, root, err);
		vfm_buf_release(&low.text);
	} else if (!range_covers(&high, 0, 1) && root) {
		vfm_warn("%s: it is one of two networks (--low-noise)", high.text.data);
	}
	vfm_buf_release(&high.text);
	return rc;
}

/* ---- groups ---- */

/* Sets the parallel layout from `set`.  Ignores the layout of the training. */
static int configure_groups(struct vfm_sample_net *n, const struct vfm_comm *world, struct vfm_err *err)
{
	const int64_t halves = n->o->split_cfg ? 2 : 1;
	const struct vfm_parallel *p = &n->c.parallel;

	TRY(vfm_inference_layout(&n->c, n->o->set.v, n->o->set.n, n->o->split_cfg, world->size, err));
	n->groups = p->dp / halves;
	n->group = world->rank / (p->tp * p->cp * halves);
	n->leader = world->rank % (p->tp * p->cp * halves) == 0;
	return 0;
}

static void log_network(const struct vfm_sample_net *n, const struct vfm_sample_weights *w)
{
	long long params = (long long)vfm_model_params(&n->c.model);
	const struct vfm_ckpt *c = w->ckpt;

	if (c->step < 0) /* weights of another program */
		vfm_info("weights of %s, %lld parameters", c->path, params);
	else
		vfm_info("%s of %s, step %lld, %lld parameters", w->own, c->path, (long long)c->step, params);
}

int vfm_sample_net_open(struct vfm_sample_net *n, const struct vfm_sample_net_opts *o, const struct vfm_sampler *s,
	const struct vfm_comm *world, struct vfm_err *err)
{
	*n = (struct vfm_sample_net){.o = o};
	TRY(check_boundary(o, s, err));
	if (o->split_cfg && !vfm_sampler_is_guided(s))
		return vfm_fail(err, VFM_EUSAGE, "two groups of ranks need guidance, but its scale is 1");
	TRY(open_network(n, 0, o->ckpt, &n->c, world, err));
	TRY(vfm_sampler_check(s, &n->c.diffusion, err));
	if (o->low_noise)
		TRY(open_low_noise(n, world, err));
	TRY(check_time_ranges(n, s, world->rank == 0, err));
	TRY(configure_groups(n, world, err));
	n->inference.stored = o->stored;
	if (o->offload)
		TRY(vfm_inference_parse_offload(&n->inference, o->offload, &n->c.model, err));
	for (int i = 0; i < 2 && n->of[i].ckpt; i++)
		log_network(n, &n->of[i]);
	return 0;
}

/* ---- weights ---- */

/* Collective. */
static int load_network_weights(struct vfm_sample_weights *w, const struct vfm_config *c,
	const struct vfm_inference_opts *o, struct vfm_context *x, struct vfm_err *err)
{
	struct vfm_params *ps = &w->ps;
	struct vfm_ckpt *ckpt = w->base ? w->base : w->ckpt;

	TRY(vfm_job_agree(&x->job, vfm_inference_new(ps, &w->model, c, o, &x->mesh, x->device.stream, err), err));
	TRY(vfm_job_agree(&x->job, vfm_state_load_weights(ps, ckpt, w->part, err), err));
	vfm_params_hold(ps);
	return 0;
}

static void close_weights(struct vfm_sample_weights *w)
{
	vfm_ckpt_close(w->ckpt);
	vfm_ckpt_close(w->base);
	w->ckpt = w->base = NULL;
}

void vfm_sample_weights_release(struct vfm_sample_weights *w)
{
	vfm_model_free(w->model);
	vfm_params_release(&w->ps);
	close_weights(w);
	*w = (struct vfm_sample_weights){0};
}

/* Local.  t: the range that the other network computes. */
static int open_expert(struct vfm_sample_weights *w, const char *path, const struct vfm_config *c, const double t[2],
	const struct vfm_comm *world, struct vfm_err *err)
{
	const struct vfm_strlist none = {0};
	struct trained_range r;
	struct vfm_config other;
	int rc = 0;

	TRY(open_network_weights(w, path, "ema", c->train.dtype == VFM_BF16 ? "bf16" : "fp32", &other, world, err));
	TRY(compare_networks(c, &other, (const char *[]){"this run", w->ckpt->path}, err));
	r = read_trained_range(w, &none);
	if (!range_covers(&r, t[0], t[1]))
		rc = vfm_fail(err, VFM_EUSAGE, "%s, but samples need it for t from %g to %g", r.text.data, t[0], t[1]);
	vfm_buf_release(&r.text);
	return rc;
}

int vfm_sample_weights_load(struct vfm_sample_weights *w, const char *path, const struct vfm_config *c,
	const double t[2], bool loads, struct vfm_context *x, struct vfm_err *err)
{
	*w = (struct vfm_sample_weights){0};
	TRY(vfm_job_agree(&x->job, open_expert(w, path, c, t, loads ? NULL : x->job.world, err), err));
	if (loads)
		TRY(load_network_weights(w, c, &(struct vfm_inference_opts){0}, x, err));
	close_weights(w);
	return 0;
}

/* Makes the communicators of a group whose two halves compute text and negative text.  Collective. */
static int split_guidance(struct vfm_sample_net *n, struct vfm_context *x, struct vfm_err *err)
{
	const struct vfm_comm *seq = x->mesh.seq;
	int half = x->job.world->rank / seq->size % 2;

	TRY(vfm_comm_split(vfm_comm_host(x->mesh.world), (int)n->group, x->mesh.rank, "group", &n->own_together, err));
	n->together = n->own_together;
	return vfm_comm_split(x->mesh.world, (int)n->group * seq->size + seq->rank, half, "cfg", &n->cfg_pair, err);
}

int vfm_sample_net_load(struct vfm_sample_net *n, int64_t tokens, int64_t samples, double beside, struct vfm_context *x,
	struct vfm_err *err)
{
	n->inference.tokens = tokens;
	n->inference.samples = samples;
	n->inference.beside = beside;
	n->inference.networks = n->of[1].ckpt ? 2 : 1;
	TRY(vfm_context_open(x, &n->c, err));
	n->together = vfm_comm_host(x->mesh.seq);
	if (n->o->split_cfg)
		TRY(split_guidance(n, x, err));
	for (int i = 0; i < 2 && n->of[i].ckpt; i++)
		TRY(load_network_weights(&n->of[i], &n->c, &n->inference, x, err));
	for (int i = 0; i < 2; i++)
		close_weights(&n->of[i]);
	return 0;
}

struct vfm_sample_job vfm_sample_net_job(const struct vfm_sample_net *n, const struct vfm_context *x)
{
	return (struct vfm_sample_job){.model = &n->c.model,
		.diffusion = &n->c.diffusion,
		.net = n->of[0].model,
		.mesh = &x->mesh,
		.stream = x->device.stream,
		.dtype = n->of[0].ps.dtype,
		.low_noise = n->of[1].model,
		.cfg_pair = n->cfg_pair};
}

void vfm_sample_net_release(struct vfm_sample_net *n)
{
	for (int i = 0; i < 2; i++)
		vfm_sample_weights_release(&n->of[i]);
	vfm_comm_free(n->cfg_pair);
	vfm_comm_free(n->own_together);
}
