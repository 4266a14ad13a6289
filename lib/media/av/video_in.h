/* video_in.h - decodes a video or an image, frame by frame, in order.
 *
 * A frame's number is its index in the decoder's output (0, 1, 2, …), not a time; numbers have no gaps or duplicates.
 * Rotation and mirroring stored in the file are applied, pixels are scaled to be square, and transparent pixels are
 * blended with white.  By default, interlaced frames are deinterlaced, one output frame per frame, and colours of high
 * dynamic range or wide gamut become BT.709.
 *
 * The reader trusts no value of a file.  It
 *   - limits sizes before it allocates
 *   - follows no playlists or network names, and opens only regular files and members of tars (io/input.h)
 *   - checks its time limit before each frame and read
 *
 * VFM_EINPUT: the file is at fault, or the limit is over.  VFM_EENV: the machine failed (descriptors, memory, I/O).  A
 * reader belongs to one thread at a time.  It silences the library's log and counts the decoder's errors. */
#ifndef VFM_MEDIA_AV_VIDEO_IN_H
#define VFM_MEDIA_AV_VIDEO_IN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/err.h"
#include "media/av/layout.h"

struct vfm_video;

enum vfm_deinterlace {
	VFM_DEINTERLACE_AUTO, /* only frames flagged as interlaced; none with `draft` */
	VFM_DEINTERLACE_OFF,
	VFM_DEINTERLACE_ALL,
};

enum vfm_hwaccel { VFM_HWACCEL_NONE, VFM_HWACCEL_AUTO, VFM_HWACCEL_CUDA, VFM_HWACCEL_VAAPI };

struct vfm_video_opts {
	int threads;        /* of the decoder; 0 = 1 */
	int64_t max_pixels; /* of a frame; 0 = 2^27 (16384 x 8192) */
	bool draft;         /* no loop filter, no film grain: less exact pixels in less time, for counting */
	bool keep_hdr;      /* do not convert HDR and BT.2020 to BT.709 */
	enum vfm_deinterlace deinterlace;
	enum vfm_hwaccel hwaccel; /* decode on a device, if there is one (auto: the first); else in software */
	struct vfm_limit limit;   /* of the caller's work on this file; until 0: 3600 s from the opening */
};

struct vfm_video_info {
	bool image; /* a still image; else a video, even of one frame */
	char container[64], codec[32], pix_fmt[32];
	int stream_id;     /* of the container; MPEG-TS: the PID */
	int width, height; /* as shown: upright, square pixels */
	int coded_width, coded_height;
	int rotation;         /* clockwise degrees in the file: 0, 90, 180, 270 */
	bool mirrored;        /* … after a left-to-right mirroring */
	int sar_num, sar_den; /* shape of a pixel; 1/1 = square */
	int fps_num, fps_den; /* as the container claims (times.h measures); 0/1 for an image */
	int64_t frames;       /* as the container claims; -1: unknown */
	double duration_s;    /* as the container claims; < 0: unknown */
	double stream_s;      /* end of the last frame, as the video stream claims; < 0: unknown */
	double tick_s;        /* unit of the timestamps */
	bool has_audio;
	/* "smpte2084", "bt709", …; "": not in the file */
	char color_transfer[24], color_primaries[24];
	bool wide;               /* HDR or BT.2020; converted unless keep_hdr */
	bool interlaced;         /* the stream or its first frame, before deinterlacing */
	enum vfm_layout nearest; /* Y'CbCr 4:2:0 with the matrix of the first frame, after conversion */
};

struct vfm_frame {
	int64_t index; /* from 0 */
	int64_t pts;   /* in units of the stream's time base; INT64_MIN: none */
	/* since the first frame; without pts, a period of the claimed rate after the previous frame */
	double time_s;
	int width, height; /* as shown; may change in mid-stream */
	bool damaged;      /* according to the decoder */
	bool interlaced;   /* … according to the decoder; false after deinterlacing */
};

/* Opens `path`, any regular file or the member of a tar.  VFM_EINPUT: not a video or an image, no video stream, only a
 * cover picture, encrypted, or too large. */
int vfm_video_open(struct vfm_video **v, const char *path, const struct vfm_video_opts *opts, struct vfm_err *err);
/* Extends the limit of the work by `seconds`, which the caller spent waiting for something else. */
void vfm_video_extend_limit(struct vfm_video *v, double seconds);
/* Replaces the limit when the work on another part of the file begins. */
void vfm_video_set_limit(struct vfm_video *v, struct vfm_limit limit);
void vfm_video_close(struct vfm_video *v); /* no-op for NULL */

