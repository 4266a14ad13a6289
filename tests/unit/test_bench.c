/* The models that are timed: none of their parameters is zero, in any architecture. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "train/predict/bench.h"

static struct vfm_err err;

static const char *const presets[] = {"dit-s", "dit-7b", "moviegen-1b", "stdit-xl", "moe-1b"};
static const char *const settings[][3] = {
	{"train.dtype=fp32", "train.ema_decay=0", NULL},
	{"train.dtype=bf16", "train.ema_decay=0.9", NULL},
	{"train.dtype=bf16", "train.master=split", NULL},
};

static void configure(struct vfm_config *c, const char *preset, const char *const *set)
{
	const char *const tiny[] = {"model.layers=2", "model.hidden=32", "model.heads=2", "model.kv_heads=2",
		"model.ffn=48", "model.text_dim=8", "model.channels=4", "model.experts=4", "model.expert_ffn=16",
		"model.moe_capacity=2"};
	vfm_config_defaults(c);
	assert_int_equal(vfm_model_preset(preset, &c->model, &err), 0);
	c->model.adaln_lora = c->model.adaln_lora ? 8 : 0;
	for (size_t i = 0; i < sizeof(tiny) / sizeof(tiny[0]); i++)
		assert_int_equal(vfm_bench_set(c, tiny[i], &err), 0);
	for (; *set; set++)
		assert_int_equal(vfm_bench_set(c, *set, &err), 0);
	if (vfm_config_check(c, &err) < 0)
		fail_msg("%s: %s", preset, err.msg);
}

/* Elements of a parameter that are zero; all of them are counted in *n. */
static size_t zeros_of(struct vfm_params *ps, const struct vfm_param *p, size_t *n)
{
	struct vfm_owned own = vfm_param_owned(ps, p);
	float *x = vfm_calloc((size_t)(own.b - own.a), sizeof(*x));
	size_t zeros = 0;

	*n = (size_t)(own.b - own.a);
	assert_int_equal(vfm_param_get(ps, NULL, p, x, &err), 0);
	for (size_t i = 0; i < *n; i++)
		zeros += x[i] == 0;
	free(x);
	return zeros;
}

static int check_dense(struct vfm_context *x, void *ctx, struct vfm_err *e)
{
	struct vfm_trainer *tr = vfm_bench_trainer(x, ctx, e);
	struct vfm_params *ps;
	size_t n;

	assert_non_null(tr);
	ps = vfm_trainer_params(tr);
	assert_true(ps->n > 20);
	for (size_t i = 0; i < ps->n; i++)
		if (zeros_of(ps, ps->p[i], &n) * 100 > n)
			fail_msg("%s: zeros", ps->p[i]->name);
	vfm_trainer_free(tr);
	return 0;
}

static int open_and_check(struct vfm_context *x, void *ctx, struct vfm_err *e)
{
	TRY(vfm_context_open(x, ctx, e));
	return check_dense(x, ctx, e);
}

static void test_dense(void **state)
{
	struct vfm_context_opts o = VFM_CONTEXT_OPTS_INIT;
	struct vfm_config c;

	(void)state;
	for (size_t a = 0; a < sizeof(presets) / sizeof(presets[0]); a++)
		for (size_t k = 0; k < sizeof(settings) / sizeof(settings[0]); k++) {
			configure(&c, presets[a], settings[k]);
			if (vfm_context_run(&o, open_and_check, &c, &err) < 0)
				fail_msg("%s: %s", presets[a], err.msg);
		}
}

