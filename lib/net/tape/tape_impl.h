/* tape_impl.h - shared by the files of the tape.  Ops include node.h instead.
 *
 *   tape.c      leaves, views, scopes, backward
 *   node.c      variables, nodes, gradients
 *   region.c    regions, recompute
 *   deferred.c  hooks, deferred gradients of weights
 *   offload.c   values offloaded to the host until the backward
 */
#ifndef VFM_NET_TAPE_TAPE_IMPL_H
#define VFM_NET_TAPE_TAPE_IMPL_H

#include "net/tape/node.h"
#include "net/tape/offload.h"

/* ---- the memory of values ---- */

struct vfm_offloaded; /* the host copy of a value: offload.c */

struct vfm_store {
	struct vfm_stream *stream;
	void *data; /* NULL: offloaded */
	size_t bytes;
	int refs;
	struct vfm_offloaded *offloaded;
};

/* Starts the copy of the value to the host.  The next vfm_offload_drain frees its device memory, unless
 * vfm_store_arrive comes first. */
int vfm_store_evict(struct vfm_offload *o, struct vfm_store *s, struct vfm_err *err);
/* Frees the device memory of all evicted values; the compute stream waits for their copies. */
int vfm_offload_drain(struct vfm_offload *o, struct vfm_err *err);
/* Starts the copy back to the device.  No-op if the value is on the device. */
int vfm_store_fetch(struct vfm_offload *o, struct vfm_store *s, struct vfm_err *err);
/* Makes the compute stream wait for the copy back; afterwards data is valid for ops. */
int vfm_store_arrive(struct vfm_offload *o, struct vfm_store *s, struct vfm_err *err);
/* Drops the host copy.  No-op if the value is not offloaded. */
void vfm_store_drop_offloaded(struct vfm_store *s);

struct vfm_store *vfm_store_ref(struct vfm_store *s); /* returns s; no-op if s is NULL */

/* ---- the tape ---- */

struct stash { /* values that a region keeps for its recompute */
	struct kept {
		struct vfm_store *store;
		unsigned keep; /* enum vfm_keep */
	} * v;
	size_t n, cap, next;
	unsigned keep; /* set of enum vfm_keep: the groups that are kept */
	bool replay;
	int results, unread; /* calls of vfm_result_new; the call whose result only outside readers read */
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
	struct vfm_var **held; /* variables whose value is held by a scope */
	size_t n_held, cap_held;
	struct vfm_var **leaf; /* variables whose gradient lives until the reset */
	size_t n_leaf, cap_leaf;
	struct deferred *deferred; /* deferred by a backward; those before first_deferred have run */
	size_t n_deferred, cap_deferred, first_deferred;
	bool defer;          /* vfm_tape_defer_weights */
	bool overlaps;       /* a backward has called vfm_tape_run_deferred */
	struct stash *stash; /* of the current region; NULL: none */
	bool recording;
	bool recomputing;            /* a region is being recomputed */
	bool own_rows;               /* vfm_tape_keeps_own_rows */
	bool differentiates;         /* an op has read a variable with a gradient since this was set to false */
	struct vfm_offload *offload; /* NULL: values stay on the device */
	struct region *last_region;  /* the last recorded region with offloaded values */
	int rc;
	struct vfm_err err;
	struct vfm_var dead; /* the variable that ops return after a failure */
};

/* Runs the backward of all nodes but the first `mark`, in reverse order, and releases them.  After a failure, only
 * releases the remaining nodes. */
int vfm_backward_to(struct vfm_tape *t, size_t mark, struct vfm_err *err);
/* Starts to fetch the offloaded values of the last recorded region. */
int vfm_region_prefetch(struct vfm_tape *t, struct vfm_err *err);
void vfm_node_release(struct vfm_node *n);
void vfm_deferred_drop(struct vfm_tape *t); /* drops all deferred gradients */

#endif
