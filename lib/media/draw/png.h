/* png.h - pictures as PNG. */
#ifndef VFM_MEDIA_DRAW_PNG_H
#define VFM_MEDIA_DRAW_PNG_H

#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

/* Appends a picture, rgb [height, width, 3], to out as PNG. */
int vfm_png_encode(struct vfm_buf *out, const uint8_t *rgb, int width, int height, struct vfm_err *err);
/* As vfm_png_encode to a file, written atomically. */
int vfm_png_write(const char *path, const uint8_t *rgb, int width, int height, struct vfm_err *err);

#endif
