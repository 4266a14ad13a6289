/* image.h - a small RGB canvas: boxes, lines, text, scaled pictures, and line charts.
 * Everything is clipped to the canvas.  Colours are 0xRRGGBB.  Local, no global state.
 */
#ifndef VFM_MEDIA_DRAW_IMAGE_H
#define VFM_MEDIA_DRAW_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

struct vfm_image { /* `= {0}` before init */
	int width, height;
	uint8_t *rgb; /* [height, width, 3] */
};

int vfm_image_init(struct vfm_image *im, int width, int height, uint32_t colour, struct vfm_err *err);
void vfm_image_release(struct vfm_image *im);

void vfm_image_fill(struct vfm_image *im, int x, int y, int w, int h, uint32_t colour);
void vfm_image_frame(struct vfm_image *im, int x, int y, int w, int h, uint32_t colour);
/* Copies src [sh, sw, 3] to (x, y). */
void vfm_image_blit(struct vfm_image *im, int x, int y, const uint8_t *src, int sw, int sh);
/* Scales src [sh, sw, 3] into dst [dh, dw, 3]: box filter when it shrinks, bilinear when it grows. */
void vfm_image_scale(const uint8_t *src, int sw, int sh, uint8_t *dst, int dw, int dh);
/* An antialiased line of `thickness` pixels. */
void vfm_image_line(
	struct vfm_image *im, double x0, double y0, double x1, double y1, double thickness, uint32_t colour);

/* Text in a built-in 5x7 font in cells of 6x8 pixels times `scale`; ASCII, other bytes of
 * UTF-8 show as one box a character.  (x, y) is the upper left corner. */
#define VFM_FONT_W 6
#define VFM_FONT_H 8
void vfm_image_text(struct vfm_image *im, int x, int y, int scale, uint32_t colour, const char *text);
int vfm_text_width(const char *text, int scale);
/* The same, turned by 90 degrees anticlockwise; (x, y) is the lower left corner. */
void vfm_image_text_up(struct vfm_image *im, int x, int y, int scale, uint32_t colour, const char *text);

#endif
