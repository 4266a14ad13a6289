/* jpeg.h - one RGB picture as JPEG, for pages: a thumbnail takes a fifth of the bytes of a PNG. */
#ifndef VFM_MEDIA_AV_JPEG_H
#define VFM_MEDIA_AV_JPEG_H

#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

/* Appends rgb [height, width, 3] as baseline JPEG, 4:2:0, without metadata.  Equal pictures give equal bytes.
 * Thread-safe. */
int vfm_jpeg_encode(struct vfm_buf *out, const uint8_t *rgb, int width, int height, struct vfm_err *err);

#endif
