/* The part of the CUDA GEMM that needs no device: the way from row-major operands to the library's problem, names, and
 * the file of algorithms. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/cuda/gemm.h"
#include "io/file.h"

static struct vfm_gemm_op op_of(const struct vfm_gemm *g)
{
	return (struct vfm_gemm_op){.g = *g, .batch = {.count = 1}};
}

static struct vfm_lt_problem problem_of(const struct vfm_gemm *g, unsigned epi)
{
	struct vfm_gemm_op op = op_of(g);

	return vfm_lt_problem_of(&op, &(struct vfm_gemm_path){.epi = epi});
}

/* ---- what cuBLASLt would make of a problem, from its manual: everything in columns ---------------------- */

static double gelu(double x)
{
	return 0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
}

static double col(const float *p, int64_t ld, bool trans, int64_t i, int64_t j)
{
	return (double)(trans ? p[i * ld + j] : p[j * ld + i]);
}

static void library(const struct vfm_lt_problem *p, const float *a, const float *b, float *c, float *bias, float *aux)
{
	for (int64_t z = 0; z < p->batch; z++)
		for (int64_t j = 0; j < p->n; j++) {
			double sum = 0;

			for (int64_t l = 0; l < p->k; l++)
				sum += col(b + z * p->stride_b, p->ldb, p->tb, l, j);
			if (p->epi & VFM_LT_BGRADB)
				bias[j] = (float)sum;
			for (int64_t i = 0; i < p->m; i++) {
				float *d = &c[z * p->stride_c + j * p->ldc + i],
				      *x = aux ? &aux[z * p->stride_aux + j * p->ld_aux + i] : NULL;
				double s = p->beta ? (double)*d : 0;

				for (int64_t l = 0; l < p->k; l++)
					s += col(a + z * p->stride_a, p->lda, p->ta, i, l) *
						col(b + z * p->stride_b, p->ldb, p->tb, l, j);
				if (p->epi & VFM_LT_BIAS)
					s += (double)bias[z * p->stride_bias + i];
				if (p->epi & VFM_LT_AUX)
					*x = (float)s;
				if (p->epi & VFM_LT_GELU)
					s = gelu(s);
				if (p->epi & VFM_LT_DGELU)
					s *= (gelu((double)*x + 1e-4) - gelu((double)*x - 1e-4)) / 2e-4;
				*d = (float)s;
			}
		}
}

enum { M = 5, N = 7, K = 6, PAD = 16 };

struct mem {
	float a[M * K * PAD], b[N * K * PAD], c[M * N * PAD], bias[N], aux[M * N * PAD], rows[M];
};

static float num(unsigned *seed)
{
	*seed = *seed * 1664525u + 1013904223u;
	return (float)(*seed >> 8) / (float)(1 << 23) - 1;
}

static struct vfm_tensor strided(float *p, int64_t rows, int64_t cols, int64_t ld)
{
	struct vfm_tensor t = vfm_t2(p, VFM_F32, rows, cols);

	t.stride[0] = ld;
	return t;
}

static double at(const struct vfm_tensor *t, bool trans, int64_t i, int64_t j)
{
	return (double)((float *)t->data)[trans ? j * t->stride[0] + i : i * t->stride[0] + j];
}

