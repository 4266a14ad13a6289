/* The choice of an implementation of GEMM, with a library and a device that report what the test plans. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/cuda/gemm.h"
#include "io/file.h"

/* What the library supports, and how long an op takes. */
struct plan {
	unsigned refused[8]; /* epilogues */
	int n_refused, algos;
	double us[2][4];       /* [own_epi or own_rowsum][algorithm]; negative: refused at the call */
	bool no_memory, fails; /* the device */
	bool unwanted;         /* the user does not want timing */
	bool misfit;           /* algorithms of the file, or of other sizes, support nothing */
	bool by_size;          /* the first byte of an algorithm depends on the size for which it was listed */
	int begun, ended, timed, lists, checks;
};

static int warnings;
static char last_warning[1024];

__attribute__((format(printf, 1, 2))) static void count_warning(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(last_warning, sizeof(last_warning), fmt, ap);
	va_end(ap);
	warnings++;
}

static int list(void *ctx, const struct vfm_lt_problem *p, size_t ws, struct vfm_lt_algo *out, int most)
{
	struct plan *x = ctx;

	x->lists++;
	for (int i = 0; i < x->n_refused; i++)
		if (x->refused[i] == p->epi)
			return 0;
	assert_true(x->algos <= most);
	for (int i = 0; i < x->algos; i++) {
		out[i].ws = ws / 2;
		memset(out[i].opaque, x->by_size ? (int)((p->n + p->k) % 251) : i + 1, sizeof(out[i].opaque));
	}
	return x->algos;
}

static bool supports(void *ctx, const struct vfm_lt_problem *p, size_t ws, struct vfm_lt_algo *a)
{
	struct plan *x = ctx;

	(void)p;
	x->checks++;
	a->ws = ws / 2;
	return !x->misfit;
}

static int time_begin(void *ctx, const struct vfm_gemm_op *op, const char **why, struct vfm_err *err)
{
	struct plan *x = ctx;

	(void)op;
	*why = x->no_memory ? "no memory" : NULL;
	if (x->no_memory || x->unwanted)
		return 0;
	(void)err;
	x->begun++;
	return 1;
}

static int time_one(void *ctx, const struct vfm_gemm_choice *c, double best, double *us, struct vfm_err *err)
{
	struct plan *x = ctx;

	(void)best;
	x->timed++;
	if (x->fails)
		return vfm_fail(err, VFM_EENV, "the device is gone");
	*us = x->us[c->path.own_epi || c->path.own_rowsum][c->algo.opaque[0] - 1];
	return *us >= 0;
}

static void time_end(void *ctx)
{
	((struct plan *)ctx)->ended++;
}

static const struct vfm_gemm_lib lib = {list, supports, time_begin, time_one, time_end, count_warning};

/* ---- ops ---- */

static struct vfm_gemm_op fc1(void)
{
	struct vfm_gemm_op op = {.batch = {.count = 1}, .tune = true, .ws = 1 << 20};

	op.g = (struct vfm_gemm){.a = vfm_t2((void *)256, VFM_BF16, 512, 128),
		.b = vfm_t2((void *)512, VFM_BF16, 256, 128),
		.trans_b = true,
		.c = vfm_t2((void *)1024, VFM_BF16, 512, 256),
		.aux = vfm_t2((void *)2048, VFM_BF16, 512, 256),
		.bias = vfm_t1((void *)4096, VFM_F32, 256),
		.act = VFM_ACT_GELU_TANH};
	return op;
}

static struct vfm_gemm_op wgrad(void)
{
	struct vfm_gemm_op op = {.batch = {.count = 1}, .tune = true, .ws = 1 << 20};

	op.g = (struct vfm_gemm){.trans_a = true,
		.a = vfm_t2((void *)256, VFM_BF16, 512, 256),
		.b = vfm_t2((void *)512, VFM_BF16, 512, 128),
		.c = vfm_t2((void *)1024, VFM_F32, 256, 128),
		.accumulate = true,
		.a_rowsum = vfm_t1((void *)2048, VFM_F32, 256)};
	return op;
}

enum { WHOLE = VFM_LT_BIAS | VFM_LT_GELU | VFM_LT_AUX };

static int forget_warnings(void **state)
{
	(void)state;
	warnings = 0;
	return 0;
}

static struct vfm_gemm_choice choose(struct vfm_gemm_chooser *c, const struct vfm_gemm_op *op, int want)
{
	struct vfm_gemm_choice out;
	struct vfm_err err = {0};

