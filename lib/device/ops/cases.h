/* cases.h - the one list of op cases.
 *
 * Tests of a device (parity with a float64 reference, gradients by finite differences) and `vfm-bench ops` iterate over
 * this list; cases*.c add the cases.
 *
 * A case holds complete arguments whose tensors have shapes but no memory.  vfm_case_alloc allocates device memory and
 * fills it with contents that depend only on the case and a seed.
 */
#ifndef VFM_DEVICE_OPS_CASES_H
#define VFM_DEVICE_OPS_CASES_H

#include "base/mem.h"
#include "device/ops/info.h"

union vfm_op_args {
#define X(name) struct vfm_##name name;
	VFM_OP_LIST(X)
#undef X
};

enum {
	VFM_CASE_BENCH = 1, /* sizes of training on a CPU, for benchmarks; too large for the reference */
	VFM_CASE_TEST = 2,
	VFM_CASE_LARGE = 4, /* sizes of training on a GPU: dit-7b and dit-xl at 8,192 and 65,536 tokens, bf16 */
	/* a backward whose saved operands (o, lse) keep random contents, as if of further keys (ring attention) */
	VFM_CASE_AS_FILLED = 8,
	/* a test with sizes that need many tiles of a GPU's kernels; too slow for the CPU and the emulation */
	VFM_CASE_TEST_GPU = 16,
};

struct vfm_case {
	enum vfm_op_id op;
	unsigned flags;
	char name[96]; /* "gemm/fwd-gelu/bf16/4096x1536x384" */
	double tol;    /* for f32 results, relative to |x| + rms(x); bf16 results also have their rounding */
	union vfm_op_args args;
	struct vfm_seqs seqs[2]; /* args point here */
	int64_t bound[3];        /* exclusive upper bounds of indices */
	const int64_t *list;     /* the elements of an operand with VFM_C_LIST */
	size_t bytes[VFM_MAX_OPERANDS];
};

struct vfm_cases {
	struct vfm_case **v;
	size_t n, cap;
	struct vfm_arena arena;
};

void vfm_cases_init(struct vfm_cases *l); /* makes all cases */
void vfm_cases_release(struct vfm_cases *l);

/* Allocates and fills the operands.  The gaps between strided rows, and VFM_CASE_GUARD bytes after each operand,
 * contain the byte VFM_CASE_FILLER; no op may change them. */
enum { VFM_CASE_FILLER = 0xa5, VFM_CASE_GUARD = 64 };
int vfm_case_alloc(struct vfm_case *c, struct vfm_stream *s, uint64_t seed, struct vfm_err *err);
void vfm_case_free(struct vfm_case *c, struct vfm_stream *s);
size_t vfm_tensor_extent(const struct vfm_tensor *t); /* bytes from the first element to the last, including gaps */
int vfm_case_run(struct vfm_case *c, struct vfm_stream *s, struct vfm_err *err);
struct vfm_cost vfm_case_cost(const struct vfm_case *c);

/* Adds attn and attn_bwd, or only attn_bwd with VFM_CASE_AS_FILLED, for n samples of lq queries and lk keys; gt is the
 * dtype of the gradients.  Returns the case of attn_bwd. */
struct vfm_case *vfm_case_attn(struct vfm_cases *l, unsigned flags, const char *what, enum vfm_dtype t,
	enum vfm_dtype gt, int n, const int *lq, const int *lk, int64_t h, int64_t hkv, int64_t d);

#endif
