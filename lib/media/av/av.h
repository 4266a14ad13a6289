/* av.h - internal helpers of lib/media around FFmpeg's libraries. */
#ifndef VFM_MEDIA_AV_AV_H
#define VFM_MEDIA_AV_AV_H

#include <libavutil/frame.h>
#include <libavutil/pixfmt.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Routes FFmpeg's log here and limits its single allocations; idempotent, thread-safe. */
void vfm_av_init(void);

/* Returns FFmpeg's message for a code. */
const char *vfm_av_strerror(int rc, char buf[128]);

/* Returns VFM_EENV if a function of FFmpeg failed with `rc` because of the machine (no descriptors, no memory), and
 * `otherwise` if not.  FFmpeg also reports no memory if a file asks for more than it may (MAX_ALLOC): call this before
 * memory is freed. */
int vfm_av_code(int rc, int otherwise);

/* Whether so little memory is left that FFmpeg may abort the process when it frees a decoder with threads.  The caller
 * then frees nothing, since its process is about to end with VFM_EENV. */
bool vfm_av_starved(void);

/* Returns the name of the codec of a stream for messages; of one that FFmpeg does not know, the fourcc of the file. */
struct AVCodecParameters;
const char *vfm_av_codec_name(const struct AVCodecParameters *par, char buf[64]);

/* The last error line that FFmpeg logged in this thread ("" = none), and forgetting it. */
const char *vfm_av_last_line(void);
void vfm_av_forget_line(void);

/* Gives each line that FFmpeg logs in this thread, of any level, to a function; NULL ends it.  Its http tells the
 * headers of a response, and the end of one in chunks, to the log alone. */
void vfm_av_listen(void (*fn)(void *arg, const char *line), void *arg);

/* A decoder or demuxer whose `opaque` points to one of these has its error lines counted. */
struct vfm_av_errors {
	atomic_llong lines;
};

/* A rotation and mirroring: a dst pixel (x, y) is the src pixel
 * (x0 + a x + b y, y0 + c x + d y), where x0, y0 make it start inside. */
struct vfm_orient {
	int a, b, c, d;
};
/* From a display matrix (NULL = as it is); angles are rounded to quarter turns. */
struct vfm_orient vfm_orient_of(const int32_t *matrix);
/* Clockwise degrees after an optional mirroring left to right. */
int vfm_orient_degrees(struct vfm_orient o, bool *mirrored);

/* Scales, crops and rotates frames into packed pixels; keeps its contexts.  One thread at a time. */
struct vfm_pixels;
struct vfm_pixels *vfm_pixels_new(void);
void vfm_pixels_free(struct vfm_pixels *p);

struct vfm_pixels_job {
	const AVFrame *frame;
	struct vfm_orient orient;
	int shown_w, shown_h; /* of the whole frame, upright and with square pixels */
	int width, height;    /* wanted */
	bool cover;           /* keep the aspect ratio, crop the middle */
	bool luma;            /* one byte a pixel, else three */
	bool sdr;             /* convert HDR and BT.2020 to BT.709 (sdr.h) */
	uint8_t *dst;
};
int vfm_pixels_run(struct vfm_pixels *p, const struct vfm_pixels_job *job, struct vfm_err *err);
/* Scales the whole frame as vfm_video_thumb does; uses frame, orient, shown_w and shown_h of the job. */
struct vfm_thumb;
int vfm_pixels_thumb(struct vfm_pixels *p, const struct vfm_pixels_job *job, struct vfm_thumb *t, struct vfm_err *err);
/* Copies rows of luma as vfm_video_coded_rows does. */
int vfm_pixels_rows(
	struct vfm_pixels *p, const AVFrame *frame, const int *rows, int n, uint8_t *dst, struct vfm_err *err);

#endif
