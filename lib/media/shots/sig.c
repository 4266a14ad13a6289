/* sig.c - colour histograms, downscaled luma, its normalized form, and block matching of two frames. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "media/shots/sig.h"

#define W           VFM_SIG_W
#define H           VFM_SIG_H
#define B           VFM_SIG_BLOCK
#define S           VFM_SIG_SEARCH
#define STRIDE      VFM_SIG_STRIDE
#define N_PIX       ((float)(W * H))
#define BLOCKS      (W / B * (H / B))
#define AROUND      4     /* the local mean is over 2 * AROUND + 1 pixels squared */
#define NOISE       3.0f  /* deviation of luma that is not amplified to full contrast */
#define FLAT        10.0f /* mean absolute form below which a block has no texture */
#define CLEAR       24.0f /* … and above which it has clear texture */
#define CHANGED     12    /* levels of luma */
#define UNEXPLAINED 0.6f
#define SHIFT_X     24
#define SHIFT_Y     12

/* ---- making ---- */

static int colour_bin(int y, int cb, int cr)
{
	static const uint8_t steps[] = {4, 16, 36, 64, 100, 144, 196}; /* (16 k / 8)^2 */
	int l = 0;

	while (l < 7 && y >= steps[l])
		l++;
	/* Chroma is mostly near the middle: smaller bins there. */
	cb = cb < 112 ? 0 : cb < 128 ? 1 : cb < 144 ? 2 : 3;
	cr = cr < 112 ? 0 : cr < 128 ? 1 : cr < 144 ? 2 : 3;
	return l * 16 + cb * 4 + cr;
}

static uint8_t clamp_byte(int x)
{
	return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
}

static void make_colours(struct vfm_sig *s)
{
	const struct vfm_thumb *t = &s->thumb;

	memset(s->hist, 0, sizeof(s->hist));
	for (int j = 0; j < H / 2; j++)
		for (int i = 0; i < W / 2; i++) {
			const uint8_t *p = t->y + 2 * j * W + 2 * i, *q = p + W;
			int k = j * W / 2 + i;

			s->hist[colour_bin((p[0] + p[1] + q[0] + q[1]) >> 2, t->cb[k], t->cr[k])]++;
		}
}

static void make_statistics(struct vfm_sig *s)
{
	int count[256] = {0}, sum = 0, sum2 = 0, low = 0, high = 255, n;

	for (int i = 0; i < W * H; i++) {
		sum += s->thumb.y[i];
		sum2 += s->thumb.y[i] * s->thumb.y[i];
		count[s->thumb.y[i]]++;
	}
	s->mean = (float)sum / N_PIX;
	s->std = sqrtf(fmaxf(0, (float)sum2 / N_PIX - s->mean * s->mean));
	for (n = count[low]; n <= W * H / 200; n += count[low])
		low++;
	for (n = count[high]; n <= W * H / 200; n += count[high])
		high--;
	s->range = (float)(high > low ? high - low : 0);
}

/* Sums over squares by integral images, with pixels repeated beyond the border. */
static void make_form(struct vfm_sig *s)
{
	enum { PW = W + 2 * AROUND, PH = H + 2 * AROUND, SIDE = 2 * AROUND + 1 };
	static const float scale = 1.0f / (SIDE * SIDE);
	int sum[PH + 1][PW + 1], sum2[PH + 1][PW + 1];

	memset(sum[0], 0, sizeof(sum[0]));
	memset(sum2[0], 0, sizeof(sum2[0]));
	for (int j = 0; j < PH; j++) {
		int y = j < AROUND ? 0 : j - AROUND >= H ? H - 1 : j - AROUND, row = 0, row2 = 0;

		sum[j + 1][0] = sum2[j + 1][0] = 0;
		for (int i = 0; i < PW; i++) {
			int x = i < AROUND ? 0 : i - AROUND >= W ? W - 1 : i - AROUND, v = s->thumb.y[y * W + x];

			row += v;
			row2 += v * v;
			sum[j + 1][i + 1] = sum[j][i + 1] + row;
			sum2[j + 1][i + 1] = sum2[j][i + 1] + row2;
		}
	}
	memset(s->form, 128, sizeof(s->form));
	for (int j = 0; j < H; j++) {
		const int *up = sum[j], *down = sum[j + SIDE], *up2 = sum2[j], *down2 = sum2[j + SIDE];
		const uint8_t *y = s->thumb.y + j * W;
		int form[W];

#pragma omp simd
		for (int i = 0; i < W; i++) {
			int a = down[i + SIDE] - up[i + SIDE] - down[i] + up[i];
			int b = down2[i + SIDE] - up2[i + SIDE] - down2[i] + up2[i];
			float mean = (float)a * scale, var = (float)b * scale - mean * mean;

			form[i] = (int)(128.5f + 48 * (((float)y[i] - mean) / (sqrtf(var > 0 ? var : 0) + NOISE)));
		}
		for (int i = 0; i < W; i++)
			s->form[(j + S) * STRIDE + S + i] = clamp_byte(form[i]);
	}
}

