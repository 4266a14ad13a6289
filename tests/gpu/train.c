/* train - compares training on a device with the CPU, and with repeated runs on the device.
 *
 *	train [--quick] DEVICE [WORDS]    models whose name contains WORDS; prints a JSON line per test
 *	train --list                      prints the names; the first four are one of each architecture
 *
 * Compares losses and gradient norms over ten steps of dit-s and of every architecture.  Then checks on the device that
 * a repeated run, recompute, and a run resumed from a checkpoint give the same bits.  Status 0, 1 if a test failed, or
 * 3 if there is no device.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "ckpt/save.h"
#include "device/open/open.h"
#include "train/step/state.h"
#include "train/step/synthetic.h"

enum { STEPS = 10, PACKS = 2, MAX_KEYS = 20 };

static const char *dit_s[] = {"model.layers=12", "model.hidden=384", "model.heads=6", NULL};
static const char *dit_2[] = {"model.layers=2", "model.hidden=384", "model.heads=6", "model.text_dim=64", NULL};
static const char *pooled[] = {"model.layers=3", "model.hidden=288", "model.heads=4", "model.text_dim=64",
	"model.cross_attention=false", "model.pooled_text=true", "model.pos=both", "model.qk_norm=false", NULL};
static const char *lora[] = {"model.layers=3", "model.hidden=256", "model.heads=2", "model.text_dim=64",
	"model.adaln_lora=16", "diffusion.kind=flow", NULL};
static const char *moviegen[] = {"model.arch=moviegen", "model.layers=3", "model.hidden=256", "model.heads=4",
	"model.kv_heads=2", "model.ffn=384", "model.text_dim=64", "model.pos=learned", "model.pos_max=[16,16,16]",
	NULL};
static const char *stdit[] = {
	"model.arch=stdit", "model.layers=3", "model.hidden=288", "model.heads=4", "model.text_dim=64", NULL};
static const char *expert[] = {"model.arch=moe", "model.layers=3", "model.hidden=256", "model.heads=4",
	"model.kv_heads=2", "model.experts=8", "model.expert_ffn=96", "model.shared_experts=1", "model.moe_capacity=2",
	"model.text_dim=64", NULL};
static const char *token[] = {"model.arch=moe", "model.layers=3", "model.hidden=256", "model.heads=4",
	"model.experts=8", "model.expert_ffn=96", "model.shared_experts=0", "model.moe_capacity=2",
	"model.moe_router=token_choice", "model.moe_aux=0.1", "model.text_dim=64", NULL};
/* Every expert takes every token, because rounding in bf16 may change the choice of experts. */
static const char *all[] = {"model.arch=moe", "model.layers=3", "model.hidden=256", "model.heads=4", "model.experts=4",
	"model.expert_ffn=96", "model.shared_experts=1", "model.moe_capacity=4", "model.text_dim=64", NULL};

/* All options that save memory. */
static const char *small[] = {"model.layers=3", "model.hidden=256", "model.heads=2", "model.text_dim=64",
	"train.master=split", "train.moments=bf16", "train.offload=both", "train.recompute=selective", NULL};

/* The residual stream in bf16. */
static const char *half[] = {"model.layers=3", "model.hidden=256", "model.heads=2", "model.text_dim=64",
	"model.pos=both", "train.residual=bf16", NULL};
static const char *half_moviegen[] = {"model.arch=moviegen", "model.layers=3", "model.hidden=256", "model.heads=4",
	"model.kv_heads=2", "model.ffn=384", "model.text_dim=64", "model.pos=learned", "model.pos_max=[16,16,16]",
	"train.residual=bf16", NULL};

static const char *fp8_current[] = {
	"model.layers=3", "model.hidden=256", "model.heads=2", "model.text_dim=64", "train.fp8=current", NULL};
static const char *fp8_delayed[] = {"model.layers=3", "model.hidden=256", "model.heads=2", "model.text_dim=64",
	"train.fp8=delayed", "train.fp8_history=4", NULL};

