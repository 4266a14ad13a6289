/* image_detail.c - signatures of pictures; see image_detail.h. */
#include "media/match/image_detail.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/shots/dark_lines.h"

#define N     VFM_PICTURE_SIDE
#define U     18 /* frequencies of a direction: (U - 1)^2 < VFM_IMAGE_CUTOFF */
#define SMALL VFM_IMAGE_COARSE
#define LOW   50 /* u^2 + v^2 of the coarse picture is below */
#define DARK  26 /* luma of cells of a dark border */

int8_t vfm_image_detail_quantize(float c)
{
	return (int8_t)lrintf(copysignf(fminf(127, sqrtf(4 * fabsf(c))), c));
}

void vfm_image_detail_of(struct vfm_image_detail *d, const float *picture, int size, const int box[4])
{
	float *rows = vfm_calloc((size_t)U * (size_t)size, sizeof(*rows));
	float *cols = vfm_calloc((size_t)U * (size_t)size, sizeof(*cols)), c[U][U];
	int n = 0;

	vfm_picture_weights(rows, U, size, box[0], box[1]);
	vfm_picture_weights(cols, U, size, box[2], box[3]);
	vfm_picture_transform(c[0], U, picture, size, rows, cols);
	free(rows);
	free(cols);
	for (int i = 0; i < 4; i++)
		d->box[i] = (uint8_t)lrint((double)box[i] * VFM_IMAGE_UNIT / size);
	d->mean = (uint8_t)lrintf(fminf(255, fmaxf(0, c[0][0] / N)));
	for (int u = 0; u < U; u++)
		for (int v = 0; v < U; v++)
			if (u + v && u * u + v * v < VFM_IMAGE_CUTOFF)
				d->coef[n++] = vfm_image_detail_quantize(c[u][v]);
}

bool vfm_image_detail_is_valid(const struct vfm_image_detail *d)
{
	return d->box[0] < d->box[1] && d->box[1] <= VFM_IMAGE_UNIT && d->box[2] < d->box[3] &&
		d->box[3] <= VFM_IMAGE_UNIT;
}

/* ---- pictures ---- */

static float fine_cos[U][N], coarse_cos[U][SMALL];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_cosines(void)
{
	const double pi = acos(-1);

	for (int u = 0; u < U; u++) {
		double scale = sqrt((u ? 2.0 : 1.0) / N);

		for (int i = 0; i < N; i++)
			fine_cos[u][i] = (float)(scale * cos(pi * u * (i + 0.5) / N));
		for (int i = 0; i < SMALL; i++)
			coarse_cos[u][i] = (float)(scale * cos(pi * u * (i + 0.5) / SMALL));
	}
}

/* Sets out [side, side] to the sum of the cosines with u^2 + v^2 below `below`. */
static void sum_cosines(float *out, int side, const float *cosines, const float c[U][U], int below)
{
	memset(out, 0, (size_t)side * (size_t)side * sizeof(*out));
	for (int u = 0; u < U && u * u < below; u++) {
		float row[N] = {0};

		for (int v = 0; v < U && u * u + v * v < below; v++)
#pragma omp simd
			for (int x = 0; x < side; x++)
				row[x] += c[u][v] * cosines[v * side + x];
		for (int y = 0; y < side; y++)
#pragma omp simd
			for (int x = 0; x < side; x++)
				out[y * side + x] += cosines[u * side + y] * row[x];
	}
}

/* ---- parts that may be the picture ---- */

/* Returns the part that the dark lines at the sides of a picture [N, N] leave, which are at most a third each. */
static struct vfm_image_box box_without_dark(const float *picture)
{
	uint8_t y[N * N];
	int top, bottom, left, right;

	for (int i = 0; i < N * N; i++)
		y[i] = (uint8_t)fminf(255, fmaxf(0, picture[i]));
	top = vfm_dark_lines(y, N, N / 3, 1, N, DARK);
	bottom = vfm_dark_lines(y + N * (N - 1), -N, N / 3, 1, N, DARK);
	left = vfm_dark_lines(y, 1, N / 3, N, N, DARK);
	right = vfm_dark_lines(y + N - 1, -1, N / 3, N, N, DARK);
	return (struct vfm_image_box){(float)top / N, 1 - (float)bottom / N, (float)left / N, 1 - (float)right / N};
}

static void add_box(struct vfm_image_view *v, struct vfm_image_box b)
{
	const float least = 1.0F / VFM_IMAGE_UNIT;

	for (int i = 0; i < v->n_boxes; i++) {
		const struct vfm_image_box *o = &v->boxes[i];

		if (fabsf(o->top - b.top) <= least && fabsf(o->bottom - b.bottom) <= least &&
			fabsf(o->left - b.left) <= least && fabsf(o->right - b.right) <= least)
			return;
	}
	v->boxes[v->n_boxes++] = b;
}

void vfm_image_view_of(struct vfm_image_view *v, const struct vfm_image_detail *d)
{
	float c[U][U] = {{0}}, top, left, high, wide;
	int n = 0;

	pthread_once(&once, make_cosines);
	c[0][0] = (float)d->mean * N;
	for (int u = 0; u < U; u++)
		for (int k = 0; k < U; k++)
			if (u + k && u * u + k * k < VFM_IMAGE_CUTOFF) {
				float q = d->coef[n++];

				c[u][k] = q * fabsf(q) / 4;
			}
	sum_cosines(v->fine, N, fine_cos[0], c, VFM_IMAGE_CUTOFF);
	sum_cosines(v->coarse, SMALL, coarse_cos[0], c, LOW);
	top = (float)d->box[0] / VFM_IMAGE_UNIT, left = (float)d->box[2] / VFM_IMAGE_UNIT;
	high = (float)d->box[1] / VFM_IMAGE_UNIT - top, wide = (float)d->box[3] / VFM_IMAGE_UNIT - left;
	v->n_boxes = 0;
	add_box(v, (struct vfm_image_box){0, 1, 0, 1});
	add_box(v, (struct vfm_image_box){-top / high, (1 - top) / high, -left / wide, (1 - left) / wide});
	add_box(v, box_without_dark(v->fine));
}
