/* cases.h - the one list of op cases, and a description of every op's operands.
 *
 * Tests of a device (parity with a float64 reference, gradients by finite differences) and `vfm-bench ops` iterate over
 * this list.  vfm_op_infos describes the operands of each op; cases*.c add the cases.
 *
 * A case holds complete arguments whose tensors have shapes but no memory.  vfm_case_alloc allocates device memory and
 * fills it with contents that depend on the case and a seed alone.
 */
#ifndef VFM_DEVICE_OPS_CASES_H
#define VFM_DEVICE_OPS_CASES_H

#include "base/mem.h"
#include "device/ops/ops.h"

enum vfm_role { VFM_IN, VFM_OUT, VFM_INOUT };

enum vfm_content {           /* initial contents of an operand */
	VFM_C_NORMAL,        /* N(0, 1) */
	VFM_C_SMALL,         /* N(0, 0.1) */
	VFM_C_POSITIVE,      /* uniform in [0.5, 1.5) */
	VFM_C_TIME,          /* uniform in [0, 1000) */
	VFM_C_LSE,           /* log(100), for benchmarks; tests compute it */
	VFM_C_IDX,           /* index of the token within its sample */
	VFM_C_ID,            /* arbitrary 64-bit ids */
	VFM_C_INDEX,         /* element i: integers in [0, bound[i % 3]) */
	VFM_C_INDEX_OR_NONE, /* the same, one in eight is -1 */
	VFM_C_DISTINCT,      /* rows of bound[1] different numbers in [0, bound[0]) */
	VFM_C_COARSE,        /* 1/8, 2/8, … 8/8: many are equal */
	VFM_C_LSE_OR_NONE,   /* uniform in [-3, 3); one in four is -inf */
	VFM_C_LOW,           /* integers in [-32768, 32768) */
	VFM_C_POWER,         /* 1/4, 1/2, 1 or 2 */
	VFM_C_SCALE,         /* uniform in [0.5, 1.5); NaN where bound[0] is 1, infinity where it is 2 */
	VFM_C_PAST,          /* uniform in [0.5, 1.5); zeros where bound[0] is not 0 */
};

struct vfm_operand {
	const char *name;
	size_t offset; /* of the struct vfm_tensor within the op's arguments */
	enum vfm_role role;
	enum vfm_content content;
};

struct vfm_op_info {
	const char *name;
	size_t args_size;
	const struct vfm_operand *operands; /* ends with name NULL */
	size_t seqs[2];                     /* offsets of `const struct vfm_seqs *`; 0: none */
	int (*call)(struct vfm_stream *s, const void *args, struct vfm_err *err);
	struct vfm_cost (*cost)(const void *args);
};
extern const struct vfm_op_info vfm_op_infos[VFM_OP_N];

enum { VFM_MAX_OPERANDS = 16 };

static inline struct vfm_tensor *vfm_operand_of(void *args, const struct vfm_operand *o)
{
	return (struct vfm_tensor *)((char *)args + o->offset);
}

union vfm_op_args {
#define X(name) struct vfm_##name name;
	VFM_OP_LIST(X)
#undef X
};

enum {
	VFM_CASE_BENCH = 1, /* sizes of training on a CPU, for benchmarks; too large for the reference */
	VFM_CASE_TEST = 2,
	VFM_CASE_LARGE = 4, /* sizes of training on a GPU: dit-7b and dit-xl at 8,192 and 65,536 tokens, bf16 */
	/* a backward whose saved operands (o, lse) keep their random contents: ring attention's, of other keys, too */
	VFM_CASE_AS_FILLED = 8,
	/* a test whose sizes need many tiles of a GPU's kernels: too slow for the CPU and the emulation */
	VFM_CASE_TEST_GPU = 16,
};

struct vfm_case {
	enum vfm_op_id op;
	unsigned flags;
	char name[96]; /* "gemm/fwd-gelu/bf16/4096x1536x384" */
	double tol;    /* for f32 results, relative to |x| + rms(x); bf16 results have their rounding on top */
	union vfm_op_args args;
	struct vfm_seqs seqs[2]; /* args point here */
	int64_t bound[3];        /* exclusive upper bounds of indices */
	size_t bytes[VFM_MAX_OPERANDS];
};

struct vfm_cases {
	struct vfm_case **v;
	size_t n, cap;
	struct vfm_arena arena;
};

void vfm_cases_init(struct vfm_cases *l); /* makes all cases */
void vfm_cases_release(struct vfm_cases *l);

/* Allocates and fills the operands.  The gaps between strided rows, and VFM_CASE_GUARD bytes after each operand, hold
 * the byte VFM_CASE_FILLER; no op may change them. */
enum { VFM_CASE_FILLER = 0xa5, VFM_CASE_GUARD = 64 };
int vfm_case_alloc(struct vfm_case *c, struct vfm_stream *s, uint64_t seed, struct vfm_err *err);
void vfm_case_free(struct vfm_case *c, struct vfm_stream *s);
size_t vfm_tensor_extent(const struct vfm_tensor *t); /* bytes from the first element to the last, gaps included */
int vfm_case_run(struct vfm_case *c, struct vfm_stream *s, struct vfm_err *err);
struct vfm_cost vfm_case_cost(const struct vfm_case *c);

#endif
