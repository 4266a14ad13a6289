/* capture.h - captures the forward and backward of a pack and launches them as one device graph (train.graphs;
 * graph_begin in device/dev/dev.h).
 *
 *	if (vfm_capture_begin(c, &shape)) {
 *		rc = enqueue_pack(&why);                        // after the upload of its input
 *		launched = vfm_capture_end(c, rc, &why);
 *	}
 *
 * A failed capture runs nothing on the device and leaves the parameters' gradients as they were; the caller then runs
 * the pack eagerly.  All calls are local and belong to the thread of the compute stream.
 */
#ifndef VFM_TRAIN_STEP_CAPTURE_H
#define VFM_TRAIN_STEP_CAPTURE_H

#include "net/nn/param.h"
#include "train/job/config.h"

struct vfm_capture;

/* Returns NULL if all packs run eagerly: train.graphs is off, or this run cannot capture its packs (rank 0 logs the
 * reason).  chunks: model chunks on this rank.  s and ps must outlive the result.  All functions accept NULL. */
struct vfm_capture *vfm_capture_new(const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_stream *s,
	struct vfm_params *ps, int chunks);
void vfm_capture_free(struct vfm_capture *c);

/* The sizes that select the kernels of a pack. */
struct vfm_capture_shape {
	/* rows of this rank, segments, rows of texts and second texts; rows of the longest segment and text */
	int64_t tokens, segments, text, text2, longest, longest_text;
};

/* Begins the capture of the next pack.  Returns false if the pack must run eagerly.  Call it once per pack, since it
 * counts the eager packs. */
bool vfm_capture_begin(struct vfm_capture *c, const struct vfm_capture_shape *shape);
/* Ends the capture.  rc, why: the result of enqueueing.  Returns true if the captured work was launched.  Returns false
 * if the capture failed; the caller then undoes the changes of enqueueing to host structures. */
bool vfm_capture_end(struct vfm_capture *c, int rc, const struct vfm_err *why);

/* Returns the number of packs launched as a graph. */
int64_t vfm_capture_launched(const struct vfm_capture *c);

#endif
