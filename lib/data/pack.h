/* pack.h - sequence packing: many samples of different lengths in sequences of one context length.
 *
 * vfm_bins packs one set of lengths.  vfm_plan is the order of a whole run: it draws samples from a blend, packs them
 * one window at a time (so that packs are random but dense), shuffles the packs of a window, and divides them into
 * steps. A plan depends only on its inputs and the seed.
 */
#ifndef VFM_DATA_PACK_H
#define VFM_DATA_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/blend.h"
#include "data/manifest.h"

enum vfm_pack_algo {
	VFM_PACK_NONE, /* one sample a pack */
	VFM_PACK_FFD,  /* first fit decreasing, O(n log n): at most 11/9 OPT + 6/9 packs (Dosa 2007) */
	/* longest pack first histogram packing (Krell et al., arXiv 2107.02027): best fit decreasing on the histogram
	   of lengths; O(distinct lengths x shapes of packs), nearly independent of n */
	VFM_PACK_LPFHP,
};

/* VFM_EUSAGE: "expected ffd|lpfhp|none, got 'x'" */
int vfm_pack_algo(const char *name, enum vfm_pack_algo *out, struct vfm_err *err);

/* Which items share a bin.  Items of equal length are taken in the order in which they stand in `tokens`. */
struct vfm_bins {
	int64_t n_bins;
	int64_t *first; /* [n_bins + 1] into item */
	uint32_t *item; /* [n] */
	int64_t n;
};

/* 1 <= tokens[i] <= context for all i (VFM_EUSAGE otherwise). */
int vfm_bins_pack(struct vfm_bins *b, enum vfm_pack_algo algo, const int32_t *tokens, int64_t n, int32_t context,
	struct vfm_err *err);
void vfm_bins_release(struct vfm_bins *b);

/* cost of a pack = c + sum over its samples of a s + b s^2 (s in tokens).  The default counts tokens' worth of
 * work in a DiT layer: a = 1, b = 1/(7 h) at h = 1152, from 28 h^2 s + 4 h s^2 FLOPs a layer. */
struct vfm_pack_cost {
	double a, b, c;
};
struct vfm_pack_cost vfm_pack_cost_default(void);
/* {"v":1,"type":"vfm-cost","a":…,"b":…,"c":…}; c may be missing. */
int vfm_pack_cost_load(const char *path, struct vfm_pack_cost *cost, struct vfm_err *err);

struct vfm_plan_opts {
	int32_t context, batch;
	int64_t steps;     /* > 0: that many, however many passes it takes; else: */
	double epochs;     /* so many passes over all samples (with weights: so many times their tokens) */
	bool drop_last;    /* drop an incomplete last step; else fill it with samples of the next pass */
	bool balance_cost; /* a step's packs are of similar cost */
	enum vfm_pack_algo algo;
	uint64_t seed;
	int64_t window; /* samples packed together; 0: 65536 */
	struct vfm_pack_cost cost;
};

struct vfm_plan_pack {
	int64_t first; /* into samples */
	int32_t n, tokens;
	double cost;
};

struct vfm_plan {
	int64_t steps, n_packs;                  /* n_packs == steps x batch */
	struct vfm_plan_pack *packs;             /* in the order of (step, pack) */
	uint32_t *samples;                       /* of the blend */
	int64_t n_samples;                       /* in the packs of the plan */
	int64_t dropped_packs, dropped_samples;  /* of an incomplete last step */
	int64_t filled_packs;                    /* packs of the last step that came from the next pass */
	double fill;                             /* tokens / (packs x context) */
	double imbalance_tokens, imbalance_cost; /* mean over steps of the largest pack / the mean pack; 1 is best */
	size_t cap_packs, cap_samples;
};

/* VFM_EUSAGE: no complete step (drop_last), or a plan of more than 2^40 packs. */
int vfm_plan_make(struct vfm_plan *p, struct vfm_blend *blend, const struct vfm_plan_opts *o, struct vfm_err *err);
void vfm_plan_release(struct vfm_plan *p);

/* Writes the plan as a manifest.  The sets are those of the blend, with their indexes open. */
int vfm_plan_write(const struct vfm_plan *p, const struct vfm_blend *blend, const struct vfm_blend_set *sets,
	const struct vfm_manifest_header *h, enum vfm_manifest_format format, FILE *f, struct vfm_err *err);

#endif
