/* config.c - the table of configuration keys; parses, prints and checks values, and the learning rate. */
#include "train/job/config.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/near.h"
#include "base/num.h"
#include "data/record/caption.h"
#include "io/document.h"
#include "spec/cost/saved.h"

static const char *const kind_names[] = {"edm", "flow", NULL};
static const char *const dist_names[] = {"logit_normal", "uniform", "mode", NULL}; /* enum vfm_time_dist */
static const char *const weighting_names[] = {
	"none", "min_snr", "cosmap", "sigma_sqrt", "bell", NULL}; /* in the order of enum vfm_weighting */
static const char *const schedule_names[] = {"constant", "cosine", "linear", NULL};
static const char *const recompute_names[] = {
	"none", "selective", "full", "light", "outputs", "auto", NULL}; /* in the order of enum vfm_recompute */
static const char *const dtype_names[] = {"fp32", "bf16", NULL};
static const int dtype_values[] = {VFM_F32, VFM_BF16};
static const char *const moments_names[] = {"fp32", "bf16", "int8", NULL};
static const int moments_values[] = {VFM_F32, VFM_BF16, VFM_U8};
static const char *const residual_names[] = {"auto", "fp32", "bf16", NULL};
static const int residual_values[] = {VFM_RESIDUAL_AUTO, VFM_F32, VFM_BF16};
static const char *const fp8_names[] = {"none", "current", "delayed", NULL};
static const char *const master_names[] = {"fp32", "split", NULL};
static const char *const offload_names[] = {"none", "optimizer", "activations", "both", NULL};

static const char *const idle_names[] = {"host", "device", NULL};
static const char *const graphs_names[] = {"off", "on", "auto", NULL};
static const char *const overlap_names[] = {"auto", "on", "off", NULL};

#define OFF(f) offsetof(struct vfm_config, f)
#define BIG    9e15

/* Rows of the tables below, for keys that are named like their field. */
#define KEY(f, t, lo, hi, names_, values_, text)                                                                       \
	{                                                                                                              \
		.path = #f, .type = t, .off = OFF(f), .min = lo, .max = hi, .names = names_, .values = values_,        \
		.help = text                                                                                           \
	}
#define INT(f, min, max, help)       KEY(f, VFM_KEY_INT, min, max, NULL, NULL, help)
#define NUM(f, min, max, help)       KEY(f, VFM_KEY_NUM, min, max, NULL, NULL, help)
#define ENUM(f, names, values, help) KEY(f, VFM_KEY_ENUM, 0, 0, names, values, help)

/* Sections "diffusion" and "data". */
static const struct vfm_key data_keys[] = {
	ENUM(diffusion.kind, kind_names, NULL, "formulation"),
	NUM(diffusion.p_mean, -20, 20, "edm: mean of ln sigma"),
	NUM(diffusion.p_std, 0, 20, "edm: standard deviation of ln sigma"),
	NUM(diffusion.sigma_data, 1e-3, 1e3, "edm: standard deviation of the latents"),
	ENUM(diffusion.t_dist, dist_names, NULL, "flow: distribution of t"),
	NUM(diffusion.t_mean, -20, 20, "flow: mean of logit(t)"),
	NUM(diffusion.t_std, 0, 20, "flow: standard deviation of logit(t)"),
	NUM(diffusion.mode_scale, -1, VFM_MODE_SCALE_MAX, "scale of t_dist=mode"),
	NUM(diffusion.shift, 1e-3, 1e3, "flow: shift of t towards noise"),
	INT(diffusion.shift_tokens, 0, 1e9, "flow: tokens of a sample that diffusion.shift is for; 0: any"),
	NUM(diffusion.t_min, 0, 1, "flow: smallest t after the shift"),
	NUM(diffusion.t_max, 0, 1, "flow: largest t after the shift"),
	ENUM(diffusion.weighting, weighting_names, NULL, "weight of a sample's loss as a function of its noise"),
	NUM(diffusion.snr_gamma, 1e-6, 1e6, "weighting=min_snr: the largest weight of an error of x0"),
	NUM(diffusion.text_drop, 0, 1, "probability that a sample's text is dropped"),
	NUM(diffusion.image_cond, 0, 1,
		"flow: probability that the first latent frames of a video are given (image to video)"),
	INT(diffusion.given_max, 1, 1024, "most latent frames that are given; their number is uniform in 1 to this"),
	NUM(diffusion.image_drop, 0, 1, "probability that a sample's image condition is dropped"),
	NUM(diffusion.guidance, 0, 1000, "guidance scale that a distilled network reads (model.guidance_dim)"),
	INT(data.threads, 1, 256, "threads that read samples"),
	INT(data.prefetch, 1, 4096, "packs read ahead"),
	NUM(data.max_damaged, 0, 1, "share of damaged samples that other samples may replace; 0: none"),
	{"data.captions", VFM_KEY_WEIGHTS, OFF(data.captions), 0, 1e9, NULL, NULL,
		"weights of a sample's captions, as short:1,long:3; none: all are equally likely"},
};
static const int n_data_keys = sizeof(data_keys) / sizeof(data_keys[0]);

