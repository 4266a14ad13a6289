/* font.h - the built-in font: ASCII 32 to 126, then a box for all else. */
#ifndef VFM_MEDIA_DRAW_FONT_H
#define VFM_MEDIA_DRAW_FONT_H

#include <stdint.h>

#define VFM_FONT_N 96

extern const uint8_t vfm_font[VFM_FONT_N][8];

#endif