/* Frozen weights in 4 and 8 bits, in pinned memory and in files. */
static const char *nf4_host[] = {"model.arch=wan", "model.layers=4", "model.hidden=256", "model.heads=2",
	"model.ffn=512", "model.text_dim=64", "diffusion.kind=flow", "lora.rank=8", "train.frozen_dtype=nf4",
	"train.offload_weights=3", "train.offload=activations", "train.recompute=light", NULL};
static const char *int8_file[] = {"model.arch=wan", "model.layers=4", "model.hidden=256", "model.heads=2",
	"model.ffn=512", "model.text_dim=64", "diffusion.kind=flow", "lora.rank=8", "train.frozen_dtype=int8",
	"train.offload_weights=4", "train.host_gib=1e-6", NULL};

/* Tolerated relative differences.  f32: another order of summation, amplified over ten updates.  bf16: rounding of
 * every activation.  fp8: the last bit of an e5m2 gradient, about 1/8. */
static const struct model {
	const char *name, **keys, *dtype;
	double loss_tol, norm_tol;
} models[] = {
	{"dit-s", dit_s, "bf16", 1e-3, 1e-2},
	{"moviegen", moviegen, "bf16", 1e-3, 1e-2},
	{"stdit", stdit, "bf16", 1e-3, 1e-2},
	{"moe-all", all, "bf16", 1e-3, 1e-2},
	{"dit-s", dit_s, "fp32", 1e-5, 1e-4},
	{"moviegen", moviegen, "fp32", 1e-5, 1e-4},
	{"stdit", stdit, "fp32", 1e-5, 1e-4},
	{"moe-expert", expert, "fp32", 1e-5, 1e-3},
	{"moe-token", token, "fp32", 1e-5, 1e-3},
	{"dit-small-state", small, "bf16", 1e-3, 1e-2},
	{"dit-half", half, "bf16", 1e-3, 1e-2},
	{"moviegen-half", half_moviegen, "bf16", 1e-3, 1e-2},
	{"dit-lora", lora, "bf16", 1e-3, 1e-2},
	{"dit-lora", lora, "fp32", 1e-5, 1e-4},
	{"dit-pooled", pooled, "bf16", 1e-3, 1e-2},
	{"dit-pooled", pooled, "fp32", 1e-5, 1e-4},
	{"dit-fp8-current", fp8_current, "bf16", 5e-3, 5e-2},
	{"dit-fp8-delayed", fp8_delayed, "bf16", 5e-3, 5e-2},
	{"wan-nf4-host", nf4_host, "bf16", 1e-3, 1e-2},
	{"wan-int8-file", int8_file, "bf16", 1e-3, 1e-2},
};

static const struct vfm_synthetic samples[PACKS][3] = {
	{{{1, 16, 16}, 40, 11}, {{4, 8, 7}, 77, 12}, {{1, 1, 1}, 3, 13}},
	{{{3, 10, 9}, 64, 21}, {{2, 4, 4}, 0, 22}, {{8, 8, 4}, 20, 23}},
};

struct result {
	double loss[STEPS], norm[STEPS];
	float *master; /* [n] after the last step */
	int64_t n;
	int64_t graphs; /* packs launched as a graph */
};

static const char *device;
static bool quick, deterministic; /* deterministic: no selection by timing, for bitwise comparisons */
static int failed, done;

/* ---- runs ---- */

static int configure(const struct model *m, struct vfm_config *c, struct vfm_err *err)
{
	char set[64];

	vfm_config_defaults(c);
	c->train.warmup_steps = 0;
	c->train.lr = 1e-3;
	c->train.seed = 7;
	c->train.ema_decay = 0.9;
	snprintf(set, sizeof(set), "train.dtype=%s", m->dtype);
	TRY(vfm_config_set(c, set, err));
	for (const char **k = quick && m->keys == dit_s ? dit_2 : m->keys; *k; k++)
		TRY(vfm_config_set(c, *k, err));
	return vfm_config_check(c, err);
}

static int steps(
	struct vfm_trainer *tr, const struct vfm_config *c, int from, int to, struct result *r, struct vfm_err *err)
{
	struct vfm_pack b[PACKS];
	int64_t tokens = 0;
	int rc = 0;

