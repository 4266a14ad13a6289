/* parity.c - writes weights, input, predictions and gradients of a step to .safetensors files. */
#include "train/predict/parity.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/safetensors.h"
#include "io/file.h"
#include "net/diffusion/diffusion.h"
#include "net/diffusion/model.h"
#include "net/nn/param.h"
#include "net/tape/tape.h"
#include "train/step/micro.h"
#include "train/step/state.h"
#include "train/step/synthetic.h"
#include "train/step/trainer.h"

enum { PACKS = 2, SAMPLES = 3, STEP = 3 };

/* Covers images, videos, a sample without text, and an id above INT64_MAX. */
static const struct vfm_synthetic samples[PACKS][SAMPLES] = {
	{{{2, 4, 4}, 7, 0xfedcba9876543210u}, {{1, 3, 5}, 2, 12}, {{3, 2, 2}, 5, 13}},
	{{{1, 4, 6}, 1, 21}, {{4, 2, 3}, 0, 22}, {{1, 1, 1}, 9, 23}},
};

/* ---- files ---- */

struct dump { /* tensors of one file; borrows their values */
	struct vfm_st_tensor *t;
	size_t n, cap;
	struct vfm_arena names;
};

static void add_dump_tensor(
	struct dump *d, const char *name, enum vfm_dtype dt, const void *values, int ndim, const int64_t *shape)
{
	struct vfm_st_tensor t = {
		.name = vfm_arena_strdup(&d->names, name), .dtype = dt, .ndim = ndim, .source = values};

	memcpy(t.shape, shape, (size_t)ndim * sizeof(*shape));
	vfm_grow(&d->t, &d->cap, d->n + 1, sizeof(*d->t));
	d->t[d->n++] = t;
}

static int put_dumped(void *path, const struct vfm_st_tensor *t, FILE *f, struct vfm_err *err)
{
	return vfm_st_put_bytes(path, t->source, (size_t)(t->end - t->begin), f, err);
}

static int dump_write(struct dump *d, const char *dir, const char *name, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/%s", dir, name);
	int rc = vfm_st_write(path, d->t, d->n, NULL, 0, put_dumped, path, err);

	free(path);
	free(d->t);
	vfm_arena_release(&d->names);
	*d = (struct dump){0};
	return rc;
}

/* Writes all parameters, or their gradients if `grads`. */
static int write_params(struct vfm_params *ps, bool grads, const char *dir, const char *name, struct vfm_err *err)
{
	struct vfm_dev *dev = ps->stream->dev;
	size_t bytes = (size_t)ps->n_flat * sizeof(float);
	float *host = dev->t->alloc_host(dev, bytes, "a copy of the parameters", err);
	struct dump d = {0};
	int rc = 0;

	if (!host)
		return VFM_EENV;
	if (grads) /* of frozen parameters, whose places come last, there are none */
		TRY_OUT(dev->t->to_host(ps->stream, host, ps->grad, (size_t)ps->n_own * sizeof(float), err));
	for (size_t i = 0; i < ps->n && !grads; i++)
		TRY_OUT(vfm_param_get(ps, NULL, ps->p[i], host + ps->p[i]->off, err));
	TRY_OUT(dev->t->stream_sync(ps->stream, err));
	for (size_t i = 0; i < ps->n; i++)
		if (!grads || !ps->p[i]->frozen)
			add_dump_tensor(
				&d, ps->p[i]->name, VFM_F32, host + ps->p[i]->off, ps->p[i]->d.ndim, ps->p[i]->d.shape);
	rc = dump_write(&d, dir, name, err);
out:
	dev->t->free_host(dev, host, bytes);
	return rc;
}

/* Random draws of the step for the samples of a pack, identical to those of the trainer. */
struct drawn_noise {
	float coef[SAMPLES][4], w[SAMPLES];
	int32_t given[SAMPLES]; /* latent frames */
	double t_cond[SAMPLES]; /* the f32 time input of the model, divided by its scale */
};

/* Removes the second text of sample i, so that the pack has the rows that the model reads. */
static void remove_text2(struct vfm_pack *p, int i)
{
	const int32_t rows = p->cu_text2[i + 1] - p->cu_text2[i];
	float *own = p->text2 + (int64_t)p->cu_text2[i] * p->text2_dim;

	memmove(own, own + (int64_t)rows * p->text2_dim,
		(size_t)(p->text2_tokens - p->cu_text2[i + 1]) * (size_t)p->text2_dim * sizeof(*own));
	for (int k = i + 1; k <= p->n; k++)
		p->cu_text2[k] -= rows;
	p->text2_tokens -= rows;
}

