/* tape_impl.h - the memory of values: what tape.c and offload.c share. */
#ifndef VFM_GRAD_TAPE_IMPL_H
#define VFM_GRAD_TAPE_IMPL_H

#include "grad/node.h"
#include "grad/offload.h"

struct vfm_away; /* where a value is while it is not on the device: offload.c */

struct vfm_store {
	struct vfm_stream *stream;
	void *data;            /* NULL: on the host */
	size_t bytes;
	int refs;
	struct vfm_away *away;
};

/* Begins to copy the value to the host; its memory is given back when the next one is evicted (or it is called back before). */
int vfm_store_evict(struct vfm_offload *o, struct vfm_store *s, struct vfm_err *err);
/* Begins to bring it back; does nothing where it is on the device. */
int vfm_store_fetch(struct vfm_offload *o, struct vfm_store *s, struct vfm_err *err);
/* The compute stream waits for it: data is valid again. */
int vfm_store_arrive(struct vfm_offload *o, struct vfm_store *s, struct vfm_err *err);
/* The value is not wanted any more. */
void vfm_store_away_drop(struct vfm_store *s);

#endif
