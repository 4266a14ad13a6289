/* temporal.h - how a clip changes from frame to frame: frozen and duplicate frames, flicker.
 *
 * Takes 64 rows of luma of every frame, as coded.  d is the mean absolute difference of the rows of two neighbouring
 * frames, in levels of 8 bits.  A frame repeats the one before if
 *   d < 0.2 and no segment of 32 pixels differs by more than 4 levels in the mean, or
 *   d < 0.15 R and R > 0.6, where R is the third largest d of the 24 frames around it (so that neither a cut nor a key
 *   frame counts as motion).
 * Repeated frames in a run of at least a quarter of a second are frozen.  Those of shorter runs are duplicates: a film
 * of 24 frames a second that is stored with 30 has a fifth of them.
 *
 * Flicker is |y[t - k] - 2 y[t] + y[t + k]| / 2 of the brightness y of 4 x 4 tiles, the median over the tiles, clipped
 * at 32 levels, and its mean over the frames; the largest over lags k of 1, 2, 4 and 8 frames.  The median over tiles
 * is low if objects move, and high if the whole frame becomes brighter and darker (cf. Vlachos, "Flicker correction for
 * archived film sequences using a nonlinear model", 2004).
 *
 * Local; one thread at a time.  Memory does not depend on the length of the clip.
 */
#ifndef VFM_MEDIA_SCORE_TEMPORAL_H
#define VFM_MEDIA_SCORE_TEMPORAL_H

#include "base/err.h"
#include "media/av/video_in.h"

struct vfm_temporal_result {
	double frozen;    /* share of the frames that have one before */
	double duplicate; /* share of the same */
	double flicker;   /* 0 to 0.125: share of the range of luma */
	int64_t frames;
};

struct vfm_temporal;

struct vfm_temporal *vfm_temporal_new(void);
void vfm_temporal_free(struct vfm_temporal *t); /* NULL is fine */

/* Takes the frame that `v` decoded last, described by `f`. */
int vfm_temporal_add(struct vfm_temporal *t, struct vfm_video *v, const struct vfm_frame *f, struct vfm_err *err);

/* After the last frame. */
struct vfm_temporal_result vfm_temporal_end(struct vfm_temporal *t);

#endif
