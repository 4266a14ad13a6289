/* motion.c - block matching and the fit of the camera's motion; see motion.h. */
#include "media/score/motion.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/mem.h"
#include "base/stats.h"

enum {
	W = 128,
	MAX_H = 256,
	MAX_SIDE = 1024, /* of a frame */
	BLOCK = 8,
	AREA = BLOCK * BLOCK,
	COLS = W / BLOCK,
	CELLS = COLS * (MAX_H / BLOCK),
	REACH = 12,
	FIT_ROUNDS = 8,
	FIT_MIN = 6, /* least number of blocks with texture for a fit */
};

#define FLAT      3.0  /* mean absolute deviation below which a block has no texture */
#define NOISE     1.5  /* mean absolute difference of a block caused by noise and coding */
#define STILL     0.1  /* … in units of the texture: less than a fraction of a pixel of motion */
#define ERROR     0.35 /* of a displacement, in pixels of the grid */
#define SCALE_MIN 0.15 /* of the residuals of the fit, in percent of the longer side */
#define AGREE_MIN 0.25 /* share of blocks that must agree with the camera's motion */
#define RIDGE     0.02 /* share of the blocks that resist zoom and rotation, as if they stood still */

/* Displacements of the blocks of a pair, in percent of the longer side. */
struct field {
	float dx[CELLS], dy[CELLS];
	float weight[CELLS]; /* of the fit */
	bool measured[CELLS];
};

struct camera {
	double a, b, zoom, turn; /* u = a + zoom x - turn y, v = b + turn x + zoom y; x, y from the centre */
};

struct vfm_motion {
	int h, rows;
	double unit_x, unit_y; /* a pixel of the grid in percent of the longer side */
	double spread;         /* sum of the squared distances of the blocks from the centre */
	uint8_t plane[2][W * MAX_H];
	uint32_t row[MAX_SIDE]; /* scratch */
	int now;
	bool has_frame;
	struct field field;
	struct vfm_motion_result sum;
	double t[3][2]; /* translations of the camera in the last pairs, newest first */
	int n_t;
	int64_t n_shake;
};

/* ---- a block ---- */

/* Return the sum of absolute differences of `rows` rows of two blocks. */
#ifdef __SSE2__
static inline int sad_of_rows(const uint8_t *a, const uint8_t *b, int rows)
{
	__m128i sum = _mm_setzero_si128();

	for (int j = 0; j < rows; j++, a += W, b += W)
		sum = _mm_add_epi64(sum,
			_mm_sad_epu8(_mm_loadl_epi64((const __m128i *)(const void *)a),
				_mm_loadl_epi64((const __m128i *)(const void *)b)));
	return _mm_cvtsi128_si32(sum);
}
#else
static inline int sad_of_rows(const uint8_t *a, const uint8_t *b, int rows)
{
	int sum = 0;

	for (int j = 0; j < rows; j++, a += W, b += W)
		for (int i = 0; i < BLOCK; i++)
			sum += abs(a[i] - b[i]);
	return sum;
}
#endif

static int sad_of_blocks(const uint8_t *a, const uint8_t *b)
{
	return sad_of_rows(a, b, BLOCK);
}

/* Returns the sum of the absolute deviations from the mean of the block. */
static int block_texture(const uint8_t *p)
{
	int sum = 0, dev = 0;

	for (int j = 0; j < BLOCK; j++)
		for (int i = 0; i < BLOCK; i++)
			sum += p[j * W + i];
	for (int j = 0; j < BLOCK; j++)
		for (int i = 0; i < BLOCK; i++)
			dev += abs(p[j * W + i] - sum / AREA);
	return dev;
}

/* Returns the minimum of the parabola through three equally spaced values. */
static double vertex(int before, int at, int after)
{
	int bend = before - 2 * at + after;

	return bend > 0 ? fmin(0.5, fmax(-0.5, 0.5 * (before - after) / bend)) : 0;
}

/* Finds the displacement of the block at (x, y) since the frame before, in pixels of the grid.  Returns false if no
 * place matches (light, water, noise). */
static bool search_motion_of_block(const struct vfm_motion *m, int x, int y, int still, double *dx, double *dy)
{
	const uint8_t *then = m->plane[!m->now], *b = m->plane[m->now] + y * W + x;
	int x0 = x < REACH ? -x : -REACH, x1 = W - BLOCK - x < REACH ? W - BLOCK - x : REACH;
	int y0 = y < REACH ? -y : -REACH, y1 = m->h - BLOCK - y < REACH ? m->h - BLOCK - y : REACH;
	int best = still, bx = 0, by = 0;
	const uint8_t *at;

	for (int j = y0; j <= y1; j++)
		for (int i = x0; i <= x1; i++) {
			/* Penalises long motion, since similar blocks are frequent. */
			int d = 2 * (abs(i) + abs(j));

			at = then + (y + j) * W + x + i;
			d += sad_of_rows(at, b, BLOCK / 2);
			if (d < best) /* most places end here */
				d += sad_of_rows(at + BLOCK / 2 * W, b + BLOCK / 2 * W, BLOCK / 2);
			if (d < best) {
				best = d;
				bx = i;
				by = j;
			}
		}
	if (best > 0.8 * still && best > 4 * NOISE * AREA)
		return false;
	at = then + (y + by) * W + x + bx;
	best = sad_of_blocks(at, b);
	*dx = -bx;
	*dy = -by;
	if (bx > x0 && bx < x1)
		*dx -= vertex(sad_of_blocks(at - 1, b), best, sad_of_blocks(at + 1, b));
	if (by > y0 && by < y1)
		*dy -= vertex(sad_of_blocks(at - W, b), best, sad_of_blocks(at + W, b));
	return true;
}

