/* attn_pack.h - how a pack of samples becomes work for cuDNN: pieces, each of a shape that has, or will have, a plan.
 * C and C++.
 *
 * A plan takes about 0.4 s to build, and packs differ from step to step in the number of samples and in their lengths.
 * So shapes are rounded up: the number of samples to a power of two, the longest sample to one of four steps an octave,
 * 128 at least.  What is beyond is samples without rows and rows that are masked; blocks of them end at once.  Where
 * nothing had to be rounded and all samples are alike, the piece needs neither offsets nor a mask.
 *
 * A few long samples among many short ones would make a shape of mostly nothing (and scratch for it).  Then samples are
 * taken by octave of length.
 */
#ifndef VFM_CUDA_ATTN_PACK_H
#define VFM_CUDA_ATTN_PACK_H

#include "cuda/cuda_int.h"

#ifdef __cplusplus
extern "C" {
#endif

enum vfm_attn_kind {
	VFM_ATTN_PACKED, /* some samples, each with an offset and a length */
	VFM_ATTN_FIXED,  /* all samples, of sq queries and sk keys each, n = b */
};

struct vfm_attn_piece {
	enum vfm_attn_kind kind;
	int32_t lo, hi;      /* packed: samples with keys, of more than lo and at most hi queries; */
	int32_t first, n;    /* of these, in order, the first .. first + n - 1 */
	int64_t b, sq, sk;   /* the shape: at most b samples of at most sq queries and sk keys */
	int64_t head, heads; /* heads of keys, and those of queries that go with them */
};

struct vfm_attn_limits {
	int64_t hkv, group; /* heads of keys, heads of queries for each */
	bool only_packed;   /* offsets and lengths even where neither is needed */
	/* most b * heads of queries * sq * sk of a piece; 0: any.  A piece of one sample and one head of keys may have
	 * more */
	int64_t pairs;
	int64_t rows; /* most b * sq of a piece; 0: any.  A piece of one sample may have more */
};

enum { VFM_ATTN_MOST_SAMPLES = 16384 }; /* of a piece */

int64_t vfm_attn_round_len(int64_t n);
int64_t vfm_attn_round_batch(int64_t n);
/* *v: malloc'ed, NULL if there is nothing to do.  Returns how many. */
int vfm_attn_pieces(
	const struct vfm_seqs *q, const struct vfm_seqs *k, const struct vfm_attn_limits *l, struct vfm_attn_piece **v);
/* Whether samples have queries without keys, or keys without queries: rows that no piece has. */
void vfm_attn_left_out(const struct vfm_seqs *q, const struct vfm_seqs *k, bool *queries, bool *keys);

/* ---- kernels (attn_pack.cu) ---- */

enum { VFM_ATTN_OFFSETS = 10 };

/* What a plan with ragged offsets reads, for one piece; all device memory. */
struct vfm_attn_lists {
	int32_t *len_q, *len_k; /* [b]: 0 where the piece has fewer samples, and both of a sample that lacks one */
	int n;
	struct {
		int64_t *at; /* [b + 1]: first row of each sample times `row`; where there is none, that of all rows */
		int64_t row;
		bool of_keys;
	} offset[VFM_ATTN_OFFSETS];
};
/* Each of these puts one kernel on the stream. */
void vfm_cuda_attn_lists(struct vfm_stream *s, const struct vfm_seqs *q, const struct vfm_seqs *k,
	const struct vfm_attn_piece *p, const struct vfm_attn_lists *l);
/* padded [b, heads, sq] = lse [rows, H] of the piece's queries, 0 where there is none; first: an offset with row 1. */
void vfm_cuda_attn_spread(struct vfm_stream *s, const struct vfm_attn_piece *p, const struct vfm_tensor *lse,
	int64_t head, int64_t heads, const int32_t *len_q, const int64_t *first, float *padded);
/* Rows of samples that are empty in `other` become 0 (x [rows of `of`, H, d]) and -inf (lse, may be NULL). */
void vfm_cuda_attn_blank(struct vfm_stream *s, const struct vfm_seqs *of, const struct vfm_seqs *other,
	const struct vfm_tensor *x, float *lse);
/* y = x [rows, H, d]: another type or other strides; heads side by side. */
void vfm_cuda_attn_copy(struct vfm_stream *s, const struct vfm_tensor *x, const struct vfm_tensor *y);

#ifdef __cplusplus
}
#endif
#endif
