/* cpu_impl.h - declarations shared by the files of the CPU device. */
#ifndef VFM_DEVICE_CPU_CPU_IMPL_H
#define VFM_DEVICE_CPU_CPU_IMPL_H

#include "device/cpu/cpu_isa.h"
#include "device/cpu/cpu_kern.h"
#include "device/dev/dev.h"
#include "device/ops/ops.h"

/* Workspaces belong to the device and grow as needed. */
enum vfm_ws { VFM_WS_PACK, VFM_WS_TEMP, VFM_WS_PART, VFM_WS_CHUNKS, VFM_WS_ATTN, VFM_WS_FP8, VFM_WS_BIAS, VFM_WS_N };

struct vfm_cpu_pool;
struct vfm_cpu_held; /* cpu_held.c */

struct vfm_cpu {
	struct vfm_dev dev; /* first */
	enum vfm_isa isa;
	bool pairs; /* products of bf16 by vdpbf16ps; else, without tiles, by FMAs of f32 */
	const struct vfm_cpu_kern *kern;
	struct vfm_cpu_pool *pool;
	struct vfm_gemm_kern gemm_f32, gemm_bf16; /* of kern, or of AMX tiles */
	struct vfm_cpu_held *held;                /* NULL: no copies */
	struct {
		void *p;
		size_t size;
	} ws[VFM_WS_N];
};

static inline int64_t cpu_ceil_div(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

static inline int64_t cpu_min(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t cpu_max(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static inline struct vfm_cpu *vfm_cpu_of(const struct vfm_stream *s)
{
	return (struct vfm_cpu *)s->dev;
}

/* Selects the kernels of GEMM; those without an epilogue get that of c->kern, whose nr must agree.  For vfm_cpu_open
 * and tests. */
void vfm_cpu_set_gemm(struct vfm_cpu *c, const struct vfm_gemm_kern *f32, const struct vfm_gemm_kern *bf16);

/* Returns at least `bytes` of 64-byte aligned memory, or NULL with err.  A call that needs more memory discards the
 * contents. */
void *vfm_cpu_ws(struct vfm_stream *s, enum vfm_ws slot, size_t bytes, struct vfm_err *err);
/* Returns memory of the calling thread; aborts if there is none.  A caller must not call another kernel driver while it
 * uses the memory. */
void *vfm_cpu_scratch(size_t bytes);

/* Identifies a packed operand: rows [0, n) and elements [0, k) of b, in chunks of kc units. */
struct vfm_held_key {
	struct vfm_mat b;
	int64_t n, k, kc;
};
/* Returns the memory of the packed operand, or NULL if there is none for it; the device owns it.  *valid: it holds the
 * contents of `version`.  If not, the caller fills it now. */
float *vfm_cpu_held(struct vfm_cpu *c, const struct vfm_held_key *key, int64_t version, size_t bytes, bool *valid);
void vfm_cpu_drop_held(struct vfm_cpu *c); /* frees all */

/* The context of vfm_par_for over a kernel alone. */
struct vfm_cpu_job {
	const struct vfm_cpu_kern *kern;
	const void *args;
};
/* Defines op_range for vfm_par_for, which runs the kernel of an op on a range of its rows or elements. */
#define VFM_CPU_RANGE(op)                                                                                              \
	static void op##_range(int64_t i0, int64_t i1, void *ctx)                                                      \
	{                                                                                                              \
		const struct vfm_cpu_job *j = ctx;                                                                     \
                                                                                                                       \
		j->kern->op(j->args, i0, i1);                                                                          \
	}

/* A range of at most `grain` tokens within one sample; without samples s = -1. */
struct vfm_chunk {
	int64_t t0, t1, s;
};
int64_t vfm_cpu_chunks(struct vfm_stream *st, const struct vfm_seqs *q, int64_t total, int64_t grain,
	struct vfm_chunk **out, struct vfm_err *err); /* returns their number; *out is in VFM_WS_CHUNKS */

extern const struct vfm_ops vfm_cpu_ops;
/* The drivers of all ops. */
#define X(op) int vfm_cpu_##op(struct vfm_stream *s, const struct vfm_##op *a, struct vfm_err *err);
VFM_OP_LIST(X)
#undef X

/* A sum of many rows of n columns: runs of rows are summed, then the sums of the runs, and so on, so that the error
 * does not grow with the number of rows.  The caller adds a row to level[0] and calls vfm_cpu_sum_next. */
enum { VFM_CPU_SUM_LEVELS = 6 };
struct vfm_cpu_sum {
	const struct vfm_cpu_kern *kern;
	float *level[VFM_CPU_SUM_LEVELS];
	int64_t n, rows;
	int top; /* the highest level in use */
};
/* mem: [VFM_CPU_SUM_LEVELS][n] */
void vfm_cpu_sum_begin(struct vfm_cpu_sum *s, const struct vfm_cpu_kern *kern, float *mem, int64_t n);
void vfm_cpu_sum_next(struct vfm_cpu_sum *s);
const float *vfm_cpu_sum_end(struct vfm_cpu_sum *s); /* returns the sum, in mem */

/* cpu_conv.c */
size_t vfm_cpu_conv3d_packed_size(struct vfm_stream *s, const struct vfm_conv3d *a);
int vfm_cpu_conv3d_pack(struct vfm_stream *s, const struct vfm_conv3d *a, void *packed, struct vfm_err *err);

/* cpu_fp8.c: vfm_cpu_gemm calls it for fp8 */
int vfm_cpu_gemm8(struct vfm_stream *s, const struct vfm_gemm *a, struct vfm_err *err);

#endif
