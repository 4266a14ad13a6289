/* thumb.c - area averages of planes, and the mean change between two thumbnails. */
#include "media/av/thumb.h"

#include <stdlib.h>
#include <string.h>

#define W          VFM_THUMB_W
#define H          VFM_THUMB_H
#define LEAST_ROWS 3 /* of a box; a sum of the rows of a box, at most 5, fits 16 bits */

static uint8_t clamp_level(int x)
{
	return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
}

void vfm_thumb_of_rgb(struct vfm_thumb *t, const uint8_t *rgb)
{
	for (int i = 0; i < W * H; i++) {
		const uint8_t *p = rgb + 3 * i;

		t->y[i] = (uint8_t)((77 * p[0] + 150 * p[1] + 29 * p[2] + 128) >> 8);
	}
	for (int j = 0; j < H / 2; j++)
		for (int i = 0; i < W / 2; i++) {
			const uint8_t *p = rgb + 3 * (2 * j * W + 2 * i), *q = p + 3 * W;
			int r = p[0] + p[3] + q[0] + q[3], g = p[1] + p[4] + q[1] + q[4], b = p[2] + p[5] + q[2] + q[5];

			t->cb[j * W / 2 + i] = clamp_level(128 + ((-43 * r - 85 * g + 128 * b) >> 10));
			t->cr[j * W / 2 + i] = clamp_level(128 + ((128 * r - 107 * g - 21 * b) >> 10));
		}
}

static void add_plane_row(const struct vfm_plane *plane, int y, uint16_t *sums)
{
	const uint8_t *row = plane->data + y * plane->stride;
	const uint16_t *wide = (const uint16_t *)(const void *)row;
	int width = plane->width, shift = plane->depth - 8;

	if (plane->depth == 8) {
#pragma omp simd
		for (int x = 0; x < width; x++)
			sums[x] = (uint16_t)(sums[x] + row[x]);
		return;
	}
#pragma omp simd
	for (int x = 0; x < width; x++)
		sums[x] = (uint16_t)(sums[x] + (wide[x] >> shift));
}

void vfm_plane_shrink(const struct vfm_plane *plane, int w, int h, uint16_t *sums, uint16_t *dst)
{
	for (int j = 0; j < h; j++) {
		int y = (int)((int64_t)j * plane->height / h), end = (int)((int64_t)(j + 1) * plane->height / h);
		int step = end - y < 2 * LEAST_ROWS ? 1 : (end - y) / LEAST_ROWS, rows = 0;

		memset(sums, 0, (size_t)plane->width * sizeof(sums[0]));
		for (; y < end; y += step, rows++)
			add_plane_row(plane, y, sums);
		for (int i = 0, x = 0; i < w; i++) {
			int from = x, until = (int)((int64_t)(i + 1) * plane->width / w);
			uint64_t sum = 0;

			for (; x < until; x++)
				sum += sums[x];
			dst[j * w + i] = (uint16_t)(sum * 256 / (uint64_t)(rows * (int64_t)(until - from)));
		}
	}
}

float vfm_thumb_change(const struct vfm_thumb *a, const struct vfm_thumb *b)
{
	int sum = 0;

#pragma omp simd reduction(+ : sum)
	for (int i = 0; i < VFM_THUMB_W * VFM_THUMB_H; i++)
		sum += abs(a->y[i] - b->y[i]);
	return (float)sum / (VFM_THUMB_W * VFM_THUMB_H);
}