	assert_int_equal(vfm_gemm_choose(c, op, &out, &err), want);
	return out;
}

/* ---- by the time of the whole op ---- */

static void test_times(void **state)
{
	static const struct {
		double us[2][4];
		unsigned epi;
		bool own;
		int algo;
	} t[] = {
		{{{9, 7, 8}, {10, 10, 10}}, WHOLE, false, 2},
		{{{9, 7, 8}, {10, 10, 6.5}}, VFM_LT_BIAS, true, 3}, /* the epilogue is slower than two kernels */
		{{{-1, -1, 8}, {9, 9, 9}}, WHOLE, false, 3},        /* refused at the call */
		{{{-1, -1, -1}, {-1, 9, -1}}, VFM_LT_BIAS, true, 2},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		struct plan x = {.algos = 3};
		struct vfm_gemm_op op = fc1();
		struct vfm_gemm_chooser *c;
		struct vfm_gemm_choice a;
		int timed;

		memcpy(x.us, t[i].us, sizeof(x.us));
		c = vfm_gemm_chooser_new(&lib, &x, VFM_GEMM_AUTO, NULL, true);
		a = choose(c, &op, 1);
		assert_int_equal(a.path.epi, t[i].epi);
		assert_int_equal(a.path.own_epi, t[i].own);
		assert_int_equal(a.algo.opaque[5], t[i].algo);
		assert_true(!a.untimed && !a.refused && a.us == t[i].us[t[i].own][t[i].algo - 1]);
		assert_int_equal(a.p.epi, t[i].epi);
		timed = x.timed;
		assert_int_equal(timed, 9); /* three paths with three algorithms */
		a = choose(c, &op, 1);
		assert_int_equal(x.timed, timed);
		op.g.a.shape[0] = op.g.c.shape[0] = op.g.aux.shape[0] = 511; /* the same key: no timing */
		a = choose(c, &op, 1);
		assert_true(x.timed == timed && !a.untimed && a.p.n == 511);
		assert_true(x.begun == 1 && x.ended == 1 && warnings == 0);
		vfm_gemm_chooser_free(c);
	}
}

/* Row sums by the library, or by our kernel. */
static void test_row_sums(void **state)
{
	(void)state;
	for (int own = 0; own < 2; own++) {
		struct plan x = {.algos = 2, .us = {{5, 4}, {own ? 3 : 6, 7}}};
		struct vfm_gemm_chooser *c = vfm_gemm_chooser_new(&lib, &x, VFM_GEMM_AUTO, NULL, true);
		struct vfm_gemm_op op = wgrad();
		struct vfm_gemm_choice a = choose(c, &op, 1);

		assert_int_equal(a.path.epi, own ? 0 : VFM_LT_BGRADB);
		assert_int_equal(a.path.own_rowsum, own);
		/* that the library lacks them is not a fallback */
		x.refused[x.n_refused++] = VFM_LT_BGRADB;
		op.g.b.shape[1] = op.g.c.shape[1] = 64;
		a = choose(c, &op, 1);
		assert_true(a.path.own_rowsum && !a.refused && !a.untimed && warnings == 0);
		vfm_gemm_chooser_free(c);
	}
}

/* ---- fallbacks ---- */

static void test_refused(void **state)
{
	struct plan x = {.algos = 1, .us = {{5}, {6}}, .refused = {WHOLE}, .n_refused = 1};
	struct vfm_gemm_chooser *c = vfm_gemm_chooser_new(&lib, &x, VFM_GEMM_AUTO, NULL, true);
	struct vfm_gemm_op op = fc1();
	struct vfm_gemm_choice a = choose(c, &op, 1);

	(void)state;
	assert_true(a.path.own_epi && a.path.epi == VFM_LT_BIAS && a.refused && !a.untimed);
	assert_int_equal(warnings, 1);
	assert_non_null(strstr(last_warning, "refuses the epilogue"));
	assert_non_null(strstr(last_warning, "GELU with aux"));
	a = choose(c, &op, 1);
	assert_true(a.refused); /* each call counts */
	op.g.b.shape[0] = op.g.c.shape[1] = op.g.aux.shape[1] = op.g.bias.shape[0] = 128;
	a = choose(c, &op, 1);
	assert_true(a.refused);
	assert_int_equal(warnings, 1); /* one kind */
	op = fc1();
	op.g.aux.stride[0] = 260;
	a = choose(c, &op, 1);
	assert_true(a.refused);
	assert_int_equal(warnings, 2);
	assert_non_null(strstr(last_warning, "aligned"));
	op = fc1(); /* no epilogue of the library: not a fallback */
	op.g.act = VFM_ACT_SILU;
	a = choose(c, &op, 1);
	assert_true(!a.refused && a.path.own_epi);
	assert_int_equal(warnings, 2);
	vfm_gemm_chooser_free(c);
}

