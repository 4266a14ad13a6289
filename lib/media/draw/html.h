/* html.h - pages without references to other files. */
#ifndef VFM_MEDIA_DRAW_HTML_H
#define VFM_MEDIA_DRAW_HTML_H

#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

/* Appends text so that a browser shows it as it is, in elements and in quoted attributes.  Bytes that are no UTF-8 and
 * control characters become U+FFFD. */
void vfm_html_text(struct vfm_buf *b, const char *text);
/* Appends n with thin gaps between thousands. */
void vfm_html_count(struct vfm_buf *b, int64_t n);

/* Appends a picture, rgb [height, width, 3], as an <img> with its data. */
int vfm_html_picture(
	struct vfm_buf *b, const uint8_t *rgb, int width, int height, const char *alt, struct vfm_err *err);
/* Appends n bytes of a file as an <img>; type: "image/png". */
void vfm_html_image(struct vfm_buf *b, const char *type, const void *data, size_t n, const char *alt);
/* Appends a bar of `share` in [0, 1]; kind "" (blue), "red", "amber" or "green". */
void vfm_html_bar(struct vfm_buf *b, double share, const char *kind);
/* Appends a histogram as SVG: counts [n] between min and max. */
void vfm_html_histogram(struct vfm_buf *b, const int64_t *counts, int n, double min, double max);

/* Appends the head with the style, and begins the body with the title as a heading.  The page forbids scripts and
 * requests (Content-Security-Policy).  refresh_s > 0: a browser reads it again after so long. */
void vfm_html_begin(struct vfm_buf *b, const char *title, int refresh_s);
void vfm_html_end(struct vfm_buf *b);

/* Appends the swatch of an area in a legend.  colour: of CSS. */
void vfm_html_area_swatch(struct vfm_buf *b, const char *colour);

#endif