/* Sections "lora", "train", "experts", "eval" and "ckpt". */
static const struct vfm_key train_keys[] = {
	{"lora.rank", VFM_KEY_INT, OFF(tuning.rank), 0, 4096, NULL, NULL,
		"rank of the low-rank adapters that are trained instead of the model; 0: none"},
	{"lora.alpha", VFM_KEY_NUM, OFF(tuning.alpha), 0, 1e6, NULL, NULL,
		"adapters are multiplied by alpha / rank; 0: by 1"},
	{"lora.targets", VFM_KEY_PATTERNS, OFF(tuning.targets), 0, 0, NULL, NULL,
		"patterns of the linear layers that have adapters"},
	INT(train.steps, 0, 1e12, "optimizer steps; 0: as many as the plan has"),
	NUM(train.lr, 0, 10, "peak learning rate"),
	NUM(train.min_lr, 0, 10, "learning rate at the end of cosine and linear"),
	INT(train.warmup_steps, 0, 1e9, "steps of linear warm-up"),
	ENUM(train.schedule, schedule_names, NULL, "learning rate after the warm-up"),
	NUM(train.beta1, 0, 0.999999, "AdamW"),
	NUM(train.beta2, 0, 0.999999, "AdamW"),
	NUM(train.eps, 1e-20, 1, "AdamW"),
	NUM(train.weight_decay, 0, 10, "AdamW, matrices only"),
	NUM(train.clip_norm, 0, 1e9, "largest norm of the gradient; 0: no clipping"),
	NUM(train.ema_decay, 0, 0.9999999, "moving average of the weights; 0: none"),
	{"train.freeze", VFM_KEY_PATTERNS, OFF(tuning.freeze), 0, 0, NULL, NULL,
		"patterns of parameters that are not trained; none: all are trained or, with lora.rank, no one"},
	{"train.frozen_dtype", VFM_KEY_ENUM, OFF(tuning.frozen_dtype), 0, 0, vfm_frozen_names, NULL,
		"dtype in which frozen matrices of blocks are stored; same: train.dtype"},
	ENUM(train.dtype, dtype_names, dtype_values, "dtype of matrices and activations; masters are fp32"),
	ENUM(train.residual, residual_names, residual_values,
		"dtype of the residual stream and its gradient; auto: that of train.dtype"),
	ENUM(train.fp8, fp8_names, NULL,
		"fp8 products in the linear layers of blocks: none, or how tensors are scaled"),
	INT(train.fp8_history, 1, 4096, "steps that determine the scales of train.fp8=delayed"),
	ENUM(train.master, master_names, NULL, "format of master weights"),
	ENUM(train.moments, moments_names, moments_values,
		"AdamW's moments: fp32, the first ones bf16, or both as 8-bit floats in blocks"),
	ENUM(train.offload, offload_names, NULL, "state in pinned host memory instead of device memory"),
	{"train.offload_weights", VFM_KEY_AUTO, OFF(train.offload_weights), 0, 1024, NULL, NULL,
		"blocks whose frozen weights are in host memory, spread evenly; auto: as many as memory requires"},
	ENUM(train.recompute, recompute_names, NULL, "operations that the backward recomputes"),
	INT(train.recompute_blocks, 0, 1 << 20, "blocks of the model that this goes for, spread evenly; 0: all"),
	NUM(train.memory_gib, 0, 1e6,
		"memory of a rank's device that train.recompute=auto may fill; 0: most of the device"),
	NUM(train.host_gib, 0, 1e6,
		"pinned host memory of a rank for offloaded activations and weights; 0: most of its share"),
	INT(train.skip_nonfinite, 0, 1e12, "steps that the run may skip because loss or gradient is not finite"),
	{"train.deterministic", VFM_KEY_BOOL, OFF(train.deterministic), 0, 0, NULL, NULL,
		"the same bits from every run, whatever is faster"},
	ENUM(train.graphs, graphs_names, NULL,
		"forward and backward of a pack launched as one graph, where the device can"),
	ENUM(train.overlap_update, overlap_names, NULL,
		"updates of weights that overlap the next forward, where the device can"),
	{"train.seed", VFM_KEY_SEED, OFF(train.seed), 0, BIG, NULL, NULL,
		"of weights, noise, times, dropping of texts and images, and captions"},
	NUM(experts.boundary, 0, 1, "of --low-noise: the t that divides the networks; 0: that of --init"),
	INT(experts.turn, 1, 1e9, "steps of the plan that train one network in a row"),
	INT(experts.turn_packs, 0, 1e9, "the same in packs, so that a step may train both networks; 0: experts.turn"),
	ENUM(experts.idle, idle_names, NULL, "memory that holds the other network meanwhile"),
	NUM(experts.low_lr, 0, 10, "peak learning rate of the low-noise network; 0: train.lr"),
	INT(eval.every, 0, 1e12, "steps between evaluations of --held-out; 0: only at the end"),
	INT(eval.times, 1, VFM_EVAL_TIMES_MAX, "noise levels of an evaluation"),
	INT(eval.samples, 0, 99, "samples to generate with texts and sizes of --held-out; 0: none"),
	INT(eval.sample_every, 0, 1e12, "steps between samples, of --prompts and eval.samples; 0: eval.every"),
	INT(eval.sample_steps, 1, 1000, "steps of the sampler"),
	NUM(eval.sample_cfg, 0, 100, "guidance scale of these samples; 1: none"),
	NUM(eval.sample_guidance, 0, 1000, "guidance scale that a distilled network reads for them"),
	INT(ckpt.every, 0, 1e12, "steps between checkpoints; 0: only at the end"),
	INT(ckpt.keep, 0, 1e9, "newest checkpoints that stay; 0: all"),
	INT(ckpt.keep_every, 0, 1e12, "checkpoints at multiples of this stay for good; 0: none"),
};
static const int n_train_keys = sizeof(train_keys) / sizeof(train_keys[0]);

