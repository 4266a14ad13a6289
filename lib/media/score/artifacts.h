/* artifacts.h - faults of the picture at the resolution of the file: blur, blocking, interlacing.
 *
 * Takes 32 bands of 8 rows of luma of a frame, as coded (all rows of a frame of less than 256).
 *
 * blur        width of edges along the rows, in pixels (after Marziliano, Dufaux, Winkler, Ebrahimi, "A no-reference
 *             perceptual blur metric", 2002).  An edge is a run of pixels that only rises or only falls, by at least 20
 *             levels; its width is its height divided by its largest step.  A step has width 1, and one blurred by a
 *             Gaussian has 2.5 sigma.  The 20th percentile in the frame, so that what is in focus counts.
 * blockiness  how much steps between columns depend on their place in the grid of 8 pixels.  c[x] is the absolute
 *             difference of columns x and x - 1 of a band, averaged over its rows, which begin with a row of the grid.
 *             x is a step if c[x] is between 1 and 24 levels, and neither c[x - 1] nor c[x + 1] is larger.  m[k] is the
 *             share of steps among all x with x mod 8 = k.  The result is the standard deviation of m over (its mean +
 *             0.02).  The sum over rows keeps the edges of blocks, which are straight, and cancels texture.  The count
 *             of maxima, unlike a sum of differences, lets no strong edge dominate, and finds the steps that a
 *             deblocking filter has spread (cf. Wang, Bovik, Evans, "Blind measurement of blocking artifacts in
 *             images", 2000).
 * interlace   how much more two neighbouring frames comb if their fields are woven in one order than in the other.
 *             The combing of row y is |row[y - 1] + row[y + 1] - 2 row[y]|, summed over the pixels that change by more
 *             than 8 levels between the frames.  C[0] takes the even rows y from the second frame and the rows around
 *             them from the first, C[1] the odd ones.  Two fields of interlaced frames are half a frame apart in one
 *             order, and three halves in the other; the fields of progressive frames are a frame apart in both.  The
 *             result is |C[0] - C[1]| / (C[0] + C[1] + 0.1 level a pixel), of the sums over all frames (cf. the filter
 *             idet of FFmpeg).  Fine stripes comb as well, but in both orders alike.
 *
 * Local; one thread at a time.  Memory does not depend on the length of the clip.
 */
#ifndef VFM_MEDIA_SCORE_ARTIFACTS_H
#define VFM_MEDIA_SCORE_ARTIFACTS_H

#include "base/err.h"
#include "media/av/video_in.h"

struct vfm_artifacts_result {
	double blur; /* pixels, 1 and more; 0: no edges */
	double blockiness;
	double interlace; /* 0 to 1; 0 without two neighbouring frames */
};

struct vfm_artifacts;

struct vfm_artifacts *vfm_artifacts_new(void);
void vfm_artifacts_free(struct vfm_artifacts *a); /* NULL is fine */

/* Takes the frame that `v` decoded last. */
int vfm_artifacts_add(struct vfm_artifacts *a, struct vfm_video *v, struct vfm_err *err);

/* Compares the frame that `v` decoded last with that of vfm_artifacts_add, which must be the one before it. */
int vfm_artifacts_next(struct vfm_artifacts *a, struct vfm_video *v, struct vfm_err *err);

/* Means over the frames. */
struct vfm_artifacts_result vfm_artifacts_result(const struct vfm_artifacts *a);

#endif
