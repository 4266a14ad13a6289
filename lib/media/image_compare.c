/* image_compare.c - comparison of pictures that are fit to each other; see image_detail.h. */
#include <math.h>
#include <string.h>

#include "media/image_detail.h"

#define N          VFM_PICTURE_SIDE
#define SMALL      VFM_IMAGE_COARSE
#define PIXELS     (N * N)
#define UNKNOWNS   6    /* light and its offset, move and scale of columns and of rows */
#define SCALE_MOST 1.25 /* of one picture to the other, within the parts that are compared first */
#define COMMON     0.7  /* of each that both must show */
#define DETAIL     1.4 /* by which 1 - the correlation of detail is divided */
#define LEAST      (PIXELS / 4) /* cells */
#define BLUR       2    /* the detail is luma without the mean of 2 BLUR + 1 cells squared */
#define STIFF      0.02 /* of the energy of a column: damps moves that the picture says nothing about */
#define HOPELESS   0.35 /* correlation of coarse pictures below which no fit is tried at full size */

struct warp { /* a point x, y of a, 0 to 1, is at sx x + tx, sy y + ty of b */
	float sx, tx, sy, ty;
};

struct overlay { /* b at the cells of a */
	int side;
	float b[PIXELS];
	bool common[PIXELS]; /* the cell is in the parts of both that are compared */
	int n;               /* of these */
};

struct pair {
	const struct vfm_image_view *a, *b;
	const struct vfm_image_box *of_a, *of_b; /* parts that are compared */
};

static float sample_grid(const float *grid, int side, float x, float y)
{
	float fx = fminf((float)side - 1, fmaxf(0, x)), fy = fminf((float)side - 1, fmaxf(0, y));
	int i = (int)fx, j = (int)fy, ni = i + (i + 1 < side), nj = j + (j + 1 < side);
	float p = fx - (float)i, q = fy - (float)j;

	return (1 - q) * ((1 - p) * grid[j * side + i] + p * grid[j * side + ni]) +
		q * ((1 - p) * grid[nj * side + i] + p * grid[nj * side + ni]);
}

/* Whether a point is in a box and in the picture of the signature. */
static bool is_within(const struct vfm_image_box *b, float x, float y)
{
	return x > fmaxf(0, b->left) && x < fminf(1, b->right) && y > fmaxf(0, b->top) && y < fminf(1, b->bottom);
}

static void lay_over(struct overlay *o, const struct pair *p, const struct warp *w, int side)
{
	const float *grid = side == N ? p->b->fine : p->b->coarse;

	o->side = side;
	o->n = 0;
	for (int j = 0; j < side; j++)
		for (int i = 0; i < side; i++) {
			float x = ((float)i + 0.5F) / (float)side, y = ((float)j + 0.5F) / (float)side;
			float bx = w->sx * x + w->tx, by = w->sy * y + w->ty;
			int at = j * side + i;

			o->b[at] = sample_grid(grid, side, bx * (float)side - 0.5F, by * (float)side - 0.5F);
			o->common[at] = is_within(p->of_a, x, y) && is_within(p->of_b, bx, by);
			o->n += o->common[at];
		}
}

/* Returns the correlation of two pictures in the cells that count. */
static double correlate_cells(const float *a, const float *b, const bool *in, int cells, int n)
{
	double sa = 0, sb = 0, aa = 0, bb = 0, ab = 0;

	if (n < 4)
		return 0;
	for (int i = 0; i < cells; i++)
		if (in[i]) {
			sa += (double)a[i];
			sb += (double)b[i];
		}
	sa /= n;
	sb /= n;
	for (int i = 0; i < cells; i++)
		if (in[i]) {
			double x = (double)a[i] - sa, y = (double)b[i] - sb;

			aa += x * x;
			bb += y * y;
			ab += x * y;
		}
	return ab / sqrt(fmax(aa * bb, 1e-6));
}