/* All keys, in the order of vfm-config(5). */
static const struct {
	const struct vfm_key *key;
	const int *n;
	size_t off; /* of the struct that the offsets of these keys refer to */
} key_tables[] = {
	{vfm_model_keys, &vfm_model_n_keys, OFF(model)},
	{data_keys, &n_data_keys, 0},
	{vfm_parallel_keys, &vfm_parallel_n_keys, OFF(parallel)},
	{train_keys, &n_train_keys, 0},
};

static int count_keys(void)
{
	int n = 0;

	for (size_t i = 0; i < sizeof(key_tables) / sizeof(key_tables[0]); i++)
		n += *key_tables[i].n;
	return n;
}

static const struct vfm_key *key_at(int i)
{
	size_t t = 0;

	for (; i >= *key_tables[t].n; t++)
		i -= *key_tables[t].n;
	return &key_tables[t].key[i];
}

/* Returns the struct that a key's offset refers to. */
static void *section_base(struct vfm_config *c, const struct vfm_key *k)
{
	for (size_t t = 0;; t++)
		for (int i = 0; i < *key_tables[t].n; i++)
			if (k == &key_tables[t].key[i])
				return (char *)c + key_tables[t].off;
}

void vfm_config_defaults(struct vfm_config *c)
{
	*c = (struct vfm_config){0};
	vfm_model_defaults(&c->model);
	vfm_diffusion_defaults(&c->diffusion);
	vfm_parallel_defaults(&c->parallel);
	vfm_tuning_defaults(&c->tuning);
	c->train = (struct vfm_train_config){.lr = 1e-4,
		.min_lr = 0,
		.warmup_steps = 100,
		.schedule = VFM_SCHEDULE_CONSTANT,
		.beta1 = 0.9,
		.beta2 = 0.95,
		.eps = 1e-8,
		.weight_decay = 0.01,
		.clip_norm = 1.0,
		.ema_decay = 0.9999,
		.dtype = VFM_F32,
		.recompute = VFM_RECOMPUTE_AUTO,
		.residual = VFM_RESIDUAL_AUTO,
		.fp8_history = 16,
		.graphs = VFM_GRAPHS_AUTO};
	c->data.threads = 1;
	c->data.prefetch = 4;
	c->data.max_damaged = 0.01;
	c->experts.turn = 1;
	c->eval.every = 1000;
	c->eval.times = 4;
	c->eval.sample_steps = 20;
	c->eval.sample_cfg = 4;
	c->eval.sample_guidance = 6;
	c->ckpt.every = 1000;
	c->ckpt.keep = 2;
}