static void test_refused_product(void **state)
{
	struct plan x = {.algos = 0};
	struct vfm_gemm_chooser *c = vfm_gemm_chooser_new(&lib, &x, VFM_GEMM_AUTO, NULL, true);
	struct vfm_gemm_op op = fc1();
	struct vfm_gemm_choice a = choose(c, &op, 0);

	(void)state;
	assert_true(a.path.f32 && a.path.own_epi && a.refused && !a.untimed);
	assert_int_equal(warnings, 1);
	a = choose(c, &op, 0);
	assert_int_equal(warnings, 1);
	vfm_gemm_chooser_free(c);
}

static void test_untimed(void **state)
{
	struct plan x = {.algos = 2, .us = {{5, 4}, {3, 3}}, .no_memory = true};
	struct vfm_gemm_chooser *c = vfm_gemm_chooser_new(&lib, &x, VFM_GEMM_AUTO, NULL, true);
	struct vfm_gemm_op op = fc1(), sums = wgrad();
	struct vfm_gemm_choice a = choose(c, &op, 1);

	(void)state;
	assert_true(a.untimed && !a.refused && a.path.epi == WHOLE && a.algo.opaque[0] == 1 && a.us < 0);
	assert_int_equal(warnings, 1);
	assert_non_null(strstr(last_warning, "no memory"));
	a = choose(c, &op, 1);
	assert_true(a.untimed && warnings == 1);
	a = choose(c, &sums, 1);
	assert_true(a.untimed && a.path.own_rowsum && warnings == 2); /* another kind */
	x.no_memory = false;
	x.unwanted = true; /* counted, but the user knows */
	op.g.act = VFM_ACT_NONE;
	op.g.aux = (struct vfm_tensor){0};
	a = choose(c, &op, 1);
	assert_true(a.untimed && warnings == 2);
	x.unwanted = false;
	op.tune = false;
	op.g.a.shape[1] = op.g.b.shape[1] = 64;
	a = choose(c, &op, 1);
	assert_true(a.untimed && warnings == 2 && x.begun == 0);
	vfm_gemm_chooser_free(c);
}

static void test_failed_device(void **state)
{
	struct plan x = {.algos = 2, .fails = true};
	struct vfm_gemm_chooser *c = vfm_gemm_chooser_new(&lib, &x, VFM_GEMM_AUTO, NULL, true);
	struct vfm_gemm_op op = fc1();
	struct vfm_gemm_choice out;
	struct vfm_err err = {0};

	(void)state;
	assert_int_equal(vfm_gemm_choose(c, &op, &out, &err), VFM_EENV);
	assert_true(x.timed == 1 && x.ended == 1);
	x.fails = false;
	choose(c, &op, 1); /* nothing was remembered */
	assert_int_equal(x.begun, 2);
	vfm_gemm_chooser_free(c);
}

/* ---- groups of experts ---- */

/* An op of a group of n rows: not to be timed. */
static struct vfm_gemm_op group_of(bool of_weights, int64_t n)
{
	struct vfm_gemm_op op = of_weights ? wgrad() : fc1();

	op.tune = false;
	op.g.a.shape[0] = n;
	*(of_weights ? &op.g.b.shape[0] : &op.g.c.shape[0]) = n;
	if (!of_weights)
		op.g.aux.shape[0] = n;
	return op;
}

