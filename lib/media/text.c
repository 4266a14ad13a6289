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

/* out[x] = the minimum of in[x - RADIUS … x + RADIUS] within the row.  pad [2][w + 2 RADIUS] is scratch memory.  The
 * width of the window doubles: 2, 4, 8, then 13 = 2 RADIUS + 1. */
static void erode_row(const uint8_t *in, uint8_t *out, int w, uint8_t *pad)
{
	int n = w + 2 * RADIUS;
	uint8_t *a = pad, *b = pad + n;

	memset(a, in[0], RADIUS);
	memcpy(a + RADIUS, in, (size_t)w);
	memset(a + RADIUS + w, in[w - 1], RADIUS);
	for (int d = 1; d <= 4; d *= 2) {
		uint8_t *last = a;

		n -= d;
#pragma omp simd
		for (int x = 0; x < n; x++)
			b[x] = a[x] < a[x + d] ? a[x] : a[x + d];
		a = b;
		b = last;
	}
#pragma omp simd
	for (int x = 0; x < w; x++)
		out[x] = a[x] < a[x + 2 * RADIUS - 7] ? a[x] : a[x + 2 * RADIUS - 7];
}

static void invert_row(const uint8_t *in, uint8_t *out, int w, uint8_t mask)
{
#pragma omp simd
	for (int x = 0; x < w; x++)
		out[x] = in[x] ^ mask;
}

/* mask = 1 where a stroke brighter (or with `dark` darker) than both sides crosses the row: the row minus its opening.
 * tmp [3 w + 4 RADIUS] is scratch memory. */
static void mark_strokes(const uint8_t *row, uint8_t *mask, uint8_t *tmp, int w, bool dark)
{
	uint8_t *bright = tmp, *pad = tmp + w;

	invert_row(row, bright, w, dark ? 255 : 0);
	erode_row(bright, mask, w, pad);
	invert_row(mask, mask, w, 255);
	erode_row(mask, mask, w, pad);
#pragma omp simd
	for (int x = 0; x < w; x++)
		mask[x] = bright[x] - (255 - mask[x]) >= STROKE_CONTRAST;
}

static void count_block(struct text_block *b, const uint8_t *luma, const uint8_t *mask, int w)
{
	int strokes = 0, sum = 0, across = 0, down = 0;

	for (int y = 0; y < BLOCK_PX; y++) {
		const uint8_t *m = mask + y * w, *above = y > 0 ? m - w : m, *l = luma + y * w;

		for (int x = 0; x < BLOCK_PX; x++) {
			strokes += m[x];
			sum += m[x] * l[x];
			down += m[x] ^ above[x];
		}
		for (int x = 1; x < BLOCK_PX; x++)
			across += m[x] ^ m[x - 1];
	}
	*b = (struct text_block){.strokes = strokes, .across = across, .down = down};
	b->level = strokes ? (double)sum / strokes : 0;
	b->is_candidate = strokes >= STROKES_MIN && strokes <= STROKES_MAX && across >= EDGES_MIN;
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
	uint8_t *mask = vfm_calloc((size_t)w + 1, (size_t)h + 1), *tmp = vfm_calloc(3 * (size_t)w + 4 * RADIUS + 1, 1);
	struct text_block *v = vfm_calloc((size_t)blocks + 1, sizeof(*v));
	bool *is_text = vfm_calloc((size_t)blocks + 1, sizeof(*is_text));
	int *queue = vfm_calloc((size_t)blocks + 1, sizeof(*queue));

	for (int dark = 0; dark < 2 && w > 0; dark++) {
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