/* ---- one value ---- */

static int add_weight(
	const struct vfm_key *k, struct vfm_name_weights *w, const char *name, double weight, struct vfm_err *err)
{
	int at = w->n;

	if (!vfm_caption_name_ok(name))
		return vfm_fail(err, VFM_EUSAGE, "%s: '%.80s' is no name of a caption", k->path, name);
	if (!(weight >= k->min && weight <= k->max))
		return vfm_fail(
			err, VFM_EUSAGE, "%s: %s: expected a weight of %g to %g", k->path, name, k->min, k->max);
	if (w->n == VFM_WEIGHTS_MAX)
		return vfm_fail(err, VFM_EUSAGE, "%s: more than %d names", k->path, VFM_WEIGHTS_MAX);
	for (int i = 0; i < w->n; i++)
		if (!strcmp(w->list[i].name, name))
			return vfm_fail(err, VFM_EUSAGE, "%s: '%s' occurs twice", k->path, name);
	for (; at > 0 && strcmp(w->list[at - 1].name, name) > 0; at--)
		w->list[at] = w->list[at - 1];
	strcpy(w->list[at].name, name);
	w->list[at].weight = weight;
	w->n++;
	return 0;
}

/* "short:1,long:3" */
static int parse_weights(const struct vfm_key *k, const char *text, struct vfm_name_weights *w, struct vfm_err *err)
{
	char *copy = vfm_strdup(text), *save = NULL;
	int rc = 0;

	for (char *p = strtok_r(copy, ",", &save); p && rc == 0; p = strtok_r(NULL, ",", &save)) {
		char *colon = strchr(p, ':'), *end = NULL;
		double weight = colon ? strtod(colon + 1, &end) : 0;

		if (!colon || end == colon + 1 || *end) {
			rc = vfm_fail(err, VFM_EUSAGE, "%s: expected NAME:WEIGHT, got '%s'", k->path, p);
			break;
		}
		*colon = 0;
		rc = add_weight(k, w, p, weight, err);
	}
	free(copy);
	return rc;
}

/* Sets *out from "short:1,long:3" or {"short":1,"long":3}. */
static int set_key_weights(const struct vfm_key *k, const json_t *v, struct vfm_name_weights *out, struct vfm_err *err)
{
	struct vfm_name_weights w = {0};
	double sum = 0;
	const char *name;
	json_t *weight;

	if (json_is_string(v)) {
		TRY(parse_weights(k, json_string_value(v), &w, err));
	} else if (json_is_object(v)) {
		json_object_foreach((json_t *)v, name, weight)
			TRY(add_weight(k, &w, name, json_is_number(weight) ? json_number_value(weight) : NAN, err));
	} else {
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object of weights, or NAME:WEIGHT,...", k->path);
	}
	for (int i = 0; i < w.n; i++)
		sum += w.list[i].weight;
	if (w.n && sum == 0)
		return vfm_fail(err, VFM_EUSAGE, "%s: all weights are 0", k->path);
	*out = w;
	return 0;
}

static int set_key(struct vfm_config *c, const struct vfm_key *k, const json_t *v, struct vfm_err *err)
{
	void *base = section_base(c, k);

	return k->type == VFM_KEY_WEIGHTS ? set_key_weights(k, v, (void *)((char *)base + k->off), err)
					  : vfm_key_set(base, k, v, err);
}

/* ---- documents ---- */

