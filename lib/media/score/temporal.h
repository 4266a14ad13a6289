/* temporal.h - changes of a clip from frame to frame: frozen and duplicate frames, flicker.
 *
 * man/vfm-scores.7 defines them.  Reads the luma of every frame, as coded, as means of square cells: the shorter side has
 * 240 to 479 of them, so that noise and small changes count alike at any size.  The motion of a frame is the third
 * largest change among the 24 frames around it, so neither a cut nor a key frame counts as motion (cf.  Vlachos,
 * "Flicker correction for archived film sequences using a nonlinear model", 2004, for flicker).
 *
 * Local; one thread at a time.  Memory does not depend on the length of the clip.
 */
#ifndef VFM_MEDIA_SCORE_TEMPORAL_H
#define VFM_MEDIA_SCORE_TEMPORAL_H

#include "base/err.h"
#include "media/av/video_in.h"

struct vfm_temporal_result {
	double frozen;    /* fraction of the frames that have a previous frame; NAN: none has */
	double duplicate; /* likewise */
	double flicker;   /* 0 to 0.125: fraction of the range of luma; NAN: fewer than three frames of a size */
};

struct vfm_temporal;

struct vfm_temporal *vfm_temporal_new(void);
void vfm_temporal_free(struct vfm_temporal *t); /* no-op for NULL */

/* Adds the last frame that `v` decoded, described by `f`. */
int vfm_temporal_add(struct vfm_temporal *t, struct vfm_video *v, const struct vfm_frame *f, struct vfm_err *err);

/* Returns the result.  Call after the last frame. */
struct vfm_temporal_result vfm_temporal_end(struct vfm_temporal *t);

#endif