	for (int k = 0; k < PACKS; k++) {
		TRY(vfm_synthetic_pack(&b[k], samples[k], 3, &c->model, c->train.seed, err));
		b[k].index = k;
		tokens += b[k].tokens;
	}
	for (int k = 0; k < PACKS; k++)
		b[k].step_tokens = tokens;
	for (int s = from; s < to && rc == 0; s++) {
		struct vfm_pack_array packs = {b, PACKS, 0};
		struct vfm_pack_source source = vfm_pack_array_source(&packs);
		struct vfm_step_stats st;

		rc = vfm_trainer_step(tr, s, PACKS, &source, c->train.lr, err);
		if (rc == 0)
			rc = vfm_trainer_stats(tr, &st, err);
		r->loss[s] = st.loss;
		r->norm[s] = st.grad_norm;
	}
	for (int k = 0; k < PACKS; k++)
		vfm_pack_release(&b[k]);
	return rc;
}

static int take_master(struct vfm_trainer *tr, struct result *r, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	const struct vfm_dev_table *t = ps->stream->dev->t;
	size_t bytes = (size_t)ps->n_own * sizeof(float);
	float *x =
		t->alloc_host(ps->stream->dev, bytes, "the masters", err); /* split masters are joined on the device */
	int64_t at = 0;
	int rc = x ? 0 : VFM_EENV;

	r->n = ps->n_own;
	r->master = vfm_calloc((size_t)r->n, sizeof(*r->master));
	for (size_t i = 0; i < ps->n && rc == 0; i++) {
		struct vfm_owned o = vfm_param_owned(ps, ps->p[i]);

		rc = vfm_param_get(ps, NULL, ps->p[i], x + at, err);
		at += o.b - o.a;
	}
	if (rc == 0)
		rc = t->stream_sync(ps->stream, err);
	if (rc == 0)
		memcpy(r->master, x, (size_t)at * sizeof(float));
	if (x)
		t->free_host(ps->stream->dev, x, bytes);
	return rc;
}

static int load(struct vfm_trainer *tr, const char *dir, struct vfm_err *err)
{
	struct vfm_ckpt *c;
	int rc;

	TRY(vfm_ckpt_open(&c, dir, err));
	rc = vfm_state_load(tr, c, err);
	vfm_ckpt_close(c);
	return rc;
}

static int save(struct vfm_trainer *tr, const char *dir, int step, struct vfm_err *err)
{
	struct vfm_saver saver = {0};
	struct vfm_ckpt_spec spec = {.dir = dir, .step = step};

	TRY(vfm_saver_start(&saver, tr, &spec, err));
	return vfm_saver_wait(&saver, err);
}

/* Runs steps from .. to - 1 on a new device.  Loads the checkpoint in `dir` if from > 0, saves one if to < STEPS. */
static int run(const char *name, const struct vfm_config *c, int from, int to, const char *dir, struct result *r,
	struct vfm_err *err)
{
	struct vfm_trainer *tr = NULL;
	struct vfm_device d = {0};
	int rc;

	TRY(vfm_device_open_rank(
		&d, name, &(struct vfm_device_opts){.local_size = 1, .size = 1, .deterministic = deterministic}, err));
	tr = vfm_trainer_new(c, vfm_mesh_one(), d.stream, err);
	TRY_OUT(tr ? 0 : err->code);
	/* Zero-initialized weights (adaLN-Zero) would hide most of the model. */
	if (from == 0) {
		TRY_OUT(vfm_params_fill_dense(vfm_trainer_params(tr), c->train.seed, err));
		TRY_OUT(vfm_params_refresh(vfm_trainer_params(tr), err));
	} else {
		TRY_OUT(load(tr, dir, err));
	}
	TRY_OUT(steps(tr, c, from, to, r, err));
	if (to < STEPS)
		TRY_OUT(save(tr, dir, to, err));
	else
		TRY_OUT(take_master(tr, r, err));
	r->graphs = vfm_trainer_graphs(tr);
out:
	vfm_trainer_free(tr);
	vfm_device_close(&d);
	return rc;
}

