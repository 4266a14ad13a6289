/* scene.h - where one shot ends and the next begins.
 *
 * Hard cuts: the frames before and after differ in colour and cannot be matched block by
 * block, and neither can any pair up to four frames around (so a flash, after which the old
 * picture returns, is none); what differs as much as its neighbours (fast motion) is none either.
 * Dissolves: the frames between two different pictures are mixtures of the two, with the share growing
 * steadily (light that changes keeps its blocks and is none).  Fades: contrast goes to
 * nothing and comes back with another picture.
 *
 * Works on frames of 64 x 48; keeps 40 of them and 32 bytes a frame.  One thread at a time.
 */
#ifndef VFM_MEDIA_SCENE_H
#define VFM_MEDIA_SCENE_H

#include <stdbool.h>
#include <stdint.h>

#include "media/sig.h"

#define VFM_SCENE_THRESHOLD 1.05

enum vfm_cut_kind { VFM_CUT_HARD, VFM_CUT_DISSOLVE, VFM_CUT_FADE };

struct vfm_cut {
	int64_t from;  /* first frame that is no longer the old shot alone; == frame for a hard cut */
	int64_t frame; /* first frame of the new shot alone */
	enum vfm_cut_kind kind;
	double score; /* hard: against the threshold; else 0 */
};

struct vfm_scene;
struct vfm_scene *vfm_scene_new(void);
void vfm_scene_push(struct vfm_scene *s, const uint8_t *rgb /* [48, 64, 3]: the whole frame, scaled */);

/* After the last frame: the cuts in order, not overlapping; they belong to `s`.
 * threshold: 0 = VFM_SCENE_THRESHOLD; lower finds more.  May be called again with other options. */
const struct vfm_cut *vfm_scene_cuts(struct vfm_scene *s, double threshold, bool gradual, int64_t *n_cuts);
void vfm_scene_free(struct vfm_scene *s); /* NULL is fine */

/* ---- clips ---- */

struct vfm_span {
	int64_t start, end; /* frames, end exclusive */
	bool is_short;      /* less than the minimum: given, so that it can be said, but of no use */
};

struct vfm_clip_rule {
	int64_t min, max; /* frames; shorter ones are marked, longer ones cut into equal parts; max 0 = any */
	int64_t stride;   /* > 0: no cuts, every so many frames (the last may be shorter) */
};

/* The clips of `frames` frames between `cuts`.  Frames inside of a transition are in no clip.
 * Returns their number; *spans is the caller's to free. */
int64_t vfm_clips_of(int64_t frames, const struct vfm_cut *cuts, int64_t n_cuts, const struct vfm_clip_rule *rule,
	struct vfm_span **spans);

#endif
