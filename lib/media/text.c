#include "media/text.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
	BLOCK_PX = 8,
	RADIUS = 6,           /* of the top-hat: strokes are at most 2 RADIUS pixels wide */
	STROKE_CONTRAST = 64, /* least difference between a stroke and both sides */
	STROKES_MIN = 8,      /* stroke pixels of a block of text */
	STROKES_MAX = 48,
	EDGES_MIN = 8,  /* changes of the stroke mask along the rows of a block of text */
	LINE_MIN = 5,   /* least width of a line in blocks */
	GAP = 3,        /* blocks from one to the next along a line, at most */
	LEVEL_STD = 28, /* largest standard deviation of the brightness of a line's strokes */
};

struct text_block {
	int strokes, across, down; /* stroke pixels; changes of the mask along rows, and from row to row */
	double level;              /* mean brightness of the strokes */
	bool is_candidate, seen;
};

static uint8_t min_u8(uint8_t a, uint8_t b)
{
	return a < b ? a : b;
}

static uint8_t max_u8(uint8_t a, uint8_t b)
{
	return a > b ? a : b;
}

/* out[x] = the minimum, or with `dilate` the maximum, of in[x - RADIUS … x + RADIUS] within the row. */
static void filter_row(const uint8_t *in, uint8_t *out, int w, bool dilate)
{
	memcpy(out, in, (size_t)w);
	for (int d = 1; d <= RADIUS; d++)
		for (int x = 0; x < w; x++) {
			uint8_t left = in[x < d ? 0 : x - d], right = in[x + d < w ? x + d : w - 1];

			out[x] = dilate ? max_u8(out[x], max_u8(left, right)) : min_u8(out[x], min_u8(left, right));
		}
}

/* mask = 1 where a stroke brighter (or with `dark` darker) than both sides crosses the row. */
static void mark_strokes(const uint8_t *row, uint8_t *mask, uint8_t *tmp, int w, bool dark)
{
	filter_row(row, tmp, w, dark);
	filter_row(tmp, mask, w, !dark); /* the opening, or the closing */
	for (int x = 0; x < w; x++)
		mask[x] = abs(row[x] - mask[x]) >= STROKE_CONTRAST;
}

static void count_block(struct text_block *b, const uint8_t *luma, const uint8_t *mask, int w)
{
	double sum = 0;

	*b = (struct text_block){0};
	for (int y = 0; y < BLOCK_PX; y++)
		for (int x = 0; x < BLOCK_PX; x++) {
			const uint8_t *m = mask + y * w + x;

			b->strokes += *m;
			sum += *m ? luma[y * w + x] : 0;
			b->across += x > 0 && m[0] != m[-1];
			b->down += y > 0 && m[0] != m[-w];
		}
	b->level = b->strokes ? sum / b->strokes : 0;
	b->is_candidate = b->strokes >= STROKES_MIN && b->strokes <= STROKES_MAX && b->across >= EDGES_MIN;
}

/* Collects in queue[] the candidates that are connected with block `first`, along a row across gaps.  If they are a
 * line of text, marks its bounding box in is_text. */
static void trace_line(struct text_block *v, int bw, int bh, int first, int *queue, bool *is_text)
{
	int n = 1, left = bw, right = -1, top = bh, bottom = -1, strokes = 0, across = 0, down = 0;
	double level = 0, level2 = 0;

	queue[0] = first;
	v[first].seen = true;
	for (int k = 0; k < n; k++) {
		int i = queue[k], x = i % bw, y = i / bw;

		left = x < left ? x : left;
		right = x > right ? x : right;
		top = y < top ? y : top;
		bottom = y > bottom ? y : bottom;
		strokes += v[i].strokes, across += v[i].across, down += v[i].down;
		level += v[i].level, level2 += v[i].level * v[i].level;
		for (int dy = -1; dy <= 1; dy++)
			for (int dx = -GAP; dx <= GAP; dx++) {
				int at = i + dy * bw + dx;

				if (x + dx < 0 || x + dx >= bw || y + dy < 0 || y + dy >= bh || v[at].seen ||
					!v[at].is_candidate)
					continue;
				v[at].seen = true;
				queue[n++] = at;
			}
	}
	level /= n;
	if (right - left + 1 < LINE_MIN || 3 * n < (right - left + 1) * (bottom - top + 1) ||
		sqrt(fmax(0, level2 / n - level * level)) > LEVEL_STD)
		return;
	/* stripes do not change from row to row; noise changes as often as along the rows, and its strokes are short */
	if (down < 0.1 * across || down > 1.2 * across || down > 0.7 * strokes ||
		(down > 0.95 * across && down > 0.5 * strokes))
		return;
	for (int y = top; y <= bottom; y++)
		for (int x = left; x <= right; x++)
			is_text[y * bw + x] = true;
}

double vfm_text_ratio(const uint8_t *luma, int w, int h)
{
	int bw = w / BLOCK_PX, bh = h / BLOCK_PX, blocks = bw * bh, found = 0;
	uint8_t *mask = vfm_calloc((size_t)w + 1, (size_t)h + 1), *tmp = vfm_calloc((size_t)w + 1, 1);
	struct text_block *v = vfm_calloc((size_t)blocks + 1, sizeof(*v));
	bool *is_text = vfm_calloc((size_t)blocks + 1, sizeof(*is_text));
	int *queue = vfm_calloc((size_t)blocks + 1, sizeof(*queue));

	for (int dark = 0; dark < 2; dark++) {
		for (int y = 0; y < h; y++)
			mark_strokes(luma + (size_t)y * (size_t)w, mask + (size_t)y * (size_t)w, tmp, w, dark);
		for (int i = 0; i < blocks; i++) {
			size_t at = (size_t)(i / bw * BLOCK_PX) * (size_t)w + (size_t)(i % bw * BLOCK_PX);

			count_block(&v[i], luma + at, mask + at, w);
		}
		for (int i = 0; i < blocks; i++)
			if (v[i].is_candidate && !v[i].seen)
				trace_line(v, bw, bh, i, queue, is_text);
	}
	for (int i = 0; i < blocks; i++)
		found += is_text[i];
	free(queue);
	free(is_text);
	free(v);
	free(tmp);
	free(mask);
	return blocks > 0 ? (double)found / blocks : 0;
}