/* ---- comparisons ---- */

static void verdict(
	const char *check, const struct model *m, bool ok, const char *why, double loss, double norm, double s)
{
	char quoted[VFM_ERR_MAX];
	size_t n = 0;

	for (const char *p = why ? why : ""; *p && n + 2 < sizeof(quoted); p++)
		quoted[n++] = *p == '"' || *p == '\\' || (unsigned char)*p < ' ' ? '\'' : *p;
	quoted[n] = 0;
	printf("{\"check\":\"%s\",\"model\":\"%s\",\"dtype\":\"%s\",\"ok\":%s,\"loss_diff\":%.3g,\"norm_diff\":%.3g,"
	       "\"loss_tol\":%g,\"norm_tol\":%g,\"s\":%.2f,\"why\":\"%s\"}\n",
		check, m->name, m->dtype, ok ? "true" : "false", isfinite(loss) ? loss : -1, isfinite(norm) ? norm : -1,
		m->loss_tol, m->norm_tol, s, quoted);
	fflush(stdout);
	done++;
	failed += !ok;
}

/* Returns the largest relative difference; infinity if a value is not finite. */
static double apart(const double *a, const double *b)
{
	double most = 0;

	for (int s = 0; s < STEPS; s++) {
		double d = fabs(a[s] - b[s]) / fmax(1e-3, fabs(b[s]));

		most = d <= most ? most : isnan(d) ? INFINITY : d;
	}
	return most;
}

static void against_cpu(const struct model *m)
{
	struct result want = {0}, got = {0}, other = {0};
	struct vfm_err err = {0};
	struct vfm_config c;
	double t0 = vfm_now(), loss = INFINITY, norm = INFINITY;
	int rc = configure(m, &c, &err);

	if (rc == 0)
		rc = run("cpu", &c, 0, STEPS, NULL, &want, &err);
	if (rc == 0)
		rc = run(device, &c, 0, STEPS, NULL, &got, &err);
	if (rc == 0) {
		loss = apart(got.loss, want.loss);
		norm = apart(got.norm, want.norm);
		if (!(want.loss[STEPS - 1] < want.loss[0]))
			snprintf(err.msg, sizeof(err.msg), "the loss did not decrease: %g, %g", want.loss[0],
				want.loss[STEPS - 1]);
	}
	verdict("cpu", m, rc == 0 && !*err.msg && loss <= m->loss_tol && norm <= m->norm_tol, err.msg, loss, norm,
		vfm_now() - t0);
	/* Check the sensitivity of the comparison: another seed must differ. */
	if (rc == 0 && m == &models[0]) {
		c.train.seed++;
		rc = run("cpu", &c, 0, STEPS, NULL, &other, &err);
		loss = apart(other.loss, want.loss);
		verdict("another seed is noticed", m, rc == 0 && loss > 10 * m->loss_tol, err.msg, loss, 0, 0);
	}
	free(want.master);
	free(got.master);
	free(other.master);
}

static bool same_bits(const struct result *a, const struct result *b, int from)
{
	for (int s = from; s < STEPS; s++)
		if (a->loss[s] != b->loss[s] || a->norm[s] != b->norm[s])
			return false;
	return a->n == b->n && !memcmp(a->master, b->master, (size_t)a->n * sizeof(float));
}

static void compare_bits(const char *check, const struct model *m, const struct result *a, const struct result *b,
	int from, int rc, const struct vfm_err *err)
{
	bool same = rc == 0 && same_bits(a, b, from);

	verdict(check, m, same,
		rc < 0         ? err->msg
			: same ? ""
			       : "other bits",
		rc < 0 ? INFINITY : apart(a->loss, b->loss), 0, 0);
}

/* Returns whether the device can capture packs as graphs. */
static bool graphs_expected(const struct vfm_config *c)
{
	return strcmp(device, "cpu") != 0 && !(c->train.offload & VFM_OFFLOAD_ACTIVATIONS) &&
		!vfm_model_tokens_choose(&c->model);
}