static void draw(struct drawn_noise *d, struct vfm_pack *p, const struct vfm_config *c, int64_t step)
{
	for (int i = 0; i < p->n; i++) {
		struct vfm_draw r = vfm_diffusion_draw(&c->diffusion, c->train.seed, (uint64_t)step, p->id[i],
			p->cu_seqlens[i + 1] - p->cu_seqlens[i]);
		size_t row = (size_t)p->text_dim * sizeof(float),
		       cond = (size_t)p->cond_dim * vfm_dtype_size(p->x0_dtype),
		       image = (size_t)p->image_len * (size_t)p->image_dim;

		memcpy(d->coef[i], r.coef, sizeof(r.coef));
		d->t_cond[i] = (double)r.t_cond / c->diffusion.time_scale;
		d->given[i] = vfm_micro_given(p, i, &r);
		d->w[i] = vfm_micro_weight(
			p, i, vfm_model_predicts_given(&c->model) ? 0 : d->given[i], r.weight / (double)p->step_tokens);
		if (r.drop_image && p->cond)
			memset((char *)p->cond + (size_t)p->cu_seqlens[i] * cond, 0,
				(size_t)(p->cu_seqlens[i + 1] - p->cu_seqlens[i]) * cond);
		if (r.drop_image && p->image)
			memset(p->image + (size_t)i * image, 0, image * sizeof(float));
		if (r.drop_text && p->text2_dim)
			remove_text2(p, i);
		if (r.drop_text)
			memset(p->text + (size_t)p->cu_text[i] * (size_t)p->text_dim, 0,
				(size_t)(p->cu_text[i + 1] - p->cu_text[i]) * row);
	}
}

/* Computes the model's prediction for a pack, with the noise of the step.  The caller frees *pred [tokens, patch_dim].
 */
static int predict(
	struct vfm_trainer *tr, const struct vfm_config *c, const struct vfm_pack *p, float **pred, struct vfm_err *err)
{
	struct vfm_stream *s = vfm_trainer_params(tr)->stream;
	struct vfm_micro_opts o = {.config = c, .mesh = vfm_mesh_one(), .step = STEP, .ends = true};
	struct vfm_tape *tape = vfm_tape_new(s);
	struct vfm_micro u;
	struct vfm_var *out;
	int rc;

	vfm_tape_set_recording(tape, false);
	TRY_OUT(vfm_micro_make(&u, s, &o, p, err));
	out = vfm_model_forward(vfm_trainer_model(tr), tape, &u.in, 0, NULL, NULL);
	TRY_OUT(vfm_tape_status(tape, err));
	*pred = vfm_calloc((size_t)(p->tokens * p->patch_dim), sizeof(float));
	TRY_OUT(s->dev->t->to_host(s, *pred, out->v.data, vfm_nbytes(&out->v), err));
	rc = s->dev->t->stream_sync(s, err);
out:
	vfm_tape_free(tape);
	vfm_micro_release(&u);
	return rc;
}

static void add_pack(struct dump *d, int k, const struct vfm_pack *p, const struct drawn_noise *r, const float *pred)
{
	int64_t n = p->n;
	const struct {
		const char *name;
		enum vfm_dtype dt;
		const void *data;
		int ndim;
		int64_t shape[2];
	} all[] = {
		{"x0", p->x0_dtype, p->x0, 2, {p->tokens, p->patch_dim}},
		{"cu", VFM_I32, p->cu_seqlens, 1, {n + 1}},
		{"grids", VFM_I32, p->grid, 2, {n, 3}},
		{"ids", VFM_I64, p->id, 1, {n}},
		{"text", VFM_F32, p->text, 2, {p->text_tokens, p->text_dim}},
		{"cu_text", VFM_I32, p->cu_text, 1, {n + 1}},
		{"coef", VFM_F32, r->coef, 2, {n, 4}},
		{"t_cond", VFM_F64, r->t_cond, 1, {n}},
		{"w", VFM_F32, r->w, 1, {n}},
		{"pred", VFM_F32, pred, 2, {p->tokens, p->patch_dim}},
		{"given", VFM_I32, r->given, 1, {n}},
		{"cond", p->x0_dtype, p->cond, 2, {p->tokens, p->cond_dim}},
		{"image", VFM_F32, p->image, 2, {n * p->image_len, p->image_dim}},
		{"text2", VFM_F32, p->text2, 2, {p->text2_tokens, p->text2_dim}},
		{"cu_text2", VFM_I32, p->cu_text2, 1, {n + 1}},
	};
	char name[64];

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (!all[i].data) /* the model has no condition, image rows or second text */
			continue;
		snprintf(name, sizeof(name), "pack.%d.%s", k, all[i].name);
		add_dump_tensor(d, name, all[i].dt, all[i].data, all[i].ndim, all[i].shape);
	}
}