/* The library lists algorithms once for each path and rounded size, and checks one for each exact size. */
static void test_groups(void **state)
{
	enum { N = 1000, ROWS = 5000 };

	(void)state;
	for (int of_weights = 0; of_weights < 2; of_weights++) {
		struct plan x = {.algos = 2, .by_size = true};
		struct vfm_gemm_chooser *c = vfm_gemm_chooser_new(&lib, &x, VFM_GEMM_AUTO, NULL, true);
		bool rounded[ROWS * 2] = {false}, exact[ROWS * 2] = {false};
		int n_rounded = 0, n_checked = 0;
		uint32_t u = 1;

		for (int i = 0; i < N; i++) {
			int64_t n = 1 + (u = u * 1664525 + 1013904223) / 65536 % ROWS, r = vfm_lt_round(n);
			struct vfm_gemm_op op = group_of(of_weights, n), again = group_of(of_weights, r);
			struct vfm_gemm_choice a = choose(c, &op, 1);

			n_rounded += !rounded[r];
			n_checked += !exact[n] && n != r;
			rounded[r] = exact[n] = true;
			assert_true(a.untimed && !a.refused);
			assert_int_equal(of_weights ? a.p.k : a.p.n, n);
			/* whichever size of a key came first */
			assert_int_equal(a.algo.opaque[0], choose(c, &again, 1).algo.opaque[0]);
		}
		assert_int_equal(x.lists, n_rounded * (of_weights ? 2 : 3));
		assert_true(n_rounded < 100);
		assert_int_equal(x.checks, n_checked);
		assert_true(x.begun == 0 && warnings == 0);
		vfm_gemm_chooser_free(c);
	}
}

/* A size that the algorithm of its key does not support is listed by itself; a refusal counts for every size. */
static void test_group_fallbacks(void **state)
{
	struct plan x = {.algos = 1, .by_size = true, .misfit = true, .refused = {WHOLE}, .n_refused = 1};
	struct vfm_gemm_chooser *c = vfm_gemm_chooser_new(&lib, &x, VFM_GEMM_AUTO, NULL, true);
	struct vfm_gemm_op op = group_of(false, 511);
	struct vfm_gemm_choice a = choose(c, &op, 1);

	(void)state;
	assert_int_equal(a.algo.opaque[0], (511 + 128) % 251);
	assert_true(a.refused && a.untimed && x.checks == 1 && x.lists == 6 && warnings == 1);
	x.misfit = false;
	op = group_of(false, 510);
	a = choose(c, &op, 1);
	assert_int_equal(a.algo.opaque[0], (512 + 128) % 251);
	assert_true(a.refused && a.untimed && x.checks == 2 && x.lists == 6 && warnings == 1);
	vfm_gemm_chooser_free(c);
}

/* Exact sizes of an op that was timed, or that the user does not want timed, list nothing again. */
static void test_sizes_of_a_key(void **state)
{
	(void)state;
	for (int unwanted = 0; unwanted < 2; unwanted++) {
		struct plan x = {.algos = 1, .us = {{9}, {7}}, .unwanted = unwanted};
		struct vfm_gemm_chooser *c = vfm_gemm_chooser_new(&lib, &x, VFM_GEMM_AUTO, NULL, true);
		struct vfm_gemm_op op = fc1();
		int lists;

		choose(c, &op, 1);
		lists = x.lists;
		for (int64_t n = 500; n < 512; n++) {
			struct vfm_gemm_choice a;

			op.g.a.shape[0] = op.g.c.shape[0] = op.g.aux.shape[0] = n;
			a = choose(c, &op, 1);
			assert_true(a.untimed == (bool)unwanted && !a.refused && a.path.own_epi == !unwanted);
		}
		assert_true(x.lists == lists && x.begun == !unwanted && warnings == 0);
		vfm_gemm_chooser_free(c);
	}
}

/* ---- forced, and the file ---- */