/* Every transposition and epilogue: the library's columns are our rows. */
static void test_mapping(void **state)
{
	static const unsigned epi[] = {0, VFM_LT_BIAS, VFM_LT_GELU, VFM_LT_GELU | VFM_LT_BIAS, VFM_LT_GELU | VFM_LT_AUX,
		VFM_LT_GELU | VFM_LT_AUX | VFM_LT_BIAS, VFM_LT_DGELU, VFM_LT_BGRADB};
	struct mem *x = vfm_calloc(1, sizeof(*x)), *y = vfm_calloc(1, sizeof(*y));
	unsigned seed = 1;

	(void)state;
	for (int v = 0; v < 8 * 8; v++) {
		unsigned e = epi[v / 8];
		struct vfm_gemm g = {.trans_a = v & 1,
			.trans_b = v & 2,
			.accumulate = (v & 4) && !(e & (VFM_LT_GELU | VFM_LT_DGELU))};
		struct vfm_lt_problem p;

		for (size_t i = 0; i < sizeof(*x) / sizeof(float); i++)
			((float *)x)[i] = num(&seed);
		*y = *x;
		g.a = g.trans_a ? strided(x->a, K, M, 9) : strided(x->a, M, K, 11);
		g.b = g.trans_b ? strided(x->b, N, K, 8) : strided(x->b, K, N, 10);
		g.c = strided(x->c, M, N, 13);
		if (e & VFM_LT_BIAS)
			g.bias = vfm_t1(x->bias, VFM_F32, N);
		if (e & (VFM_LT_AUX | VFM_LT_DGELU))
			g.aux = strided(x->aux, M, N, 16);
		g.act = e & VFM_LT_GELU ? VFM_ACT_GELU_TANH : VFM_ACT_NONE;
		g.dact = e & VFM_LT_DGELU ? VFM_ACT_GELU_TANH : VFM_ACT_NONE;
		p = problem_of(&g, e);
		library(&p, g.b.data, g.a.data, y->c, e & VFM_LT_BGRADB ? y->rows : y->bias,
			e & (VFM_LT_AUX | VFM_LT_DGELU) ? y->aux : NULL);
		for (int i = 0; i < M; i++) {
			double sum = 0;

			for (int l = 0; l < K; l++)
				sum += at(&g.a, g.trans_a, i, l);
			if (e & VFM_LT_BGRADB)
				assert_true(fabs(sum - (double)y->rows[i]) < 1e-5);
			for (int j = 0; j < 13; j++) {
				double s = 0, had = (double)x->c[i * 13 + j], z = (double)x->aux[i * 16 + j];

				if (j >= N) { /* between the rows */
					assert_true(y->c[i * 13 + j] == x->c[i * 13 + j]);
					continue;
				}
				for (int l = 0; l < K; l++)
					s += at(&g.a, g.trans_a, i, l) * at(&g.b, g.trans_b, l, j);
				s += e & VFM_LT_BIAS ? (double)x->bias[j] : 0;
				if (e & VFM_LT_AUX)
					assert_true(fabs(s - (double)y->aux[i * 16 + j]) < 1e-5);
				s = e & VFM_LT_GELU        ? gelu(s)
					: e & VFM_LT_DGELU ? s * (gelu(z + 1e-4) - gelu(z - 1e-4)) / 2e-4
							   : s;
				s += g.accumulate ? had : 0;
				assert_true(fabs(s - (double)y->c[i * 13 + j]) < 1e-5);
			}
		}
	}
	free(x);
	free(y);
}

/* Three equal groups of rows, each with a matrix of its own, are one call. */
static void test_batch(void **state)
{
	enum { G = 3, R = 2 };
	float a[G * R * K], b[G * N * K], c[G * R * N], bias[G * N];
	unsigned seed = 2;
	struct vfm_gemm g = {.a = vfm_t2(a, VFM_F32, R, K),
		.b = vfm_t2(b, VFM_F32, N, K),
		.c = vfm_t2(c, VFM_F32, R, N),
		.trans_b = true,
		.bias = vfm_t1(bias, VFM_F32, N)};
	struct vfm_gemm_batch batch = {.count = G, .a = R * K, .b = N * K, .c = R * N, .bias = N};
	struct vfm_gemm_op op = {.g = g, .batch = batch};
	struct vfm_lt_problem p = vfm_lt_problem_of(&op, &(struct vfm_gemm_path){.epi = VFM_LT_BIAS});

	(void)state;
	for (int i = 0; i < G * R * K; i++)
		a[i] = num(&seed);
	for (int i = 0; i < G * N * K; i++)
		b[i] = num(&seed);
	for (int i = 0; i < G * N; i++)
		bias[i] = num(&seed);
	library(&p, b, a, c, bias, NULL);
	for (int i = 0; i < G * R; i++)
		for (int j = 0; j < N; j++) {
			double s = (double)bias[i / R * N + j];

			for (int l = 0; l < K; l++)
				s += (double)a[i * K + l] * (double)b[i / R * N * K + j * K + l];
			assert_true(fabs(s - (double)c[i * N + j]) < 1e-5);
		}
}

