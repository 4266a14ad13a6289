/* motion.h - motion between frames: of blocks, of the camera, of objects; shake.
 *
 * man/vfm-scores.7 defines them.  The camera's motion is a similarity, u = a + s x - r y, v = b + r x + s y, fitted to
 * the displacements of blocks of 8 x 8 pixels by iteratively reweighted least squares with Tukey's biweight (Huber,
 * "Robust Statistics", 1981; as in Odobez, Bouthemy, "Robust multiresolution estimation of parametric motion models",
 * 1995).
 *
 * Local; one thread at a time.  Memory does not depend on the length of the clip.
 */
#ifndef VFM_MEDIA_SCORE_MOTION_H
#define VFM_MEDIA_SCORE_MOTION_H

#include <stdint.h>

#include "media/av/video_in.h"

/* Means over the pairs, NAN without pairs.  Speeds are in percent of the longer side per second. */
struct vfm_motion_result {
	double motion; /* mean speed of the blocks */
	double camera; /* mean speed of the camera's motion, over all blocks */
	double object; /* mean speed of the blocks against the camera's motion */
	double shake;  /* mean deviation of the camera's translation from that of its neighbours, in percent of the
			  longer side per 0.1 s: |t[k - 1] - 2 t[k] + t[k + 1]| / 2; NAN without three
			  pairs in a row */
	int64_t pairs;
};

struct vfm_motion;

/* `info` describes the video. */
struct vfm_motion *vfm_motion_new(const struct vfm_video_info *info);
void vfm_motion_free(struct vfm_motion *m); /* no-op for NULL */

/* Adds a frame: luma [h, w], sides of at most 1024, which is scaled here.  With seconds > 0, it forms a pair with the frame of the previous
 * call, `seconds` earlier; 0 starts anew. */
void vfm_motion_frame(struct vfm_motion *m, const uint8_t *luma, int w, int h, double seconds);

struct vfm_motion_result vfm_motion_result(const struct vfm_motion *m);

#endif
