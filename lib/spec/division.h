/* division.h - other divisions of a pack's tokens over the cp ranks than that of spec/tokens.h: such that attention
 * within frames, or along time at each place, needs no token of another rank.  Plain arithmetic on sample
 * boundaries and grids, which every rank knows: no lengths ever travel.
 *
 * A unit is what attends to itself: a frame (h w tokens), or a column (the tokens of one place over the frames).  The
 * units of a pack, in the order of samples, then frames or places, lie in a row and are cut where the tokens are
 * nearest to even: rank r gets those whose middle lies in share r of cp of the tokens.  So a rank has at most a unit
 * more than its share. Its rows are its units in this order, each in the order of time and place.
 */
#ifndef VFM_SPEC_DIVISION_H
#define VFM_SPEC_DIVISION_H

#include <stdbool.h>
#include <stdint.h>

enum vfm_division_kind { VFM_DIV_FRAMES, VFM_DIV_COLUMNS };

struct vfm_division {
	int units;            /* of this rank */
	int64_t rows;         /* of this rank in this division */
	int64_t home;         /* of this cp rank in the division of tokens.h */
	int32_t *cu;          /* [units+1] boundaries of the units in the rows */
	int32_t *pack_row;    /* [rows] the pack's row of each row */
	int64_t *send, *recv; /* [cp] rows to and from each rank, on the way from home */
	/* On the way from home: place j of the send buffer (rank by rank, in the order at home) takes row gather[j];
	 * row p takes place place[p] of the receive buffer.  The way back: the inverses, place_inv first.  Both are
	 * permutations. */
	int32_t *gather, *gather_inv; /* [home] */
	int32_t *place, *place_inv;   /* [rows] */
	void *mem;
};

/* cu [n+1]: boundaries of the samples in the pack; grid [n]: their t, h, w in tokens. */
void vfm_division_make(struct vfm_division *d, enum vfm_division_kind kind, int n, const int32_t *cu,
	const int32_t (*grid)[3], int cp, int cp_i);
void vfm_division_release(struct vfm_division *d);

#endif