static int paths(const struct vfm_gemm *g, struct vfm_gemm_path out[VFM_GEMM_PATHS])
{
	struct vfm_gemm_op op = op_of(g);

	return vfm_gemm_paths(&op, out);
}

static bool same_path(const struct vfm_gemm_path *p, struct vfm_gemm_path want)
{
	return vfm_gemm_path_code(p) == vfm_gemm_path_code(&want);
}

static void test_paths(void **state)
{
	struct vfm_gemm g = {.a = vfm_t2((void *)256, VFM_BF16, 64, 32),
		.b = vfm_t2((void *)256, VFM_BF16, 48, 32),
		.trans_b = true,
		.c = vfm_t2((void *)256, VFM_BF16, 64, 48),
		.bias = vfm_t1((void *)256, VFM_F32, 48),
		.act = VFM_ACT_GELU_TANH};
	struct vfm_gemm_path p[VFM_GEMM_PATHS], back;
	struct vfm_gemm w = {.trans_a = true,
		.a = vfm_t2((void *)256, VFM_BF16, 64, 48),
		.b = vfm_t2((void *)256, VFM_BF16, 64, 32),
		.c = vfm_t2((void *)256, VFM_F32, 48, 32),
		.accumulate = true,
		.a_rowsum = vfm_t1((void *)256, VFM_F32, 48)};
	struct vfm_lt_problem q;
	struct vfm_gemm_op op;
	const char *why;

	(void)state;
	g.aux = vfm_t2((void *)(2 * 256), VFM_BF16, 64, 48);
	assert_int_equal(paths(&g, p), 4);
	assert_true(same_path(&p[0], (struct vfm_gemm_path){.epi = VFM_LT_BIAS | VFM_LT_GELU | VFM_LT_AUX}));
	assert_true(same_path(&p[1], (struct vfm_gemm_path){.epi = VFM_LT_BIAS, .own_epi = true}));
	assert_true(same_path(&p[2], (struct vfm_gemm_path){.own_epi = true}));
	assert_true(same_path(&p[3], (struct vfm_gemm_path){.own_epi = true, .f32 = true}));
	op = op_of(&g);
	for (int i = 0; i < 4; i++)
		assert_true(vfm_gemm_path_of_code(&op, vfm_gemm_path_code(&p[i]), &back) && same_path(&back, p[i]));
	assert_false(vfm_gemm_path_of_code(&op, VFM_LT_DGELU, &back));
	q = problem_of(&g, p[0].epi);
	assert_true(vfm_lt_bias_differs(&q, &g)); /* the library wants it like the result */
	assert_true(q.m == 48 && q.n == 64 && q.k == 32 && q.ta && !q.tb && q.ld_aux == 48);
	g.bias.dtype = VFM_BF16;
	assert_false(vfm_lt_bias_differs(&q, &g));
	/* our kernel reads z from aux and writes c */
	assert_ptr_equal(vfm_gemm_product_of(&op.g, &p[0]), &op.g.c);
	assert_ptr_equal(vfm_gemm_product_of(&op.g, &p[1]), &op.g.aux);
	g.aux.stride[0] = 52; /* not a multiple of 8: our epilogue */
	assert_int_equal(paths(&g, p), 3);
	assert_true(p[0].own_epi && !p[0].f32);
	op = op_of(&g);
	assert_int_equal(vfm_gemm_whole_epilogue(&op, &why), 0);
	assert_non_null(why);
	q = vfm_lt_problem_of(&op, &p[0]);
	assert_int_equal(q.ldc, 52);
	g.aux.stride[0] = 56;
	g.act = VFM_ACT_SILU; /* which the library lacks */
	assert_int_equal(paths(&g, p), 3);
	assert_true(p[0].own_epi);
	op = op_of(&g);
	assert_int_equal(vfm_gemm_whole_epilogue(&op, &why), 0);
	assert_null(why);

	/* the gradient of a weight: the library's sum of rows beside ours */
	assert_int_equal(paths(&w, p), 3);
	assert_int_equal(p[0].epi, VFM_LT_BGRADB);
	assert_true(!p[0].own_rowsum && p[1].own_rowsum && !p[1].own_epi && p[1].epi == 0);
	q = problem_of(&w, p[0].epi);
	assert_true(q.beta && q.bias == VFM_F32 && q.n == 48 && q.tb && !q.ta);
	w.c.dtype = VFM_BF16; /* which would round the sums */
	assert_true(paths(&w, p) >= 1 && p[0].epi == 0 && p[0].own_rowsum);
}

