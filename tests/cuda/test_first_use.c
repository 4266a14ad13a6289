/* First uses, on a mock of some functions of CUDA and cuBLASLt: every kernel that the assembler reported is loaded when
 * the device opens; a matrix product is timed when no stream has work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cublasLt.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/cuda_sys.h"
#include "device/cuda/gemm.h"
#include "io/file.h"

static struct {
	const void *at[4096];
	int n;
	int busy[VFM_CUDA_STREAMS];       /* queries that a stream answers with "not ready"; negative: all */
	int queries, products, disturbed; /* disturbed: products while a stream has work */
	double now;
	int warnings;
} rt;

cudaError_t __wrap_cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f);
cudaError_t __wrap_cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f)
{
	(void)a;
	for (int i = 0; i < rt.n; i++)
		if (rt.at[i] == f)
			return cudaSuccess;
	assert_true(rt.n < 4096);
	rt.at[rt.n++] = f;
	return cudaSuccess;
}

cudaError_t __wrap_cudaStreamQuery(cudaStream_t s);
cudaError_t __wrap_cudaStreamQuery(cudaStream_t s)
{
	int *busy = &rt.busy[(uintptr_t)s];

	rt.queries++;
	if (*busy > 0)
		return (*busy)--, cudaErrorNotReady;
	return *busy ? cudaErrorNotReady : cudaSuccess;
}

double __wrap_vfm_now(void);
double __wrap_vfm_now(void)
{
	return rt.now += 0.0125;
}

/* Skips the launch. */
unsigned __wrap___cudaPushCallConfiguration(void);
unsigned __wrap___cudaPushCallConfiguration(void)
{
	return 1;
}

cudaError_t __wrap_cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr attr, int device);
cudaError_t __wrap_cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr attr, int device)
{
	(void)attr, (void)device;
	*v = 1 << 20;
	return cudaSuccess;
}

cudaError_t __wrap_cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b);
cudaError_t __wrap_cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
	(void)a, (void)b;
	*ms = 1;
	return cudaSuccess;
}

#define SUCCEEDS(name)                                                                                                 \
	int __wrap_##name(void);                                                                                       \
	int __wrap_##name(void)                                                                                        \
	{                                                                                                              \
		return 0;                                                                                              \
	}
SUCCEEDS(cudaEventCreate)
SUCCEEDS(cudaEventDestroy)
SUCCEEDS(cudaEventRecord)
SUCCEEDS(cudaEventSynchronize)
SUCCEEDS(cudaGetLastError)
SUCCEEDS(cublasLtCreate)
SUCCEEDS(cublasLtDestroy)

cublasStatus_t __wrap_cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t lt, cublasLtMatmulDesc_t op,
	cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
	cublasLtMatmulPreference_t pref, int most, cublasLtMatmulHeuristicResult_t *found, int *n);
