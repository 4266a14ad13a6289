/* synth.c - draws shape, colour and motion from a random stream, and renders frames with antialiasing. */
#include "media/draw/synth.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/philox.h"

#define SUB 4 /* samples a pixel along each side */

static const char *const names[VFM_SYNTH_WORDS][8] = {
	{"square", "circle", "triangle"},
	{"red", "green", "blue", "yellow", "cyan", "magenta"},
	{"left", "right", "up", "down"},
};
static const unsigned defaults[VFM_SYNTH_WORDS] = {7, 15, 15};
static const double colors[][3] = {
	{220, 35, 35}, {35, 185, 60}, {50, 75, 230}, {235, 215, 45}, {40, 200, 210}, {215, 45, 205}};
static const struct {
	int dx, dy;
} directions[] = {{-1, 0}, {1, 0}, {0, -1}, {0, 1}};

/* Elements of the random stream, one for each choice. */
enum { E_SHAPE, E_COLOR, E_DIRECTION, E_SIZE, E_TRAVEL, E_ALONG, E_ACROSS, E_BACK, E_SLOPE, E_SHADE };

static double between(const struct vfm_rng *r, int element, double lo, double hi)
{
	return lo + (hi - lo) * vfm_rng_uniform(r, (uint64_t)element);
}

static void place_shape(struct vfm_synth *s, const struct vfm_rng *r, int dir)
{
	const double margin = 2, half = s->size / 2;
	bool along_x = directions[dir].dx != 0;
	double length = along_x ? s->width : s->height, cross = along_x ? s->height : s->width;
	double travel = between(r, E_TRAVEL, 0.30, 0.45) * length, room = length - s->size - 2 * margin;
	double start, other;

	travel = travel < room ? travel : room;
	start = margin + half + between(r, E_ALONG, 0, room - travel);
	other = margin + half + between(r, E_ACROSS, 0, cross - s->size - 2 * margin);
	if (directions[dir].dx + directions[dir].dy < 0)
		start = length - start;
	s->x = along_x ? start : other;
	s->y = along_x ? other : start;
	s->dx = directions[dir].dx * travel;
	s->dy = directions[dir].dy * travel;
}

/* Returns the index of a word of the table, or -1. */
static int find_word(enum vfm_synth_word kind, const char *word, size_t len)
{
	for (int i = 0; names[kind][i]; i++)
		if (strlen(names[kind][i]) == len && !memcmp(names[kind][i], word, len))
			return i;
	return -1;
}

int vfm_synth_parse(unsigned *set, enum vfm_synth_word kind, const char *list, struct vfm_err *err)
{
	char known[64] = "";

	*set = 0;
	for (const char *at = list;; at++) {
		size_t len = strcspn(at, ",");
		int i = find_word(kind, at, len);

		if (i < 0) {
			for (i = 0; names[kind][i]; i++)
				snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s", i ? ", " : "",
					names[kind][i]);
			return vfm_fail(err, VFM_EUSAGE, "'%.*s' in '%s': expected %s", (int)len, at, list, known);
		}
		*set |= 1U << i;
		at += len;
		if (!*at)
			return 0;
	}
}

/* Returns the index of one of the words that are allowed. */
static int draw_word(const struct vfm_synth_opts *o, enum vfm_synth_word kind, const struct vfm_rng *r, int element)
{
	unsigned set = o->words[kind] ? o->words[kind] : defaults[kind];
	uint64_t skip = vfm_rng_below(r, (uint64_t)element, (uint64_t)__builtin_popcount(set));

	for (; skip > 0; skip--)
		set &= set - 1;
	return __builtin_ctz(set);
}

int vfm_synth_init(struct vfm_synth *s, const struct vfm_synth_opts *o, uint64_t number, struct vfm_err *err)
{
	struct vfm_rng r = vfm_rng_stream(o->seed, number, 0, VFM_RNG_DATA);
	int width = o->width, height = o->height, frames = o->frames, shape, color, dir;

	if (width < 32 || height < 32 || width > 4096 || height > 4096 || width % 2 || height % 2)
		return vfm_fail(err, VFM_EUSAGE, "size %dx%d: expected even sides from 32 to 4096", width, height);
	if (frames < 2 || frames > 10000)
		return vfm_fail(err, VFM_EUSAGE, "%d frames: expected 2 to 10000", frames);
	shape = draw_word(o, VFM_SYNTH_SHAPE, &r, E_SHAPE);
	color = draw_word(o, VFM_SYNTH_COLOR, &r, E_COLOR);
	dir = draw_word(o, VFM_SYNTH_DIRECTION, &r, E_DIRECTION);
	*s = (struct vfm_synth){.width = width,
		.height = height,
		.frames = frames,
		.shape = names[VFM_SYNTH_SHAPE][shape],
		.color = names[VFM_SYNTH_COLOR][color],
		.direction = names[VFM_SYNTH_DIRECTION][dir]};
	snprintf(s->caption, sizeof(s->caption), "a %s %s moves %s", s->color, s->shape, s->direction);
	s->size = between(&r, E_SIZE, 0.30, 0.42) * (width < height ? width : height);
	place_shape(s, &r, dir);
	for (int i = 0; i < 3; i++)
		s->rgb[i] = colors[color][i] + between(&r, E_SHADE + i, -12, 12);
	s->back = between(&r, E_BACK, 30, 50);
	s->slope = between(&r, E_SLOPE, -8, 8);
	return 0;
}

/* (x, y) from the centre, in units of half the size. */
static bool inside(char shape, double x, double y)
{
	if (shape == 's')
		return fabs(x) <= 0.9 && fabs(y) <= 0.9;
	if (shape == 'c')
		return x * x + y * y <= 1;
	return y <= 0.9 && y >= -0.9 && fabs(x) <= (y + 0.9) / 1.8;
}

static double coverage(const struct vfm_synth *s, double cx, double cy, int px, int py)
{
	const double scale = 2 / s->size;
	int hits = 0;

	for (int j = 0; j < SUB; j++)
		for (int i = 0; i < SUB; i++)
			hits += inside(
				s->shape[0], (px + (i + 0.5) / SUB - cx) * scale, (py + (j + 0.5) / SUB - cy) * scale);
	return (double)hits / (SUB * SUB);
}

static uint8_t byte(double x)
{
	return x <= 0 ? 0 : x >= 255 ? 255 : (uint8_t)lround(x);
}

void vfm_synth_frame(const struct vfm_synth *s, int frame, uint8_t *rgb)
{
	const double at = (double)frame / (s->frames - 1);
	const double cx = s->x + at * s->dx, cy = s->y + at * s->dy;
	const int x0 = (int)(cx - s->size / 2), x1 = (int)(cx + s->size / 2) + 1;
	const int y0 = (int)(cy - s->size / 2), y1 = (int)(cy + s->size / 2) + 1;

	for (int y = 0; y < s->height; y++) {
		uint8_t *line = rgb + (size_t)y * (size_t)s->width * 3;
		double grey = s->back + s->slope * y / (s->height - 1);

		memset(line, byte(grey), (size_t)s->width * 3);
		for (int x = x0 > 0 ? x0 : 0; y >= y0 && y <= y1 && x <= x1 && x < s->width; x++) {
			double a = coverage(s, cx, cy, x, y);

			for (int i = 0; i < 3; i++)
				line[3 * x + i] = byte(grey + a * (s->rgb[i] - grey));
		}
	}
}
