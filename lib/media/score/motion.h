/* motion.h - motion between frames: of blocks, of the camera, of objects; shake.
 *
 * The frame is a grid of blocks of 8 x 8 pixels of luma, 128 pixels wide, square pixels.  A pair of frames gives each
 * block with texture a displacement, from one of two sources:
 *   blocks  the least sum of absolute differences within +-12 pixels, refined below a pixel by a parabola
 *   codec   the mean of the codec's vectors that cover the block, weighted by area, of frames that are not of type B.
 *           A vector is divided by its distance in frames.  FFmpeg reports only its direction: its reference is taken
 *           to be the nearest frame before that is not of type B either.
 * From either source, a block that does not change between the frames has no motion, and neither has one without
 * texture.  Displacements are in percent of the longer side of the frame.
 *
 * The camera's motion is a similarity, u = a + s x - r y, v = b + r x + s y (translation, zoom, rotation), fitted to
 * the blocks with texture by iteratively reweighted least squares with Tukey's biweight (Huber, "Robust Statistics",
 * 1981; as in Odobez, Bouthemy, "Robust multiresolution estimation of parametric motion models", 1995).  It is 0 if
 * fewer than a quarter of these blocks agree with it.
 *
 * Local; one thread at a time.  Memory does not depend on the length of the clip.
 */
#ifndef VFM_MEDIA_SCORE_MOTION_H
#define VFM_MEDIA_SCORE_MOTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "media/av/video_in.h"

enum { VFM_MOTION_W = 128, VFM_MOTION_MAX_H = 256 };

enum vfm_motion_source {
	VFM_MOTION_BLOCKS, /* never the codec */
	VFM_MOTION_AUTO,   /* codec, or blocks where the pair has no vectors */
	VFM_MOTION_CODEC,  /* never blocks: a pair without vectors is left out */
};

/* Means over the pairs.  Speeds are in percent of the longer side per second. */
struct vfm_motion_result {
	double motion; /* mean speed of the blocks */
	double camera; /* mean speed of the camera's motion, over all blocks */
	double object; /* mean speed of the blocks against the camera's motion */
	double shake;  /* mean deviation of the camera's translation from that of its neighbours, in percent of the
			  longer side per 0.1 s: |t[k - 1] - 2 t[k] + t[k + 1]| / 2 */
	int64_t pairs, codec_pairs;
};

struct vfm_motion;

/* `info` is that of the video. */
struct vfm_motion *vfm_motion_new(const struct vfm_video_info *info, enum vfm_motion_source source);
void vfm_motion_free(struct vfm_motion *m); /* NULL is fine */

/* Takes the vectors of the frame that `v` decoded last, described by `f`.  To be called for each frame in order. */
void vfm_motion_vectors(struct vfm_motion *m, const struct vfm_video *v, const struct vfm_frame *f);

/* Takes a frame: luma [h, w], scaled here.  With seconds > 0, it is a pair with the frame of the call before, `seconds`
 * later; 0 begins anew. */
void vfm_motion_frame(struct vfm_motion *m, const uint8_t *luma, int w, int h, double seconds);

struct vfm_motion_result vfm_motion_result(const struct vfm_motion *m);

#endif
