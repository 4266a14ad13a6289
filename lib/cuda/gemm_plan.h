/* gemm_plan.h - the parts of the GEMM that need no device: how an op becomes problems of cuBLASLt, their names, and the
 * file in which algorithms are kept.  No CUDA header comes in here, so that all of it is tested where there is no GPU;
 * gemm.cu and gemm_lt.c use it.
 *
 * Row-major C[M,N] = op(A) op(B) is column-major C^T = op(B)^T op(A)^T: the library's A is our b, its B our a, its m
 * our N and its n our M; a row-major matrix is its own transpose there, so that the library transposes its A where our
 * b is [N,K], its B where our a is [K,M].
 */
#ifndef VFM_CUDA_GEMM_PLAN_H
#define VFM_CUDA_GEMM_PLAN_H

#ifdef __cplusplus
extern "C" {
#endif

#include "ops/ops.h"

/* What the library does behind the product.  Its GELU is the tanh approximation, like ours. */
enum {
	VFM_LT_BIAS = 1,
	VFM_LT_GELU = 2,
	VFM_LT_AUX = 4,     /* with GELU: its input is stored */
	VFM_LT_DGELU = 8,   /* times GELU'(aux) */
	VFM_LT_BGRADB = 16, /* the sums over k of op(B), which is our op(A), are stored in the dtype of C */
};

/* `count` equal products at these distances, in elements; 1 and zeros: one product. */
struct vfm_gemm_batch {
	int64_t count, a, b, c, bias, aux, rowsum;
};

struct vfm_lt_problem {
	enum vfm_dtype a, b, c, bias; /* the library's A and B, its C = D, its bias or bias gradient */
	bool ta, tb;
	bool beta;   /* C is added to */
	bool tf32;   /* products of f32 in TF32 */
	bool fast8;  /* fp8: sums in fewer bits (CUBLASLT_MATMUL_DESC_FAST_ACCUM) */
	bool scaled; /* scalars on the device multiply A and B */
	unsigned epi;
	int64_t m, n, k, lda, ldb, ldc, ld_aux;
	int64_t batch, stride_a, stride_b, stride_c, stride_bias, stride_aux;
	int align_a, align_b, align_c, align_aux; /* bytes that addresses are multiples of: 1 … 16, or 256 */
};

/* How an op may be done. */
struct vfm_gemm_path {
	unsigned epi; /* what the library does behind the product, or … */
	/* … it makes a plain f32 product in scratch memory, some rows at a time, and a kernel of ours does the rest */
	bool own_epi;
	bool own_rowsum; /* a kernel of ours sums the rows */
};
enum { VFM_GEMM_PATHS = 4 };
/* The ways there are, from the one with the fewest passes to the one that always works; returns how many.  M, N, K > 0.
 * A sum of rows is left to the library only where it comes out in f32, and stands beside the same path with our kernel:
 * timing decides. */
int vfm_gemm_paths(
	const struct vfm_gemm *a, const struct vfm_gemm_batch *batch, struct vfm_gemm_path out[VFM_GEMM_PATHS]);

/* The product of `a` by that path (not own_epi) as the library's problem. */
struct vfm_lt_problem vfm_lt_problem_of(const struct vfm_gemm *a, const struct vfm_gemm_batch *batch, unsigned epi);
/* Whether the bias must be rounded to bf16 first: the library wants it in the dtype of the result. */
bool vfm_lt_bias_bf16(const struct vfm_lt_problem *p);

/* "bf16-bf16-bf16 tn 16384x8192x4096 ld16,16,16 align256,256,256 epi5 …": what algorithms are chosen by.  Dimensions
 * above 64 are rounded up to four significant bits, since packs differ by a few tokens; leading dimensions count by
 * their alignment. */
enum { VFM_LT_KEY = 192 };
void vfm_lt_key(const struct vfm_lt_problem *p, char key[VFM_LT_KEY]);
int64_t vfm_lt_round(int64_t dim);
/* The same for our own sum of the rows of op(A). */
void vfm_lt_rowsum_key(const struct vfm_gemm *a, char key[VFM_LT_KEY]);

/* ---- what was found out, by key ----
 * JSON Lines {"v":1,"key":…,"algo":<hex>,"ws":bytes,"us":microseconds}.  Lines are appended in one write; of several
 * with one key the first counts, so that ranks which read after they have written agree.  Lines that are broken, or of
 * another version, are passed over.  What is no file, or one of more than 64 MiB, is neither read nor written. */
enum { VFM_LT_ALGO = 64 };
struct vfm_lt_entry {
	char key[VFM_LT_KEY];
	uint8_t algo[VFM_LT_ALGO]; /* opaque; zeros for what is no product of the library */
	int64_t ws;                /* bytes of scratch memory */
	double us;
	struct vfm_lt_entry *next;
};
struct vfm_lt_cache {
	char *path;   /* NULL: in memory alone */
	int64_t read; /* bytes of the file that were read: whole lines */
	struct vfm_lt_entry **bucket;
	size_t n, n_buckets;
};
/* Reads what there is; a file that cannot be read is an empty one. */
void vfm_lt_cache_open(struct vfm_lt_cache *c, const char *path);
void vfm_lt_cache_close(struct vfm_lt_cache *c);
const struct vfm_lt_entry *vfm_lt_cache_find(const struct vfm_lt_cache *c, const char *key);
/* Writes e and reads what has come in meanwhile; what then counts for the key.  `alone`: where the file cannot be
 * written, e itself counts (in memory); else NULL, since other ranks would not know of it. */
const struct vfm_lt_entry *vfm_lt_cache_add(struct vfm_lt_cache *c, const struct vfm_lt_entry *e, bool alone);
/* "gemm-NVIDIA-H200-130101.jsonl" */
void vfm_lt_cache_name(const char *device, size_t version, char *out, size_t len);

#ifdef __cplusplus
}
#endif
#endif
