/* deferred.h - hooks in a backward, and weight gradients that a backward defers. */
#ifndef VFM_NET_TAPE_DEFERRED_H
#define VFM_NET_TAPE_DEFERRED_H

#include "net/tape/tape.h"

/* Makes the backward call fn(ctx) when it reaches this point.  No-op on a tape that does not record. */
void vfm_hook(struct vfm_tape *t, int (*fn)(void *ctx, struct vfm_err *err), void *ctx);
/* As vfm_hook for weight gradients: if they are deferred, fn is deferred with them and keeps its place in their order.
 */
void vfm_hook_weights(struct vfm_tape *t, int (*fn)(void *ctx, struct vfm_err *err), void *ctx);

/* With `on`, backwards defer the gradients of weights and biases of linear layers, and keep the values for them
 * (zero-bubble pipelines).  vfm_tape_weights computes these gradients in the same order and frees the values.  Call it
 * after the backward and before the reset; no-op if nothing is deferred. */
void vfm_tape_defer_weights(struct vfm_tape *t, bool on);
int vfm_tape_weights(struct vfm_tape *t, struct vfm_err *err);

/* ---- for ops ---- */

/* Runs fn(t, ctx), the part of a backward that only computes gradients of parameters: immediately, or if the tape
 * defers it, in vfm_tape_run_deferred or vfm_tape_weights.  ctx is from vfm_tape_alloc.  The tape holds the stores (may
 * be NULL) until fn has run. */
int vfm_defer(struct vfm_tape *t, int (*fn)(struct vfm_tape *t, void *ctx, struct vfm_err *err), void *ctx,
	struct vfm_store *a, struct vfm_store *b, struct vfm_err *err);
/* Computes the oldest deferred weight gradient.  The backward of an op calls it before it waits for another stream.
 * After the first call, backwards of this tape defer the gradients of up to two layers for the next call, and compute
 * the rest before they return.  No-op with vfm_tape_defer_weights. */
int vfm_tape_run_deferred(struct vfm_tape *t, struct vfm_err *err);

#endif
