/* image_compare.c - comparison of pictures that are fit to each other; see image_detail.h. */
#include <math.h>
#include <string.h>

#include "media/match/image_compare.h"
#include "media/match/image_detail.h"

#define N          VFM_PICTURE_SIDE
#define SMALL      VFM_IMAGE_COARSE
#define PIXELS     (N * N)
#define UNKNOWNS   6            /* light and its offset, move and scale of columns and of rows */
#define SCALE_MOST 1.25F        /* of one picture to the other, within the parts that are compared first */
#define COMMON     0.7F         /* of each that both must show */
#define DETAIL     1.6          /* divisor of 1 - the correlation of detail */
#define LEAST      (PIXELS / 4) /* cells */
#define BLUR       2            /* the detail is luma without the mean of 2 BLUR + 1 cells squared */
#define FLOOR      4.0F         /* of the local deviation, in levels of luma */
#define STEP_MOST  0.2F         /* of the picture, in one step */
#define STIFF      0.02         /* of the energy of a column: damps moves that the picture says nothing about */

/* Correlations of coarse pictures below which the fit ends: before it, after some steps, and after it. */
#define HOPELESS 0.2
#define DOUBTFUL 0.5
#define UNLIKE   0.65

struct warp { /* a point x, y of a, 0 to 1, is at sx x + tx, sy y + ty of b */
	float sx, tx, sy, ty;
};

struct overlay { /* b at the cells of a */
	int side;
	int left, right, top, bottom; /* the cells that are in the parts of both that are compared */
	float b[PIXELS];
};

struct image_pair {
	const struct vfm_image_view *a, *b;
	const struct vfm_image_box *of_a, *of_b; /* parts that are compared */
};

/* Where b is sampled for the cells of a in one direction. */
struct image_line {
	int at[N], next[N];
	float share[N];  /* of the next one */
	int first, last; /* cells that count: first to last - 1 */
};

/* b is at s x + t; [a0, a1) and [b0, b1) count. */
static void place_line(struct image_line *l, int side, float s, float t, float a0, float a1, float b0, float b1)
{
	l->first = side;
	l->last = 0;
	for (int i = 0; i < side; i++) {
		float x = ((float)i + 0.5F) / (float)side, y = s * x + t;
		float f = fminf((float)side - 1, fmaxf(0, y * (float)side - 0.5F));

		l->at[i] = (int)f;
		l->next[i] = l->at[i] + (l->at[i] + 1 < side);
		l->share[i] = f - (float)l->at[i];
		if (x > fmaxf(0, a0) && x < fminf(1, a1) && y > fmaxf(0, b0) && y < fminf(1, b1)) {
			l->first = i < l->first ? i : l->first;
			l->last = i + 1;
		}
	}
}

static void lay_over(struct overlay *o, const struct image_pair *p, const struct warp *w, int side)
{
	const float *grid = side == N ? p->b->fine : p->b->coarse;
	const struct vfm_image_box *a = p->of_a, *b = p->of_b;
	struct image_line x, y;

	place_line(&x, side, w->sx, w->tx, a->left, a->right, b->left, b->right);
	place_line(&y, side, w->sy, w->ty, a->top, a->bottom, b->top, b->bottom);
	o->side = side;
	o->left = x.first, o->right = x.last;
	o->top = y.first, o->bottom = y.last;
	for (int j = 0; j < side; j++) {
		const float *up = grid + y.at[j] * side, *down = grid + y.next[j] * side;
		float row[N];

#pragma omp simd
		for (int i = 0; i < side; i++)
			row[i] = up[i] + y.share[j] * (down[i] - up[i]);
		for (int i = 0; i < side; i++)
			o->b[j * side + i] = row[x.at[i]] + x.share[i] * (row[x.next[i]] - row[x.at[i]]);
	}
}

static int overlay_cells(const struct overlay *o)
{
	return o->right > o->left && o->bottom > o->top ? (o->right - o->left) * (o->bottom - o->top) : 0;
}

