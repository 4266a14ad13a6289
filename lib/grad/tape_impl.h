/* tape_impl.h - what the files of the tape share.  Not for ops, which have node.h.
 *
 *   tape.c      variables, gradients, recording, the way back
 *   region.c    regions, which run again
 *   deferred.c  hooks, deferred gradients of weights
 *   offload.c   values that lie on the host until the backward comes
 */
#ifndef VFM_GRAD_TAPE_IMPL_H
#define VFM_GRAD_TAPE_IMPL_H

#include "grad/node.h"
#include "grad/offload.h"

/* ---- the memory of values ---- */

struct vfm_away; /* where a value is while it is not on the device: offload.c */

struct vfm_store {
	struct vfm_stream *stream;
	void *data; /* NULL: on the host */
	size_t bytes;
	int refs;
	struct vfm_away *away;
};

/* Begins to copy the value to the host; its memory is given back when the next one is evicted (or it is called back
 * before). */
int vfm_store_evict(struct vfm_offload *o, struct vfm_store *s, struct vfm_err *err);
/* Begins to bring it back; does nothing where it is on the device. */
int vfm_store_fetch(struct vfm_offload *o, struct vfm_store *s, struct vfm_err *err);
/* The compute stream waits for it: data is valid again. */
int vfm_store_arrive(struct vfm_offload *o, struct vfm_store *s, struct vfm_err *err);
/* The value is not wanted any more. */
void vfm_store_away_drop(struct vfm_store *s);

struct vfm_store *vfm_store_ref(struct vfm_store *s); /* NULL is fine */

/* ---- the tape ---- */

struct stash { /* what one region keeps for its second run */
	struct vfm_store **store;
	size_t n, cap, next;
	bool replay, light;
};

struct deferred {
	int (*fn)(struct vfm_tape *t, void *ctx, struct vfm_err *err);
	void *ctx;
	struct vfm_store *held[2];
};

struct vfm_tape {
	struct vfm_stream *stream;
	struct vfm_arena arena;
	struct vfm_node **node;
	size_t n_node, cap_node;
	struct vfm_var **held; /* variables whose value a scope holds */
	size_t n_held, cap_held;
	struct vfm_var **leaf; /* whose gradients stay until the reset */
	size_t n_leaf, cap_leaf;
	struct deferred *deferred; /* by a backward, until vfm_tape_weights; those before first_deferred have run */
	size_t n_deferred, cap_deferred, first_deferred;
	bool defer;          /* vfm_tape_defer_weights */
	bool overlaps;       /* a backward has called vfm_tape_run_deferred */
	struct stash *stash; /* of the region that runs now; NULL: none */
	bool recording;
	bool again;                  /* a region runs for the second time */
	struct vfm_offload *offload; /* NULL: what regions keep stays on the device */
	struct region *last_region;  /* of those recorded that keep something on the host */
	int rc;
	struct vfm_err err;
	struct vfm_var dead; /* what ops return after a failure */
};

/* The nodes behind the first `mark` have their backward, the last first, and are dropped; after a failure they are
 * dropped alone. */
int vfm_backward_to(struct vfm_tape *t, size_t mark, struct vfm_err *err);
void vfm_node_release(struct vfm_node *n);
void vfm_deferred_drop(struct vfm_tape *t); /* without computing it */

#endif
