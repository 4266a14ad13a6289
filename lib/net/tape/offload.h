/* offload.h - values kept for the backward are offloaded to host memory.
 *
 * With an offload set, a recomputed region (vfm_region) copies to pinned host memory, after its forward, what its set
 * `offload` selects of its first input and of the results that it keeps.  The backward prefetches them one region
 * ahead, so the device holds the values of at most two regions apart from those in use.  Copies run on streams of their
 * own.
 *
 * After the region, no op except the recompute of the region may read its first input: it has no memory, and the op
 * fails. If another node holds the input, or it is a view, it stays on the device.
 */
#ifndef VFM_NET_TAPE_OFFLOAD_H
#define VFM_NET_TAPE_OFFLOAD_H

#include "net/tape/tape.h"

struct vfm_offload;

/* Creates an offload for the tapes of one compute stream.  It must outlive them.  Returns NULL with *err on failure. */
struct vfm_offload *vfm_offload_new(struct vfm_stream *compute, struct vfm_err *err);
void vfm_offload_free(struct vfm_offload *o);           /* no-op if o is NULL */
int64_t vfm_offload_bytes(const struct vfm_offload *o); /* allocated on the host */

/* Sets the offload of a tape; NULL: values stay on the device.  Call between a reset and the next recording. */
void vfm_tape_set_offload(struct vfm_tape *t, struct vfm_offload *o);

#endif
