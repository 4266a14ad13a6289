/* hw.h - hardware that decodes and encodes video, through FFmpeg's hwcontext.
 *
 * The process opens each device once and keeps it.  If there is none, or the decoder does not use it, the software
 * decodes and logs one notice.
 */
#ifndef VFM_MEDIA_AV_HW_H
#define VFM_MEDIA_AV_HW_H

#include <libavcodec/avcodec.h>

#include "base/err.h"
#include "media/av/video_in.h"

/* Attaches a device to a decoder before it is opened. */
void vfm_hw_attach(AVCodecContext *dec, enum vfm_hwaccel accel);

/* Returns the device, or NULL if the machine has none.  It belongs to the process.  Thread-safe. */
AVBufferRef *vfm_hw_device(enum vfm_hwaccel accel);

/* Copies a decoded frame to host memory, with its timestamps and flags; no-op for frames of software decoders.  `spare`
 * is an empty frame. */
int vfm_hw_fetch(AVFrame *f, AVFrame *spare, struct vfm_err *err);

#endif