static int unknown_key(const char *path, struct vfm_err *err)
{
	const char **all = vfm_calloc((size_t)count_keys() + 1, sizeof(*all)), *near = NULL;

	for (int i = 0; i < count_keys(); i++) {
		const char *dot = strchr(key_at(i)->path, '.');

		all[i] = key_at(i)->path;
		if (dot && !near && !strcmp(dot + 1, path)) /* "rank", without its section */
			near = all[i];
	}
	near = near ? near : vfm_near(path, all);
	free(all);
	return vfm_fail(err, VFM_EUSAGE, "unknown key '%s'%s%s%s", path, near ? " (did you mean '" : "",
		near ? near : "", near ? "'?)" : "");
}

static int set_path(struct vfm_config *c, const char *path, const json_t *v, struct vfm_err *err)
{
	if (!strcmp(path, "model.preset")) {
		if (!json_is_string(v))
			return vfm_fail(err, VFM_EUSAGE, "model.preset: expected a string");
		return vfm_model_preset(json_string_value(v), &c->model, err) < 0 ? vfm_err_context(err, "model.preset")
										  : 0;
	}
	for (int i = 0; i < count_keys(); i++)
		if (!strcmp(key_at(i)->path, path))
			return set_key(c, key_at(i), v, err);
	return unknown_key(path, err);
}

int vfm_config_json(struct vfm_config *c, const json_t *obj, struct vfm_err *err)
{
	const char *section, *name;
	json_t *sub, *v;
	char path[128];

	if (!json_is_object(obj))
		return vfm_fail(err, VFM_EUSAGE, "expected a JSON object");
	/* Apply the preset first: the other keys override it. */
	v = json_object_get(json_object_get(obj, "model"), "preset");
	if (v)
		TRY(set_path(c, "model.preset", v, err));
	json_object_foreach((json_t *)obj, section, sub)
	{
		if (!json_is_object(sub))
			return vfm_fail(err, VFM_EUSAGE, "%s: expected an object (a section)%s", section,
				strchr(section, '.') ? "; a key is within its section: {\"train\": {\"lr\": 1e-4}}"
						     : "");
		json_object_foreach(sub, name, v)
		{
			snprintf(path, sizeof(path), "%s.%s", section, name);
			if (strcmp(path, "model.preset") != 0)
				TRY(set_path(c, path, v, err));
		}
	}
	return 0;
}

int vfm_config_saved(struct vfm_config *c, const json_t *obj, struct vfm_err *err)
{
	vfm_config_defaults(c);
	TRY(vfm_config_json(c, obj, err));
	return vfm_config_check(c, err);
}

int vfm_config_phase(
	struct vfm_config *c, const json_t *document, const struct vfm_phases *l, int k, struct vfm_err *err)
{
	json_t *stages = json_object_get(document, "stages"), *rest, *v;
	const char *name;
	int rc = 0;

	if (stages && !l->n)
		rc = vfm_fail(err, VFM_EUSAGE, "stages: only with vfm-train --phases");
	else if (stages && !json_is_object(stages))
		rc = vfm_fail(err, VFM_EUSAGE, "stages: expected an object of configurations by name");
	TRY(rc);
	rest = json_copy((json_t *)document); /* shallow */
	json_object_del(rest, "stages");
	rc = vfm_config_json(c, rest, err);
	json_decref(rest);
	TRY(rc);
	json_object_foreach(stages, name, v)
	{
		int at = vfm_phases_find(l, name, strlen(name));

		if (at < 0)
			rc = vfm_fail(err, VFM_EUSAGE, "stages: there is no phase '%s'", name);
		else if (at == k && vfm_config_json(c, v, err) < 0)
			rc = vfm_err_context(err, "stages: %s", name);
		TRY(rc);
	}
	return 0;
}

json_t *vfm_config_load(const char *path, struct vfm_err *err)
{
	return vfm_document_load(path, 1 << 20, err);
}

int vfm_config_set(struct vfm_config *c, const char *assignment, struct vfm_err *err)
{
	const char *eq = strchr(assignment, '=');
	json_t *v;
	char path[128];
	int rc;

	if (!eq || eq == assignment || (size_t)(eq - assignment) >= sizeof(path))
		return vfm_fail(err, VFM_EUSAGE, "--set '%s': expected key=value", assignment);
	memcpy(path, assignment, (size_t)(eq - assignment));
	path[eq - assignment] = '\0';
	v = json_loads(eq + 1, JSON_DECODE_ANY, NULL);
	if (!v)
		v = json_string(eq + 1); /* a bare word */
	if (!v)
		return vfm_fail(err, VFM_EUSAGE, "--set %s: the value is not UTF-8", path);
	rc = set_path(c, path, v, err);
	json_decref(v);
	return rc < 0 ? vfm_err_context(err, "--set") : 0;
}

