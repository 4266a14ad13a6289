/* Loading of our kernels (lib/cuda/first_use.c): every kernel that the assembler reported is loaded.  And the wait for an
 * idle device, on streams of a mock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cuda/cuda_sys.h"

static struct {
	const void *at[4096];
	int n;
	int busy[VFM_CUDA_STREAMS]; /* queries that a stream answers with "not ready"; negative: all */
	int queries;
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

/* Kernels in the reports of the assembler, which mention each once a target. */
static int kernels_of_reports(void)
{
	static const char list[] =
		"grep -o \"Compiling entry function '[^']*'\" \"$B\"/lib/cuda/*.cu.ptxas | sort -u | wc -l";
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
	t0 = vfm_now();
	assert_false(vfm_cuda_idle(&c, 0.02));
	assert_true(vfm_now() - t0 >= 0.02);
	assert_false(vfm_cuda_idle(&c, 0));
	rt.busy[2] = 0;
	y.capturing = true; /* no stream of a capture may be asked */
	rt.queries = 0;
	assert_false(vfm_cuda_idle(&c, 60));
	assert_int_equal(rt.queries, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kernels),
		cmocka_unit_test(test_idle),
	};
	char *dir = vfm_strdup(argv[0]), *at = strstr(dir, "/tests/cuda/");

	(void)argc;
	if (at)
		*at = 0;
	setenv("B", at ? dir : "build", 1);
	free(dir);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
