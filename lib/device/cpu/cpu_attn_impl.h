/* cpu_attn_impl.h - shared by the driver (cpu_attn.c) and the kernels of each instruction set. */
#ifndef VFM_DEVICE_CPU_CPU_ATTN_IMPL_H
#define VFM_DEVICE_CPU_CPU_ATTN_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/cpu/cpu_isa.h"

enum {
	ATTN_D = 128,   /* maximum head dim */
	ATTN_FQ = 64,   /* queries of a tile of the forward, one a vector lane */
	ATTN_BQ = 128,  /* queries of a tile of the backward, at most ATTN_D */
	ATTN_BK = 128,  /* keys of a tile */
	ATTN_NQB = 8,   /* query blocks of a forward item, which share the packed keys */
	ATTN_RUN = 16,  /* blocks of keys per run, summed before they are added to the total */
	ATTN_BRUN = 8,  /* blocks of queries per run of the backward */
	ATTN_KS = 512,  /* most keys of a backward item; they share its packed queries */
	ATTN_QS = 1024, /* queries of a backward item, roughly, if several items share the keys */
	ATTN_LD = 144,  /* words between rows of an operand: an odd number of cache lines uses all sets */
};

/* [tokens, heads, d] seen as bytes. */
struct attn_view {
	char *p;
	int64_t tok, head; /* strides in bytes */
	bool bf16;
};

/* The arguments of a call.  Queries of a sample are numbered over all heads that share a kv head, head by head: index i
 * is head i / nq of the group, token i % nq. */
struct attn_call {
	struct attn_view q, k, v, o, dout, dq, dk, dv;
	float *lse;      /* [Tq, H], or NULL */
	int64_t lse_tok; /* stride in elements */
	/* Forward, with group 1: added to the scaled scores of head h, bias[h bias_ld + key - query]; NULL: none */
	const float *bias;
	int64_t bias_ld;
	int d, group, kv_heads;
	float scale;
	const int32_t *cu_q, *cu_k; /* [samples + 1] */
};

static inline int64_t attn_nq(const struct attn_call *c, int sample)
{
	return (int64_t)c->cu_q[sample + 1] - c->cu_q[sample];
}

static inline int64_t attn_nk(const struct attn_call *c, int sample)
{
	return (int64_t)c->cu_k[sample + 1] - c->cu_k[sample];
}

struct attn_item {
	int32_t sample, kvh;
	int64_t q_first, q_n; /* queries, in the numbering above; q_first is a multiple of FQ or BQ */
	int64_t k_first, k_n; /* keys; the forward takes all */
	/* Backward only.  `self` is the index of the item and of its counter in `done`. */
	int64_t self;
	/* Items with the same queries and different keys accumulate block b of dq, [d][LD], one after another.  An item
	 * raises its counter to b + 1 when it has added its part.  prev < 0: the item starts the sum; last: it stores
	 * the result. */
	float *dq;
	int64_t prev;
	bool last;
	/* Items with the same keys and different queries store dk and dv in parts.  The item that finishes last
	 * (counted in done[counter]) adds the parts in order.  parts <= 1: not divided. */
	float *part; /* [parts][2][k_n][ldd] */
	int32_t part_i, parts;
	int64_t counter;
};

/* Returns the keys per tile, a multiple of 16; tiles have equal sizes. */
static inline int64_t attn_key_block(int64_t n)
{
	int64_t blocks = (n + ATTN_BK - 1) / ATTN_BK, size = blocks ? (n + blocks - 1) / blocks : 16;

	return (size + 15) / 16 * 16;
}

/* Returns the floats between rows of partial dk and dv: an odd number of cache lines. */
static inline int attn_ldd(int d)
{
	return ((d + 15) / 16 | 1) * 16;
}

struct attn_isa {
	enum vfm_isa isa; /* the CPU must support it */
	bool bf16;        /* all operands of the products must be bf16 */
	size_t scratch;   /* bytes per thread */
	void (*fwd)(const struct attn_call *c, const struct attn_item *it, void *scratch);
	void (*bwd)(const struct attn_call *c, const struct attn_item *it, void *scratch, _Atomic int64_t *done);
};

struct vfm_stream;
struct vfm_attn;
struct vfm_attn_bwd;
struct vfm_err;
/* Run with the given kernels; for cpu_attn.c and tests. */
int vfm_attn_fwd_isa(const struct attn_isa *isa, struct vfm_stream *s, const struct vfm_attn *a, struct vfm_err *err);
int vfm_attn_bwd_isa(
	const struct attn_isa *isa, struct vfm_stream *s, const struct vfm_attn_bwd *a, struct vfm_err *err);

extern const struct attn_isa vfm_attn_base;       /* any CPU; computes in f32 */
extern const struct attn_isa vfm_attn_avx2;       /* computes in f32 */
extern const struct attn_isa vfm_attn_avx512;     /* computes in f32 */
extern const struct attn_isa vfm_attn_avx512bf16; /* all operands bf16 */
extern const struct attn_isa vfm_attn_amx;        /* all operands bf16 */
extern const struct attn_isa vfm_attn_amx_f32;    /* computes in f32, split into three bf16 */

#endif
