/* score.h - scores of a clip, computed without a model, from one decode.
 *
 * man/vfm-scores.7 defines each score with its formula, range, unit and source.  motion.h, temporal.h, artifacts.h and
 * text.h compute the scores that need more than one pass over the pixels.  Memory does not depend on the length of the
 * clip.  Thread-safe.
 */
#ifndef VFM_MEDIA_SCORE_SCORE_H
#define VFM_MEDIA_SCORE_SCORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "media/av/video_in.h"

/* X(NAME) for each number, in the order of records. */
#define VFM_SCORE_LIST(X)                                                                                              \
	X(motion)                                                                                                      \
	X(camera_motion)                                                                                               \
	X(object_motion)                                                                                               \
	X(shake)                                                                                                       \
	X(luma)                                                                                                        \
	X(contrast)                                                                                                    \
	X(overexposed)                                                                                                 \
	X(underexposed)                                                                                                \
	X(colorfulness)                                                                                                \
	X(oversaturated)                                                                                               \
	X(sharpness)                                                                                                   \
	X(blur)                                                                                                        \
	X(blockiness)                                                                                                  \
	X(interlace)                                                                                                   \
	X(static_ratio)                                                                                                \
	X(duplicate_ratio)                                                                                             \
	X(black_ratio)                                                                                                 \
	X(flicker)                                                                                                     \
	X(bar_ratio)                                                                                                   \
	X(text_ratio)

/* A score that the clip does not allow is NAN: one of time for an image, one of a size for a smaller video. */
struct vfm_score {
#define SCORE_FIELD(name) double name;
	VFM_SCORE_LIST(SCORE_FIELD)
#undef SCORE_FIELD
	double letterbox[4]; /* black bars: top, bottom, left, right */
	int64_t frames;      /* examined frames */
};

struct vfm_score_opts {
	struct vfm_video_opts video;
	int64_t start, end; /* frames of the file, end exclusive; -1: to the end */
	int64_t start_pts;  /* for seeking; INT64_MIN: unknown */
	int64_t about;      /* approximate number of frames, for even sampling; 0: unknown */
};

/* Text, sharpness, bars and motion are measured in luma of this size, every vfm_score_step frames or a multiple of that.
 * The shorter side is VFM_SCORE_SIDE pixels, or that of a smaller video. */
enum { VFM_SCORE_SIDE = 240 };
void vfm_score_size(const struct vfm_video_info *info, int *width, int *height);
int64_t vfm_score_step(const struct vfm_video_info *info);

/* Scores a clip whose frames the caller decodes. */
struct vfm_scorer;

/* `info` describes the video.  Uses start, end and about of `o`. */
struct vfm_scorer *vfm_scorer_new(const struct vfm_score_opts *o, const struct vfm_video_info *info);
void vfm_scorer_free(struct vfm_scorer *s); /* no-op for NULL */

/* Adds the next frame of the clip: the last one that `v` decoded, described by `f`.  The reader must not deinterlace,
 * because interlacing is one of the scores. */
int vfm_scorer_push(struct vfm_scorer *s, struct vfm_video *v, const struct vfm_frame *f, struct vfm_err *err);

/* Call once, after the last frame.  VFM_EINPUT: there was none. */
int vfm_scorer_finish(struct vfm_scorer *s, struct vfm_score *score, struct vfm_err *err);

/* Opens `path` and scores the clip.  VFM_EINPUT: it cannot be decoded, or the file ends before the clip. */
int vfm_score_file(struct vfm_score *s, const char *path, const struct vfm_score_opts *opts, struct vfm_err *err);

#endif
