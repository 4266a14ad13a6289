/* pack_mbs.h - minimum bin slack: assigns items to bins. */
#ifndef VFM_DATA_PLAN_PACK_MBS_H
#define VFM_DATA_PLAN_PACK_MBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/plan/pack_lp.h"

struct vfm_bins { /* `= {0}` */
	int64_t n_bins;
	int64_t *first;             /* [n_bins + 1] into item */
	uint32_t *item;             /* [n] */
	size_t cap_first, cap_item; /* private */
};
/* Makes room for n items. */
void vfm_bins_reserve(struct vfm_bins *b, int64_t n);
void vfm_bins_release(struct vfm_bins *b);

/* Returns the parts of `context` tokens in a bin whose longest item has `tokens`: the smallest power of two that holds
 * it. */
int32_t vfm_bin_parts(int32_t tokens, int32_t context);

struct vfm_mbs {
	int32_t context, longest, max_depth; /* longest: context x maximum parts of a bin */
	int32_t *count;                      /* [longest + 1] remaining items of each length */
	uint32_t *next;                      /* [longest + 1] index in `order` of the next item of a length */
	struct vfm_numbers { /* a set with neighbour queries: a bit a number, and a bit a word of bits */
		uint64_t *bits, *coarse;
		size_t words;
	} lengths; /* remaining lengths */
	struct vfm_mbs_choice {
		int32_t len, n;
	} * now, *best; /* [max_depth] the content of a bin: n items of each length, longest first */
	uint32_t *order;
	size_t cap_order;
	/* If there are few lengths up to the context: the contents for the items. */
	struct vfm_contents contents;
	int64_t *seen; /* [longest + 1] items of each length in all calls */
	int64_t calls;
	int32_t *len; /* scratch */
	double *items;
	size_t cap_len, cap_items;
};
void vfm_mbs_init(struct vfm_mbs *m, int32_t context, int32_t max_parts);
void vfm_mbs_release(struct vfm_mbs *m);
/* Packs the items into *b, whose arrays it reuses; 1 <= tokens[i] <= context x max_parts, 1 <= n <= INT32_MAX.  Items
 * of equal length are taken in the order of `tokens`.  A bin has as many parts as its longest item needs.  Each call
 * learns from its items for the next ones; an earlier call had the first n_known items.  exact: these items are the
 * last, and worth a second of time. */
void vfm_mbs_pack(struct vfm_mbs *m, struct vfm_bins *b, const int32_t *tokens, int64_t n, int64_t n_known, bool exact);

#endif
