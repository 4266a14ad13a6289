/* html.h - pages that load no other file and run no script.
 *
 *	vfm_html_begin(&b, "Dataset", 0);
 *	vfm_html_card(&b, "records", "%'lld", n);
 *	vfm_html_addf(&b, "<h2>%s</h2>\n", heading);
 *	vfm_html_end(&b);
 *
 * A format is markup, but its arguments are not: only vfm_html_addf escapes them.  Classes of the style: dim, small,
 * num, failed; box, grid, cards, pair, shots, wide; bin, which is shown while it is the target of the URL.
 */
#ifndef VFM_MEDIA_DRAW_HTML_H
#define VFM_MEDIA_DRAW_HTML_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

/* Appends the head with the style, and begins the body with the title as a heading.  The page forbids scripts and
 * requests (Content-Security-Policy).  refresh_s > 0: the browser reloads it after this many seconds. */
void vfm_html_begin(struct vfm_buf *b, const char *title, int refresh_s);
void vfm_html_end(struct vfm_buf *b);

/* Appends markup.  Conversions: %s, %d, %lld, %zu, %f and %g, with flags, width and precision, also "*".  %s shows its
 * text literally, in elements and quoted attributes: invalid UTF-8 and control characters become U+FFFD, and NULL
 * becomes a dash.  The flag ' separates thousands by thin spaces. */
void vfm_html_addf(struct vfm_buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends a path as a part of a URL (RFC 3986): it never reads as a scheme, a query or a fragment. */
void vfm_html_url(struct vfm_buf *b, const char *path);
/* Appends the relative URL from a folder to a file, or to a folder with a slash at its end; both are real paths. */
void vfm_html_relative_url(struct vfm_buf *b, const char *from, const char *file);

/* Appends a card for a <div class=cards>: a name, and a value in large letters. */
void vfm_html_card(struct vfm_buf *b, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* A table:
 *
 *	vfm_html_table(&b, "stage|reason|#records|");
 *	vfm_html_row(&b, "%s|%s|#%'lld|=%f", stage, reason, n, share);
 *	vfm_html_table_end(&b);
 *
 * "|" separates cells.  A cell that begins with # is a number, aligned right; =%f is a bar of a fraction in [0, 1].
 * vfm_html_heads continues the headings, vfm_html_cells a row. */
void vfm_html_table(struct vfm_buf *b, const char *headings, ...) __attribute__((format(printf, 2, 3)));
void vfm_html_heads(struct vfm_buf *b, const char *headings, ...) __attribute__((format(printf, 2, 3)));
void vfm_html_row(struct vfm_buf *b, const char *cells, ...) __attribute__((format(printf, 2, 3)));
void vfm_html_cells(struct vfm_buf *b, const char *cells, ...) __attribute__((format(printf, 2, 3)));
void vfm_html_table_end(struct vfm_buf *b);

/* Writes a number in four digits, "0.01234", "12.34k".  Returns text, or NULL for a number that is not finite. */
enum { VFM_NUMBER_TEXT = 32 };
const char *vfm_html_number(char text[VFM_NUMBER_TEXT], double x);

/* Appends a JPEG of `len` bytes as a picture. */
void vfm_html_jpeg(struct vfm_buf *b, const void *jpeg, size_t len, int width, int height);
/* Appends rgb [height, width, 3] as a picture, without loss. */
int vfm_html_picture(
	struct vfm_buf *b, const uint8_t *rgb, int width, int height, const char *alt, struct vfm_err *err);

/* The palette: curves have the classes c0, c1, ..., areas a0, a1, .... The colours of curves repeat with dashes. */
enum { VFM_COLOURS = 12, VFM_COLOURS_CURVES = 8 };
/* Appends the rules of the palette to a style. */
void vfm_html_palette(struct vfm_buf *b);
/* Appends the swatch of a curve ('c') or an area ('a') for a legend. */
void vfm_html_swatch(struct vfm_buf *b, char kind, int colour);

#endif
