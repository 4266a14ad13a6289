/* cut.h - extracts frames of a file into a new file.  Thread-safe: no shared state. */
#ifndef VFM_MEDIA_SHOTS_CUT_H
#define VFM_MEDIA_SHOTS_CUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "media/av/video_in.h"

struct vfm_cut_opts {
	struct vfm_video_opts video;
	int64_t start, end;   /* frames, end exclusive; -1: to the end */
	int64_t start_pts;    /* of the first frame, for seeking; INT64_MIN: unknown */
	int width, height;    /* 0, 0: unchanged; one of them: keeps the aspect ratio; both: cover and crop */
	bool enlarge;         /* else a smaller source keeps its size, or, with width and height, is refused */
	bool even;            /* derived sizes are rounded to even numbers */
	int fps_num, fps_den; /* rate of the source, the mean if it varies; 0: that of the file's header */
	bool vfr;             /* the rate varies (detected if it is not set) */
	bool bad_times;       /* the timestamps of the source are bad: frames follow at its rate */
	double length_s;      /* of the range, including the last frame; 0: unknown */
	double new_fps;       /* > 0: frames per second of the file's timestamps */
	int64_t max_frames;   /* 0: no limit */
	const char *codec;    /* as in video_out.h */
	int crf, threads;
	bool audio;       /* keep the sound (media/av/audio.h) of the range, if any; VFM_EINPUT with bad_times */
	bool copy;        /* copy packets if this gives the same frames (media/av/remux.h), to .mp4 */
	double timeout_s; /* > 0: for this clip, replaces video.limit */
};

struct vfm_cut_result {
	int width, height, fps_num, fps_den;
	int64_t frames;
	double duration_s;
	bool vfr;       /* fps is the mean */
	bool has_audio; /* the file contains sound */
	bool copied;
	bool too_small; /* refused: the source has fewer columns or rows than the clip; rc is VFM_EINPUT */
	char codec[32]; /* if copied: that of the source */
};

struct vfm_cut_clip {
	const char *out;
	struct vfm_cut_opts o; /* `video` of the first clip applies to all */
	struct vfm_cut_result result;
	int rc; /* 0, or the error of this clip, described by err */
	struct vfm_err err;
};

/* Writes `out` of each of `n` clips of one source, atomically.  Without new_fps, keeps every frame: with a constant
 * rate if the source has one, else each frame with its time, so that both last equally long.  An image, or a name that
 * ends in .png, gives one picture.  VFM_EINPUT: fewer frames decode than the range has.
 *
 * Decodes the source once if at most four clips overlap at any frame.  The clips may be in any order, and each has the
 * same frames as if cut alone.  An error of a clip does not affect the others; but after VFM_EENV, all unfinished clips
 * have this error. */
void vfm_cut_clips(const char *src, struct vfm_cut_clip *clips, int n);

/* Returns the size and layout of the pictures of a clip. */
struct vfm_cut_shape {
	int width, height;
	enum vfm_layout layout;
} vfm_cut_shape(const struct vfm_cut_opts *o, const struct vfm_video_info *source);

/* As vfm_cut_clips for one clip without `copy`, from frames that the caller decoded with `in`: the pictures, of
 * vfm_cut_shape and VFM_FIT_COVER, of the n frames [o.start, o.end). */
void vfm_cut_kept(const char *src, struct vfm_cut_clip *clip, struct vfm_video *in,
	struct vfm_kept_frame *const *frames, int64_t n);

#endif