/* Checks the keys for frozen weights. */
static int check_frozen(const struct vfm_config *c, struct vfm_err *err)
{
	int64_t n = c->train.offload_weights;

	if (!c->tuning.rank && !c->tuning.freeze.text[0]) {
		if (c->tuning.frozen_dtype != VFM_FROZEN_SAME)
			return vfm_fail(err, VFM_EUSAGE,
				"train.frozen_dtype: %s is for frozen weights, and without lora.rank or train.freeze "
				"all are trained",
				vfm_frozen_names[c->tuning.frozen_dtype]);
		if (n)
			return vfm_fail(err, VFM_EUSAGE,
				"train.offload_weights: it is for frozen weights, and without lora.rank or "
				"train.freeze all are trained");
	}
	/* Decoded weights encode to other values of these dtypes, so a run could not resume from its checkpoint. */
	if (c->tuning.frozen_dtype > VFM_FROZEN_FP8 && !c->tuning.rank)
		return vfm_fail(err, VFM_EUSAGE,
			"train.frozen_dtype: %s needs lora.rank, whose checkpoints do not contain the frozen weights",
			vfm_frozen_names[c->tuning.frozen_dtype]);
	if (n > c->model.layers)
		return vfm_fail(err, VFM_EUSAGE, "train.offload_weights: the model has %lld blocks, not %lld",
			(long long)c->model.layers, (long long)n);
	if (n < 0 && c->train.recompute != VFM_RECOMPUTE_AUTO)
		return vfm_fail(err, VFM_EUSAGE,
			"train.offload_weights: auto needs train.recompute=auto, which plans the memory");
	return 0;
}

int vfm_config_check(struct vfm_config *c, struct vfm_err *err)
{
	TRY(vfm_model_check(&c->model, err));
	TRY(vfm_diffusion_check(&c->diffusion, err));
	vfm_diffusion_follow(&c->diffusion, &c->model);
	if (c->diffusion.image_cond > 0 && !vfm_model_takes_given(&c->model))
		return vfm_fail(err, VFM_EUSAGE,
			"diffusion.image_cond: the model reads no mask of given frames (model.mask_channels is 1)");
	if (c->diffusion.text_drop > 0 && !vfm_model_reads_text(&c->model))
		c->diffusion.text_drop = 0; /* the model has no text input */
	if (c->diffusion.guidance != 1 && !c->model.guidance_dim)
		return vfm_fail(err, VFM_EUSAGE,
			"diffusion.guidance: the network reads no guidance scale (model.guidance_dim is 0)");
	if (c->diffusion.image_drop > 0 && !c->model.cond_channels && !c->model.image_dim &&
		c->diffusion.image_cond == 0)
		return vfm_fail(err, VFM_EUSAGE,
			"diffusion.image_drop: the model has no image condition (model.cond_channels, model.image_dim, "
			"diffusion.image_cond)");
	TRY(check_frozen(c, err));
	if (c->train.fp8 != VFM_FP8_NONE && c->train.dtype != VFM_BF16)
		return vfm_fail(err, VFM_EUSAGE, "train.fp8: it needs train.dtype=bf16");
	if (c->train.master == VFM_MASTER_SPLIT && c->train.dtype != VFM_BF16)
		return vfm_fail(err, VFM_EUSAGE, "train.master: split needs train.dtype=bf16");
	if (c->train.residual == VFM_RESIDUAL_AUTO)
		c->train.residual = c->train.dtype;
	if (c->train.residual == VFM_BF16 && c->train.dtype != VFM_BF16)
		return vfm_fail(err, VFM_EUSAGE, "train.residual: bf16 needs train.dtype=bf16");
	if (c->train.moments == VFM_BF16 && c->train.beta1 > 0.99)
		return vfm_fail(err, VFM_EUSAGE,
			"train.beta1: moments in bf16 cannot follow a step with %g; 0.99 is the most", c->train.beta1);
	if ((c->train.offload & VFM_OFFLOAD_ACTIVATIONS) && c->train.recompute == VFM_RECOMPUTE_NONE)
		return vfm_fail(err, VFM_EUSAGE,
			"train.offload: activations needs train.recompute=auto, light, outputs, selective or full, "
			"which choose what a block keeps; it is none");
	if (c->train.recompute == VFM_RECOMPUTE_AUTO && c->train.recompute_blocks)
		return vfm_fail(
			err, VFM_EUSAGE, "train.recompute_blocks: train.recompute=auto chooses the blocks itself");
	if (c->train.recompute != VFM_RECOMPUTE_AUTO && c->train.memory_gib > 0)
		return vfm_fail(err, VFM_EUSAGE, "train.memory_gib: only train.recompute=auto uses it");
	if ((c->train.recompute != VFM_RECOMPUTE_AUTO || !(c->train.offload & VFM_OFFLOAD_ACTIVATIONS)) &&
		!c->train.offload_weights && c->train.host_gib > 0)
		return vfm_fail(err, VFM_EUSAGE,
			"train.host_gib: only train.offload_weights, and train.recompute=auto with "
			"train.offload=activations or both, use it");
	if (c->train.overlap_update == VFM_OVERLAP_ON && c->train.deterministic)
		return vfm_fail(err, VFM_EUSAGE,
			"train.overlap_update: on changes how products are computed, which train.deterministic "
			"forbids");
	if (c->train.min_lr > c->train.lr)
		return vfm_fail(
			err, VFM_EUSAGE, "train.min_lr: %g is more than train.lr %g", c->train.min_lr, c->train.lr);
	return 0;
}

