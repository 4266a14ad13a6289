/* plot.c - line charts: drawn at twice the size and shrunk, so that lines and letters are smooth. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/draw/image.h"
#include "media/draw/plot.h"
#include "media/draw/plot_axis.h"
#include "media/draw/png.h"

#define SS    2 /* supersampling */
#define TEXT  3 /* font scale before shrinking: letters of 7.5 x 10.5 pixels */
#define TITLE 4

static const uint32_t palette[] = {0x1F6FB4, 0xD9541E, 0x2E9B57, 0x8B4FB0, 0xB8860B, 0xC23B6B, 0x1C9AA0, 0x6B6B6B};
#define INK  0x222222
#define GRID 0xE4E4E4
#define AXIS 0x888888

struct chart {
	const struct vfm_plot *p;
	struct vfm_image im;
	int left, top, right, bottom;
	struct vfm_plot_axis x, y;
};

static void extend_axis(struct vfm_plot_axis *a, const double *v, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		vfm_plot_axis_extend(a, v[i]);
}

/* ---- drawing ---- */

static double to_x(const struct chart *c, double v)
{
	return c->left + (v - c->x.lo) / (c->x.hi - c->x.lo) * (c->right - c->left);
}

static double to_y(const struct chart *c, double v)
{
	return c->bottom - (vfm_plot_axis_value(&c->y, v) - c->y.lo) / (c->y.hi - c->y.lo) * (c->bottom - c->top);
}

static uint32_t colour_of(const struct chart *c, int i)
{
	uint32_t colour = c->p->series[i].colour;

	if (!colour)
		colour = palette[(size_t)i % (sizeof(palette) / sizeof(palette[0]))];
	if (!c->p->series[i].faint)
		return colour;
	for (int k = 0; k < 24; k += 8) { /* two thirds of the way to white */
		uint32_t v = colour >> k & 255;

		colour = (colour & ~(255u << k)) | (v + (255 - v) * 2 / 3) << k;
	}
	return colour;
}

/* A long series is drawn as the mean of the values on each column of pixels. */
static void draw_series(struct chart *c, int which)
{
	const struct vfm_series *s = &c->p->series[which];
	int64_t group = s->n / (2 * (int64_t)(c->right - c->left)) + 1;
	double thick = s->faint ? SS * 1.0 : SS * 1.8, px = NAN, py = NAN;

	for (int64_t i = 0; i < s->n; i += group) {
		double sum_x = 0, sum_y = 0, n = 0, x, y;

		for (int64_t k = i; k < i + group && k < s->n; k++) {
			if (!isfinite(s->x[k]) || !isfinite(vfm_plot_axis_value(&c->y, s->y[k])))
				continue;
			sum_x += s->x[k];
			sum_y += s->y[k];
			n++;
		}
		x = n ? to_x(c, sum_x / n) : NAN;
		y = n ? to_y(c, sum_y / n) : NAN;
		if (isfinite(px) && isfinite(x))
			vfm_image_line(&c->im, px, py, x, y, thick, colour_of(c, which));
		else if (isfinite(x) && s->n <= 2)
			vfm_image_line(&c->im, x, y, x, y, thick * 3, colour_of(c, which));
		px = x;
		py = y;
	}
}

static void draw_axes(struct chart *c)
{
	char text[VFM_PLOT_LABEL];

	for (int i = 0; i < c->y.n_ticks; i++) {
		int y = (int)lrint(c->bottom - (c->y.tick[i] - c->y.lo) / (c->y.hi - c->y.lo) * (c->bottom - c->top));

		vfm_image_fill(&c->im, c->left, y, c->right - c->left, SS, GRID);
		vfm_plot_axis_label(&c->y, c->y.tick[i], text);
		vfm_image_text(&c->im, c->left - 8 * SS - vfm_text_width(text, TEXT), y - 3 * TEXT, TEXT, INK, text);
	}
	for (int i = 0; i < c->x.n_ticks; i++) {
		int x = (int)lrint(to_x(c, c->x.tick[i]));

		vfm_image_fill(&c->im, x, c->top, SS, c->bottom - c->top, GRID);
		vfm_image_fill(&c->im, x, c->bottom, SS, 4 * SS, AXIS);
		vfm_plot_axis_label(&c->x, c->x.tick[i], text);
		vfm_image_text(&c->im, x - vfm_text_width(text, TEXT) / 2, c->bottom + 8 * SS, TEXT, INK, text);
	}
	vfm_image_fill(&c->im, c->left, c->bottom, c->right - c->left + SS, SS, AXIS);
	vfm_image_fill(&c->im, c->left, c->top, SS, c->bottom - c->top, AXIS);
}

