/* jpeg.h - whether the pictures behind the first one of a JPEG file are parts of it. */
#ifndef VFM_MEDIA_AV_JPEG_H
#define VFM_MEDIA_AV_JPEG_H

#include <stdbool.h>
#include <stdint.h>

/* Whether the bytes [start, start + size) of an open file are a JPEG with an index of pictures (Multi-Picture Format,
 * CIPA DC-007): a preview, a gain map, the other eye.  False if they are anything else. */
bool vfm_jpeg_has_index(int fd, int64_t start, int64_t size);

#endif