static json_t *weights_json(const struct vfm_name_weights *w)
{
	json_t *o = json_object();

	for (int i = 0; i < w->n; i++)
		json_object_set_new(o, w->list[i].name, vfm_json_real(w->list[i].weight));
	return o;
}

static json_t *value_json(const struct vfm_config *c, const struct vfm_key *k)
{
	const void *base = section_base((struct vfm_config *)c, k);

	return k->type == VFM_KEY_WEIGHTS ? weights_json((const void *)((const char *)base + k->off))
					  : vfm_key_json(base, k);
}

json_t *vfm_config_to_json(const struct vfm_config *c)
{
	json_t *root = json_object();

	for (int i = 0; i < count_keys(); i++) {
		const struct vfm_key *k = key_at(i);
		const char *dot = strchr(k->path, '.');
		char section[32];
		json_t *sub;

		snprintf(section, sizeof(section), "%.*s", (int)(dot - k->path), k->path);
		sub = json_object_get(root, section);
		if (!sub) {
			sub = json_object();
			json_object_set_new(root, section, sub);
		}
		json_object_set_new(sub, dot + 1, value_json(c, k));
	}
	return root;
}

void vfm_config_describe(struct vfm_buf *out)
{
	struct vfm_config c;

	vfm_config_defaults(&c);
	for (int i = 0; i < count_keys(); i++) {
		const struct vfm_key *k = key_at(i);
		json_t *v = value_json(&c, k);
		char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));

		vfm_buf_addf(out, "%-22s %-10s %s", k->path, text ? text : "", k->help);
		for (int j = 0; k->names && k->names[j]; j++)
			vfm_buf_addf(out, "%s%s", j ? "|" : " (", k->names[j]);
		vfm_buf_adds(out, k->names ? ")\n" : "\n");
		free(text);
		json_decref(v);
	}
}

double vfm_lr_at(const struct vfm_train_config *t, int64_t step, int64_t steps)
{
	double x;

	if (step < t->warmup_steps)
		return t->lr * (double)(step + 1) / (double)t->warmup_steps;
	if (t->schedule == VFM_SCHEDULE_CONSTANT || steps <= t->warmup_steps)
		return t->lr;
	x = (double)(step - t->warmup_steps) / (double)(steps - t->warmup_steps);
	if (x > 1)
		x = 1;
	if (t->schedule == VFM_SCHEDULE_LINEAR)
		return t->lr + (t->min_lr - t->lr) * x;
	return t->min_lr + 0.5 * (t->lr - t->min_lr) * (1 + cos(M_PI * x));
}
