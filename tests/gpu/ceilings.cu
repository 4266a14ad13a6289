/* ceilings - measures upper bounds of this GPU: device-to-device copy bandwidth, and the best bf16 GEMM of cuBLASLt on
 * random matrices, alone and over many seconds, in which power and heat limit the clocks.  Prints one JSON object.
 * Shares no code with the library.
 *
 *	ceilings [SECONDS [LONG]]    approximate time per measurement (1), of the long one (20)
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define CUDA(call)                                                                                                     \
	do {                                                                                                           \
		cudaError_t e_ = (call);                                                                               \
		if (e_ != cudaSuccess) {                                                                               \
			fprintf(stderr, "ceilings: %s: %s\n", #call, cudaGetErrorString(e_));                          \
			exit(3);                                                                                       \
		}                                                                                                      \
	} while (0)
#define LT(call)                                                                                                       \
	do {                                                                                                           \
		cublasStatus_t e_ = (call);                                                                            \
		if (e_ != CUBLAS_STATUS_SUCCESS) {                                                                     \
			fprintf(stderr, "ceilings: %s: status %d\n", #call, (int)e_);                                  \
			exit(3);                                                                                       \
		}                                                                                                      \
	} while (0)

static double seconds = 1;

__global__ static void copy_kernel(const uint4 *__restrict__ a, uint4 *__restrict__ b, size_t n)
{
	size_t stride = (size_t)gridDim.x * blockDim.x, i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

	for (; i + 3 * stride < n; i += 4 * stride) {
		uint4 x = a[i], y = a[i + stride], z = a[i + 2 * stride], w = a[i + 3 * stride];

		b[i] = x, b[i + stride] = y, b[i + 2 * stride] = z, b[i + 3 * stride] = w;
	}
	for (; i < n; i += stride)
		b[i] = a[i];
}

/* Approximately normal: the sum of four uniform numbers. */
__global__ static void random_kernel(__nv_bfloat16 *x, size_t n, unsigned seed)
{
	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
		unsigned long long h = (i + 1) * 0x9E3779B97F4A7C15ull + seed;
		float s = 0;

		for (int k = 0; k < 4; k++) {
			h ^= h >> 33, h *= 0xff51afd7ed558ccdull, h ^= h >> 29;
			s += (float)(h & 0xffffff) / 16777216.0f - 0.5f;
		}
		x[i] = __float2bfloat16(1.732f * s);
	}
}

/* Returns the median seconds of one call. */
template <class F> static double timed(F &&f)
{
	cudaEvent_t a, b;
	std::vector<float> ms;
	double total = 0;

	CUDA(cudaEventCreate(&a));
	CUDA(cudaEventCreate(&b));
	for (int i = 0; i < 3; i++)
		f();
	CUDA(cudaDeviceSynchronize());
	while (ms.size() < 10 || (total < seconds * 1e3 && ms.size() < 1000)) {
		float t;

		CUDA(cudaEventRecord(a));
		f();
		CUDA(cudaEventRecord(b));
		CUDA(cudaEventSynchronize(b));
		CUDA(cudaEventElapsedTime(&t, a, b));
		ms.push_back(t);
		total += t;
	}
	CUDA(cudaGetLastError());
	CUDA(cudaEventDestroy(a));
	CUDA(cudaEventDestroy(b));
	std::sort(ms.begin(), ms.end());
	return ms[ms.size() / 2] * 1e-3;
}

static double copy_rate(int sms, double *memcpy_gb_s)
{
	const size_t bytes = (size_t)2 << 30;
	void *a, *b;
	double best = 0;

	CUDA(cudaMalloc(&a, bytes));
	CUDA(cudaMalloc(&b, bytes));
	random_kernel<<<sms * 8, 256>>>((__nv_bfloat16 *)a, bytes / 2, 1);
	*memcpy_gb_s =
		2e-9 * (double)bytes / timed([&] { CUDA(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice)); });
	best = *memcpy_gb_s;
	for (int blocks = 4; blocks <= 16; blocks *= 2)
		best = std::max(best, 2e-9 * (double)bytes / timed([&] {
			copy_kernel<<<sms * blocks, 512>>>((const uint4 *)a, (uint4 *)b, bytes / 16);
		}));
	CUDA(cudaFree(a));
	CUDA(cudaFree(b));
	return best;
}

/* Returns the mean seconds of one call in the second half of so many seconds of calls. */
template <class F> static double timed_long(F &&f, double whole)
{
	enum { EACH = 50 };
	cudaEvent_t a, b;
	double ms = 0, late_ms = 0;
	long late = 0;

	CUDA(cudaEventCreate(&a));
	CUDA(cudaEventCreate(&b));
	while (ms < whole * 1e3 || !late) {
		float t;

		CUDA(cudaEventRecord(a));
		for (int i = 0; i < EACH; i++)
			f();
		CUDA(cudaEventRecord(b));
		CUDA(cudaEventSynchronize(b));
		CUDA(cudaEventElapsedTime(&t, a, b));
		if (ms >= whole * 500)
			late += EACH, late_ms += t;
		ms += t;
	}
	CUDA(cudaGetLastError());
	CUDA(cudaEventDestroy(a));
	CUDA(cudaEventDestroy(b));
	return late_ms * 1e-3 / (double)late;
}