static void test_modes(void **state)
{
	struct plan x = {.algos = 1, .us = {{5}, {6}}};
	struct vfm_gemm_op op = fc1(), sums = wgrad();
	struct vfm_gemm_chooser *c;
	enum vfm_gemm_mode mode;
	struct vfm_gemm_choice a;
	struct vfm_err err = {0};

	(void)state;
	c = vfm_gemm_chooser_new(&lib, &x, VFM_GEMM_PLAIN, NULL, true);
	a = choose(c, &op, 1);
	assert_true(a.path.own_epi && a.path.epi == 0 && !a.refused);
	a = choose(c, &sums, 1);
	assert_true(a.path.own_rowsum && a.path.epi == 0);
	vfm_gemm_chooser_free(c);
	x.us[0][0] = 50;
	c = vfm_gemm_chooser_new(&lib, &x, VFM_GEMM_EPILOGUE, NULL, true);
	a = choose(c, &op, 1);
	assert_true(a.path.epi == WHOLE && !a.path.own_epi);
	a = choose(c, &sums, 1);
	assert_int_equal(a.path.epi, VFM_LT_BGRADB);
	x.refused[x.n_refused++] = WHOLE; /* what is forced does not exist */
	op.g.a.shape[1] = op.g.b.shape[1] = 64;
	a = choose(c, &op, 1);
	assert_true(a.refused && a.path.own_epi && warnings == 1);
	vfm_gemm_chooser_free(c);
	setenv("VFM_CUDA_GEMM", "plain", 1);
	assert_int_equal(vfm_gemm_mode_of_env(&mode, &err), 0);
	assert_int_equal(mode, VFM_GEMM_PLAIN);
	setenv("VFM_CUDA_GEMM", "fast", 1);
	assert_int_equal(vfm_gemm_mode_of_env(&mode, &err), VFM_EUSAGE);
	unsetenv("VFM_CUDA_GEMM");
	assert_int_equal(vfm_gemm_mode_of_env(&mode, &err), 0);
	assert_int_equal(mode, VFM_GEMM_AUTO);
}

/* Another process reads path and algorithm, and times nothing; one that forces a kind does not. */
static void test_file(void **state)
{
	char dir[] = "/tmp/vfm-choice-XXXXXX", *path;
	struct plan x = {.algos = 2, .us = {{5, 4}, {3, 2}}}, y = {.algos = 2, .us = {{1, 1}, {9, 9}}};
	struct vfm_gemm_op op = fc1();
	struct vfm_gemm_chooser *c;
	struct vfm_gemm_choice a;

	(void)state;
	assert_non_null(mkdtemp(dir));
	path = vfm_strfmt("%s/gemm.jsonl", dir);
	c = vfm_gemm_chooser_new(&lib, &x, VFM_GEMM_AUTO, path, false);
	choose(c, &op, 1);
	vfm_gemm_chooser_free(c);
	c = vfm_gemm_chooser_new(&lib, &y, VFM_GEMM_AUTO, path, false);
	a = choose(c, &op, 1);
	assert_true(y.begun == 0 && a.path.own_epi && a.algo.opaque[0] == 2 && !a.untimed && a.us == 2);
	vfm_gemm_chooser_free(c);
	c = vfm_gemm_chooser_new(&lib, &y, VFM_GEMM_EPILOGUE, path, false);
	a = choose(c, &op, 1);
	assert_true(y.begun == 1 && a.path.epi == WHOLE);
	vfm_gemm_chooser_free(c);
	y.misfit = true; /* the algorithm does not support this problem */
	c = vfm_gemm_chooser_new(&lib, &y, VFM_GEMM_AUTO, path, false);
	a = choose(c, &op, 1);
	assert_true(y.begun == 1 && a.untimed && warnings == 1);
	vfm_gemm_chooser_free(c);
	y.misfit = false;
	/* a choice that other ranks could not read is not used; alone it is kept in memory */
	c = vfm_gemm_chooser_new(&lib, &y, VFM_GEMM_AUTO, "/proc/none/gemm.jsonl", false);
	a = choose(c, &op, 1);
	assert_true(a.untimed && warnings == 2);
	assert_non_null(strstr(last_warning, "cannot be written"));
	vfm_gemm_chooser_free(c);
	c = vfm_gemm_chooser_new(&lib, &y, VFM_GEMM_AUTO, "/proc/none/gemm.jsonl", true);
	a = choose(c, &op, 1);
	assert_true(!a.untimed && a.path.epi == WHOLE);
	vfm_gemm_chooser_free(c);
	free(path);
	assert_int_equal(vfm_rm_rf(dir, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_times, forget_warnings),
		cmocka_unit_test_setup(test_row_sums, forget_warnings),
		cmocka_unit_test_setup(test_refused, forget_warnings),
		cmocka_unit_test_setup(test_refused_product, forget_warnings),
		cmocka_unit_test_setup(test_untimed, forget_warnings),
		cmocka_unit_test_setup(test_failed_device, forget_warnings),
		cmocka_unit_test_setup(test_groups, forget_warnings),
		cmocka_unit_test_setup(test_group_fallbacks, forget_warnings),
		cmocka_unit_test_setup(test_sizes_of_a_key, forget_warnings),
		cmocka_unit_test_setup(test_modes, forget_warnings),
		cmocka_unit_test_setup(test_file, forget_warnings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