/* Solves m x = y by elimination; m is positive definite.  Returns false if it is not. */
static bool solve_system(double m[UNKNOWNS][UNKNOWNS], double y[UNKNOWNS])
{
	for (int k = 0; k < UNKNOWNS; k++) {
		if (m[k][k] < 1e-9)
			return false;
		for (int i = k + 1; i < UNKNOWNS; i++) {
			double f = m[i][k] / m[k][k];

			for (int j = k; j < UNKNOWNS; j++)
				m[i][j] -= f * m[k][j];
			y[i] -= f * y[k];
		}
	}
	for (int k = UNKNOWNS - 1; k >= 0; k--) {
		for (int j = k + 1; j < UNKNOWNS; j++)
			y[k] -= m[k][j] * y[j];
		y[k] /= m[k][k];
	}
	return true;
}

/* One step of the fit: a = f b + offset + f (dx, dy) (grad b), with dx = move + scale (x - 1/2), dy likewise. */
static bool improve_warp(struct warp *w, const float *a, const struct overlay *o)
{
	const int side = o->side;
	double m[UNKNOWNS][UNKNOWNS] = {{0}}, y[UNKNOWNS] = {0};
	float cx, cy, px, py;

	for (int j = 1; j < side - 1; j++)
		for (int i = 1; i < side - 1; i++) {
			const int at = j * side + i;
			const float gx = 0.5F * (o->b[at + 1] - o->b[at - 1]) * (float)side,
				    gy = 0.5F * (o->b[at + side] - o->b[at - side]) * (float)side;
			const float rx = ((float)i + 0.5F) / (float)side - 0.5F,
				    ry = ((float)j + 0.5F) / (float)side - 0.5F;
			const float of[UNKNOWNS] = {o->b[at], 100, gx, gx * rx, gy, gy * ry};

			if (!o->common[at])
				continue;
			for (int k = 0; k < UNKNOWNS; k++) {
				for (int l = 0; l <= k; l++)
					m[k][l] += (double)(of[k] * of[l]);
				y[k] += (double)(of[k] * a[at]);
			}
		}
	for (int k = 0; k < UNKNOWNS; k++) {
		for (int l = k + 1; l < UNKNOWNS; l++)
			m[k][l] = m[l][k];
		m[k][k] *= 1 + (k > 1 ? STIFF : 0);
		m[k][k] += 1e-3;
	}
	if (!solve_system(m, y) || y[0] <= 1e-3)
		return false;
	px = (float)(y[3] / y[0]);
	py = (float)(y[5] / y[0]);
	cx = (float)(y[2] / y[0]) - 0.5F * px; /* dx = cx + px x */
	cy = (float)(y[4] / y[0]) - 0.5F * py;
	if (fabsf(px) > 0.2F || fabsf(py) > 0.2F || fabsf((float)(y[2] / y[0])) > 0.2F ||
		fabsf((float)(y[4] / y[0])) > 0.2F)
		return false;
	w->tx += w->sx * cx;
	w->sx *= 1 + px;
	w->ty += w->sy * cy;
	w->sy *= 1 + py;
	return true;
}

/* Improves a warp by up to `steps` steps, as long as the correlation rises.  Returns it; o is of the warp. */
static double fit_warp(struct overlay *o, struct warp *w, const struct pair *p, int side, int steps)
{
	const float *a = side == N ? p->a->fine : p->a->coarse;
	double c;

	lay_over(o, p, w, side);
	c = correlate_cells(a, o->b, o->common, side * side, o->n);
	for (int i = 0; i < steps; i++) {
		struct warp next = *w;
		struct overlay of_next;
		double better;

		if (!improve_warp(&next, a, o))
			break;
		lay_over(&of_next, p, &next, side);
		better = correlate_cells(a, of_next.b, of_next.common, side * side, of_next.n);
		if (better <= c)
			break;
		*w = next;
		*o = of_next;
		if (better - c < 1e-3) {
			c = better;
			break;
		}
		c = better;
	}
	return c;
}