void vfm_sig_of(struct vfm_sig *s, const struct vfm_thumb *thumb)
{
	s->thumb = *thumb;
	make_colours(s);
	make_statistics(s);
	make_form(s);
}

/* ---- comparing ---- */

float vfm_sig_pixel(const struct vfm_sig *a, const struct vfm_sig *b)
{
	int chroma = 0;

	for (int i = 0; i < W * H / 4; i++)
		chroma += abs(a->thumb.cb[i] - b->thumb.cb[i]) + abs(a->thumb.cr[i] - b->thumb.cr[i]);
	return vfm_thumb_change(&a->thumb, &b->thumb) + (float)chroma / (N_PIX / 4.0f);
}

float vfm_sig_correlation(const struct vfm_sig *a, const struct vfm_sig *b)
{
	int dot = 0;

	for (int i = 0; i < W * H; i++)
		dot += a->thumb.y[i] * b->thumb.y[i];
	return ((float)dot / N_PIX - a->mean * b->mean) / (a->std * b->std + 1);
}

static int compare_ints(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;

	return x < y ? -1 : x > y;
}

float vfm_sig_spread(const struct vfm_sig *a, const struct vfm_sig *b)
{
	int sums[BLOCKS] = {0}, all = 0;

	for (int j = 0; j < H; j++)
		for (int i = 0; i < W; i++)
			sums[j / B * (W / B) + i / B] += abs(a->thumb.y[j * W + i] - b->thumb.y[j * W + i]);
	for (int i = 0; i < BLOCKS; i++)
		all += sums[i];
	qsort(sums, BLOCKS, sizeof(sums[0]), compare_ints);
	return (float)sums[BLOCKS / 2] * BLOCKS / (float)(all + 1);
}

/* Sets sums[] to the sums of absolute differences of the W / B blocks of a row of blocks and those at b. */
#ifdef __SSE2__
static void sad_of_row(const uint8_t *a, const uint8_t *b, uint16_t sums[W / B])
{
	__m128i sum[W / 16];

	for (int i = 0; i < W / 16; i++)
		sum[i] = _mm_setzero_si128();
	for (int j = 0; j < B; j++)
		for (int i = 0; i < W / 16; i++)
			sum[i] = _mm_add_epi64(sum[i],
				_mm_sad_epu8(_mm_loadu_si128((const __m128i *)(const void *)(a + j * STRIDE + 16 * i)),
					_mm_loadu_si128((const __m128i *)(const void *)(b + j * STRIDE + 16 * i))));
	for (int i = 0; i < W / 16; i++) {
		sums[2 * i] = (uint16_t)_mm_extract_epi16(sum[i], 0);
		sums[2 * i + 1] = (uint16_t)_mm_extract_epi16(sum[i], 4);
	}
}
#else
static void sad_of_row(const uint8_t *a, const uint8_t *b, uint16_t sums[W / B])
{
	uint16_t column[W] = {0};

	for (int j = 0; j < B; j++)
		for (int i = 0; i < W; i++)
			column[i] = (uint16_t)(column[i] + abs(a[j * STRIDE + i] - b[j * STRIDE + i]));
	memset(sums, 0, sizeof(sums[0]) * (W / B));
	for (int i = 0; i < W; i++)
		sums[i / B] = (uint16_t)(sums[i / B] + column[i]);
}
#endif

/* Lowers best[] to the sums of absolute differences of the blocks of b and those of a moved by `shift` elements. */
static void match_moved(const uint8_t *a, const uint8_t *b, long shift, uint16_t best[BLOCKS])
{
	for (int j = 0; j < H / B; j++) {
		uint16_t sums[W / B];

		sad_of_row(a + j * B * STRIDE + shift, b + j * B * STRIDE, sums);
		for (int i = 0; i < W / B; i++)
			if (sums[i] < best[j * (W / B) + i])
				best[j * (W / B) + i] = sums[i];
	}
}