/* Ops that differ in anything that decides have different keys. */
static void test_op_keys(void **state)
{
	struct vfm_gemm base = {.a = vfm_t2((void *)256, VFM_BF16, 64, 32),
		.b = vfm_t2((void *)256, VFM_BF16, 48, 32),
		.trans_b = true,
		.c = vfm_t2((void *)256, VFM_BF16, 64, 48)};
	char key[12][VFM_LT_KEY];
	struct vfm_gemm_op op[12];
	int n = 0;

	(void)state;
	for (int i = 0; i < 12; i++)
		op[i] = op_of(&base);
	op[n++].g.bias = vfm_t1((void *)256, VFM_F32, 48);
	op[n++].g.bias = vfm_t1((void *)256, VFM_BF16, 48);
	op[n++].g.act = VFM_ACT_GELU_TANH;
	op[n++].g.act = VFM_ACT_SILU;
	op[n].g.act = VFM_ACT_SILU;
	op[n++].g.aux = base.c;
	op[n].g.dact = VFM_ACT_SILU;
	op[n++].g.aux = base.c;
	op[n].g.dact = VFM_ACT_GELU_TANH;
	op[n++].g.aux = base.c;
	op[n++].g.a_rowsum = vfm_t1((void *)256, VFM_F32, 64);
	op[n++].g.accumulate = true;
	op[n++].sms = 116;
	op[n].g.act = VFM_ACT_SILU;
	op[n++].g.bias = vfm_t1((void *)256, VFM_F32, 48);
	n++; /* the op without anything */
	for (int i = 0; i < n; i++) {
		vfm_gemm_key(&op[i], key[i]);
		for (int j = 0; j < i; j++)
			assert_string_not_equal(key[i], key[j]);
	}
}

static void test_keys(void **state)
{
	struct vfm_gemm g = {.a = vfm_t2((void *)256, VFM_BF16, 8192, 4096),
		.b = vfm_t2((void *)(256 + 16), VFM_BF16, 16384, 4096),
		.trans_b = true,
		.c = vfm_t2((void *)256, VFM_BF16, 8192, 16384)};
	char a[VFM_LT_KEY], b[VFM_LT_KEY];
	struct vfm_lt_problem p = problem_of(&g, 0);

	(void)state;
	vfm_lt_key(&p, a);
	assert_string_equal(a, "bf16-bf16-bf16 tn 16384x8192x4096 x1 ld256,256,256,0 align16,256,256,0 epi0");
	p.n = 8100; /* a pack that is not full */
	vfm_lt_key(&p, b);
	assert_string_equal(a, b);
	p.n = 8200;
	vfm_lt_key(&p, b);
	assert_string_not_equal(a, b);
	p.n = 8192;
	p.ldc = 16385;
	vfm_lt_key(&p, b);
	assert_non_null(strstr(b, "ld256,256,2,0"));
	p.beta = p.tf32 = p.fast8 = p.scaled = true;
	p.sms = INT32_MAX;
	p.m = p.n = p.k = p.batch = INT64_MAX / 4; /* nothing overruns */
	vfm_lt_key(&p, b);
	assert_true(strlen(b) < VFM_LT_KEY - 1);
	for (int64_t i = 1; i < 100000; i += i < 300 ? 1 : 37) {
		int64_t r = vfm_lt_round(i);

		assert_true(r >= i && r <= i + i / 8 && vfm_lt_round(r) == r);
		if (i <= 64)
			assert_int_equal(r, i);
	}
	/* the widths of the models keep names of their own */
	static const int widths[] = {
		384, 768, 1024, 1152, 1536, 2048, 3072, 4096, 4608, 6144, 8192, 12288, 16384, 24576};
	for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
		assert_int_equal(vfm_lt_round(widths[i]), widths[i]);
}

