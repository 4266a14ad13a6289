/* overlap.h - collectives within layers that overlap with computing.  Private to mesh.
 *
 *     rc = vfm_overlap_fork(m, t, &s, err);
 *     if (rc == 0)
 *             rc = vfm_all_gather(c, s, ...);
 *     ...                                      the compute stream works on other memory
 *     rc = vfm_overlap_join(m, t, rc, err);
 *
 * A mesh without a communication stream (mesh->comm_stream) runs the collective on the compute stream.
 */
#ifndef VFM_MESH_OVERLAP_H
#define VFM_MESH_OVERLAP_H

#include "mesh/mesh.h"

/* *s: the stream for collectives.  They start when the work that the compute stream has so far is done. */
int vfm_overlap_fork(const struct vfm_mesh *m, struct vfm_tape *t, struct vfm_stream **s, struct vfm_err *err);
/* Makes the compute stream wait for the collectives since the fork.  rc: the status of the caller since the fork.  A
 * failure is returned with its *err unchanged, and the stream waits all the same: the caller is about to free memory
 * that a collective may use. */
int vfm_overlap_join(const struct vfm_mesh *m, struct vfm_tape *t, int rc, struct vfm_err *err);
/* The same in a backward, which computes a deferred gradient of weights before it waits. */
int vfm_overlap_join_deferred(const struct vfm_mesh *m, struct vfm_tape *t, int rc, struct vfm_err *err);

#endif