/* ---- a pair ---- */

/* Fills the field of the pair. */
static void measure_blocks(struct vfm_motion *m)
{
	for (int i = 0; i < m->rows * COLS; i++) {
		int x = i % COLS * BLOCK, y = i / COLS * BLOCK;
		const uint8_t *b = m->plane[m->now] + y * W + x;
		int still = sad_of_blocks(m->plane[!m->now] + y * W + x, b);
		int texture = block_texture(b);
		double dx = 0, dy = 0;

		m->field.dx[i] = m->field.dy[i] = 0;
		m->field.measured[i] = texture >= FLAT * AREA;
		if (!m->field.measured[i] || still < fmin(NOISE * AREA, STILL * texture))
			continue;
		m->field.measured[i] = search_motion_of_block(m, x, y, still, &dx, &dy);
		m->field.dx[i] = (float)(dx * m->unit_x);
		m->field.dy[i] = (float)(dy * m->unit_y);
	}
}

/* Returns the median of v[i] over the measured blocks; n > 0 of them. */
static double median_motion(const struct vfm_motion *m, const float *v, int n)
{
	float sorted[CELLS];
	int k = 0;

	for (int i = 0; i < m->rows * COLS; i++)
		if (m->field.measured[i])
			sorted[k++] = v[i];
	vfm_sort_f32(sorted, (size_t)n);
	return sorted[n / 2];
}

/* The position of block i from the centre, in percent of the longer side. */
static void block_place(const struct vfm_motion *m, int i, double *x, double *y)
{
	*x = ((i % COLS + 0.5) * BLOCK - W / 2.0) * m->unit_x;
	*y = ((i / COLS + 0.5) * BLOCK - m->h / 2.0) * m->unit_y;
}

/* Stores the distance of each block from the camera's motion in weight[], and their median in *median. */
static void find_residuals(struct vfm_motion *m, const struct camera *c, int n, double *median)
{
	struct field *f = &m->field;

	for (int i = 0; i < m->rows * COLS; i++) {
		double x, y;

		block_place(m, i, &x, &y);
		f->weight[i] = (float)hypot(
			f->dx[i] - c->a - c->zoom * x + c->turn * y, f->dy[i] - c->b - c->turn * x - c->zoom * y);
	}
	*median = median_motion(m, f->weight, n);
}

/* One step: the weighted least squares of the similarity.  Weights: Tukey's biweight of the residuals.  A ridge keeps a
 * few blocks in a corner from turning their noise into zoom and rotation of the whole frame. */
static void refit(struct vfm_motion *m, struct camera *c, double scale)
{
	const struct field *f = &m->field;
	double w1 = 0, mx = 0, my = 0, mu = 0, mv = 0, xx = 0, zoom = 0, turn = 0;

	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < m->rows * COLS; i++) {
			double r = f->weight[i] / scale, w = r < 1 ? (1 - r * r) * (1 - r * r) : 0, x, y;

			if (!f->measured[i] || w == 0)
				continue;
			block_place(m, i, &x, &y);
			if (pass == 0) {
				w1 += w, mx += w * x, my += w * y, mu += w * f->dx[i], mv += w * f->dy[i];
				continue;
			}
			x -= mx / w1, y -= my / w1;
			xx += w * (x * x + y * y);
			zoom += w * (x * (f->dx[i] - mu / w1) + y * (f->dy[i] - mv / w1));
			turn += w * (x * (f->dy[i] - mv / w1) - y * (f->dx[i] - mu / w1));
		}
	if (w1 <= 0)
		return;
	xx += RIDGE * m->spread;
	c->zoom = zoom / xx;
	c->turn = turn / xx;
	c->a = mu / w1 - c->zoom * mx / w1 + c->turn * my / w1;
	c->b = mv / w1 - c->turn * mx / w1 - c->zoom * my / w1;
}

static struct camera fit_camera(struct vfm_motion *m)
{
	struct camera c = {0};
	double median, scale = SCALE_MIN;
	int n = 0, agree = 0;

	for (int i = 0; i < m->rows * COLS; i++)
		n += m->field.measured[i];
	if (n < FIT_MIN)
		return c;
	c.a = median_motion(m, m->field.dx, n);
	c.b = median_motion(m, m->field.dy, n);
	for (int k = 0; k < FIT_ROUNDS; k++) {
		find_residuals(m, &c, n, &median);
		/* 4.685 sigma; the median of |residual| estimates 0.6745 sigma */
		scale = fmax(SCALE_MIN, median * 4.685 / 0.6745 / (k < 2 ? 1 : 2));
		refit(m, &c, scale);
	}
	find_residuals(m, &c, n, &median);
	for (int i = 0; i < m->rows * COLS; i++)
		agree += m->field.measured[i] && m->field.weight[i] < fmin(scale, 1.0);
	return agree < AGREE_MIN * n ? (struct camera){0} : c;
}