static int write_step(
	struct vfm_trainer *tr, struct vfm_pack *p, const struct vfm_config *c, const char *dir, struct vfm_err *err)
{
	float *pred[PACKS] = {0};
	struct drawn_noise r[PACKS];
	struct dump d = {0};
	int rc = 0;

	for (int k = 0; k < PACKS && rc == 0; k++)
		rc = predict(tr, c, &p[k], &pred[k], err);
	for (int k = 0; k < PACKS && rc == 0; k++) {
		draw(&r[k], &p[k], c, STEP);
		add_pack(&d, k, &p[k], &r[k], pred[k]);
	}
	if (rc == 0)
		rc = dump_write(&d, dir, "step.safetensors", err);
	for (int k = 0; k < PACKS; k++)
		free(pred[k]);
	return rc;
}

static json_t *frozen_json(const struct vfm_params *ps)
{
	json_t *names = json_array();

	for (size_t i = 0; i < ps->n; i++)
		if (ps->p[i]->frozen)
			json_array_append_new(names, json_string(ps->p[i]->name));
	return names;
}

/* The section "model" of the configuration, with the names of tests/ref for what follows from it. */
static json_t *model_info(const struct vfm_config *c)
{
	json_t *all = vfm_config_to_json(c), *k = json_incref(json_object_get(all, "model"));

	json_object_set_new(k, "features", json_integer(vfm_model_patch_dim(&c->model)));
	json_object_set_new(k, "cond_features", json_integer(vfm_model_cond_dim(&c->model)));
	json_object_set_new(k, "guidance", json_real(c->diffusion.guidance));
	json_object_set_new(k, "adaln_lora_rank", json_integer(c->model.adaln_lora));
	json_decref(all);
	return k;
}

static int write_info(
	const struct vfm_config *c, const struct vfm_params *ps, double loss, const char *dir, struct vfm_err *err)
{
	json_t *o = json_pack("{s:o, s:I, s:i, s:f, s:f, s:o}", "config", model_info(c), "seed",
		(json_int_t)c->train.seed, "step", STEP, "loss", loss, "lora_scale", vfm_tuning_scale(&c->tuning),
		"frozen", frozen_json(ps));
	int rc = vfm_json_save(dir, "dump.json", o, 2, err);

	json_decref(o);
	return rc;
}

/* ---- trained weights ---- */

/* The draws of a step as JSON: [[pack 0], [pack 1]] of [t_cond, coef ..., w, given] for each sample. */
static json_t *draws_json(struct vfm_pack *p, const struct vfm_config *c, int64_t step)
{
	json_t *all = json_array();

	for (int k = 0; k < PACKS; k++) {
		json_t *pack = json_array();
		struct drawn_noise d;

		draw(&d, &p[k], c, step);
		for (int i = 0; i < p[k].n; i++)
			json_array_append_new(pack,
				json_pack("[f,f,f,f,f,f,i]", d.t_cond[i], d.coef[i][0], d.coef[i][1], d.coef[i][2],
					d.coef[i][3], d.w[i], d.given[i]));
		json_array_append_new(all, pack);
	}
	return all;
}

static int write_trained(const json_t *losses, const json_t *draws, const json_t *lrs, const struct vfm_config *c,
	const char *dir, struct vfm_err *err)
{
	const struct vfm_train_config *t = &c->train;
	json_t *o = json_pack("{s:O, s:O, s:{s:O, s:f, s:f, s:f, s:f, s:f}}", "losses", losses, "draws", draws, "train",
		"lr", lrs, "beta1", t->beta1, "beta2", t->beta2, "eps", t->eps, "wd", t->weight_decay, "clip",
		t->clip_norm);
	int rc = vfm_json_save(dir, "trained.json", o, 0, err);

	json_decref(o);
	return rc;
}

static int train_steps(
	struct vfm_trainer *tr, const struct vfm_config *c, struct vfm_pack *p, const char *dir, struct vfm_err *err)
{
	json_t *losses = json_array(), *draws = json_array(), *lrs = json_array();
	struct vfm_pack_array packs = {p, PACKS, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);
	int rc = 0;

