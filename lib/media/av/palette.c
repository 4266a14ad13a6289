/* palette.c - see palette.h. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/av/palette.h"

#define BINS 32768 /* 5 bits a channel */

struct bin {
	uint16_t key;
	uint32_t n;
	uint64_t sum[3]; /* of the 8-bit values, for the mean */
};

struct box {
	int first, n;     /* a run of bins */
	int axis, spread; /* its longest side */
};

static int channel(const struct bin *b, int axis)
{
	return b->key >> (10 - 5 * axis) & 31;
}

static int by_axis(const void *a, const void *b, void *axis)
{
	const struct bin *x = a, *y = b;
	int d = channel(x, *(int *)axis) - channel(y, *(int *)axis);

	return d ? d : (int)x->key - (int)y->key;
}

static void measure_box(struct box *box, const struct bin *bins)
{
	box->spread = -1;
	for (int axis = 0; axis < 3; axis++) {
		int lo = 31, hi = 0;

		for (int i = box->first; i < box->first + box->n; i++) {
			int c = channel(&bins[i], axis);

			lo = c < lo ? c : lo;
			hi = c > hi ? c : hi;
		}
		if (hi - lo > box->spread) {
			box->spread = hi - lo;
			box->axis = axis;
		}
	}
}

/* Splits a box at the median of its pixels. */
static void split_box(struct box *box, struct box *rest, struct bin *bins)
{
	uint64_t total = 0, left = 0;
	int at = 1;

	qsort_r(bins + box->first, (size_t)box->n, sizeof(*bins), by_axis, &box->axis);
	for (int i = 0; i < box->n; i++)
		total += bins[box->first + i].n;
	for (int i = 0; i < box->n - 1; i++) {
		left += bins[box->first + i].n;
		at = i + 1;
		if (left * 2 >= total)
			break;
	}
	*rest = (struct box){.first = box->first + at, .n = box->n - at};
	box->n = at;
	measure_box(box, bins);
	measure_box(rest, bins);
}

static int collect_bins(const uint8_t *rgb, size_t n, struct bin *bins)
{
	struct bin *all = vfm_calloc(BINS, sizeof(*all));
	int used = 0;

	for (size_t i = 0; i < n; i++, rgb += 3) {
		struct bin *b = &all[rgb[0] >> 3 << 10 | rgb[1] >> 3 << 5 | rgb[2] >> 3];

		b->n++;
		for (int k = 0; k < 3; k++)
			b->sum[k] += rgb[k];
	}
	for (int i = 0; i < BINS; i++) {
		if (!all[i].n)
			continue;
		all[i].key = (uint16_t)i;
		bins[used++] = all[i];
	}
	free(all);
	return used;
}

void vfm_palette_of(const uint8_t *rgb, int width, int height, uint8_t *index, int stride, uint32_t palette[256])
{
	struct bin *bins = vfm_malloc(BINS * sizeof(*bins));
	uint8_t *place = vfm_calloc(BINS, 1); /* bin -> colour */
	struct box boxes[256] = {{0}};
	int n = 1;

	boxes[0].n = collect_bins(rgb, (size_t)width * (size_t)height, bins);
	measure_box(&boxes[0], bins);
	while (n < 256) {
		int widest = 0;

		for (int i = 1; i < n; i++)
			if (boxes[i].spread > boxes[widest].spread)
				widest = i;
		if (boxes[widest].spread <= 0)
			break;
		split_box(&boxes[widest], &boxes[n], bins);
		n++;
	}
	memset(palette, 0, 256 * sizeof(palette[0]));
	for (int b = 0; b < n; b++) {
		uint64_t sum[3] = {0}, count = 0;

		for (int i = boxes[b].first; i < boxes[b].first + boxes[b].n; i++) {
			place[bins[i].key] = (uint8_t)b;
			count += bins[i].n;
			for (int k = 0; k < 3; k++)
				sum[k] += bins[i].sum[k];
		}
		for (int k = 0; k < 3; k++)
			palette[b] |= (uint32_t)((sum[k] + count / 2) / (count ? count : 1)) << (16 - 8 * k);
		palette[b] |= 0xFF000000u;
	}
	for (int y = 0; y < height; y++)
		for (int x = 0; x < width; x++, rgb += 3)
			index[(ptrdiff_t)y * stride + x] = place[rgb[0] >> 3 << 10 | rgb[1] >> 3 << 5 | rgb[2] >> 3];
	free(bins);
	free(place);
}