/* Products leave room for collectives, but not most of the device. */
static void test_sms(void **state)
{
	(void)state;
	assert_int_equal(vfm_gemm_sms(132, 0), 0);
	assert_int_equal(vfm_gemm_sms(132, 16), 116);
	assert_int_equal(vfm_gemm_sms(132, 64), 68);
	assert_int_equal(vfm_gemm_sms(20, 16), 0);
}

/* Bandwidth and peak bound what the multiprocessors of a smaller GPU do. */
static void test_side_flops(void **state)
{
	(void)state;
	assert_float_equal(vfm_gemm_side_flops(132, 989.4, 4917), 300, 1); /* H200 */
	assert_float_equal(vfm_gemm_side_flops(128, 165.2, 1008), 98, 1);  /* RTX 4090 */
	assert_float_equal(vfm_gemm_side_flops(170, 209.5, 1792), 70, 1);  /* RTX 5090 */
	assert_float_equal(vfm_gemm_side_flops(132, 0, 0), 300, 0.1);
}

/* ---- the file ----------------------------------------------------------------------------------------- */

static char dir[64];

static int in_dir(void **state)
{
	(void)state;
	strcpy(dir, "/tmp/vfm-gemm-XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int out_dir(void **state)
{
	(void)state;
	return vfm_rm_rf(dir, NULL);
}

static struct vfm_lt_entry entry(const char *key, int byte, double us)
{
	struct vfm_lt_entry e = {.path = 256, .ws = 4096, .us = us};

	snprintf(e.key, sizeof(e.key), "%s", key);
	memset(e.algo, byte, sizeof(e.algo));
	return e;
}

/* A line of version 1, whose time is that of the product alone. */
#define BYTES_8  "0101010101010101"
#define BYTES_64 BYTES_8 BYTES_8 BYTES_8 BYTES_8 BYTES_8 BYTES_8 BYTES_8 BYTES_8
#define OLD_LINE "{\"v\":1,\"key\":\"b\",\"algo\":\"" BYTES_64 "\",\"ws\":0,\"us\":1}\n"

static void test_cache(void **state)
{
	char *path = vfm_strfmt("%s/deep/er/gemm.jsonl", dir);
	struct vfm_lt_entry a = entry("a", 0xab, 1.5), again = entry("a", 1, 0.5), b = entry("b", 2, 3);
	const struct vfm_lt_entry *e;
	struct vfm_lt_cache c, d;
	FILE *f;

	(void)state;
	vfm_lt_cache_open(&c, path); /* there is no file yet */
	vfm_lt_cache_open(&d, path);
	assert_null(vfm_lt_cache_find(&c, "a"));
	e = vfm_lt_cache_add(&c, &a, false);
	assert_non_null(e);
	assert_memory_equal(e->algo, a.algo, sizeof(a.algo));
	/* who comes second takes what the first found */
	e = vfm_lt_cache_add(&d, &again, false);
	assert_non_null(e);
	assert_memory_equal(e->algo, a.algo, sizeof(a.algo));
	assert_true(e->us == 1.5 && e->ws == 4096 && e->path == 256);
	vfm_lt_cache_close(&d);

	/* lines of others, broken ones, and a last one that was cut off */
	f = fopen(path, "a");
	assert_non_null(f);
	fputs("not "
	      "json\n[1]\n{\"v\":3,\"key\":\"b\",\"path\":0,\"algo\":\"\",\"ws\":0,\"us\":1}\n\n"
	      "{\"v\":2,\"key\":\"b\",\"path\":0,\"algo\":\"zz\",\"ws\":0,\"us\":1}\n" OLD_LINE
	      "{\"v\":2,\"key\":\"b\",\"path\":0,\"al",
		f);
	fclose(f);
	vfm_lt_cache_open(&d, path);
	assert_non_null(vfm_lt_cache_find(&d, "a"));
	assert_null(vfm_lt_cache_find(&d, "b"));
	e = vfm_lt_cache_add(&d, &b, false);
	assert_non_null(e);
	assert_true(e->us == 3);
	vfm_lt_cache_close(&d);
	vfm_lt_cache_open(&d, path);
	assert_non_null(vfm_lt_cache_find(&d, "b"));
	vfm_lt_cache_close(&d);
	vfm_lt_cache_close(&c);
	free(path);
}

/* Where nothing can be written, a rank that is alone keeps what it found; others must not. */
static void test_no_file(void **state)
{
	struct vfm_lt_entry a = entry("a", 7, 1);
	struct vfm_lt_cache c;
	static const char *const paths_[] = {NULL, "/proc/no/such/folder/x", "/dev/full"};

	(void)state;
	for (int i = 0; i < 3; i++) {
		vfm_lt_cache_open(&c, paths_[i]);
		assert_null(vfm_lt_cache_add(&c, &a, false));
		assert_null(vfm_lt_cache_find(&c, "a"));
		assert_non_null(vfm_lt_cache_add(&c, &a, true));
		assert_non_null(vfm_lt_cache_find(&c, "a"));
		vfm_lt_cache_close(&c);
	}
}

/* A pipe, a folder or a file of another kind: the cache neither blocks nor writes. */
static void test_no_regular_file(void **state)
{
	char *pipe_ = vfm_strfmt("%s/pipe", dir), *big = vfm_strfmt("%s/big", dir);
	struct vfm_lt_entry a = entry("a", 7, 1);
	struct vfm_lt_cache c;
	struct stat st;

	(void)state;
	assert_int_equal(mkfifo(pipe_, 0600), 0);
	assert_int_equal(close(open(big, O_CREAT | O_WRONLY, 0600)), 0);
	assert_int_equal(truncate(big, (off_t)1 << 40), 0);
	for (int i = 0; i < 3; i++) {
		vfm_lt_cache_open(&c, i == 0 ? pipe_ : i == 1 ? dir : big);
		assert_null(vfm_lt_cache_add(&c, &a, false));
		assert_non_null(vfm_lt_cache_add(&c, &a, true));
		vfm_lt_cache_close(&c);
	}
	assert_true(stat(big, &st) == 0 && st.st_size == (off_t)1 << 40);
	free(pipe_);
	free(big);
}

/* A file that others make shorter, or leave open in the middle of a line, while it is in use. */
static void test_cut(void **state)
{
	char *path = vfm_strfmt("%s/cut.jsonl", dir), key[16];
	struct vfm_lt_entry e;
	struct vfm_lt_cache c;
	struct stat st;

	(void)state;
	vfm_lt_cache_open(&c, path);
	for (int i = 0; i < 20; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		e = entry(key, i, i);
		assert_non_null(vfm_lt_cache_add(&c, &e, false));
		assert_int_equal(stat(path, &st), 0);
		if (i % 3 == 2)
			assert_int_equal(truncate(path, i % 2 ? 0 : st.st_size * 2 / 3), 0);
	}
	for (int i = 0; i < 20; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		assert_non_null(vfm_lt_cache_find(&c, key));
		assert_int_equal(vfm_lt_cache_find(&c, key)->algo[9], i);
	}
	vfm_lt_cache_close(&c);
	free(path);
}

/* Many lines, most of them good for nothing. */
static void test_long_file(void **state)
{
	enum { LINES = 1000000, GOOD = 20000 };
	char *path = vfm_strfmt("%s/long.jsonl", dir), key[16], algo[2 * VFM_LT_ALGO + 1];
	struct vfm_lt_cache c;
	FILE *f = fopen(path, "w");

	(void)state;
	assert_non_null(f);
	memset(algo, 'a', sizeof(algo) - 1);
	algo[sizeof(algo) - 1] = 0;
	for (int i = 0; i < LINES; i++)
		if (i % (LINES / GOOD) == 0)
			fprintf(f, "{\"v\":2,\"key\":\"g%d\",\"path\":0,\"algo\":\"%s\",\"ws\":0,\"us\":1}\n", i, algo);
		else
			fputs(i % 2 ? "{\"v\":\n" : "\n", f);
	assert_int_equal(fclose(f), 0);
	vfm_lt_cache_open(&c, path);
	for (int i = 0; i < LINES; i += LINES / GOOD) {
		snprintf(key, sizeof(key), "g%d", i);
		assert_non_null(vfm_lt_cache_find(&c, key));
	}
	vfm_lt_cache_close(&c);
	free(path);
}

enum { RANKS = 8, KEYS = 60 };

/* Ranks that find out different things at the same time agree: each prints what counts for it. */
static int rank(const char *path, int r)
{
	char *out = vfm_strfmt("%s/rank%d", dir, r), key[16];
	struct vfm_lt_cache c;
	FILE *f = fopen(out, "w");
	int bad = !f;

	vfm_lt_cache_open(&c, path);
	for (int i = 0; i < KEYS && f; i++) {
		struct vfm_lt_entry e;
		const struct vfm_lt_entry *got;

		snprintf(key, sizeof(key), "k%d", (i + r * 7) % KEYS);
		e = entry(key, r + 1, r);
		got = vfm_lt_cache_find(&c, key);
		got = got ? got : vfm_lt_cache_add(&c, &e, false);
		bad |= !got;
	}
	for (int i = 0; i < KEYS && f; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		fprintf(f, "%d\n", vfm_lt_cache_find(&c, key)->algo[5]);
	}
	vfm_lt_cache_close(&c);
	bad |= !f || fclose(f) != 0;
	free(out);
	return bad;
}

static void test_ranks(void **state)
{
	char *path = vfm_strfmt("%s/shared.jsonl", dir), *first = NULL, *text;
	size_t len, first_len = 0;

	(void)state;
	for (int r = 0; r < RANKS; r++)
		if (fork() == 0)
			_exit(rank(path, r));
	for (int r = 0; r < RANKS; r++) {
		int st = -1;

		assert_true(wait(&st) > 0);
		assert_int_equal(st, 0);
	}
	for (int r = 0; r < RANKS; r++) {
		char *out = vfm_strfmt("%s/rank%d", dir, r);

		assert_int_equal(vfm_read_file(out, 1 << 20, &text, &len, NULL), 0);
		free(out);
		if (!r) {
			first = text, first_len = len;
			continue;
		}
		assert_int_equal(len, first_len);
		assert_memory_equal(text, first, len);
		free(text);
	}
	free(first);
	free(path);
}

static void test_name(void **state)
{
	char name[128], small[12];

	(void)state;
	vfm_lt_cache_name("NVIDIA H200", 130101, name, sizeof(name));
	assert_string_equal(name, "gemm-NVIDIA-H200-130101.jsonl");
	vfm_lt_cache_name("../../etc/x", 1, name, sizeof(name));
	assert_null(strchr(name, '/'));
	vfm_lt_cache_name("a long name that does not fit into the field of a line of the file of algorithms", 1, small,
		sizeof(small));
	assert_true(strlen(small) < sizeof(small));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mapping),
		cmocka_unit_test(test_batch),
		cmocka_unit_test(test_paths),
		cmocka_unit_test(test_op_keys),
		cmocka_unit_test(test_sms),
		cmocka_unit_test(test_side_flops),
		cmocka_unit_test(test_keys),
		cmocka_unit_test_setup_teardown(test_cache, in_dir, out_dir),
		cmocka_unit_test_setup_teardown(test_no_regular_file, in_dir, out_dir),
		cmocka_unit_test_setup_teardown(test_cut, in_dir, out_dir),
		cmocka_unit_test_setup_teardown(test_long_file, in_dir, out_dir),
		cmocka_unit_test(test_no_file),
		cmocka_unit_test_setup_teardown(test_ranks, in_dir, out_dir),
		cmocka_unit_test(test_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
