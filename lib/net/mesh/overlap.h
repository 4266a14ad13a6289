/* overlap.h - overlap of collectives within layers with computation.
 *
 *     rc = vfm_overlap_fork(m, t, &s, err);
 *     if (rc == 0)
 *             rc = vfm_all_gather(c, s, ...);
 *     ...                                      the compute stream works on other memory
 *     rc = vfm_overlap_join(m, t, rc, err);
 *
 * A mesh without a communication stream (mesh->comm_stream) runs the collective on the compute stream.
 */
#ifndef VFM_NET_MESH_OVERLAP_H
#define VFM_NET_MESH_OVERLAP_H

#include "net/mesh/mesh.h"

/* Sets *s to the stream for collectives.  They start after the work that the compute stream has so far. */
int vfm_overlap_fork(const struct vfm_mesh *m, struct vfm_tape *t, struct vfm_stream **s, struct vfm_err *err);
/* Makes the compute stream wait for the collectives since the fork.  rc: the caller's status since the fork.  If rc is
 * a failure, returns it and leaves *err unchanged; the stream waits nevertheless, because the caller frees memory that
 * a collective may use. */
int vfm_overlap_join(const struct vfm_mesh *m, struct vfm_tape *t, int rc, struct vfm_err *err);
/* As vfm_overlap_join in a backward; computes a deferred weight gradient before the wait. */
int vfm_overlap_join_deferred(const struct vfm_mesh *m, struct vfm_tape *t, int rc, struct vfm_err *err);

#endif
