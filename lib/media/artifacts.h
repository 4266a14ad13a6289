/* artifacts.h - faults of the picture at the resolution of the file: blur, blocking, combing.
 *
 * Takes 32 bands of 8 rows of luma of a frame, as coded (all rows of a frame of less than 256).
 *
 * blur        width of edges along the rows, in pixels (after Marziliano, Dufaux, Winkler, Ebrahimi, "A no-reference
 *             perceptual blur metric", 2002).  An edge is a run of pixels that only rises or only falls, by at least 20
 *             levels; its width is its height divided by its largest step.  A step has width 1, and one blurred by a
 *             Gaussian has 2.5 sigma.  The 20th percentile in the frame, so that what is in focus counts.
 * blockiness  how much small steps between columns depend on their place in a grid of 16 pixels.  m[k] is the mean of
 *             |p[x] - p[x - 1]| over all x with x mod 16 = k, where steps of more than 8 levels, which are edges, count
 *             as 0.  The result is the standard deviation of m over (its mean + 0.02): blocks of 8 x 8 and macroblocks
 *             of 16 x 16 are flat inside and end in steps, which a deblocking filter spreads over a few pixels (cf.
 * Wang, Bovik, Evans, "Blind measurement of blocking artifacts in images", 2000) combing     share of the pixels that
 * differ from the rows above and below, in the same direction and by more than from the second rows above and below:
 * what interlaced fields leave where something moves
 *
 * Local; one thread at a time.  Memory does not depend on the length of the clip.
 */
#ifndef VFM_MEDIA_ARTIFACTS_H
#define VFM_MEDIA_ARTIFACTS_H

#include "base/err.h"
#include "media/video_in.h"

struct vfm_artifacts_result {
	double blur; /* pixels, 1 and more; 0: no edges */
	double blockiness;
	double combing; /* 0 to 1 */
};

struct vfm_artifacts;

struct vfm_artifacts *vfm_artifacts_new(void);
void vfm_artifacts_free(struct vfm_artifacts *a); /* NULL is fine */

/* Takes the frame that `v` decoded last. */
int vfm_artifacts_add(struct vfm_artifacts *a, struct vfm_video *v, struct vfm_err *err);

/* Means over the frames. */
struct vfm_artifacts_result vfm_artifacts_result(const struct vfm_artifacts *a);

#endif