	if (c->diffusion.text_drop > 0)
		rc = vfm_fail(err, VFM_EUSAGE, "diffusion.text_drop: a dump of several steps needs 0");
	if (c->diffusion.image_drop > 0)
		rc = vfm_fail(err, VFM_EUSAGE, "diffusion.image_drop: a dump of several steps needs 0");
	for (int64_t i = 0; i < c->train.steps && rc == 0; i++) {
		double lr = vfm_lr_at(&c->train, i, c->train.steps);
		struct vfm_step_stats stats;

		json_array_append_new(draws, draws_json(p, c, i));
		json_array_append_new(lrs, json_real(lr));
		rc = vfm_trainer_step(tr, i, PACKS, &source, lr, err);
		if (rc == 0)
			rc = vfm_trainer_stats(tr, &stats, err);
		if (rc == 0)
			json_array_append_new(losses, json_real(stats.loss));
	}
	if (rc == 0)
		rc = write_params(vfm_trainer_params(tr), false, dir, "trained.safetensors", err);
	if (rc == 0)
		rc = write_trained(losses, draws, lrs, c, dir, err);
	json_decref(losses);
	json_decref(draws);
	json_decref(lrs);
	return rc;
}

/* ---- the step ---- */

/* Makes a trainer with the weights of the dump. */
static struct vfm_trainer *start_dump(
	const struct vfm_config *c, const struct vfm_parity_opts *o, struct vfm_stream *s, struct vfm_err *err)
{
	struct vfm_trainer *tr = vfm_trainer_new(c, vfm_mesh_one(), s, err);
	struct vfm_ckpt *init = NULL;
	int rc = tr ? vfm_params_fill_dense(vfm_trainer_params(tr), c->train.seed, err) : VFM_EENV;

	if (rc == 0 && o->init)
		rc = vfm_ckpt_open(&init, o->init, err);
	if (rc == 0 && init)
		rc = vfm_state_load_weights(vfm_trainer_params(tr), init, o->init_part, err);
	vfm_ckpt_close(init);
	if (rc == 0)
		return tr;
	vfm_trainer_free(tr);
	return NULL;
}

static int step(
	struct vfm_trainer *tr, const struct vfm_config *c, struct vfm_pack *p, const char *dir, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	struct vfm_pack_array packs = {p, PACKS, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);
	struct vfm_step_stats stats;

	TRY(vfm_mkdir_p(dir, err));
	TRY(write_params(ps, false, dir, "init.safetensors", err));
	/* learning rate 0: the weights do not change */
	TRY(vfm_trainer_step(tr, STEP, PACKS, &source, 0, err));
	TRY(vfm_trainer_stats(tr, &stats, err));
	TRY(write_params(ps, true, dir, "grads.safetensors", err));
	TRY(write_step(tr, p, c, dir, err));
	return write_info(c, ps, stats.loss, dir, err);
}

/* Makes the packs.  With model.text_pad all texts have the padded length, so that the dump holds the rows that the
 * model reads. */
static int make_packs(struct vfm_pack *p, const struct vfm_config *c, struct vfm_err *err)
{
	struct vfm_synthetic s[SAMPLES];

	for (int k = 0; k < PACKS; k++) {
		memcpy(s, samples[k], sizeof(s));
		for (int i = 0; i < SAMPLES; i++)
			s[i].text_len = (int32_t)vfm_model_text_rows(&c->model, s[i].text_len);
		TRY(vfm_synthetic_pack(&p[k], s, SAMPLES, &c->model, c->train.seed, err));
	}
	for (int k = 0; k < PACKS; k++)
		p[k].step_tokens = p[0].tokens + p[1].tokens;
	return 0;
}

int vfm_parity_dump(
	const struct vfm_config *c, const struct vfm_parity_opts *o, struct vfm_stream *s, struct vfm_err *err)
{
	struct vfm_pack p[PACKS] = {0};
	struct vfm_trainer *tr;
	int rc;

	tr = start_dump(c, o, s, err);
	if (!tr)
		return err->code;
	TRY_OUT(make_packs(p, c, err));
	TRY_OUT(step(tr, c, p, o->dir, err));
	if (c->train.steps > 0) {
		vfm_trainer_free(tr);
		tr = start_dump(c, o, s, err);
		rc = tr ? train_steps(tr, c, p, o->dir, err) : err->code;
	}
out:
	for (int k = 0; k < PACKS; k++)
		vfm_pack_release(&p[k]);
	vfm_trainer_free(tr);
	return rc;
}
