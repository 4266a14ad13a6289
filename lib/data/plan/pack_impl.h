/* pack_impl.h - shared by the packing algorithms; not for others. */
#ifndef VFM_DATA_PLAN_PACK_IMPL_H
#define VFM_DATA_PLAN_PACK_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/plan/pack.h"
#include "data/plan/pack_lp.h"

/* A set of numbers 0 .. max, with neighbour queries: a bit a number, and a bit a word of bits. */
struct vfm_numbers {
	uint64_t *bits, *coarse;
	size_t words;
};
void vfm_numbers_init(struct vfm_numbers *s, int32_t max);
void vfm_numbers_release(struct vfm_numbers *s);
void vfm_numbers_set(struct vfm_numbers *s, int32_t x, bool on);
/* Return the smallest member >= x, or the largest <= x; -1: none. */
int32_t vfm_numbers_from(const struct vfm_numbers *s, int32_t x);
int32_t vfm_numbers_down_from(const struct vfm_numbers *s, int32_t x);

/* Returns the greatest common divisor; of 0 and b, b. */
int32_t vfm_gcd(int32_t a, int32_t b);

/* Minimum bin slack on the histogram of lengths (pack_mbs.c). */
struct vfm_mbs {
	int32_t context, longest, max_depth; /* longest: context x the most parts of a bin */
	int32_t *count;                      /* [longest + 1] items that are left of each length */
	uint32_t *next;                      /* [longest + 1] where the next item of a length stands in `order` */
	struct vfm_numbers lengths;          /* those that are left */
	struct vfm_mbs_choice {
		int32_t len, n;
	} * now, *best; /* [max_depth] a content of a bin: n items of each length, longest first */
	uint32_t *order;
	size_t cap_order;
	/* With few lengths up to the context: the contents that the items need. */
	struct vfm_contents contents;
	int64_t *seen; /* [longest + 1] items of each length in all calls */
	int64_t calls;
	int32_t *len; /* scratch */
	double *items;
	size_t cap_len, cap_items;
};
void vfm_mbs_init(struct vfm_mbs *m, int32_t context, int32_t max_parts);
void vfm_mbs_release(struct vfm_mbs *m);
/* Packs into *b, whose arrays it reuses.  Learns from the items of one call for the next ones; the first n_known items
 * were in a call before.  exact: these items are the last, and worth a second of time.  1 <= tokens[i] <= context x
 * max_parts, 1 <= n <= INT32_MAX. */
void vfm_mbs_pack(struct vfm_mbs *m, struct vfm_bins *b, const int32_t *tokens, int64_t n, int64_t n_known, bool exact);

#endif
