/* pack.h - sequence packing: samples of different lengths in sequences of one context length.
 *
 * vfm_packing is the order of a whole run.  It draws samples from a blend and packs them one window at a time, so packs
 * are random but dense.  Then it shuffles the packs of a window and divides them into steps.  It is a stream: memory
 * holds one window of samples.  It depends only on its inputs and the seed.
 *
 * With context parallelism by pack (opts.cp), a pack has 1, 2, 4, ... parts of `context` tokens, each for one rank.
 * Its longest sample determines the number of parts.  The parts of a step are divided into groups of opts.cp, and
 * smaller packs that share a group have similar cost. */
#ifndef VFM_DATA_PLAN_PACK_H
#define VFM_DATA_PLAN_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/plan/blend.h"
#include "data/plan/plan.h"

/* The cost of a pack is c + the sum over its samples of a s + b s^2 (s in tokens), or of a table.  The default unit is
 * one token's work in a DiT layer: a = 1, b = 1/(7 h) at h = 1152, from 28 h^2 s + 4 h s^2 FLOPs per layer. */
struct vfm_pack_cost {
	double a, b, c;
	int32_t n_points; /* > 0: the table determines the cost of a sample */
	struct vfm_cost_point {
		double tokens, cost;
	} * points; /* [n_points] ascending */
};
struct vfm_pack_cost vfm_pack_cost_default(void);
/* Reads {"v":1,"type":"vfm-cost","a":…,"b":…,"c":…}, or {…,"table":[[tokens, cost], …],"c":…}; c may be missing. */
int vfm_pack_cost_load(const char *path, struct vfm_pack_cost *cost, struct vfm_err *err);
void vfm_pack_cost_release(struct vfm_pack_cost *cost);
/* Returns the cost of one sample, without c.  A table is linear between its points and from 0 to the first.  Beyond the
 * last point, the cost is the a s + b s^2 through the last two. */
double vfm_pack_cost_of(const struct vfm_pack_cost *cost, int32_t tokens);

struct vfm_packing_opts {
	int32_t context, batch; /* with cp: tokens per part, parts per step */
	int32_t cp;             /* maximum parts of a pack, a power of two that divides batch; 0: packs have no parts */
	int64_t steps;          /* > 0: number of steps, however many passes they take; else epochs */
	double epochs;          /* number of passes over all samples; with weights, a multiple of their tokens */
	bool drop_last;         /* drops an incomplete last step; else fills it with samples of the next pass */
	bool balance_cost;      /* gives a step packs of similar cost */
	bool one_each;          /* one sample per pack; else minimum bin slack (pack_mbs.h) */
	uint64_t seed;
	int64_t window; /* samples packed together; 0: 262144 */
	struct vfm_pack_cost cost;
};

struct vfm_packing_pack {
	int64_t step;
	int32_t pack; /* within the step; with cp: its first part */
	int32_t parts;
	int32_t n, tokens;
	double cost;
	const struct vfm_blend_sample *samples; /* [n]; valid during the call that passes the pack */
};

/* The counts of a plan. */
struct vfm_packing {
	int64_t steps, n_packs;                 /* n_packs == steps x batch, or fewer with cp */
	int64_t n_samples;                      /* in the packs of the plan */
	int64_t dropped_packs, dropped_samples; /* of an incomplete last step; with cp, dropped_packs counts parts */
	/* packs (with cp: parts) of the last step that came from the next pass */
	int64_t filled_packs;
	double fill; /* tokens / (steps x batch x context) */
	/* mean over the steps of (largest pack / mean pack), 1 is best; with cp, of parts */
	double imbalance_tokens, imbalance_cost;
	int64_t *set_samples, *set_tokens; /* [n_sets] of the blend */
};

/* Makes the plan and passes its packs, in the order of (step, pack), to `take` (NULL: none).  A negative result of
 * `take` ends the call.  Memory does not depend on the number of packs.  The caller releases the plan, even after an
 * error.  VFM_EUSAGE: there is no complete step (drop_last), or the plan has more than 2^40 packs. */
int vfm_packing_make(struct vfm_packing *p, struct vfm_blend *blend, const struct vfm_packing_opts *o,
	int (*take)(void *ctx, const struct vfm_packing_pack *pack, struct vfm_err *err), void *ctx,
	struct vfm_err *err);
void vfm_packing_release(struct vfm_packing *p);

/* Makes the plan and writes it to `f`.  The sets are those of the blend, with open indexes; h->steps is ignored. */
int vfm_packing_write(struct vfm_packing *p, struct vfm_blend *blend, const struct vfm_packing_opts *o,
	const struct vfm_blend_set *sets, const struct vfm_plan_header *h, enum vfm_plan_format format, FILE *f,
	struct vfm_err *err);

#endif
