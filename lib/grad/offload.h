/* offload.h - what recomputed regions keep for the backward lies in the host's memory meanwhile.
 *
 * With it, a region of a tape that is run again (vfm_region) puts its first input and, the results that it keeps, if
 * any, into page-locked memory when it has run, and the backward brings them back one region ahead of their use. Copies
 * run on streams of their own; at most the values of two regions are on the device beside those in use.
 *
 * The first input of such a region must not be read by anything after the region but the region itself (an op that does
 * so fails for want of memory).  Where a node holds it all the same, or it is a view, it stays on the device.
 */
#ifndef VFM_GRAD_OFFLOAD_H
#define VFM_GRAD_OFFLOAD_H

#include "grad/tape.h"

struct vfm_offload;

/* For the tapes of one compute stream; outlives them.  NULL: err is set. */
struct vfm_offload *vfm_offload_new(struct vfm_stream *compute, struct vfm_err *err);
void vfm_offload_free(struct vfm_offload *o);           /* NULL is fine */
int64_t vfm_offload_bytes(const struct vfm_offload *o); /* of the host's memory that it took */

/* NULL: values stay where they are.  Between a reset and the next recording. */
void vfm_tape_set_offload(struct vfm_tape *t, struct vfm_offload *o);

#endif
