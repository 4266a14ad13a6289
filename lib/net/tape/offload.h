/* offload.h - offloads values that are kept for the backward to host memory.
 *
 * With an offload set, a recomputed region (vfm_region) copies values to pinned host memory after its forward: those of
 * its first input and of its kept results that its set `offload` selects.  The backward prefetches them one region
 * ahead, so at most two regions' values are on the device, apart from values in use.  Copies run on separate streams.
 *
 * After the region, no op except the recompute of the region may read its first input: it has no memory, and the op
 * fails.  The input stays on the device if another node holds it, or if it is a view.
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