static void draw_words(struct chart *c)
{
	const struct vfm_plot *p = c->p;
	int middle = (c->top + c->bottom) / 2;

	if (p->title)
		vfm_image_text(&c->im, (c->left + c->right - vfm_text_width(p->title, TITLE)) / 2, 12 * SS, TITLE, INK,
			p->title);
	if (p->x_label)
		vfm_image_text(&c->im, (c->left + c->right - vfm_text_width(p->x_label, TEXT)) / 2, c->bottom + 30 * SS,
			TEXT, INK, p->x_label);
	if (p->y_label)
		vfm_image_text_up(
			&c->im, 10 * SS, middle + vfm_text_width(p->y_label, TEXT) / 2, TEXT, INK, p->y_label);
}

static void draw_legend(struct chart *c)
{
	int width = 0, n = 0, line = 16 * SS, x, y, mid;

	for (int i = 0; i < c->p->n_series; i++) {
		if (!c->p->series[i].name)
			continue;
		n++;
		width = (int)fmax(width, vfm_text_width(c->p->series[i].name, TEXT));
	}
	if (!n)
		return;
	width += 46 * SS;
	x = c->right - width - 10 * SS;
	y = c->top + 10 * SS;
	vfm_image_fill(&c->im, x, y, width, n * line + 10 * SS, 0xFFFFFF);
	vfm_image_frame(&c->im, x, y, width, n * line + 10 * SS, GRID);
	y += 5 * SS;
	for (int i = 0; i < c->p->n_series; i++) {
		if (!c->p->series[i].name)
			continue;
		mid = y + line / 2;
		vfm_image_line(&c->im, x + 8 * SS, mid, x + 30 * SS, mid, 2.2 * SS, colour_of(c, i));
		vfm_image_text(&c->im, x + 38 * SS, mid - 4 * TEXT, TEXT, INK, c->p->series[i].name);
		y += line;
	}
}

static void lay_out_chart(struct chart *c)
{
	char text[VFM_PLOT_LABEL];
	int widest = 0;

	for (int i = 0; i < c->y.n_ticks; i++) {
		vfm_plot_axis_label(&c->y, c->y.tick[i], text);
		widest = (int)fmax(widest, vfm_text_width(text, TEXT));
	}
	c->left = widest + (c->p->y_label ? 40 : 18) * SS;
	c->right = c->im.width - 24 * SS;
	c->top = (c->p->title ? 44 : 20) * SS;
	c->bottom = c->im.height - (c->p->x_label ? 52 : 32) * SS;
}

static int shrink_and_write(const struct vfm_image *big, const char *path, struct vfm_err *err)
{
	int w = big->width / SS, h = big->height / SS, rc;
	size_t size = (size_t)w * (size_t)h * 3;
	uint8_t *small = vfm_big_alloc(size, "picture", err);

	if (!small)
		return VFM_EENV;
	vfm_image_scale(big->rgb, big->width, big->height, small, w, h);
	rc = vfm_png_write(path, small, w, h, err);
	vfm_big_free(small, size);
	return rc;
}

int vfm_plot_png(const struct vfm_plot *p, const char *path, struct vfm_err *err)
{
	struct chart c = {.p = p, .x = {VFM_PLOT_AXIS_EMPTY}, .y = {VFM_PLOT_AXIS_EMPTY, .log = p->log_y}};
	int w = p->width ? p->width : 900, h = p->height ? p->height : 500, rc;

	if (w < 200 || h < 120 || w > 8192 || h > 8192)
		return vfm_fail(err, VFM_EUSAGE, "a chart of %dx%d: expected 200x120 to 8192x8192", w, h);
	TRY(vfm_image_init(&c.im, w * SS, h * SS, 0xFFFFFF, err));
	for (int i = 0; i < p->n_series; i++) {
		extend_axis(&c.x, p->series[i].x, p->series[i].n);
		extend_axis(&c.y, p->series[i].y, p->series[i].n);
	}
	vfm_plot_axis_finish(&c.x, w / 110, 0);
	vfm_plot_axis_finish(&c.y, h / 60, 0.05);
	lay_out_chart(&c);
	draw_axes(&c);
	for (int faint = 1; faint >= 0; faint--)
		for (int i = 0; i < p->n_series; i++)
			if (p->series[i].faint == faint)
				draw_series(&c, i);
	draw_words(&c);
	draw_legend(&c);
	rc = shrink_and_write(&c.im, path, err);
	vfm_image_release(&c.im);
	return rc;
}