static void against_itself(const struct model *m)
{
	char dir[] = "/tmp/vfm-gpu-train.XXXXXX";
	struct result first = {0}, again = {0};
	struct vfm_err err = {0};
	struct vfm_config c;
	int rc = configure(m, &c, &err), base;

	if (rc == 0)
		rc = run(device, &c, 0, STEPS, NULL, &first, &err);
	if (rc == 0)
		rc = run(device, &c, 0, STEPS, NULL, &again, &err);
	compare_bits("the same run twice", m, &again, &first, 0, rc, &err);
	base = c.train.recompute;
	for (int k = VFM_RECOMPUTE_NONE + 1; k < VFM_RECOMPUTE_MODES && rc == 0; k++) {
		static const char *const names[] = {
			"none", "recompute=selective", "recompute=full", "recompute=light", "recompute=outputs"};

		free(again.master);
		again = (struct result){0};
		c.train.recompute = k;
		rc = run(device, &c, 0, STEPS, NULL, &again, &err);
		if (k == VFM_RECOMPUTE_LIGHT) { /* equal up to rounding: activations are recomputed from rounded values
						   (vfm-config(5)) */
			double loss = rc < 0 ? INFINITY : apart(again.loss, first.loss),
			       norm = rc < 0 ? INFINITY : apart(again.norm, first.norm);

			verdict(names[k], m, loss <= m->loss_tol && norm <= m->norm_tol, err.msg, loss, norm, 0);
			continue;
		}
		compare_bits(names[k], m, &again, &first, 0, rc, &err);
	}
	c.train.recompute = base;
	if (rc == 0 && mkdtemp(dir)) {
		char *cmd = vfm_strfmt("rm -rf %s", dir);

		free(again.master);
		again = (struct result){0};
		rc = run(device, &c, 0, STEPS / 2, dir, &again, &err);
		if (rc == 0)
			rc = run(device, &c, STEPS / 2, STEPS, dir, &again, &err);
		compare_bits("resumed from a checkpoint", m, &again, &first, 0, rc, &err);
		if (system(cmd) != 0)
			fprintf(stderr, "train: cannot remove %s\n", dir);
		free(cmd);
	}
	if (rc == 0) {
		free(again.master);
		again = (struct result){0};
		c.train.graphs = VFM_GRAPHS_ON;
		rc = run(device, &c, 0, STEPS, NULL, &again, &err);
		if (rc == 0 && !graphs_expected(&c) == (again.graphs > 0))
			rc = vfm_fail(&err, VFM_EENV, "%lld packs were launched as graphs", (long long)again.graphs);
		compare_bits("graphs", m, &again, &first, 0, rc, &err);
		c.train.graphs = VFM_GRAPHS_OFF;
	}
	free(first.master);
	free(again.master);
}

int main(int argc, char **argv)
{
	const char *words;
	struct vfm_device d;
	struct vfm_err err = {0};

	if (argc > 1 && !strcmp(argv[1], "--quick")) {
		quick = true;
		argv++, argc--;
	}
	if (argc < 2 || argc > 3) {
		fprintf(stderr, "usage: train [--quick] DEVICE [WORDS], or train --list\n");
		return 2;
	}
	if (!strcmp(argv[1], "--list")) {
		for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
			printf("%s %s\n", models[i].name, models[i].dtype);
		return 0;
	}
	device = argv[1];
	words = argc > 2 ? argv[2] : "";
	if (vfm_device_open(&d, device, &err) < 0) {
		fprintf(stderr, "train: %s\n", err.msg);
		return 3;
	}
	fprintf(stderr, "%s: %s\n", d.dev->name, d.dev->descr);
	vfm_device_close(&d);
	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
		char name[96];

		snprintf(name, sizeof(name), "%s %s", models[i].name, models[i].dtype);
		if (!strstr(name, words))
			continue;
		deterministic = false;
		against_cpu(&models[i]);
		deterministic = true;
		if (!quick || i < 2 || models[i].keys == small || models[i].keys == fp8_delayed)
			against_itself(&models[i]);
	}
	return !done ? 2 : failed > 0;
}
