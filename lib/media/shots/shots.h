/* shots.h - decodes a file once and cuts it into shots.  Thread-safe: no shared state. */
#ifndef VFM_MEDIA_SHOTS_SHOTS_H
#define VFM_MEDIA_SHOTS_SHOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "media/av/video_in.h"
#include "media/shots/scene.h"

/* ---- clips between cuts ---- */

enum vfm_span_kind {
	VFM_SPAN_CLIP,
	VFM_SPAN_SHORT,      /* a shot, or the rest of a divided one, that is shorter than the minimum */
	VFM_SPAN_TRANSITION, /* the frames of a dissolve or fade, or the mixed frame of a hard cut */
};

struct vfm_span {
	int64_t start, end; /* frames, end exclusive */
	enum vfm_span_kind kind;
	enum vfm_cut_kind transition; /* of a VFM_SPAN_TRANSITION */
	/* of the cuts at start and end; < 0: the file begins or ends there, or a shot was divided */
	double start_confidence, end_confidence;
};

/* Lengths are numbers of frames or, with `at`, differences of at[frame]. */
struct vfm_clip_rule {
	/* longer shots are divided into equal parts, not shorter than min if possible; max 0: any length */
	double min, max;
	double stride;    /* > 0: ignores cuts, and makes a clip for every stride (the last may be shorter) */
	const double *at; /* [frames + 1], not decreasing: times of frames with a variable rate; NULL: frame numbers */
};

/* Divides `frames` frames at `cuts` into clips and transitions, in order.  Each frame belongs to exactly one span.  A
 * single frame that exceeds the maximum is a clip.  Makes no VFM_SPAN_SHORT: the caller knows the durations.  Returns
 * the number of spans; the caller frees *spans. */
int64_t vfm_spans_of(int64_t frames, const struct vfm_cut *cuts, int64_t n_cuts, const struct vfm_clip_rule *rule,
	struct vfm_span **spans);

/* ---- a file ---- */

/* A detector that replaces scene.h.  It gets each frame scaled to rgb [height, width, 3], in order.  After the last one
 * it returns the cuts, which it owns. */
struct vfm_shot_detector {
	int width, height;
	int (*push)(void *ctx, const uint8_t *rgb, struct vfm_err *err);
	int (*cuts)(void *ctx, const struct vfm_cut **cuts, int64_t *n_cuts, struct vfm_err *err);
	void *ctx;
};

struct vfm_shots_opts {
	struct vfm_video_opts video;
	bool stride;                              /* fixed clips of max_s, without detection */
	double min_s, max_s;                      /* by the timestamps; max_s 0: any length */
	double threshold;                         /* 0 = VFM_SCENE_THRESHOLD */
	bool hard_only;                           /* no dissolves and fades */
	const struct vfm_shot_detector *detector; /* NULL: scene.h */
};

struct vfm_shots {
	struct vfm_span *spans; /* [n], of all frames, in order */
	int64_t n, frames;
	/* [frames + 1], the last is the end; computed from the rate if the file's timestamps are bad */
	double *time_s;   /* media/av/times.h */
	int64_t *pts;     /* [frames]; NULL if they do not identify frames (missing, repeated, decreasing) */
	int32_t *damaged; /* [frames + 1], number of damaged frames before each */
};

/* Finds the shots of a video that the caller decodes. */
struct vfm_shot_track;
struct vfm_shot_track *vfm_shot_track_new(const struct vfm_shots_opts *o, const struct vfm_video_info *info);
void vfm_shot_track_free(struct vfm_shot_track *t); /* no-op for NULL */
/* Adds the next frame: the last one that `v` decoded, described by `f`.  The reader must not deinterlace. */
int vfm_shot_track_push(struct vfm_shot_track *t, struct vfm_video *v, const struct vfm_frame *f, struct vfm_err *err);
/* Returns whether the frames from..to may hold the end of a shot or clip. */
bool vfm_shot_track_may_cut(const struct vfm_shot_track *t, int64_t from, int64_t to);
/* Sets *s to the shots of the frames so far, at least one, as if the video ended with them.  May be called again after
 * more frames, except with a detector.  The caller releases *s. */
int vfm_shot_track_shots(const struct vfm_shot_track *t, struct vfm_shots *s, struct vfm_err *err);

int vfm_shots_file(struct vfm_shots *s, const char *path, const struct vfm_shots_opts *opts, struct vfm_err *err);
/* Returns the duration of a span, rounded to microseconds.  Records contain this number, and min_s is compared with
 * it. */
double vfm_shots_length_s(const struct vfm_shots *s, const struct vfm_span *span);
void vfm_shots_release(struct vfm_shots *s);

#endif
