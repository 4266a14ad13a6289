/* cpu_attn_int.h - what the driver (cpu_attn.c) and the kernels of each instruction set share. */
#ifndef VFM_CPU_CPU_ATTN_INT_H
#define VFM_CPU_CPU_ATTN_INT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cpu/cpu_isa.h"

enum {
	ATTN_D = 128,   /* the largest head dim */
	ATTN_BQ = 64,   /* queries of a tile: they are the vector lanes */
	ATTN_BK = 128,  /* keys of a tile */
	ATTN_NQB = 8,   /* query blocks of a forward item: they share the packed keys */
	ATTN_KS = 512,  /* keys of a backward item, at most: they share the packed queries */
	ATTN_QS = 1024, /* queries of a backward item where several share the keys, about */
	ATTN_LD = 144,  /* words between rows of a packed operand: 9 cache lines, so that rows spread over the sets */
};

/* [tokens, heads, d] seen as bytes. */
struct attn_view {
	char *p;
	int64_t tok, head; /* strides in bytes */
	bool bf16;
};

/* A call.  The queries of a sample and of the heads that share one kv head are numbered together,
 * head by head: index i is head i / nq of the group, token i % nq. */
struct attn_call {
	struct attn_view q, k, v, o, dout, dq, dk, dv;
	float *lse;      /* [Tq, H] */
	int64_t lse_tok; /* stride in elements */
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
	int64_t q_first, q_n; /* queries, in the numbering above; q_first is a multiple of BQ */
	int64_t k_first, k_n; /* keys; the forward takes all */
	/* The rest is for the backward: `self` is the item's index, and its counter in `done`. */
	int64_t self;
	/* Items that share queries, each with other keys: block b of dq, [d][BQ], goes from item to item, each adding
	 * to it.  An item raises its counter to b + 1 once it has; prev < 0: it starts the sum; last: it writes it out.
	 */
	float *dq;
	int64_t prev;
	bool last;
	/* Items that share keys, each with other queries: each leaves its dk and dv in its own part; the one that
	 * finishes last (counted in done[lead]) adds them up in their order.  parts <= 1: no such thing. */
	float *part; /* [parts][2][k_n][d rounded up to 16] */
	int32_t part_i, parts;
	int64_t lead;
};

/* Keys of a tile: tiles of even size, a multiple of 16. */
static inline int64_t attn_key_block(int64_t n)
{
	int64_t blocks = (n + ATTN_BK - 1) / ATTN_BK, size = blocks ? (n + blocks - 1) / blocks : 16;

	return (size + 15) / 16 * 16;
}

struct attn_isa {
	enum vfm_isa isa; /* what the CPU must have */
	size_t scratch;   /* bytes a thread */
	void (*fwd)(const struct attn_call *c, const struct attn_item *it, void *scratch);
	void (*bwd)(const struct attn_call *c, const struct attn_item *it, void *scratch, _Atomic int64_t *done);
};

struct vfm_stream;
struct vfm_attn;
struct vfm_attn_bwd;
struct vfm_err;
/* With a chosen set of kernels, whatever the CPU prefers: for tests and the callers in cpu_attn.c. */
int vfm_attn_fwd_isa(const struct attn_isa *isa, struct vfm_stream *s, const struct vfm_attn *a, struct vfm_err *err);
int vfm_attn_bwd_isa(
	const struct attn_isa *isa, struct vfm_stream *s, const struct vfm_attn_bwd *a, struct vfm_err *err);

extern const struct attn_isa vfm_attn_base;       /* any CPU; computes in f32 */
extern const struct attn_isa vfm_attn_avx2;       /* computes in f32 */
extern const struct attn_isa vfm_attn_avx512;     /* computes in f32 */
extern const struct attn_isa vfm_attn_avx512bf16; /* all operands bf16 */
extern const struct attn_isa vfm_attn_amx;        /* the same */

#endif