/* Sets out to a picture without its means over squares of cells, both of the cells that count. */
static void take_detail(float *out, const float *in, const struct overlay *o)
{
	const int side = o->side;

	for (int j = 0; j < side; j++)
		for (int i = 0; i < side; i++) {
			float sum = 0;
			int n = 0;

			out[j * side + i] = 0;
			if (!o->common[j * side + i])
				continue;
			for (int y = j > BLUR ? j - BLUR : 0; y <= j + BLUR && y < side; y++)
				for (int x = i > BLUR ? i - BLUR : 0; x <= i + BLUR && x < side; x++)
					if (o->common[y * side + x]) {
						sum += in[y * side + x];
						n++;
					}
			out[j * side + i] = in[j * side + i] - sum / (float)n;
		}
}

/* Returns the least share of two ranges that is common to both, [b0, b1) being at s x + t. */
static float share_range(float a0, float a1, float b0, float b1, float s, float t)
{
	float from = fmaxf(a0, (b0 - t) / s), to = fminf(a1, (b1 - t) / s);

	return (to - from) / fmaxf(a1 - a0, (b1 - b0) / s);
}

/* Returns the least share of the two parts that is common to both. */
static float share_parts(const struct pair *p, const struct warp *w)
{
	const struct vfm_image_box *a = p->of_a, *b = p->of_b;
	float x = share_range(a->left, a->right, b->left, b->right, w->sx, w->tx),
	      y = share_range(a->top, a->bottom, b->top, b->bottom, w->sy, w->ty);

	return x > 0 && y > 0 ? x * y : 0;
}

/* Compares a pair of parts; m is set if they are better than m. */
static void compare_parts(const struct pair *p, bool mirrored, struct vfm_image_match *m)
{
	const struct vfm_image_box *a = p->of_a, *b = p->of_b;
	const struct warp first = {(b->right - b->left) / (a->right - a->left), 0,
		(b->bottom - b->top) / (a->bottom - a->top), 0};
	struct warp w = first;
	struct overlay o;
	float x[PIXELS], y[PIXELS];
	double shape, detail, d;

	w.tx = b->left - w.sx * a->left;
	w.ty = b->top - w.sy * a->top;
	if (fit_warp(&o, &w, p, SMALL, 8) < HOPELESS)
		return;
	shape = fit_warp(&o, &w, p, N, 6);
	if (w.sx > first.sx * (float)SCALE_MOST || w.sx * (float)SCALE_MOST < first.sx ||
		w.sy > first.sy * (float)SCALE_MOST || w.sy * (float)SCALE_MOST < first.sy ||
		share_parts(p, &w) < (float)COMMON || o.n < LEAST)
		return;
	take_detail(x, p->a->fine, &o);
	take_detail(y, o.b, &o);
	detail = correlate_cells(x, y, o.common, PIXELS, o.n);
	d = fmax(1 - shape, (1 - detail) / DETAIL);
	if (d < m->distance)
		*m = (struct vfm_image_match){shape, detail, d, mirrored};
}

static void mirror_view(struct vfm_image_view *out, const struct vfm_image_view *in)
{
	out->n_boxes = in->n_boxes;
	for (int i = 0; i < in->n_boxes; i++)
		out->boxes[i] = (struct vfm_image_box){
			in->boxes[i].top, in->boxes[i].bottom, 1 - in->boxes[i].right, 1 - in->boxes[i].left};
	for (int j = 0; j < N; j++)
		for (int i = 0; i < N; i++)
			out->fine[j * N + i] = in->fine[j * N + N - 1 - i];
	for (int j = 0; j < SMALL; j++)
		for (int i = 0; i < SMALL; i++)
			out->coarse[j * SMALL + i] = in->coarse[j * SMALL + SMALL - 1 - i];
}

void vfm_image_compare(
	const struct vfm_image_view *a, const struct vfm_image_view *b, double most, struct vfm_image_match *m)
{
	struct vfm_image_view turned;

	*m = (struct vfm_image_match){.distance = most};
	mirror_view(&turned, a);
	for (int mirrored = 0; mirrored < 2; mirrored++) {
		const struct vfm_image_view *of = mirrored ? &turned : a;

		for (int i = 0; i < of->n_boxes; i++)
			for (int j = 0; j < b->n_boxes; j++)
				compare_parts(&(struct pair){of, b, &of->boxes[i], &b->boxes[j]}, mirrored, m);
	}
}
