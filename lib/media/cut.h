/* cut.h - extracts frames of a file into a new file.  Thread-safe: no shared state. */
#ifndef VFM_MEDIA_CUT_H
#define VFM_MEDIA_CUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "media/video_in.h"

struct vfm_cut_opts {
	struct vfm_video_opts video;
	int64_t start, end;   /* frames, end exclusive; -1 = to the end */
	int64_t start_pts;    /* of the first, for seeking; INT64_MIN unknown */
	int width, height;    /* 0, 0: unchanged; one of them: keeps the aspect ratio; both: cover and crop */
	bool even;            /* derived sizes are rounded to even numbers */
	int fps_num, fps_den; /* rate of the source, the mean if it varies; 0: that of the file's header */
	bool vfr;             /* the rate varies (the cut finds it out if it is not said) */
	bool bad_times;       /* the timestamps of the source are bad: frames follow each other at its rate */
	double length_s;      /* of the range, with the last frame; 0: unknown */
	double new_fps;       /* > 0: frames per second of the file's timestamps */
	int64_t max_frames;   /* 0 = any */
	const char *codec;    /* as in video_out.h */
	int crf, threads;
};

struct vfm_cut_result {
	int width, height, fps_num, fps_den;
	int64_t frames;
	double duration_s;
	bool vfr; /* fps is the mean */
};

/* Writes `out` atomically.  Without new_fps, keeps every frame: with a constant rate if the source has one, else each
 * frame with its time, so that both files last equally long.  VFM_EINPUT if fewer frames decode than the range has; an
 * image, or a name that ends in .png, gives one picture. */
int vfm_cut_file(const char *src, const char *out, const struct vfm_cut_opts *opts, struct vfm_cut_result *result,
	struct vfm_err *err);

/* Returns the output size of a frame of w x h under these options. */
void vfm_cut_size(const struct vfm_cut_opts *opts, int w, int h, int *width, int *height);

#endif
