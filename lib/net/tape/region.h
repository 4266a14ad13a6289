/* region.h - regions: parts of a forward that the backward recomputes, and the values kept for the recompute. */
#ifndef VFM_NET_TAPE_REGION_H
#define VFM_NET_TAPE_REGION_H

#include "net/tape/tape.h"
#include "spec/cost/saved.h"

/* Returns fn(t, ctx).  Unless how.keep has VFM_KEEP_REST, the backward runs fn a second time with the same inputs,
 * parameters and counters, but takes the results in the groups of how.keep from the first run.  fn must be a pure
 * function of these and make the same calls each time.  `in` lists the variables that fn reads, except parameters; at
 * most 8, and NULLs are skipped.  ctx must stay alive until the end of the backward. */
struct vfm_var *vfm_region(struct vfm_tape *t, struct vfm_keeps how,
	struct vfm_var *(*fn)(struct vfm_tape *t, void *ctx), void *ctx, struct vfm_var **in, int n_in);

/* ---- for ops in a region ---- */

/* Like vfm_var_new (node.h), for an op whose backward does not read its result.  If this is the result of a region that
 * the backward recomputes, the variable has no memory (v.data is NULL), and the op does not compute it. */
struct vfm_var *vfm_result_new(struct vfm_tape *t, struct vfm_tensor like);

/* For an op whose results a recomputed region may keep, as members of group `keep` (spec/cost/saved.h).  The op calls
 * vfm_kept first.  On true, out[] has the results of the first run, and the op computes nothing.  On false, the op
 * computes them and calls vfm_keep. */
bool vfm_kept(struct vfm_tape *t, enum vfm_keep keep, struct vfm_var **out, int n);
void vfm_keep(struct vfm_tape *t, enum vfm_keep keep, struct vfm_var **out, int n);
/* Returns whether a region is being recomputed.  An op must then not add again to memory outside the region (a
 * loss). */
bool vfm_tape_recomputing(const struct vfm_tape *t);
/* Returns whether the current region has VFM_KEEP_OWN_ROWS (spec/cost/saved.h). */
bool vfm_tape_keeps_own_rows(const struct vfm_tape *t);

#endif
