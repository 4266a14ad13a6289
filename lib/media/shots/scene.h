/* scene.h - detects the boundaries of shots: hard cuts, dissolves and fades.  Each candidate has numbers for the
 * criteria of scene.c; a sum of small trees turns them into a confidence.
 *
 * One frame at a hard cut may be a mixture of both shots.  A single frame of one colour, without a fade next to it, is
 * a hard cut and belongs to the shot before.  A title on black is a separate shot, and so is a picture of another colour
 * than black that lasts a second.
 *
 * Works on frames of 64 x 48.  Keeps 144 of them, 24 bytes per frame, and more for each candidate.  One thread at a
 * time.
 */
#ifndef VFM_MEDIA_SHOTS_SCENE_H
#define VFM_MEDIA_SHOTS_SCENE_H

#include <stdbool.h>
#include <stdint.h>

#include "media/shots/sig.h"

#define VFM_SCENE_THRESHOLD 0.5
#define VFM_SCENE_FEATURES  42

enum vfm_cut_kind { VFM_CUT_HARD, VFM_CUT_DISSOLVE, VFM_CUT_FADE };

struct vfm_cut {
	/* From the first frame that shows more than the old shot to the first that shows only the new one; equal for a
	 * hard cut.  Frames of a fade from or to black that show a shot are outside. */
	int64_t from, frame;
	enum vfm_cut_kind kind;
	double confidence; /* 0..1: the fraction of similar candidates that are cuts; 1 without a model, see `sure` */
};

struct vfm_cut_candidate {
	int64_t from, frame;
	int64_t seen_from, seen_frame; /* of a fade: without the frames that show a shot, though darker */
	enum vfm_cut_kind kind;
	bool sure;   /* of a fade: at the beginning or the end; the model does not apply */
	bool abrupt; /* of a fade: the plain frames have a cut on one side */
	double confidence;
	float f[VFM_SCENE_FEATURES]; /* numbers of the kind's model */
};

struct vfm_scene;
/* fps: frames per second, which limits the duration of a flash; 0: unknown. */
struct vfm_scene *vfm_scene_new(double fps);
void vfm_scene_push(struct vfm_scene *s, const struct vfm_thumb *thumb /* the next frame */);

/* Call after the last frame.  Returns the hard cuts with at least the confidence `threshold`, and the dissolves and
 * fades with at least (1 + threshold) / 2.  They are in order, do not overlap, and belong to `s`.  threshold 0 means
 * VFM_SCENE_THRESHOLD; lower values find more.  Without `gradual`, returns hard cuts, and plain frames with a cut on
 * one side.  May be called again with other options. */
const struct vfm_cut *vfm_scene_cuts(struct vfm_scene *s, double threshold, bool gradual, int64_t *n_cuts);
/* Call after the last frame.  Returns all candidates, for calibration; they belong to `s`. */
const struct vfm_cut_candidate *vfm_scene_candidates(struct vfm_scene *s, int64_t *n);
/* Returns whether the frames from..to may hold a boundary, by the candidates so far.  Faster than a copy. */
bool vfm_scene_may_cut(const struct vfm_scene *s, int64_t from, int64_t to);
/* Copies the state, to look at the cuts so far: the functions above end a scene. */
struct vfm_scene *vfm_scene_copy(const struct vfm_scene *s);
void vfm_scene_free(struct vfm_scene *s); /* no-op for NULL */

#endif
