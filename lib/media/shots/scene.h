/* scene.h - detects the boundaries of shots: hard cuts, dissolves and fades.  Each candidate has numbers for the
 * criteria of scene.c; a sum of small trees turns them into a confidence.
 *
 * One frame at a hard cut may be a mixture of both shots.  A single frame of one colour, with no fade next to it, is a
 * hard cut and belongs to the shot before.  A title on black is a shot of its own.
 *
 * Works on frames of 64 x 48; keeps 144 of them, 24 bytes a frame and some more for each candidate.  One thread at a
 * time.
 */
#ifndef VFM_MEDIA_SHOTS_SCENE_H
#define VFM_MEDIA_SHOTS_SCENE_H

#include <stdbool.h>
#include <stdint.h>

#include "media/shots/sig.h"

#define VFM_SCENE_THRESHOLD 0.5
#define VFM_SCENE_FEATURES  40

enum vfm_cut_kind { VFM_CUT_HARD, VFM_CUT_DISSOLVE, VFM_CUT_FADE };

struct vfm_cut {
	int64_t from;  /* first frame that is no longer the old shot alone; == frame for a hard cut */
	int64_t frame; /* first frame of the new shot alone */
	enum vfm_cut_kind kind;
	double confidence; /* 0..1: of so many candidates like this one, this share are cuts */
};

struct vfm_cut_candidate {
	int64_t from, frame;
	enum vfm_cut_kind kind;
	bool abrupt; /* of a fade: a side of the plain frames is a cut */
	double confidence;
	float f[VFM_SCENE_FEATURES]; /* numbers of the kind's model */
};

struct vfm_scene;
/* fps: frames a second, for how long a flash may last; 0: unknown. */
struct vfm_scene *vfm_scene_new(double fps);
void vfm_scene_push(struct vfm_scene *s, const struct vfm_thumb *thumb /* the next frame */);

/* After the last frame: returns the hard cuts of at least the confidence `threshold`, and the dissolves and fades of at
 * least (1 + threshold) / 2.  They are in order, do not overlap, and belong to `s`. threshold: 0 = VFM_SCENE_THRESHOLD;
 * lower finds more.  Without `gradual`: hard cuts, and plain frames with a cut on one side.  May be called again with
 * other options. */
const struct vfm_cut *vfm_scene_cuts(struct vfm_scene *s, double threshold, bool gradual, int64_t *n_cuts);
/* After the last frame: all candidates, for the calibration; they belong to `s`. */
const struct vfm_cut_candidate *vfm_scene_candidates(struct vfm_scene *s, int64_t *n);
void vfm_scene_free(struct vfm_scene *s); /* NULL is fine */

#endif
