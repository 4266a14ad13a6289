/* deint.h - deinterlaces the frames of a decoder, one output frame per frame.
 *
 * The filter is bwdif, or yadif if FFmpeg lacks it.  It processes frames that are flagged as interlaced; other frames
 * pass unchanged.  It reads the previous and the next frame, so it delays frames by one.  It keeps timestamps, order
 * and number of the frames.
 */
#ifndef VFM_MEDIA_AV_DEINT_H
#define VFM_MEDIA_AV_DEINT_H

#include <libavutil/frame.h>
#include <stdbool.h>

#include "base/err.h"

struct vfm_deint;

struct vfm_deint *vfm_deint_new(bool all); /* all: every frame, whatever its flags */
void vfm_deint_free(struct vfm_deint *d);  /* no-op for NULL */
/* Call when the next frame follows a seek. */
void vfm_deint_reset(struct vfm_deint *d);
/* Sends a frame, which becomes empty; NULL means the end.  The caller then receives until the result is 0. */
int vfm_deint_send(struct vfm_deint *d, AVFrame *f, struct vfm_err *err);
/* Returns 1 with the next frame in `f`, or 0 if there is none yet. */
int vfm_deint_receive(struct vfm_deint *d, AVFrame *f, struct vfm_err *err);

#endif
