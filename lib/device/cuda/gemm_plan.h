/* gemm_plan.h - the host-only part of GEMM: the translation of an op to cuBLASLt problems, their keys, and the file of
 * chosen algorithms.  It includes no CUDA header, so that it is tested without a GPU.
 *
 * Row-major C[M,N] = op(A) op(B) is column-major C^T = op(B)^T op(A)^T: the library's A is our b, its B our a, its m
 * our N and its n our M.  The library transposes its A if our b is [N,K], and its B if our a is [K,M].
 */
#ifndef VFM_DEVICE_CUDA_GEMM_PLAN_H
#define VFM_DEVICE_CUDA_GEMM_PLAN_H

#ifdef __cplusplus
extern "C" {
#endif

#include "device/ops/ops.h"

/* Epilogues of the library.  Its GELU is the tanh approximation, like ours. */
enum {
	VFM_LT_BIAS = 1,
	VFM_LT_GELU = 2,
	VFM_LT_AUX = 4,     /* GELU; stores its input */
	VFM_LT_DGELU = 8,   /* times GELU'(aux) */
	VFM_LT_BGRADB = 16, /* the sums over k of op(B), which is our op(A), are stored in the dtype of C */
};

/* `count` products of equal shape at these distances, in elements; one product: 1 and zeros. */
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
	int sms;     /* multiprocessors to use; 0: all */
	unsigned epi;
	int64_t m, n, k, lda, ldb, ldc, ld_aux;
	int64_t batch, stride_a, stride_b, stride_c, stride_bias, stride_aux;
	int align_a, align_b, align_c, align_aux; /* alignment of addresses in bytes: 1 … 16, or 256 */
};

/* An op, and what the implementation may use. */
struct vfm_gemm_op {
	struct vfm_gemm g;
	struct vfm_gemm_batch batch;
	bool tune; /* may be timed */
	bool tf32; /* products of f32 in TF32 */
	int sms;   /* multiprocessors to use; 0: all */
	size_t ws; /* bytes of scratch memory for the library */
};

/* Returns the multiprocessors to use of `all`, 0 for all, while collectives occupy `comm` of them: a
 * product in one wave then overlaps them.  No multiprocessors are reserved if they occupy more than half of all. */
int vfm_gemm_sms(int all, int comm);

/* An implementation of an op: a product of the library with this epilogue, and our kernels for the rest. */
struct vfm_gemm_path {
	unsigned epi;
	bool own_epi;    /* our kernel applies the rest of the epilogue to the product, in place */
	bool f32;        /* own_epi of an f32 product in scratch memory, some rows at a time */
	bool own_rowsum; /* our kernel sums the rows */
};
enum { VFM_GEMM_PATHS = 6 };
/* Lists the implementations, from the one with the fewest passes to the one that always works (f32).  Returns their
 * number.  M, N, K > 0.  Row sums of the library stand before the same product with our kernel, and only where C is
 * f32, whose dtype they have. */
int vfm_gemm_paths(const struct vfm_gemm_op *op, struct vfm_gemm_path out[VFM_GEMM_PATHS]);
/* Returns the epilogue flags that stand for the whole op except row sums, 0 if the library has no such epilogue (SiLU).
 * *why: NULL, or the reason for which the operands exclude an epilogue that the library has. */
unsigned vfm_gemm_whole_epilogue(const struct vfm_gemm_op *op, const char **why);

/* Returns the library's problem of a path.  Not for f32, whose product is an op of its own. */
struct vfm_lt_problem vfm_lt_problem_of(const struct vfm_gemm_op *op, const struct vfm_gemm_path *path);
/* The operand that receives the library's product: aux if our kernel computes C from it, else c. */
const struct vfm_tensor *vfm_gemm_product_of(const struct vfm_gemm *g, const struct vfm_gemm_path *path);
/* Whether the bias must be converted first: the library requires the dtype of the result, or bf16 for fp8. */
bool vfm_lt_bias_differs(const struct vfm_lt_problem *p, const struct vfm_gemm *g);

/* Returns the key of a problem: "bf16-bf16-bf16 tn 16384x8192x4096 x1 ld16,16,16,0 align256,256,256,0 epi5". Dimensions
 * above 64 are rounded up to four significant bits, since packs differ by a few tokens; leading dimensions count by
 * their alignment. */
enum { VFM_LT_KEY = 224 };
void vfm_lt_key(const struct vfm_lt_problem *p, char key[VFM_LT_KEY]);
int64_t vfm_lt_round(int64_t dim);
/* The rows of data of an op, which differ between packs and experts: those of C, or for the gradient of weights the
 * terms of its sums.  set: for a single product; the operands get n rows, with their addresses.  round: to those of the
 * key; returns whether this changes the op.  No-op for a batch, whose strides depend on the rows. */
int64_t vfm_gemm_rows(const struct vfm_gemm *g);
void vfm_gemm_set_rows(struct vfm_gemm *g, int64_t n);
bool vfm_gemm_round_rows(struct vfm_gemm_op *op);
/* Returns the key of an op: that of its problem with the whole epilogue, and the rest of the op. */
void vfm_gemm_key(const struct vfm_gemm_op *op, char key[VFM_LT_KEY]);

/* ---- what was found out, by key ----
 * JSON Lines {"v":2,"key":…,"path":code,"algo":<hex>,"ws":bytes,"us":microseconds}, where path is vfm_gemm_path_code
 * and the time is that of the whole op.  Lines are appended in one write; of several
 * with one key the first counts, so that ranks which read after they have written agree.  Lines that are broken, or of
 * another version, are passed over.  What is no file, or one of more than 64 MiB, is neither read nor written. */
enum { VFM_LT_ALGO = 64 };
struct vfm_lt_entry {
	char key[VFM_LT_KEY];      /* first */
	unsigned path;             /* vfm_gemm_path_code */
	uint8_t algo[VFM_LT_ALGO]; /* opaque */
	int64_t ws;                /* bytes of scratch memory */
	double us;
};
struct vfm_lt_cache {
	char *path;   /* NULL: only in memory */
	int64_t read; /* bytes of the file read so far: whole lines */
	void *tree;   /* tsearch(3): of struct vfm_lt_entry */
};
/* Reads the file; an unreadable file counts as empty. */
void vfm_lt_cache_open(struct vfm_lt_cache *c, const char *path);
void vfm_lt_cache_close(struct vfm_lt_cache *c);
const struct vfm_lt_entry *vfm_lt_cache_find(const struct vfm_lt_cache *c, const char *key);
/* Appends e, reads entries of other processes, and returns the entry that is first in the file.  If the file cannot be
 * written: with `alone` returns e, kept in memory; else NULL, because other ranks would not know it. */
const struct vfm_lt_entry *vfm_lt_cache_add(struct vfm_lt_cache *c, const struct vfm_lt_entry *e, bool alone);
/* A number for each path, and the path of a number; false: the op has no such path. */
unsigned vfm_gemm_path_code(const struct vfm_gemm_path *p);
bool vfm_gemm_path_of_code(const struct vfm_gemm_op *op, unsigned code, struct vfm_gemm_path *p);
/* "gemm-NVIDIA-H200-130101.jsonl" */
void vfm_lt_cache_name(const char *device, size_t version, char *out, size_t len);

#ifdef __cplusplus
}
#endif
#endif
