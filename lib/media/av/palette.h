/* palette.h - 256 colours for a picture (GIF).  Thread-safe. */
#ifndef VFM_MEDIA_AV_PALETTE_H
#define VFM_MEDIA_AV_PALETTE_H

#include <stddef.h>
#include <stdint.h>

/* rgb [height, width, 3] -> index rows `stride` bytes apart, and 256 colours 0xAARRGGBB.
 * Median cut (Heckbert, "Color image quantization for frame buffer display", 1982) on 5 bits a channel
 * (no dither).  The same picture gives the same palette. */
void vfm_palette_of(const uint8_t *rgb, int width, int height, uint8_t *index, int stride, uint32_t palette[256]);

#endif