static void add_shake(struct vfm_motion *m, const struct camera *c, double seconds)
{
	memmove(m->t[1], m->t[0], sizeof(m->t[0]) * 2);
	m->t[0][0] = c->a * 0.1 / seconds;
	m->t[0][1] = c->b * 0.1 / seconds;
	if (++m->n_t < 3)
		return;
	m->sum.shake += 0.5 * hypot(m->t[0][0] - 2 * m->t[1][0] + m->t[2][0], m->t[0][1] - 2 * m->t[1][1] + m->t[2][1]);
	m->n_shake++;
}

static void add_motion_pair(struct vfm_motion *m, double seconds)
{
	int n = m->rows * COLS;
	double motion = 0, camera = 0, object = 0;
	struct camera c;

	measure_blocks(m);
	c = fit_camera(m);
	for (int i = 0; i < n; i++) {
		double x, y, u, v;

		block_place(m, i, &x, &y);
		u = c.a + c.zoom * x - c.turn * y;
		v = c.b + c.turn * x + c.zoom * y;
		motion += hypot(m->field.dx[i], m->field.dy[i]);
		camera += hypot(u, v);
		u = hypot(m->field.dx[i] - u, m->field.dy[i] - v);
		/* The error of block matching is no motion. */
		object += m->field.measured[i] && u > ERROR * m->unit_x ? u : 0;
	}
	m->sum.motion += motion / n / seconds;
	m->sum.camera += camera / n / seconds;
	m->sum.object += object / n / seconds;
	m->sum.pairs++;
	add_shake(m, &c, seconds);
}

/* ---- frames ---- */

/* Adds rows y h to (y + 1) h, in units of 1 / out_h of a row, of luma [h, w] to sum[0 … w - 1]. */
static void add_grid_rows(const uint8_t *luma, int w, int h, int y, int out_h, uint32_t *sum)
{
	memset(sum, 0, (size_t)w * sizeof(*sum));
	for (int at = y * h, end = at + h; at < end;) {
		int i = at / out_h, next = (i + 1) * out_h < end ? (i + 1) * out_h : end;
		const uint8_t *row = luma + (size_t)i * (size_t)w;
		uint16_t share = (uint16_t)(next - at); /* at most MAX_H: a product has 16 bits, which SIMD prefers */

#pragma omp simd
		for (int x = 0; x < w; x++)
			sum[x] += (uint16_t)(share * row[x]);
		at = next;
	}
}

/* Scales luma [h, w], sides of at most 1024, to the grid: the mean of the area that a pixel of the grid covers. */
static void scale_to_grid(const uint8_t *luma, int w, int h, uint8_t *out, int out_h, uint32_t *sum)
{
	uint32_t area = (uint32_t)w * (uint32_t)h;

	for (int y = 0; y < out_h; y++) {
		add_grid_rows(luma, w, h, y, out_h, sum);
		for (int x = 0; x < W; x++) {
			uint32_t total = area / 2;

			for (int at = x * w, end = at + w; at < end;) {
				int i = at / W, next = (i + 1) * W < end ? (i + 1) * W : end;

				total += (uint32_t)(next - at) * sum[i];
				at = next;
			}
			out[y * W + x] = (uint8_t)(total / area);
		}
	}
}

struct vfm_motion *vfm_motion_new(const struct vfm_video_info *info)
{
	struct vfm_motion *m = vfm_calloc(1, sizeof(*m));
	double w = info->width, h = info->height, side = fmax(w, h);

	m->h = (int)fmin(MAX_H, fmax(BLOCK, lrint(W * h / w / BLOCK) * BLOCK));
	m->rows = m->h / BLOCK;
	m->unit_x = 100 * w / W / side;
	m->unit_y = 100 * h / m->h / side;
	for (int i = 0; i < m->rows * COLS; i++) {
		double x, y;

		block_place(m, i, &x, &y);
		m->spread += x * x + y * y;
	}
	return m;
}

void vfm_motion_free(struct vfm_motion *m)
{
	free(m);
}

void vfm_motion_frame(struct vfm_motion *m, const uint8_t *luma, int w, int h, double seconds)
{
	m->now = !m->now;
	scale_to_grid(luma, w, h, m->plane[m->now], m->h, m->row);
	if (seconds <= 0)
		m->n_t = 0;
	else if (m->has_frame)
		add_motion_pair(m, seconds);
	m->has_frame = true;
}

struct vfm_motion_result vfm_motion_result(const struct vfm_motion *m)
{
	struct vfm_motion_result r = m->sum;
	double n = (double)r.pairs;

	if (!r.pairs)
		return (struct vfm_motion_result){NAN, NAN, NAN, NAN, 0};
	r.motion /= n;
	r.camera /= n;
	r.object /= n;
	r.shake = m->n_shake ? r.shake / (double)m->n_shake : NAN;
	return r;
}
