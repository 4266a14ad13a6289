/* gemm.h - GEMM by cuBLASLt and by our own kernels.  For C and C++; without CUDA headers, so that gemm_plan.c and
 * gemm_choice.c are tested without a GPU.  In the emulation, tests/ops/emu_lt.c replaces the library.
 */
#ifndef VFM_DEVICE_CUDA_GEMM_H
#define VFM_DEVICE_CUDA_GEMM_H

#ifdef __cplusplus
extern "C" {
#endif

#include "device/ops/ops.h"

/* ---- gemm_plan.c: an op as problems of cuBLASLt, their keys, and the file of chosen algorithms ----
 * Row-major C[M,N] = op(A) op(B) is column-major C^T = op(B)^T op(A)^T: the library's A is our b, its B our a, its m
 * our N and its n our M.  A row-major matrix is its own transpose there, so the library transposes its A if our b is
 * [N,K], and its B if our a is [K,M]. */

/* Epilogues of the library.  Its GELU is the tanh approximation, like ours. */
enum {
	VFM_LT_BIAS = 1,
	VFM_LT_GELU = 2,
	VFM_LT_AUX = 4,     /* GELU; stores its input */
	VFM_LT_DGELU = 8,   /* times GELU'(aux) */
	VFM_LT_BGRADB = 16, /* stores the sums over k of op(B), which is our op(A), in the dtype of C */
};

/* `count` products of equal shape at these distances, in elements; for one product, 1 and zeros. */
struct vfm_gemm_batch {
	int64_t count, a, b, c, bias, aux, rowsum;
};

struct vfm_lt_problem {
	enum vfm_dtype a, b, c, bias; /* the library's A and B, its C = D, its bias or bias gradient */
	bool ta, tb;
	bool beta;   /* C is added to */
	bool tf32;   /* computes f32 products in TF32 */
	bool fast8;  /* fp8: accumulates with fewer bits (CUBLASLT_MATMUL_DESC_FAST_ACCUM) */
	bool scaled; /* scalars on the device multiply A and B */
	int sms;     /* multiprocessors to use; 0: all */
	unsigned epi;
	int64_t m, n, k, lda, ldb, ldc, ld_aux;
	int64_t batch, stride_a, stride_b, stride_c, stride_bias, stride_aux;
	int align_a, align_b, align_c, align_aux; /* alignment of addresses in bytes: 1 … 16, or 256 */
};

/* An op and the resources for its implementation. */
struct vfm_gemm_op {
	struct vfm_gemm g;
	struct vfm_gemm_batch batch;
	bool tune; /* may be timed */
	bool tf32; /* may compute f32 products in TF32 */
	int sms;   /* multiprocessors to use; 0: all */
	size_t ws; /* bytes of scratch memory for the library */
};

/* Returns the number of multiprocessors, out of `all`, to use while collectives occupy `comm` of them, so that a
 * product in one wave overlaps them; 0 means all.  Reserves none if the collectives occupy more than half of all. */
int vfm_gemm_sms(int all, int comm);

/* Returns vfm_dev_side.flops_per_byte: the FLOPs that three quarters of the multiprocessors compute while the others
 * move a byte.  peak: TFLOP/s in bf16 (spec/cost/hw.h), 0 if unknown.  gb_s: 10^9 bytes per second of the memory, 0 if
 * unknown. */
double vfm_gemm_side_flops(int all, double peak, double gb_s);

/* An implementation of an op: a product of the library with this epilogue, and our kernels for the rest. */
struct vfm_gemm_path {
	unsigned epi;
	bool own_epi;    /* our kernel applies the rest of the epilogue to the product, in place */
	bool f32;        /* own_epi for an f32 product in scratch memory, some rows at a time */
	bool own_rowsum; /* our kernel sums the rows */
};
enum { VFM_GEMM_PATHS = 6 };
/* Lists the implementations, from the one with the fewest passes to the one that always works (f32).  Returns their
 * number.  M, N, K > 0.  Row sums of the library come before the same product with our kernel, and only if C is f32,
 * since they have its dtype. */
int vfm_gemm_paths(const struct vfm_gemm_op *op, struct vfm_gemm_path out[VFM_GEMM_PATHS]);
/* Returns the epilogue flags that cover the whole op except row sums, or 0 if the library has no such epilogue (SiLU).
 * Sets *why to the reason if the operands exclude an epilogue of the library, else to NULL. */
unsigned vfm_gemm_whole_epilogue(const struct vfm_gemm_op *op, const char **why);

/* Returns the library's problem for a path.  Not for f32, whose product is a separate op. */
struct vfm_lt_problem vfm_lt_problem_of(const struct vfm_gemm_op *op, const struct vfm_gemm_path *path);
/* Returns the operand that receives the library's product: aux if our kernel computes C from it, else c. */
const struct vfm_tensor *vfm_gemm_product_of(const struct vfm_gemm *g, const struct vfm_gemm_path *path);
/* Returns whether the bias must be converted first: the library requires the dtype of the result, or bf16 for fp8. */
bool vfm_lt_bias_differs(const struct vfm_lt_problem *p, const struct vfm_gemm *g);

/* Writes the key of a problem: "bf16-bf16-bf16 tn 16384x8192x4096 x1 ld16,16,16,0 align256,256,256,0 epi5".  Dimensions
 * above 64 are rounded up to four significant bits, since packs differ by a few tokens.  Leading dimensions are
 * represented by their alignment. */
enum { VFM_LT_KEY = 224 };
void vfm_lt_key(const struct vfm_lt_problem *p, char key[VFM_LT_KEY]);
int64_t vfm_lt_round(int64_t dim);
/* The data rows of an op, which differ between packs and experts: the rows of C, or for a weight gradient the terms of
 * its sums.
 *
 * - set gives the operands of a single product n rows, with the same addresses.
 * - round uses the number of the key; returns whether this changes the op.  No-op for a batch, whose strides depend on
 *   the rows. */
int64_t vfm_gemm_rows(const struct vfm_gemm *g);
void vfm_gemm_set_rows(struct vfm_gemm *g, int64_t n);
bool vfm_gemm_round_rows(struct vfm_gemm_op *op);
/* Writes the key of an op: that of its problem with the whole epilogue, and the rest of the op. */
void vfm_gemm_key(const struct vfm_gemm_op *op, char key[VFM_LT_KEY]);

/* The file of chosen algorithms, by key: JSON Lines {"v":2,"key":…,"path":code,"algo":<hex>,"ws":bytes,"us":time},
 * where path is vfm_gemm_path_code, and the time, in microseconds, is that of the whole op.  Each line is appended with
 * one write.  The first line of a key counts, so ranks that read after they have written agree.  Broken lines and lines
 * of another version are skipped.  A path that is not a regular file, or a file above 64 MiB, is ignored. */
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
 * written: with `alone`, returns e, kept in memory; else returns NULL, because other ranks would not know it. */
const struct vfm_lt_entry *vfm_lt_cache_add(struct vfm_lt_cache *c, const struct vfm_lt_entry *e, bool alone);
/* Return the number of a path, and the path of a number; false: the op has no such path. */
unsigned vfm_gemm_path_code(const struct vfm_gemm_path *p);
bool vfm_gemm_path_of_code(const struct vfm_gemm_op *op, unsigned code, struct vfm_gemm_path *p);
/* "gemm-NVIDIA-H200-130101.jsonl" */
void vfm_lt_cache_name(const char *device, size_t version, char *out, size_t len);

/* ---- gemm_choice.c: the implementation of an op: the epilogue of the library, or its plain product and our kernels,
 * each with the library's algorithms, by the time of the whole op ----
 * The library and the device are a table of functions, which gemm_lt.c implements with cuBLASLt.
 *
 * A choice is kept in memory for exactly these operands (dimensions, strides, alignment, dtypes), and in a file by the
 * key of the op.  Without timing, the library chooses once for each rounded number of rows, because the groups of
 * experts have new ones in every step.  VFM_CUDA_GEMM=epilogue|plain|auto forces one kind of implementation. */

struct vfm_lt_algo {
	uint8_t opaque[VFM_LT_ALGO];
	size_t ws; /* bytes of scratch memory that it needs */
};

struct vfm_gemm_choice {
	struct vfm_gemm_path path;
	struct vfm_lt_problem p; /* the library's problem of the path, unless path.f32 */
	struct vfm_lt_algo algo; /* for p */
	double us;               /* of the whole op; negative: not timed */
	bool untimed;            /* the algorithm is the first of the library's heuristic */
	bool refused;            /* the library refused the epilogue or the product, which it should support */
};

/* The library and the device; ctx is the first argument of all functions. */
struct vfm_gemm_lib {
	/* Lists the algorithms for p that need at most ws bytes of scratch memory, beginning with the one that the
	 * library recommends.  Returns their number; 0: the library does not support p. */
	int (*list)(void *ctx, const struct vfm_lt_problem *p, size_t ws, struct vfm_lt_algo *out, int most);
	/* Returns whether the library supports the algorithm for exactly p with at most ws bytes; sets a->ws. */
	bool (*supports)(void *ctx, const struct vfm_lt_problem *p, size_t ws, struct vfm_lt_algo *a);
	/* Begins to time an op: allocates operands of its shapes with random values.  Returns 1 if ready.  Returns 0 if
	 * timing is not possible, with the reason in *why, or NULL if the user does not want timing.  Negative: an
	 * error. */
	int (*time_begin)(void *ctx, const struct vfm_gemm_op *op, const char **why, struct vfm_err *err);
	/* Times the whole op with this choice.  May stop early if it is much slower than `best` microseconds (negative:
	 * no limit).  Returns 1; 0 if the library refused the call; negative if the device failed. */
	int (*time)(void *ctx, const struct vfm_gemm_choice *c, double best, double *us, struct vfm_err *err);
	void (*time_end)(void *ctx);
	void (*warn)(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* may be NULL */
};

enum vfm_gemm_mode { VFM_GEMM_AUTO, VFM_GEMM_EPILOGUE, VFM_GEMM_PLAIN };
/* Reads VFM_CUDA_GEMM. */
int vfm_gemm_mode_of_env(enum vfm_gemm_mode *mode, struct vfm_err *err);

struct vfm_gemm_chooser;
/* lib must outlive the chooser.  path: the file, or NULL; other ranks may share it, unless `alone`. */
struct vfm_gemm_chooser *vfm_gemm_chooser_new(
	const struct vfm_gemm_lib *lib, void *ctx, enum vfm_gemm_mode mode, const char *path, bool alone);
void vfm_gemm_chooser_free(struct vfm_gemm_chooser *c);

/* Chooses an implementation; M, N, K > 0.  Returns 1; 0 if only our own kernels compute the op (out->path.f32, whose
 * product the caller requests as a separate op); negative for an error.  Warns once per kind about a refusal, and about
 * a choice without timing that the user did not request. */
int vfm_gemm_choose(
	struct vfm_gemm_chooser *c, const struct vfm_gemm_op *op, struct vfm_gemm_choice *out, struct vfm_err *err);

/* ---- kern/gemm.cu ---- */

/* Enqueues an op with a choice.  ws: vfm_gemm_ws(op, c) bytes at a 256-byte boundary. */
size_t vfm_gemm_ws(const struct vfm_gemm_op *op, const struct vfm_gemm_choice *c);
int vfm_gemm_enqueue(struct vfm_stream *s, const struct vfm_gemm_op *op, const struct vfm_gemm_choice *c, void *ws,
	struct vfm_err *err);
/* Fills x with n normally distributed elements of variance 1, f32, bf16 or fp8, since a GPU multiplies zeros faster
 * than the numbers of a training step. */
int vfm_gemm_noise(struct vfm_stream *s, enum vfm_dtype dt, void *x, int64_t n, uint64_t seed, struct vfm_err *err);

/* ---- gemm_lt.c ---- */

struct vfm_lt_args {       /* device memory */
	const void *a, *b; /* the library's A and B */
	void *c;
	void *bias; /* read, or written by BGRADB */
	void *aux;
	const float *scale_a, *scale_b; /* [1] each, with p->scaled */
	void *ws;                       /* at least algo->ws bytes */
};

/* Bytes of scratch memory for tuned products, and for small concurrent ones. */
enum { VFM_LT_WS = 64 << 20, VFM_LT_WS_SMALL = 8 << 20 };

/* vfm_gemm_choose for the device of s; sets the fields of op that the device determines.  Timing uses separate
 * operands.  Counts the fallbacks of the device (device/dev/dev.h), unless the product is `part` of another op. */
int vfm_lt_choose(
	struct vfm_stream *s, struct vfm_gemm_op *op, bool part, struct vfm_gemm_choice *out, struct vfm_err *err);
/* Enqueues c->p. */
int vfm_lt_run(struct vfm_stream *s, const struct vfm_gemm_choice *c, const struct vfm_lt_args *x, struct vfm_err *err);
/* fork makes streams wait for s, so that they run concurrently products that do not fill the device, and returns their
 * number.  join makes s wait for them. */
int vfm_lt_fork(struct vfm_stream *s, struct vfm_stream *const **sides, struct vfm_err *err);
int vfm_lt_join(struct vfm_stream *s, struct vfm_err *err);

/* Scratch memory is divided at 256-byte boundaries. */
static inline size_t vfm_round_256(size_t n)
{
	return (n + 255) / 256 * 256;
}

struct vfm_cuda_gemm;
/* Called when all work has completed and all other streams are gone, while memory still exists. */
void vfm_cuda_gemm_free(struct vfm_cuda_gemm *g) __attribute__((weak));

#ifdef __cplusplus
}
#endif
#endif