cublasStatus_t __wrap_cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t lt, cublasLtMatmulDesc_t op,
	cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
	cublasLtMatmulPreference_t pref, int most, cublasLtMatmulHeuristicResult_t *found, int *n)
{
	(void)lt, (void)op, (void)a, (void)b, (void)c, (void)d, (void)pref, (void)most;
	memset(found, 0, sizeof(*found));
	*n = 1;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t __wrap_cublasLtMatmulAlgoCheck(cublasLtHandle_t lt, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
	cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
	cublasLtMatmulHeuristicResult_t *r);
cublasStatus_t __wrap_cublasLtMatmulAlgoCheck(cublasLtHandle_t lt, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
	cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
	cublasLtMatmulHeuristicResult_t *r)
{
	(void)lt, (void)op, (void)a, (void)b, (void)c, (void)d, (void)algo;
	memset(r, 0, sizeof(*r));
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t __wrap_cublasLtMatmul(void);
cublasStatus_t __wrap_cublasLtMatmul(void)
{
	rt.products++;
	for (int i = 0; i < VFM_CUDA_STREAMS; i++)
		rt.disturbed += rt.busy[i] != 0;
	return CUBLAS_STATUS_SUCCESS;
}

/* Kernels in the reports of the assembler, which mention each once a target. */
static int kernels_of_reports(void)
{
	static const char list[] =
		"grep -o \"Compiling entry function '[^']*'\" \"$B\"/lib/device/cuda/kern/*.cu.ptxas | sort -u | wc -l";
	FILE *f = popen(list, "r");
	int n = 0;

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%d", &n), 1);
	assert_int_equal(pclose(f), 0);
	return n;
}

static void test_kernels(void **state)
{
	int n = kernels_of_reports();

	(void)state;
	vfm_cuda_load_kernels();
	print_message("%d kernels\n", rt.n);
	assert_true(n > 100);
	assert_int_equal(rt.n, n);
}

static void test_idle(void **state)
{
	struct vfm_cuda_sys y = {.capturing = false};
	struct vfm_cuda c = {.sys = &y};
	struct vfm_cuda_stream s[3] = {{.st = (cudaStream_t)0}, {.st = (cudaStream_t)1}, {.st = (cudaStream_t)2}};
	double t0;

	(void)state;
	memset(rt.busy, 0, sizeof(rt.busy));
	rt.queries = 0;
	y.stream[0] = &s[0];
	y.stream[7] = &s[1];
	y.stream[VFM_CUDA_STREAMS - 1] = &s[2];
	assert_true(vfm_cuda_idle(&c, 0));
	assert_int_equal(rt.queries, 3);
	rt.busy[1] = 3;
	rt.busy[2] = 2;
	assert_true(vfm_cuda_idle(&c, 60));
	assert_true(rt.busy[1] == 0 && rt.busy[2] == 0);
	rt.busy[2] = -1; /* waits for another rank */
	t0 = rt.now;
	assert_false(vfm_cuda_idle(&c, 2));
	assert_true(rt.now - t0 >= 2 && rt.now - t0 < 3);
	assert_false(vfm_cuda_idle(&c, 0));
	rt.busy[2] = 0;
	y.capturing = true; /* no stream of a capture may be asked */
	rt.queries = 0;
	assert_false(vfm_cuda_idle(&c, 60));
	assert_int_equal(rt.queries, 0);
}

/* ---- products ---- */

static void *alloc_host_memory(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err)
{
	(void)s, (void)what, (void)err;
	return vfm_malloc(bytes);
}

static void free_host_memory(struct vfm_stream *s, void *p, size_t bytes)
{
	(void)s, (void)bytes;
	free(p);
}

static const struct vfm_dev_table memory = {.alloc = alloc_host_memory, .free = free_host_memory};

static void count_warning(const char *fmt, ...)
{
	(void)fmt;
	rt.warnings++;
}

/* A device with a compute stream 0, and a stream 1 of collectives. */
struct rig {
	struct vfm_cuda_sys y;
	struct vfm_cuda c;
	struct vfm_cuda_stream s, comm;
};

static void make_rig(struct rig *r, bool deterministic)
{
	memset(&rt, 0, sizeof(rt));
	memset(r, 0, sizeof(*r));
	r->c = (struct vfm_cuda){.dev = {.t = &memory, .name = "mock"},
		.n_sm = 132,
		.sys = &r->y,
		.local_size = 1,
		.warn = count_warning,
		.deterministic = deterministic};
	r->s.s.dev = r->comm.s.dev = &r->c.dev;
	r->comm.st = (cudaStream_t)1;
	r->y.stream[0] = &r->s;
	r->y.stream[1] = &r->comm;
}

/* C [m,256] = A [m,k] B^T in bf16. */
static struct vfm_gemm_choice choose(struct rig *r, int64_t m, int64_t k)
{
	struct vfm_gemm_op op = {.batch = {.count = 1}, .tune = true, .ws = 1 << 20};
	struct vfm_gemm_choice c;
	struct vfm_err err = {0};

	op.g = (struct vfm_gemm){.a = vfm_t2((void *)4096, VFM_BF16, m, k),
		.b = vfm_t2((void *)8192, VFM_BF16, 256, k),
		.c = vfm_t2((void *)16384, VFM_BF16, m, 256),
		.trans_b = true};
	if (vfm_lt_choose(&r->s.s, &op, false, &c, &err) != 1)
		fail_msg("%s", err.msg);
	return c;
}

/* The choice waits for the collective, then times; ops of its key do neither. */
static void test_timed_when_idle(void **state)
{
	struct rig r;
	int products;

	(void)state;
	make_rig(&r, false);
	rt.busy[1] = 1;
	assert_false(choose(&r, 512, 128).untimed);
	products = rt.products;
	assert_true(products > 1 && rt.disturbed == 0);
	assert_int_equal(r.c.dev.tuned, 1);
	rt.busy[1] = -1;
	assert_false(choose(&r, 512, 128).untimed);
	assert_false(choose(&r, 500, 128).untimed);
	assert_true(rt.products == products && r.c.dev.tuned == 1 && r.c.dev.heuristic_gemm == 0 && rt.warnings == 0);
	vfm_cuda_gemm_free(r.c.gemm);
}

/* A collective that does not end delays no op by more than 0.2 seconds, and all by about one. */
static void test_never_idle(void **state)
{
	double total = 0;
	struct rig r;

	(void)state;
	make_rig(&r, false);
	rt.busy[1] = -1;
	for (int i = 1; i <= 15; i++) { /* keys of their own */
		double t0 = rt.now;

		assert_false(choose(&r, 1024, 128 * i).untimed);
		assert_true(rt.now - t0 < 0.3);
		total += rt.now - t0;
		assert_int_equal(r.c.dev.tuned, i);
	}
	assert_true(total > 1 && total < 2);
	assert_true(rt.disturbed > 0 && rt.warnings == 1);
	vfm_cuda_gemm_free(r.c.gemm);
}

/* A deterministic device times nothing, and does not read what other runs have timed. */
static void test_deterministic(void **state)
{
	struct rig r;

	(void)state;
	make_rig(&r, true);
	assert_true(choose(&r, 512, 128).untimed);
	assert_true(rt.products == 0 && r.c.dev.tuned == 0 && r.c.dev.heuristic_gemm == 1);
	vfm_cuda_gemm_free(r.c.gemm);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kernels),
		cmocka_unit_test(test_idle),
		cmocka_unit_test(test_timed_when_idle),
		cmocka_unit_test(test_never_idle),
		cmocka_unit_test(test_deterministic),
	};
	char *build = vfm_strdup(argv[0]), *at = strstr(build, "/tests/cuda/"), cache[] = "/tmp/vfm-first-XXXXXX";
	int rc;

	(void)argc;
	if (at)
		*at = 0;
	setenv("B", at ? build : "build", 1);
	free(build);
	if (!mkdtemp(cache))
		return 1;
	setenv("VFM_CACHE_DIR", cache, 1);
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	vfm_rm_rf(cache, NULL);
	return rc;
}