/* Sets texture[] to the sums of |form - 128| of the blocks. */
static void measure_texture(const struct vfm_sig *s, uint16_t texture[BLOCKS])
{
	static const uint8_t even[(H + 2 * S) * STRIDE] = {[0 ...(H + 2 * S) * STRIDE - 1] = 128};

	memset(texture, 0xff, BLOCKS * sizeof(texture[0]));
	match_moved(s->form + S * STRIDE + S, even + S * STRIDE + S, 0, texture);
}

float vfm_sig_textured(const struct vfm_sig *s)
{
	uint16_t texture[BLOCKS];
	int n = 0;

	measure_texture(s, texture);
	for (int i = 0; i < BLOCKS; i++)
		n += texture[i] >= CLEAR * B * B;
	return (float)n / BLOCKS;
}

float vfm_sig_area(const struct vfm_sig *a, const struct vfm_sig *b)
{
	int n = 0;

#pragma omp simd reduction(+ : n)
	for (int i = 0; i < W * H; i++)
		n += abs(a->thumb.y[i] - b->thumb.y[i]) > CHANGED;
	return (float)n / N_PIX;
}

void vfm_sig_compare(const struct vfm_sig *a, const struct vfm_sig *b, struct vfm_sig_diff *d)
{
	const uint8_t *fa = a->form + S * STRIDE + S, *fb = b->form + S * STRIDE + S;
	uint16_t best[BLOCKS], texture_a[BLOCKS], texture_b[BLOCKS];
	int overlap = 0, n = 0, lost = 0;
	float left = 0, there = 0;

	memset(best, 0xff, sizeof(best));
	measure_texture(a, texture_a);
	measure_texture(b, texture_b);
	for (int dy = -S; dy <= S; dy++)
		for (int dx = -S; dx <= S; dx++)
			match_moved(fa, fb, (long)dy * STRIDE + dx, best);
	for (int i = 0; i < BLOCKS; i++) {
		float t = (float)(texture_a[i] > texture_b[i] ? texture_a[i] : texture_b[i]), r = fminf(best[i], t);

		if (t < FLAT * B * B)
			continue;
		n++;
		left += r;
		there += t;
		lost += r > UNEXPLAINED * t;
	}
	for (int i = 0; i < VFM_SIG_HIST; i++)
		overlap += a->hist[i] < b->hist[i] ? a->hist[i] : b->hist[i];
	d->pixel = vfm_sig_pixel(a, b);
	d->hist = 1 - (float)overlap / (N_PIX / 4.0f);
	d->moved = there > 0 ? left / there : 0;
	d->blocks = n ? (float)lost / (float)n : 0;
}

/* Sums |a - b| and |b - 128| of form where b moved by dx, dy lies in a. */
static float shifted_residual(const uint8_t *a, const uint8_t *b, int dx, int dy)
{
	int x0 = dx < 0 ? -dx : 0, x1 = dx < 0 ? W : W - dx, y0 = dy < 0 ? -dy : 0, y1 = dy < 0 ? H : H - dy;
	int sum = 0, texture = 0;

	for (int y = y0; y < y1; y += 2) {
		const uint8_t *p = a + (y + dy) * STRIDE + dx, *q = b + y * STRIDE;

#pragma omp simd reduction(+ : sum, texture)
		for (int x = x0; x < x1; x++) {
			sum += abs(p[x] - q[x]);
			texture += abs(q[x] - 128);
		}
	}
	return (float)(sum + 1) / (float)(texture + (x1 - x0) * (y1 - y0) + 1);
}

float vfm_sig_shifted(const struct vfm_sig *a, const struct vfm_sig *b)
{
	const uint8_t *fa = a->form + S * STRIDE + S, *fb = b->form + S * STRIDE + S;
	float best = shifted_residual(fa, fb, 0, 0);
	int at_x = 0, at_y = 0;

	/* Every second shift, then those around the best. */
	for (int dy = -SHIFT_Y; dy <= SHIFT_Y; dy += 2)
		for (int dx = -SHIFT_X; dx <= SHIFT_X; dx += 2) {
			float r = shifted_residual(fa, fb, dx, dy);

			if (r < best) {
				best = r;
				at_x = dx;
				at_y = dy;
			}
		}
	for (int dy = at_y - 1; dy <= at_y + 1; dy++)
		for (int dx = at_x - 1; dx <= at_x + 1; dx++)
			best = fminf(best, shifted_residual(fa, fb, dx, dy));
	return fminf(best, 1);
}
