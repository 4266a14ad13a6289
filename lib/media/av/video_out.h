/* video_out.h - writes frames as mp4, mov, mkv, gif or png.
 *
 * The file gets its name when it is complete (vfm_video_out_close).  A writer belongs to one thread at a time.
 */
#ifndef VFM_MEDIA_AV_VIDEO_OUT_H
#define VFM_MEDIA_AV_VIDEO_OUT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "media/av/layout.h"

struct vfm_video_out;
struct vfm_audio;

struct vfm_video_out_opts {
	int width, height;      /* of the given frames; odd sizes are padded to even ones if the codec requires it */
	enum vfm_layout layout; /* of the given frames; the file has the same matrix */
	int fps_num, fps_den;   /* 0/0 = 25 */
	bool vfr; /* each frame has a time (vfm_video_out_write_at); fps is the mean. Not for .gif, .png */
	/* "h264" (libx264, else mpeg4), "hevc", "av1", "vp9", "mpeg4", "ffv1"; "CODEC_nvenc" for h264, hevc and av1,
	 * and "CODEC_vaapi" for these and vp9: a GPU encodes, or software after a notice if none can.  NULL: by the
	 * extension .mp4 .mov .mkv .gif .png */
	const char *codec;
	int crf;     /* quality of h264 and hevc, 0 (lossless) to 51; < 0: 18 */
	int threads; /* of the encoder; 0 = 1 */
	/* NULL, or sound for .mp4, .mov and .mkv (audio.h).  The caller starts it before the first frame and closes it
	 * after the writer */
	struct vfm_audio *audio;
};

/* Returns the codec of a hardware encoder ("h264" for "h264_nvenc"), and any other name unchanged. */
const char *vfm_video_out_codec(const char *name);

/* Return the extension of a video with a codec, and FFmpeg's name of its container. */
static inline const char *vfm_video_out_extension(const char *codec)
{
	return strcmp(codec, "ffv1") == 0 ? "mkv" : "mp4";
}
static inline const char *vfm_video_out_container(const char *codec)
{
	return strcmp(codec, "ffv1") == 0 ? "matroska" : "mov";
}

/* The extension of `path` selects the format.  A .png takes one frame, or one file per frame, numbered from 0, if its
 * name contains one "%d" or "%0Nd". */
int vfm_video_out_open(
	struct vfm_video_out **o, const char *path, const struct vfm_video_out_opts *opts, struct vfm_err *err);
int vfm_video_out_write(struct vfm_video_out *o, const uint8_t *picture, struct vfm_err *err);
/* With `vfr`: writes a frame that is shown at time_s, which increases from frame to frame, for length_s seconds.  The
 * file keeps times to 1/60000 s (.mkv: 1 ms). */
int vfm_video_out_write_at(
	struct vfm_video_out *o, const uint8_t *picture, double time_s, double length_s, struct vfm_err *err);
/* Returns the properties of the file; the name of the codec is a constant. */
struct vfm_video_out_facts {
	const char *codec;
	int width, height;
} vfm_video_out_facts(const struct vfm_video_out *o);
/* Completes the file and frees o.  Removes the file on failure. */
int vfm_video_out_close(struct vfm_video_out *o, struct vfm_err *err);
void vfm_video_out_abort(struct vfm_video_out *o); /* frees o and removes the file; accepts NULL */

#endif
