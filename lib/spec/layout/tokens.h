/* tokens.h - the tokens of a pack that each rank holds.  Plain arithmetic on the sample boundaries, which every rank
 * knows from the plan, so ranks exchange no lengths.
 *
 * - cp: each sample of n tokens is cut into cp contiguous chunks of n/cp tokens.  The remaining n % cp tokens go to the
 *   ranks from (sample % cp) on, so that many small samples load all ranks evenly.  The rows of a rank are its chunks
 *   in the order of the samples.
 * - tp: the rows of a cp rank are cut into tp contiguous slices (sequence parallelism).
 *
 * Chunks and slices may be empty.  The a2a ranks of one ring position hold adjacent chunks, so together they hold a
 * contiguous range of every sample.
 *
 * With joint attention (net/diffusion/joint.h) a sample is cut as one sequence, its tokens and then its text rows.  Each
 * of the two parts then is a struct vfm_tokens of its own, whose chunks are those of the sequence, and whose rows tp
 * cuts by themselves.
 */
#ifndef VFM_SPEC_LAYOUT_TOKENS_H
#define VFM_SPEC_LAYOUT_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

struct vfm_tokens {
	int n;         /* samples */
	int64_t total; /* tokens of the pack */
	int cp, cp_i, a2a, tp, tp_i;
	int32_t *cu_cp; /* [cp][n+1] boundaries of the samples in each cp rank's rows */
	/* [cp/a2a][n+1] the same for each ring position: the rows of all its a2a ranks, in sample order */
	int32_t *cu_ring;
	int64_t *rows_cp;    /* [cp] */
	int64_t *rows_tp;    /* [tp] rows of the slices of this cp rank */
	int32_t *cu;         /* [n+1] boundaries of the samples in this rank's slice */
	int32_t *pack_row;   /* [rows_cp[cp_i]] the pack's row of each row of this cp rank */
	int64_t first, rows; /* this rank's slice: rows [first, first + rows) of the cp rank's */
};

/* cu [n+1]: boundaries in the pack.  Free with vfm_tokens_release. */
void vfm_tokens_make(struct vfm_tokens *t, int n, const int32_t *cu, int cp, int cp_i, int a2a, int tp, int tp_i);
/* The same for the first or the last rows of sequences: cu are the boundaries of this part, and those of the whole
 * sequences are whole->cu [n+1]. */
struct vfm_tokens_whole {
	const int32_t *cu;
	bool last;
};
void vfm_tokens_make_part(struct vfm_tokens *t, int n, const int32_t *cu, const struct vfm_tokens_whole *whole, int cp,
	int cp_i, int a2a, int tp, int tp_i);
void vfm_tokens_release(struct vfm_tokens *t);

/* Sets [*a, *b) to the chunk of a sample of n_tokens that cp rank i holds. */
void vfm_tokens_chunk(int64_t n_tokens, int sample, int cp, int i, int64_t *a, int64_t *b);

/* Sets order [rows of the position] to the permutation from the concatenated rows of the a2a ranks of ring position r
 * to sample order: row p of the result is row order[p]. */
void vfm_tokens_ring_order(const struct vfm_tokens *t, int r, int32_t *order);

/* Returns the number of rows in the slice of any rank. */
int64_t vfm_tokens_rows(const struct vfm_tokens *t, int cp_i, int tp_i);
/* Sets order [total] to the permutation from the concatenated rows of all cp ranks to the order of the pack: row p of
 * the result is row order[p]. */
void vfm_tokens_pack_order(const struct vfm_tokens *t, int32_t *order);

#endif
