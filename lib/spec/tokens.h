/* tokens.h - which tokens of a pack a rank holds.  Plain arithmetic on the sample boundaries, which every
 * rank knows from the manifest: no lengths ever travel.
 *
 * cp: each sample's n tokens are cut into cp contiguous chunks of n/cp; the n % cp tokens over go to the ranks
 *     from (sample % cp) on, so that many small samples do not all load the first ranks.  A rank's rows are its chunks
 *     in the order of the samples.
 * tp: the rows of a cp rank are cut into tp contiguous pieces (sequence parallelism).
 * Chunks and pieces may be empty.
 *
 * The a2a ranks of one ring position hold adjacent chunks, so together they hold a contiguous range of every sample.
 */
#ifndef VFM_SPEC_TOKENS_H
#define VFM_SPEC_TOKENS_H

#include <stdint.h>

struct vfm_tokens {
	int n;         /* samples */
	int64_t total; /* tokens of the pack */
	int cp, cp_i, a2a, tp, tp_i;
	int32_t *cu_cp; /* [cp][n+1] boundaries of the samples in each cp rank's rows */
	/* [cp/a2a][n+1] the same for each ring position: the rows of its a2a ranks together, in sample order */
	int32_t *cu_ring;
	int64_t *rows_cp;    /* [cp] */
	int64_t *rows_tp;    /* [tp] rows of the pieces of this cp rank */
	int32_t *cu;         /* [n+1] boundaries of the samples in this rank's piece */
	int32_t *pack_row;   /* [rows_cp[cp_i]] the pack's row of each row of this cp rank */
	int64_t first, rows; /* this rank's piece: rows [first, first + rows) of the cp rank's */
};

/* cu [n+1]: boundaries in the pack.  Frees with _release. */
void vfm_tokens_make(struct vfm_tokens *t, int n, const int32_t *cu, int cp, int cp_i, int a2a, int tp, int tp_i);
void vfm_tokens_release(struct vfm_tokens *t);

/* The chunk [*a, *b) of a sample of n_tokens that rank i of cp holds. */
void vfm_tokens_chunk(int64_t n_tokens, int sample, int cp, int i, int64_t *a, int64_t *b);

/* The rows of ring position r as they come from its a2a ranks (one after the other), put into sample order:
 * place p takes row order[p]. order [rows of the position]. */
void vfm_tokens_ring_order(const struct vfm_tokens *t, int r, int32_t *order);

/* Rows of any rank's piece. */
int64_t vfm_tokens_rows(const struct vfm_tokens *t, int cp_i, int tp_i);
/* The rows of all cp ranks, one rank after the other, put into the order of the pack: place p takes row order[p]. order
 * [total]. */
void vfm_tokens_pack_order(const struct vfm_tokens *t, int32_t *order);

#endif