const struct vfm_video_info *vfm_video_info(const struct vfm_video *v);

/* Decodes the next frame.  Returns 1, or 0 at the end.  Skips and counts data that does not decode.  VFM_EINPUT only if
 * no frame can follow (time limit, size limits). */
int vfm_video_next(struct vfm_video *v, struct vfm_frame *f, struct vfm_err *err);

/* Call after the last frame.  VFM_EINPUT: the file ended before frame `end`, the exclusive end of a range of frames
 * (-1: the range ends with the file).  All readers of a range call it, so that no range is cut short silently. */
int vfm_video_check_end(const struct vfm_video *v, int64_t end, struct vfm_err *err);

/* Makes frame `index` the next one.  `pts` is its timestamp from an earlier pass (INT64_MIN: unknown).  With a pts it
 * seeks to the preceding key frame; if that does not lead to exactly this frame, it decodes from the start. */
int vfm_video_seek(struct vfm_video *v, int64_t index, int64_t pts, struct vfm_err *err);

/* Returns the number of the frame that vfm_video_next returns next. */
int64_t vfm_video_at(const struct vfm_video *v);
/* Returns the number of the frame that the conversions below read: the last one decoded or shown. */
int64_t vfm_video_shown(const struct vfm_video *v);
/* Returns whether the reader has decoded everything up to the end of the file. */
bool vfm_video_ended(const struct vfm_video *v);

/* Returns the number of errors so far: of demuxer and decoder, and frames marked as damaged. */
int64_t vfm_video_errors(const struct vfm_video *v);

/* A frame outside its reader, which the caller frees before or after the reader. */
struct vfm_kept_frame;
/* Keeps the last decoded frame: a reference, without a copy of the pixels.  NULL: out of memory. */
struct vfm_kept_frame *vfm_video_keep(const struct vfm_video *v, const struct vfm_frame *f);
/* Makes a frame that `v` decoded its last decoded frame again, for the conversions below.  Sets *f as vfm_video_next
 * did.  VFM_EENV: out of memory. */
int vfm_video_show(struct vfm_video *v, const struct vfm_kept_frame *k, struct vfm_frame *f, struct vfm_err *err);
size_t vfm_kept_frame_bytes(const struct vfm_kept_frame *k);
void vfm_kept_frame_free(struct vfm_kept_frame *k); /* no-op for NULL */

enum vfm_fit {
	VFM_FIT_STRETCH, /* stretch to w x h */
	VFM_FIT_COVER,   /* scale until it covers w x h, crop the middle */
};

/* Convert the last decoded frame.
 *
 * - rgb [height, width, 3] uint8, sRGB-like values as in the file, no stride
 * - luma [height, width] uint8, full range (0 black, 255 white) */
int vfm_video_rgb(struct vfm_video *v, int width, int height, enum vfm_fit fit, uint8_t *rgb, struct vfm_err *err);
/* picture: as layout.h; width and height are even unless it is RGB. */
int vfm_video_picture(struct vfm_video *v, int width, int height, enum vfm_fit fit, enum vfm_layout layout,
	uint8_t *picture, struct vfm_err *err);
int vfm_video_luma(struct vfm_video *v, int width, int height, enum vfm_fit fit, uint8_t *luma, struct vfm_err *err);
/* Keeps the picture alone.  NULL: it cannot be converted, or out of memory. */
struct vfm_kept_frame *vfm_video_keep_picture(struct vfm_video *v, const struct vfm_frame *f, int width, int height,
	enum vfm_fit fit, enum vfm_layout layout);
/* Returns the picture, and sets *f as vfm_video_next did. */
const uint8_t *vfm_kept_picture(const struct vfm_kept_frame *k, struct vfm_frame *f);

/* Scales the last decoded frame, upright, to the size of thumb.h.  Scales most planar Y'CbCr directly, in less time
 * than vfm_video_rgb; converts HDR, RGB, transparent and very small frames first. */
struct vfm_thumb;
int vfm_video_thumb(struct vfm_video *v, struct vfm_thumb *t, struct vfm_err *err);

/* Returns the coded size of the last decoded frame: neither rotated nor with square pixels. */
void vfm_video_coded_size(const struct vfm_video *v, int *width, int *height);

/* Copies rows[0 … n - 1] of the luma of the last decoded frame, as coded: neither scaled nor rotated, in the range of
 * the file, rounded down to 8 bits, to dst [n, coded width] uint8.  Converts a frame without a luma plane (RGB,
 * palette) first. */
int vfm_video_coded_rows(struct vfm_video *v, const int *rows, int n, uint8_t *dst, struct vfm_err *err);

#endif
