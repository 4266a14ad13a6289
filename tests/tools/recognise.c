/* recognise: states what videos of moving shapes show, by fixed rules.
 *
 *	recognise [--min FRACTION] < records > records
 *
 * Records are JSON Lines with "src" (a video) and "caption" ("a red square moves left").  Each gets
 * "seen": {color, direction, shape} and "right": {…}; the last line on stderr counts.
 * Status 1 if fewer than FRACTION have colour and direction right.
 *
 * Rules.  The chroma of a pixel is max(r,g,b) - min(r,g,b); the background is grey and has none.  Colour: the hue
 * of the sum of the strongly coloured pixels, against red 0, yellow 60, green 120, cyan 180, blue 240,
 * magenta 300 degrees.  Direction:
 * motion of the centre of the chroma from the first quarter of the frames to the last.  Shape: the share
 * of its bounding box that it fills (square 1, circle 0.79, triangle 0.5), median over the frames.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/json.h"
#include "media/av/video_in.h"

struct seen {
	double rgb[3]; /* sum over coloured pixels */
	double x[4096], y[4096], fill[4096];
	int frames;
};

static int look(const uint8_t *rgb, int w, int h, struct seen *s)
{
	double sum = 0, sx = 0, sy = 0, area = 0;
	int top = 0, x0 = w, x1 = -1, y0 = h, y1 = -1;

	for (int i = 0; i < w * h; i++) {
		const uint8_t *p = rgb + 3 * i;
		int hi = p[0] > p[1] ? p[0] : p[1], lo = p[0] < p[1] ? p[0] : p[1];

		hi = hi > p[2] ? hi : p[2];
		lo = lo < p[2] ? lo : p[2];
		if (hi - lo > top)
			top = hi - lo;
	}
	if (top < 40)
		return 0; /* nothing coloured in this frame */
	for (int y = 0; y < h; y++) {
		for (int x = 0; x < w; x++) {
			const uint8_t *p = rgb + 3 * (y * w + x);
			int hi = p[0] > p[1] ? p[0] : p[1], lo = p[0] < p[1] ? p[0] : p[1];
			double c;

			hi = hi > p[2] ? hi : p[2];
			lo = lo < p[2] ? lo : p[2];
			c = hi - lo;
			if (c * 2 < top)
				continue;
			for (int k = 0; k < 3; k++)
				s->rgb[k] += p[k];
			sum += c;
			sx += c * x;
			sy += c * y;
			area++;
			x0 = x < x0 ? x : x0;
			x1 = x > x1 ? x : x1;
			y0 = y < y0 ? y : y0;
			y1 = y > y1 ? y : y1;
		}
	}
	s->x[s->frames] = sx / sum;
	s->y[s->frames] = sy / sum;
	s->fill[s->frames] = area / ((x1 - x0 + 1.0) * (y1 - y0 + 1.0));
	s->frames++;
	return 1;
}

static const char *color_of(const struct seen *s)
{
	static const struct {
		const char *name;
		double hue;
	} known[] = {{"red", 0}, {"yellow", 60}, {"green", 120}, {"cyan", 180}, {"blue", 240}, {"magenta", 300},
		{"red", 360}};
	double r = s->rgb[0], g = s->rgb[1], b = s->rgb[2], hue, best = 1e9;
	const char *name = "none";

	if (s->frames == 0)
		return name;
	hue = atan2(sqrt(3) * (g - b), 2 * r - g - b) * 180 / M_PI;
	hue = hue < 0 ? hue + 360 : hue;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (fabs(hue - known[i].hue) < best) {
			best = fabs(hue - known[i].hue);
			name = known[i].name;
		}
	}
	return name;
}

static const char *direction_of(const struct seen *s, int width)
{
	int q = s->frames / 4 > 0 ? s->frames / 4 : 1;
	double dx = 0, dy = 0;

	for (int i = 0; i < q && s->frames > 1; i++) {
		dx += (s->x[s->frames - 1 - i] - s->x[i]) / q;
		dy += (s->y[s->frames - 1 - i] - s->y[i]) / q;
	}
	if (fmax(fabs(dx), fabs(dy)) < 0.05 * width)
		return "none";
	if (fabs(dx) > fabs(dy))
		return dx < 0 ? "left" : "right";
	return dy < 0 ? "up" : "down";
}

static int up(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static const char *shape_of(struct seen *s)
{
	double f;

	if (s->frames == 0)
		return "none";
	qsort(s->fill, (size_t)s->frames, sizeof(double), up);
	f = s->fill[s->frames / 2];
	return f > 0.89 ? "square" : f > 0.655 ? "circle" : "triangle";
}

static int watch(const char *path, struct seen *s, int *width, struct vfm_err *err)
{
	struct vfm_video *v = NULL;
	struct vfm_frame f;
	uint8_t *rgb = NULL;
	int rc;

	memset(s, 0, sizeof(*s));
	TRY(vfm_video_open(&v, path, NULL, err));
	while ((rc = vfm_video_next(v, &f, err)) == 1 && s->frames < 4096) {
		*width = f.width;
		rgb = vfm_realloc(rgb, (size_t)f.width * (size_t)f.height, 3);
		rc = vfm_video_rgb(v, f.width, f.height, VFM_FIT_STRETCH, rgb, err);
		if (rc < 0)
			break;
		look(rgb, f.width, f.height, s);
	}
	free(rgb);
	vfm_video_close(v);
	return rc;
}

int main(int argc, char **argv)
{
	double min = argc == 3 && !strcmp(argv[1], "--min") ? atof(argv[2]) : 0;
	int n = 0, color = 0, direction = 0, shape = 0, both = 0, all = 0, rc;
	struct seen *s = vfm_malloc(sizeof(*s));
	struct vfm_jsonl in = {0};
	struct vfm_err err = {0};
	json_t *rec;

	if (vfm_jsonl_open(&in, "-", &err) < 0)
		return 2;
	while ((rc = vfm_jsonl_next(&in, &rec, &err)) == 1) {
		const char *caption = "", *src = "", *c = "none", *d = "none", *sh = "none";
		int width = 1, ok_c, ok_d, ok_s;

		vfm_json_str(rec, "", "caption", false, &caption, &err);
		vfm_json_str(rec, "", "src", false, &src, &err);
		if (watch(src, s, &width, &err) < 0) {
			fprintf(stderr, "recognise: %s\n", err.msg);
		} else {
			c = color_of(s);
			d = direction_of(s, width);
			sh = shape_of(s);
		}
		ok_c = strstr(caption, c) != NULL;
		ok_d = strstr(caption, d) != NULL;
		ok_s = strstr(caption, sh) != NULL;
		json_object_set_new(rec, "seen", json_pack("{s:s, s:s, s:s}", "color", c, "direction", d, "shape", sh));
		json_object_set_new(
			rec, "right", json_pack("{s:b, s:b, s:b}", "color", ok_c, "direction", ok_d, "shape", ok_s));
		vfm_jsonl_write(stdout, rec, &err);
		json_decref(rec);
		n++;
		color += ok_c;
		direction += ok_d;
		shape += ok_s;
		both += ok_c && ok_d;
		all += ok_c && ok_d && ok_s;
	}
	vfm_jsonl_close(&in);
	free(s);
	if (rc < 0 || n == 0) {
		fprintf(stderr, "recognise: %s\n", n ? err.msg : "no records");
		return 2;
	}
	fprintf(stderr,
		"recognise: of %d samples colour is right in %d, direction in %d, shape in %d; colour and direction in "
		"%d (%.0f %%), all in %d\n",
		n, color, direction, shape, both, 100.0 * both / n, all);
	return both < min * n;
}
