/* scene_impl.h - shared by scene.c, scene_mix.c and scene_plain.c. */
#ifndef VFM_MEDIA_SHOTS_SCENE_IMPL_H
#define VFM_MEDIA_SHOTS_SCENE_IMPL_H

#include "media/shots/scene.h"

enum {
	SCENE_RING = 144,
	SCENE_QUEUE = 5, /* a frame and two on either side */
	SCENE_PIX = VFM_SIG_W * VFM_SIG_H,
	SCENE_NEAR = 16, /* frames next to plain ones; the sharpest of them represents the shot */
	SCENE_COMPARED = 5,
};

struct scene_point {
	float change; /* difference of pixels from the previous frame */
	float mean, std;
	float mixture; /* how well the surrounding frames fit a mixture (scene_mix.c); 0: not at all */
	int8_t half;   /* frames from the middle of that mixture to its ends */
	bool plain;    /* of one colour */
};

struct plain_run {
	int64_t first, end;
	bool black;
	float least;                       /* contrast */
	float change_before, change_after; /* of the plain frames from the clearest of either side */
	float f[VFM_SCENE_FEATURES];
};

/* A cut before it is merged with others. */
struct chosen_cut {
	struct vfm_cut cut;            /* with all frames of a fade */
	int64_t seen_from, seen_frame; /* of struct vfm_cut_candidate */
};

struct vfm_scene {
	struct vfm_thumb queue[SCENE_QUEUE]; /* the last pushed frames; number i at i % SCENE_QUEUE */
	int64_t pushed;
	struct vfm_sig ring[SCENE_RING];
	struct vfm_sig before;               /* the clearest frame before the run of plain frames */
	struct vfm_sig past[SCENE_COMPARED]; /* some frames before it, from the last one on */
	int n_past;
	int flash;  /* maximum frames of a flash */
	int second; /* frames */
	struct scene_point *p;
	size_t cap;
	int64_t n, evaluated, mixed; /* frames; the next one to evaluate for a cut, for a mixture */
	int64_t run_first;           /* of the run of plain frames that is not yet stored; -1: none */
	int64_t followed;            /* the next frame to follow for runs of plain frames */
	float change_before;         /* of the run from the frame `before` */
	struct vfm_cut_candidate *candidates, *dissolves;
	struct plain_run *runs;
	size_t candidates_cap, dissolves_cap, runs_cap;
	int64_t n_candidates, n_dissolves, n_runs;
	int64_t n_hard; /* of the candidates, which come first, in order */
	struct chosen_cut *chosen;
	struct vfm_cut *cuts;
	size_t chosen_cap, cuts_cap;
	int64_t n_chosen, n_cuts;
};

static inline const struct vfm_sig *scene_sig(const struct vfm_scene *s, int64_t frame)
{
	return &s->ring[frame % SCENE_RING];
}

/* Sets f to the differences of two frames, in numbers of 0..1: moved, blocks, hist, pixel. */
void vfm_scene_differ(const struct vfm_sig *a, const struct vfm_sig *b, float f[4]);
void vfm_scene_add_candidate(struct vfm_scene *s, const struct vfm_cut_candidate *c);
/* Returns whether the candidates for hard cuts include a likely one at t.  Call after the last frame. */
bool vfm_scene_is_hard_cut(const struct vfm_scene *s, int64_t t);

/* ---- scene_mix.c: dissolves ---- */

/* Call after each frame; `ended`: after the last one. */
void vfm_scene_follow_mixtures(struct vfm_scene *s, bool ended);

/* ---- scene_plain.c: frames of one colour and fades ---- */

/* The change of frame n from the previous one must be known. */
bool vfm_scene_is_plain(const struct vfm_scene *s, int64_t n);
/* Follows the runs of plain frames to frame n, after SCENE_NEAR - 1 more frames, or after the last one; n = s->n: to the
 * end. */
void vfm_scene_follow_plain(struct vfm_scene *s, int64_t n);
/* Stores the candidates.  Call after the last frame and all hard cuts. */
void vfm_scene_gather_fades(struct vfm_scene *s);

#endif
