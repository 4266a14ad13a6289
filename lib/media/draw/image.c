/* image.c - the canvas; see image.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/draw/font.h"
#include "media/draw/image.h"

#define MAX_SIDE 32768

int vfm_image_init(struct vfm_image *im, int width, int height, uint32_t colour, struct vfm_err *err)
{
	*im = (struct vfm_image){0};
	if (width < 1 || height < 1 || width > MAX_SIDE || height > MAX_SIDE)
		return vfm_fail(err, VFM_EUSAGE, "cannot draw a picture of %dx%d", width, height);
	im->rgb = vfm_big_alloc((size_t)width * (size_t)height * 3, "picture", err);
	if (!im->rgb)
		return VFM_EENV;
	im->width = width;
	im->height = height;
	vfm_image_fill(im, 0, 0, width, height, colour);
	return 0;
}

void vfm_image_release(struct vfm_image *im)
{
	if (!im || !im->rgb)
		return;
	vfm_big_free(im->rgb, (size_t)im->width * (size_t)im->height * 3);
	*im = (struct vfm_image){0};
}

static uint8_t *pixel(struct vfm_image *im, int x, int y)
{
	return im->rgb + ((size_t)y * (size_t)im->width + (size_t)x) * 3;
}

static void set_pixel(uint8_t *p, uint32_t colour)
{
	p[0] = (uint8_t)(colour >> 16);
	p[1] = (uint8_t)(colour >> 8);
	p[2] = (uint8_t)colour;
}

void vfm_image_fill(struct vfm_image *im, int x, int y, int w, int h, uint32_t colour)
{
	int x0 = x < 0 ? 0 : x, y0 = y < 0 ? 0 : y;
	int x1 = x + w > im->width ? im->width : x + w, y1 = y + h > im->height ? im->height : y + h;

	for (int j = y0; j < y1; j++)
		for (int i = x0; i < x1; i++)
			set_pixel(pixel(im, i, j), colour);
}

void vfm_image_frame(struct vfm_image *im, int x, int y, int w, int h, uint32_t colour)
{
	vfm_image_fill(im, x, y, w, 1, colour);
	vfm_image_fill(im, x, y + h - 1, w, 1, colour);
	vfm_image_fill(im, x, y, 1, h, colour);
	vfm_image_fill(im, x + w - 1, y, 1, h, colour);
}

void vfm_image_blit(struct vfm_image *im, int x, int y, const uint8_t *src, int sw, int sh)
{
	int i0 = x < 0 ? -x : 0, i1 = x + sw > im->width ? im->width - x : sw;

	for (int j = 0; j < sh && i1 > i0; j++)
		if (y + j >= 0 && y + j < im->height)
			memcpy(pixel(im, x + i0, y + j), src + ((size_t)j * (size_t)sw + (size_t)i0) * 3,
				(size_t)(i1 - i0) * 3);
}

/* Weights of the source pixels of one destination pixel along one side: the overlap when it
 * shrinks, the two neighbours when it grows. */
static void span(int i, int n_src, int n_dst, int *first, int *last, double *lo, double *hi)
{
	double step = (double)n_src / n_dst;

	if (step >= 1) {
		*lo = i * step;
		*hi = (i + 1) * step;
	} else {
		*lo = (i + 0.5) * step - 0.5;
		*hi = *lo + 1;
	}
	*first = (int)floor(*lo);
	*last = (int)ceil(*hi) - 1;
}

static int clamp_index(int x, int hi)
{
	return x < 0 ? 0 : x > hi ? hi : x;
}

void vfm_image_scale(const uint8_t *src, int sw, int sh, uint8_t *dst, int dw, int dh)
{
	for (int y = 0; y < dh; y++) {
		int y0, y1, x0, x1;
		double ylo, yhi, xlo, xhi;

		span(y, sh, dh, &y0, &y1, &ylo, &yhi);
		for (int x = 0; x < dw; x++) {
			double sum[3] = {0}, total = 0;

			span(x, sw, dw, &x0, &x1, &xlo, &xhi);
			for (int j = y0; j <= y1; j++) {
				double wy = fmin(j + 1, yhi) - fmax(j, ylo);
				const uint8_t *row = src + (size_t)clamp_index(j, sh - 1) * (size_t)sw * 3;

				for (int i = x0; i <= x1; i++) {
					double w = wy * (fmin(i + 1, xhi) - fmax(i, xlo));
					const uint8_t *p = row + (size_t)clamp_index(i, sw - 1) * 3;

					total += w;
					for (int k = 0; k < 3; k++)
						sum[k] += w * p[k];
				}
			}
			for (int k = 0; k < 3; k++)
				*dst++ = (uint8_t)(sum[k] / total + 0.5);
		}
	}
}

void vfm_image_line(struct vfm_image *im, double x0, double y0, double x1, double y1, double thickness, uint32_t colour)
{
	double dx = x1 - x0, dy = y1 - y0, len2 = dx * dx + dy * dy, r = thickness / 2;
	int left, right, top, bottom;

	if (!isfinite(x0 + y0 + x1 + y1))
		return;
	left = (int)fmax(0, floor(fmin(x0, x1) - r - 1));
	right = (int)fmin(im->width - 1, ceil(fmax(x0, x1) + r + 1));
	top = (int)fmax(0, floor(fmin(y0, y1) - r - 1));
	bottom = (int)fmin(im->height - 1, ceil(fmax(y0, y1) + r + 1));
	for (int y = top; y <= bottom; y++) {
		for (int x = left; x <= right; x++) {
			double px = x + 0.5 - x0, py = y + 0.5 - y0;
			double t = len2 > 0 ? fmin(1, fmax(0, (px * dx + py * dy) / len2)) : 0;
			double cover = r + 0.5 - hypot(px - t * dx, py - t * dy);
			uint8_t *p = pixel(im, x, y);

			if (cover <= 0)
				continue;
			cover = fmin(cover, 1);
			for (int k = 0; k < 3; k++)
				p[k] = (uint8_t)(p[k] + cover * ((int)(colour >> (16 - 8 * k) & 255) - p[k]) + 0.5);
		}
	}
}

/* ---- text ---- */

/* Returns the glyph of the next character and skips its UTF-8 continuation bytes. */
static const uint8_t *glyph(const char **text)
{
	unsigned char c = (unsigned char)*(*text)++;

	while (((unsigned char)**text & 0xC0) == 0x80)
		(*text)++;
	return vfm_font[c >= 32 && c < 127 ? c - 32 : VFM_FONT_N - 1];
}

int vfm_text_width(const char *text, int scale)
{
	int n = 0;

	for (; *text; n++)
		glyph(&text);
	return n * VFM_FONT_W * scale;
}

void vfm_image_text(struct vfm_image *im, int x, int y, int scale, uint32_t colour, const char *text)
{
	for (; *text; x += VFM_FONT_W * scale) {
		const uint8_t *rows = glyph(&text);

		for (int j = 0; j < 8; j++)
			for (int i = 0; i < 5; i++)
				if (rows[j] >> (4 - i) & 1)
					vfm_image_fill(im, x + i * scale, y + j * scale, scale, scale, colour);
	}
}

void vfm_image_text_up(struct vfm_image *im, int x, int y, int scale, uint32_t colour, const char *text)
{
	for (; *text; y -= VFM_FONT_W * scale) {
		const uint8_t *rows = glyph(&text);

		for (int j = 0; j < 8; j++)
			for (int i = 0; i < 5; i++)
				if (rows[j] >> (4 - i) & 1)
					vfm_image_fill(im, x + j * scale, y - (i + 1) * scale, scale, scale, colour);
	}
}
