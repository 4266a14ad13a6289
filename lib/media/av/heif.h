/* heif.h - rotation and mirroring of an AVIF or HEIF image (irot and imir of its primary item, ISO/IEC 23008-12), which
 * FFmpeg before 7.1 does not read. */
#ifndef VFM_MEDIA_AV_HEIF_H
#define VFM_MEDIA_AV_HEIF_H

#include <stddef.h>
#include <stdint.h>

#include "media/av/av.h"
#include "media/av/pixels.h"

/* Reads the orientation from the bytes of a "meta" box, without its header.  Stops at damaged bytes and keeps the
 * values read before them. */
struct vfm_orient vfm_heif_orient(const uint8_t *meta, size_t size);

/* As vfm_heif_orient for the bytes [start, start + size) of an open file.  An image without an orientation is upright.
 */
struct vfm_orient vfm_heif_orient_of_file(int fd, int64_t start, int64_t size);

#endif
