/* capture.h - captures the forward and backward of a pack and launches them as one graph of the device (train.graphs;
 * graph_begin in dev/dev.h).
 *
 * The caller enqueues a pack's work in a callback, after the pack's input is on the device.  Every pack is captured
 * anew, with its own arguments.  A failed capture runs nothing on the device and leaves the parameters' gradients as
 * they were; the caller then runs the pack eagerly.
 *
 * The first packs run eagerly: they load kernels and choose algorithms, which no graph may contain.  If a capture fails
 * because of a first use, the next pack is captured again, after at most 8 failures in a row.  After any other failure
 * all later packs run eagerly, and the log says why.
 *
 * Local; called by the thread of the compute stream.
 */
#ifndef VFM_TRAIN_CAPTURE_H
#define VFM_TRAIN_CAPTURE_H

#include "nn/param.h"
#include "train/config.h"

struct vfm_capture;

/* Returns NULL if all packs run eagerly: train.graphs is off, or this run cannot capture its packs, which rank 0 logs
 * with the reason.  chunks: parts of the model on this rank.  s and ps must outlive it.  All functions accept NULL. */
struct vfm_capture *vfm_capture_new(const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_stream *s,
	struct vfm_params *ps, int chunks);
void vfm_capture_free(struct vfm_capture *c);

/* Returns whether the next pack shall be captured; counts the first packs, which shall not.  Call once a pack. */
bool vfm_capture_wanted(struct vfm_capture *c);

struct vfm_capture_work {
	int (*enqueue)(void *ctx, struct vfm_err *err);
	void (*reset)(void *ctx); /* after a failed capture: drops what enqueue left in host structures */
	void *ctx;
};
/* Returns true once the captured work is launched, false after a failed capture. */
bool vfm_capture_run(struct vfm_capture *c, const struct vfm_capture_work *w);

/* Packs that were launched as a graph. */
int64_t vfm_capture_launched(const struct vfm_capture *c);

#endif