static void test_unused(void **state)
{
	struct vfm_config c;

	(void)state;
	vfm_config_defaults(&c);
	assert_int_equal(vfm_bench_set(&c, "data.threads=2", &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "data.threads: a benchmark of a step does not use this key");
	assert_int_equal(vfm_bench_set(&c, "train.lr=2", &err), VFM_EUSAGE);
	assert_int_equal(vfm_bench_divides(6, 4, &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "6 packs a step cannot be divided among dp = 4: use --packs 8");
	assert_int_equal(vfm_bench_divides(8, 4, &err), 0);
}

/* Positions for 256 patches in each axis change no grid that has them. */
static void test_grid(void **state)
{
	static const struct {
		int64_t tokens;
		int32_t pos_max[3], want[3]; /* pos_max: zeros: none are learned; want: zeros: no shape has positions */
	} cases[] = {
		{1, {256, 256, 256}, {1, 1, 1}},
		{8192, {256, 256, 256}, {32, 16, 16}},
		{65536, {256, 256, 256}, {256, 16, 16}},
		{131072, {0}, {512, 16, 16}},
		{131072, {256, 256, 256}, {128, 32, 32}},
		{16777216, {256, 256, 256}, {256, 256, 256}},
		{33554432, {256, 256, 256}, {0}},
		{65521, {0}, {65521, 1, 1}},
		{65521, {256, 256, 256}, {0}},
		{257 * 3, {256, 512, 256}, {1, 257, 3}},
		{510, {256, 256, 256}, {2, 15, 17}},
		{1023, {32, 16, 64}, {3, 11, 31}},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct vfm_model_spec m = {.pos = cases[i].pos_max[0] ? VFM_POS_LEARNED : VFM_POS_ROPE};
		int32_t grid[3];
		int rc;

		for (int a = 0; a < 3; a++)
			m.pos_max[a] = cases[i].pos_max[a];
		rc = vfm_bench_grid(&m, cases[i].tokens, grid, &err);
		assert_int_equal(rc, cases[i].want[0] ? 0 : VFM_EUSAGE);
		for (int a = 0; a < 3 && rc == 0; a++)
			assert_int_equal(grid[a], cases[i].want[a]);
	}
}

/* ---- warm-up ---- */

/* The steps of a rank in which an op is timed for the first time, and the counts of a run. */
static struct {
	const struct vfm_ops *ops;
	int rank, step; /* of this rank; from 1 */
	int until;      /* rank 1 times something in every step up to this one, others nothing */
	bool fresh;     /* nothing of this step has run */
} warm;

static int tuned_gemm(struct vfm_stream *s, const struct vfm_gemm *a, struct vfm_err *e)
{
	if (warm.fresh && warm.rank == 1 && warm.step <= warm.until)
		s->dev->tuned++;
	warm.fresh = false;
	return warm.ops->gemm(s, a, e);
}

static void count_step(void *ctx, struct vfm_dev *dev)
{
	(void)ctx, (void)dev;
	warm.step++;
	warm.fresh = true;
}

struct warm_case {
	int warmup, until, want; /* want: steps of warm-up and one that is measured */
};

static int run_warm(struct vfm_context *x, void *ctx, struct vfm_err *e)
{
	const struct warm_case *w = ctx;
	struct vfm_bench_step b = {.samples = 1,
		.grid = {1, 2, 2},
		.text_len = 3,
		.packs = 2,
		.warmup = w->warmup,
		.steps = 1,
		.before = count_step};
	const struct vfm_dev_table *t;
	struct vfm_bench_result r;
	struct vfm_dev_table table;
	struct vfm_config c;
	struct vfm_ops ops;
	int rc;

	configure(&c, "dit-s", settings[0]);
	TRY(vfm_context_open(x, &c, e));
	warm.rank = x->mesh.rank;
	warm.until = w->until;
	warm.step = 0;
	t = x->device.dev->t;
	warm.ops = t->ops;
	ops = *t->ops;
	ops.gemm = tuned_gemm;
	table = *t;
	table.ops = &ops;
	x->device.dev->t = &table;
	rc = vfm_bench_run(x, &c, &b, &r, e);
	x->device.dev->t = t;
	if (rc == 0 && (warm.step != w->want || r.n != 1))
		return vfm_fail(e, VFM_EENV, "rank %d: %d steps, %d measured", warm.rank, warm.step, (int)r.n);
	return rc;
}

/* Warm-up goes on until a step in which no rank timed an op; every rank runs the same number of steps. */
static void test_warmup(void **state)
{
	static const struct warm_case cases[] = {
		{2, 0, 3},
		{2, 1, 3},
		{2, 2, 4},
		{2, 3, 5},
		{0, 3, 1},
		{1, 99, 1 + VFM_BENCH_MORE_WARMUP + 1},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct vfm_context_opts o = VFM_CONTEXT_OPTS_INIT;
		struct warm_case w = cases[i];
		int status;
		pid_t pid;

		o.ranks = 2;
		fflush(NULL);
		pid = fork(); /* the ranks return here, too */
		if (pid == 0) {
			int rc = vfm_context_run(&o, run_warm, &w, &err);

			if (rc < 0)
				fprintf(stderr, "%s\n", err.msg);
			_exit(rc < 0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (status)
			fail_msg("warm-up of %d, timed up to step %d", w.warmup, w.until);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense), cmocka_unit_test(test_grid),
		cmocka_unit_test(test_unused), cmocka_unit_test(test_warmup)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
