/* attn_pack.h - divides a pack of samples into pieces for cuDNN, with shapes for which plans can be reused.  For C and
 * C++.
 *
 * Building a plan takes about 0.4 s, and packs differ in the number and lengths of their samples.  Shapes are therefore
 * rounded up: the number of samples to a power of two, the longest sample to one of four steps per octave, at least
 * 128.  Blocks beyond the pack return at once.  If samples have equal lengths that need no rounding, their plan has
 * neither offsets nor a mask; there is one for four numbers of samples per octave.  A pack of short and long samples is
 * divided into one piece per octave of length, to limit padding and scratch.
 */
#ifndef VFM_DEVICE_CUDA_ATTN_PACK_H
#define VFM_DEVICE_CUDA_ATTN_PACK_H

#include "device/cuda/cuda_impl.h"

#ifdef __cplusplus
extern "C" {
#endif

enum vfm_attn_kind {
	VFM_ATTN_PACKED, /* samples that each have an offset and a length */
	VFM_ATTN_FIXED,  /* all samples have sq queries and sk keys; n = b */
};

struct vfm_attn_piece {
	enum vfm_attn_kind kind;
	int32_t lo, hi;      /* packed: among the samples with keys and more than lo, at most hi queries, … */
	int32_t first, n;    /* … the piece has samples first to first + n - 1, in order */
	int64_t b, sq, sk;   /* the shape: at most b samples of at most sq queries and sk keys */
	int64_t head, heads; /* heads of keys, and the heads of queries that use them */
};

struct vfm_attn_limits {
	int64_t hkv, group; /* heads of keys; heads of queries per head of keys */
	bool only_packed;   /* always use offsets and lengths */
	/* maximum of b * heads of queries * sq * sk in a piece, 0: no limit.  A piece of one sample and one head of
	 * keys may exceed it */
	int64_t pairs;
	int64_t rows; /* maximum of b * sq in a piece, 0: no limit; a piece of one sample may exceed it */
};

enum { VFM_ATTN_MOST_SAMPLES = 16384 }; /* in a piece */

int64_t vfm_attn_round_len(int64_t n);
int64_t vfm_attn_round_batch(int64_t n);
/* Divides a pack.  *v is malloc'ed, or NULL without pieces.  Returns the number of pieces. */
int vfm_attn_pieces(
	const struct vfm_seqs *q, const struct vfm_seqs *k, const struct vfm_attn_limits *l, struct vfm_attn_piece **v);
/* Sets whether samples have queries without keys, or keys without queries: rows that no piece covers. */
void vfm_attn_left_out(const struct vfm_seqs *q, const struct vfm_seqs *k, bool *queries, bool *keys);

/* ---- kernels (attn_pack.cu) ---- */

enum { VFM_ATTN_OFFSETS = 10 };

/* The inputs of a plan with ragged offsets for one piece, in device memory. */
struct vfm_attn_lists {
	int32_t *len_q, *len_k; /* [b]; both 0 for samples without queries or keys, and beyond the samples */
	int n;
	struct {
		int64_t *at; /* [b + 1]: first row of each sample times `row`; beyond the samples, the number of all
				rows */
		int64_t row;
		bool of_keys;
	} offset[VFM_ATTN_OFFSETS];
};
/* Each function below launches one kernel. */
void vfm_cuda_attn_lists(struct vfm_stream *s, const struct vfm_seqs *q, const struct vfm_seqs *k,
	const struct vfm_attn_piece *p, const struct vfm_attn_lists *l);
/* padded [b, heads, sq] = lse [rows, H] of the piece's queries, 0 beyond a sample.  back: the reverse, which skips
 * elements beyond a sample.  first: an offset with row 1.  Without len_q and first (NULL), all samples have sq
 * queries. */
void vfm_cuda_attn_spread(struct vfm_stream *s, const struct vfm_attn_piece *p, const struct vfm_tensor *lse,
	int64_t head, int64_t heads, const int32_t *len_q, const int64_t *first, float *padded, bool back);
/* Sets rows of samples that are empty in `other` to 0 (x [rows of `of`, H, d]) and -inf (lse, may be NULL). */
void vfm_cuda_attn_blank(struct vfm_stream *s, const struct vfm_seqs *of, const struct vfm_seqs *other,
	const struct vfm_tensor *x, float *lse);
/* y = x [rows, H, d], converted to the dtype and strides of y; heads are contiguous. */
void vfm_cuda_attn_copy(struct vfm_stream *s, const struct vfm_tensor *x, const struct vfm_tensor *y);

#ifdef __cplusplus
}
#endif
#endif
