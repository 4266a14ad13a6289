/* division.h - distributes a pack's tokens over the cp ranks for spatial and temporal attention, so that attention
 * needs no token of another rank.  Plain arithmetic on sample boundaries and grids.
 *
 * A unit is a set of tokens that attend to each other: a frame (h w tokens), or a column (the tokens of one position
 * over all frames).  The units of a pack are ordered by sample, then by frame or position.  Rank r holds the units
 * whose middle lies in share r of cp of the tokens, so it exceeds its share by at most one unit.  Its rows are its
 * units in this order; within a unit, tokens are ordered by time and position.
 */
#ifndef VFM_SPEC_LAYOUT_DIVISION_H
#define VFM_SPEC_LAYOUT_DIVISION_H

#include <stdbool.h>
#include <stdint.h>

enum vfm_division_kind { VFM_DIV_FRAMES, VFM_DIV_COLUMNS };

struct vfm_division {
	int units;            /* of this rank */
	int64_t rows;         /* of this rank in this division */
	int64_t home;         /* rows of this cp rank in the layout of tokens.h */
	int32_t *cu;          /* [units+1] boundaries of the units in the rows */
	int32_t *pack_row;    /* [rows] the pack's row of each row */
	int64_t *send, *recv; /* [cp] rows to and from each rank, from the layout of tokens.h to this one */
	/* From the layout of tokens.h to this one: row j of the send buffer (grouped by rank) is row gather[j], and row
	 * p of the result is row place[p] of the receive buffer.  The reverse uses the inverse permutations, place_inv
	 * first. */
	int32_t *gather, *gather_inv; /* [home] */
	int32_t *place, *place_inv;   /* [rows] */
	void *mem;
};

/* cu [n+1]: boundaries of the samples in the pack; grid [n]: their t, h, w in tokens. */
void vfm_division_make(struct vfm_division *d, enum vfm_division_kind kind, int n, const int32_t *cu,
	const int32_t (*grid)[3], int cp, int cp_i);
void vfm_division_release(struct vfm_division *d);

#endif