/* Returns the TFLOP/s of C [m,n] = A [m,k] B [n,k]^T, row-major bf16 with fp32 accumulation, for the fastest algorithm
 * that cuBLASLt proposes.  *sustained, if not NULL: its TFLOP/s in the second half of `whole` seconds. */
static double gemm_rate(cublasLtHandle_t lt, long m, long n, long k, double *sustained = NULL, double whole = 0)
{
	const size_t ws_bytes = (size_t)64 << 20;
	cublasLtMatmulDesc_t op;
	cublasLtMatrixLayout_t la, lb, lc;
	cublasLtMatmulPreference_t pref;
	cublasLtMatmulHeuristicResult_t found[8];
	cublasOperation_t trans = CUBLAS_OP_T;
	__nv_bfloat16 *a, *b, *c;
	float one = 1, zero = 0;
	double best = 0, keep = seconds, tflop = 2e-12 * (double)m * (double)n * (double)k;
	void *ws;
	int n_found = 0, fastest = 0;

	CUDA(cudaMalloc(&a, (size_t)(m * k) * 2));
	CUDA(cudaMalloc(&b, (size_t)(n * k) * 2));
	CUDA(cudaMalloc(&c, (size_t)(m * n) * 2));
	CUDA(cudaMalloc(&ws, ws_bytes));
	random_kernel<<<1024, 256>>>(a, (size_t)(m * k), 2);
	random_kernel<<<1024, 256>>>(b, (size_t)(n * k), 3);
	LT(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
	LT(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &trans, sizeof(trans)));
	/* cuBLASLt is column-major: C^T = B A^T */
	LT(cublasLtMatrixLayoutCreate(&la, CUDA_R_16BF, (uint64_t)k, (uint64_t)n, k));
	LT(cublasLtMatrixLayoutCreate(&lb, CUDA_R_16BF, (uint64_t)k, (uint64_t)m, k));
	LT(cublasLtMatrixLayoutCreate(&lc, CUDA_R_16BF, (uint64_t)n, (uint64_t)m, n));
	LT(cublasLtMatmulPreferenceCreate(&pref));
	LT(cublasLtMatmulPreferenceSetAttribute(
		pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws_bytes, sizeof(ws_bytes)));
	LT(cublasLtMatmulAlgoGetHeuristic(lt, op, la, lb, lc, lc, pref, 8, found, &n_found));
	seconds = keep / 4;
	auto product = [&](int i) {
		LT(cublasLtMatmul(lt, op, &one, b, la, a, lb, &zero, c, lc, c, lc, &found[i].algo, ws, ws_bytes, 0));
	};
	for (int i = 0; i < n_found; i++) {
		double rate = tflop / timed([&] { product(i); });

		if (rate > best)
			best = rate, fastest = i;
	}
	seconds = keep;
	if (sustained)
		*sustained = n_found ? tflop / timed_long([&] { product(fastest); }, whole) : 0;
	CUDA(cudaFree(a));
	CUDA(cudaFree(b));
	CUDA(cudaFree(c));
	CUDA(cudaFree(ws));
	cublasLtMatmulPreferenceDestroy(pref);
	cublasLtMatrixLayoutDestroy(la);
	cublasLtMatrixLayoutDestroy(lb);
	cublasLtMatrixLayoutDestroy(lc);
	cublasLtMatmulDescDestroy(op);
	return best;
}

int main(int argc, char **argv)
{
	cudaDeviceProp p;
	cublasLtHandle_t lt;
	int driver = 0, runtime = 0;
	double memcpy_gb_s, copy, g1, g2, g3, sustained, whole = 20;

	if (argc > 1)
		seconds = atof(argv[1]);
	if (argc > 2)
		whole = atof(argv[2]);
	CUDA(cudaGetDeviceProperties(&p, 0));
	CUDA(cudaDriverGetVersion(&driver));
	CUDA(cudaRuntimeGetVersion(&runtime));
	LT(cublasLtCreate(&lt));
	copy = copy_rate(p.multiProcessorCount, &memcpy_gb_s);
	g2 = gemm_rate(lt, 8192, 16384, 4096); /* fc1 of dit-7b */
	g3 = gemm_rate(lt, 8192, 4608, 1152);  /* fc1 of dit-xl */
	g1 = gemm_rate(lt, 8192, 8192, 8192, &sustained, whole);
	printf("{\"device\":\"%s\",\"sm\":%d,\"multiprocessors\":%d,\"l2_mib\":%.0f,\"memory_gib\":%.1f,\"cuda_"
	       "driver\":%d,\"cuda_runtime\":%d,\"cublaslt\":%zu,"
	       "\"copy_gb_s\":%.0f,\"memcpy_gb_s\":%.0f,\"gemm_tflops\":%.1f,\"gemm_7b_fc1_tflops\":%.1f,\"gemm_xl_fc1_"
	       "tflops\":%.1f,\"sustained_tflops\":%.1f,\"sustained_s\":%g}\n",
		p.name, p.major * 10 + p.minor, p.multiProcessorCount, (double)p.l2CacheSize / 0x1p20,
		(double)p.totalGlobalMem / 0x1p30, driver, runtime, cublasLtGetVersion(), copy, memcpy_gb_s, g1, g2, g3,
		sustained, whole);
	cublasLtDestroy(lt);
	return 0;
}