/* Returns the correlation of two pictures in the cells that count. */
static double correlate_cells(const float *a, const float *b, const struct overlay *o)
{
	const int side = o->side, n = overlay_cells(o);
	float sa = 0, sb = 0, aa = 0, bb = 0, ab = 0;

	if (n < 4)
		return 0;
	for (int j = o->top; j < o->bottom; j++)
#pragma omp simd reduction(+ : sa, sb)
		for (int i = o->left; i < o->right; i++) {
			sa += a[j * side + i];
			sb += b[j * side + i];
		}
	sa /= (float)n;
	sb /= (float)n;
	for (int j = o->top; j < o->bottom; j++)
#pragma omp simd reduction(+ : aa, bb, ab)
		for (int i = o->left; i < o->right; i++) {
			float x = a[j * side + i] - sa, y = b[j * side + i] - sb;

			aa += x * x;
			bb += y * y;
			ab += x * y;
		}
	return (double)ab / sqrt(fmax((double)aa * (double)bb, 1e-6));
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

/* Adds the products of the columns of the fit in a row of cells, `first` to `last` - 1: f b + offset + f (grad b) (dx,
 * dy), with dx = move + scale (x - 1/2), dy likewise. */
static void add_products(double m[UNKNOWNS][UNKNOWNS], double y[UNKNOWNS], const float *a, const struct overlay *o,
	int row, int first, int last)
{
	const int side = o->side;
	const float *b = o->b + row * side, ry = ((float)row + 0.5F) / (float)side - 0.5F;
	float of[UNKNOWNS][N];

	for (int i = first; i < last; i++) {
		of[0][i] = b[i];
		of[1][i] = 100;
		of[2][i] = 0.5F * (b[i + 1] - b[i - 1]) * (float)side;
		of[3][i] = of[2][i] * (((float)i + 0.5F) / (float)side - 0.5F);
		of[4][i] = 0.5F * (b[i + side] - b[i - side]) * (float)side;
		of[5][i] = of[4][i] * ry;
	}
	for (int k = 0; k < UNKNOWNS; k++) {
		float sum = 0;

		for (int l = 0; l <= k; l++) {
			float both = 0;

#pragma omp simd reduction(+ : both)
			for (int i = first; i < last; i++)
				both += of[k][i] * of[l][i];
			m[k][l] += (double)both;
		}
#pragma omp simd reduction(+ : sum)
		for (int i = first; i < last; i++)
			sum += of[k][i] * a[row * side + i];
		y[k] += (double)sum;
	}
}

/* One step of the fit of b to a.  Returns false if there is none. */
static bool improve_warp(struct warp *w, const float *a, const struct overlay *o)
{
	const int side = o->side, first = o->left > 1 ? o->left : 1, last = o->right < side - 1 ? o->right : side - 1;
	double m[UNKNOWNS][UNKNOWNS] = {{0}}, y[UNKNOWNS] = {0};
	float move_x, move_y, px, py;

	for (int j = o->top > 1 ? o->top : 1; j < o->bottom && j < side - 1; j++)
		add_products(m, y, a, o, j, first, last);
	for (int k = 0; k < UNKNOWNS; k++) {
		for (int l = k + 1; l < UNKNOWNS; l++)
			m[k][l] = m[l][k];
		m[k][k] *= 1 + (k > 1 ? STIFF : 0);
		m[k][k] += 1e-3;
	}
	if (!solve_system(m, y) || y[0] <= 1e-3)
		return false;
	move_x = (float)(y[2] / y[0]), px = (float)(y[3] / y[0]);
	move_y = (float)(y[4] / y[0]), py = (float)(y[5] / y[0]);
	if (fabsf(px) > STEP_MOST || fabsf(py) > STEP_MOST || fabsf(move_x) > STEP_MOST || fabsf(move_y) > STEP_MOST)
		return false;
	w->tx += w->sx * (move_x - 0.5F * px);
	w->sx *= 1 + px;
	w->ty += w->sy * (move_y - 0.5F * py);
	w->sy *= 1 + py;
	return true;
}

/* Improves a warp by up to `steps` steps, as long as the correlation rises, and as it is not below `least` after the
 * first two.  Returns it; o is of the warp. */
static double fit_warp(struct overlay *o, struct warp *w, const struct image_pair *p, int side, int steps, double least)
{
	const float *a = side == N ? p->a->fine : p->a->coarse;
	double c, better;

	lay_over(o, p, w, side);
	c = correlate_cells(a, o->b, o);
	for (int i = 0; i < steps && (i != 2 || c >= least); i++) {
		struct warp next = *w;
		struct overlay of_next;

		if (!improve_warp(&next, a, o))
			break;
		lay_over(&of_next, p, &next, side);
		better = correlate_cells(a, of_next.b, &of_next);
		if (better <= c)
			break;
		*w = next;
		*o = of_next;
		if (better - c < 1e-3)
			i = steps;
		c = better;
	}
	return c;
}

/* Sets out to a picture without its local mean, divided by its local deviation plus a floor: over squares of cells, in
 * the cells that count.  So the outline of a picture does not hide what differs within it. */
static void take_detail(float *out, const float *in, const struct overlay *o)
{
	const int side = o->side;

	for (int j = o->top; j < o->bottom; j++) {
		const int top = j - BLUR > o->top ? j - BLUR : o->top,
			  bottom = j + BLUR + 1 < o->bottom ? j + BLUR + 1 : o->bottom;
		float sum[N] = {0}, squares[N] = {0};

		for (int y = top; y < bottom; y++)
#pragma omp simd
			for (int i = o->left; i < o->right; i++) {
				sum[i] += in[y * side + i];
				squares[i] += in[y * side + i] * in[y * side + i];
			}
		for (int i = o->left; i < o->right; i++) {
			const int left = i - BLUR > o->left ? i - BLUR : o->left,
				  right = i + BLUR + 1 < o->right ? i + BLUR + 1 : o->right;
			const float n = (float)((bottom - top) * (right - left));
			float mean = 0, square = 0;

			for (int x = left; x < right; x++) {
				mean += sum[x];
				square += squares[x];
			}
			mean /= n;
			square = square / n - mean * mean;
			out[j * side + i] = (in[j * side + i] - mean) / (sqrtf(fmaxf(0, square)) + FLOOR);
		}
	}
}

/* Returns the least share of two ranges that is common to both, [b0, b1) being at s x + t. */
static float share_range(float a0, float a1, float b0, float b1, float s, float t)
{
	float from = fmaxf(a0, (b0 - t) / s), to = fminf(a1, (b1 - t) / s);

	return (to - from) / fmaxf(a1 - a0, (b1 - b0) / s);
}

/* Returns the least share of the two parts that is common to both. */
static float share_parts(const struct image_pair *p, const struct warp *w)
{
	const struct vfm_image_box *a = p->of_a, *b = p->of_b;
	float x = share_range(a->left, a->right, b->left, b->right, w->sx, w->tx),
	      y = share_range(a->top, a->bottom, b->top, b->bottom, w->sy, w->ty);

	return x > 0 && y > 0 ? x * y : 0;
}

/* The warp that lays one part over the other. */
static struct warp warp_of(const struct image_pair *p)
{
	const struct vfm_image_box *a = p->of_a, *b = p->of_b;
	const float sx = (b->right - b->left) / (a->right - a->left), sy = (b->bottom - b->top) / (a->bottom - a->top);

	return (struct warp){sx, b->left - sx * a->left, sy, b->top - sy * a->top};
}

static bool is_scaled(float s, float first)
{
	return s > first * SCALE_MOST || s * SCALE_MOST < first;
}

/* Compares a pair of parts; m is set if they are better than m. */
static void compare_parts(const struct image_pair *p, bool mirrored, struct vfm_image_match *m)
{
	const struct warp first = warp_of(p);
	struct warp w = first;
	struct overlay o;
	float x[PIXELS], y[PIXELS];
	double shape, detail, d;

	if (fit_warp(&o, &w, p, SMALL, 0, 0) < HOPELESS || fit_warp(&o, &w, p, SMALL, 8, DOUBTFUL) < UNLIKE)
		return;
	shape = fit_warp(&o, &w, p, N, 6, 0);
	if (is_scaled(w.sx, first.sx) || is_scaled(w.sy, first.sy) || share_parts(p, &w) < COMMON ||
		overlay_cells(&o) < LEAST)
		return;
	take_detail(x, p->a->fine, &o);
	take_detail(y, o.b, &o);
	detail = correlate_cells(x, y, &o);
	d = fmax(1 - shape, (1 - detail) / DETAIL);
	if (d < m->distance)
		*m = (struct vfm_image_match){d, mirrored};
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
				compare_parts(&(struct image_pair){of, b, &of->boxes[i], &b->boxes[j]}, mirrored, m);
	}
}
