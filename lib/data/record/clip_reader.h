/* clip_reader.h - reads the pictures of a record (src, start_frame, end_frame), scaled, in sequence.
 *
 * A reader returns every frame, pictures at a rate, or a number of evenly spaced frames.  At a rate, each picture is
 * the first frame at or after its time, so frames may repeat.  An image has one picture.  A reader belongs to one
 * thread.
 */
#ifndef VFM_DATA_RECORD_CLIP_READER_H
#define VFM_DATA_RECORD_CLIP_READER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "media/av/video_in.h"
#include "spec/model/geometry.h"

enum vfm_clip_fit {
	VFM_CLIP_COVER,   /* scale until the picture covers width x height, crop the middle */
	VFM_CLIP_CONTAIN, /* the largest size of the same shape within width x height */
	VFM_CLIP_STRETCH,
};

struct vfm_clip_opts {
	int width, height; /* 0, 0: the source's size, rounded down to the multiple */
	enum vfm_clip_fit fit;
	int32_t multiple[2];         /* of height and width if no size is given; 0 means 1 */
	int64_t start_frame, frames; /* a window within the record's range; frames 0: to its end */
	double fps;                  /* pictures a second; 0: every frame */
	int64_t most;                /* maximum number of pictures; 0: no limit */
	int64_t even;     /* > 0: this many evenly spaced frames, or all if there are fewer; instead of fps and most */
	double timeout_s; /* for the whole clip; 0: 3600 */
	int threads;      /* of the decoder */
};

struct vfm_clip_reader {
	struct vfm_video *video;
	char *src;
	bool is_image;
	int width, height; /* of the pictures */
	double fps;        /* of the pictures: opts.fps, or the record's rate; 0: unknown, or an image */
	int64_t pictures;  /* number returned so far */

	/* private */
	struct vfm_clip_opts o;
	struct vfm_limit limit;
	int64_t start, end; /* range in frames of the file; end -1: to the end */
	int64_t total;      /* frames of the range; for `even` */
	double period;      /* from the record's rate, if the timestamps are bad; 0: use the timestamps */
	double first_s, frame_s;
	bool have_frame, at_end;
};

/* VFM_EINPUT: the record or its file is bad, or smaller than the multiple.  Close the reader in any case. */
int vfm_clip_open(struct vfm_clip_reader *r, const json_t *rec, const struct vfm_clip_opts *o, struct vfm_err *err);
/* Writes the next picture to rgb [height, width, 3].  Returns 1, or 0 at the end.  VFM_EINPUT: the file ends before the
 * range, has no frame in it, or the time limit is over. */
int vfm_clip_next(struct vfm_clip_reader *r, uint8_t *rgb, struct vfm_err *err);
/* Excludes `seconds` from the time limit, during which the caller worked on the pictures. */
void vfm_clip_extend_limit(struct vfm_clip_reader *r, double seconds);
void vfm_clip_close(struct vfm_clip_reader *r); /* accepts `{0}` */
/* After the last picture: sets *frames to the number of pictures that the tokenizer accepts such that patch_t divides
 * its latent frames.  VFM_EINPUT: there are too few. */
int vfm_clip_whole_patches(const struct vfm_clip_reader *r, const struct vfm_geometry *g, int32_t patch_t,
	int64_t *frames, struct vfm_err *err);

/* Sets *frames to the frames of a record's range, from the record or else by decoding. */
int vfm_clip_count(const json_t *rec, double timeout_s, int threads, int64_t *frames, struct vfm_err *err);

/* ---- for pages ---- */

struct vfm_thumbnails {
	uint8_t *rgb; /* [n, height, width, 3]; the caller frees it, even after a failure */
	int n, width, height;
};

/* Decodes `frames` evenly spaced frames of a record (src, start_frame, end_frame), or all of its frames if there are
 * fewer; 1: the middle one.  The pictures have the largest size of its shape within width x height.  `threads` are those
 * of the decoder.  VFM_EINPUT: there is no frame. */
int vfm_thumbnails(struct vfm_thumbnails *t, const json_t *rec, int frames, int width, int height, double timeout_s,
	int threads, struct vfm_err *err);

#endif
