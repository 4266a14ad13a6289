/* wavelet.c - the transform of rows of blocks, its inverse, and the order and norms of the channels.
 *
 * Walsh functions with fewer than 2^n sign changes are constant on cells of 1/2^n of the block.  If the C channels need
 * only the levels up to n, pixels are first summed over cells (integers, exact), and the transform runs on cells.  The
 * colour transform is linear and comes after the sums.  Cells have the layout [cell][block along x]: all inner loops
 * run over the blocks of a row. */
#include "encoder/vae/wavelet.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"

static struct vfm_wavelet_channel table[VFM_WAVELET_MAX];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

/* ---- the order of the channels ---- */

static int level(int k)
{
	return k == 0 ? 0 : k == 1 ? 1 : k < 4 ? 2 : 3;
}

static int order_key(const struct vfm_wavelet_channel *c)
{
	int u = c->comp != 0, x = level(c->kx), y = level(c->ky), t = level(c->kt) + u;
	int m = x > y ? x : y;

	return (m > t ? m : t) * 16 + x + y + t;
}

static int by_order(const void *a, const void *b)
{
	const struct vfm_wavelet_channel *p = a, *q = b;
	int d = order_key(p) - order_key(q);

	if (d == 0)
		d = p->comp - q->comp;
	if (d == 0)
		d = p->kt - q->kt;
	if (d == 0)
		d = p->ky - q->ky;
	return d ? d : p->kx - q->kx;
}

/* ---- the constants ----
 *
 * Standard deviations of the coefficients by component and levels [lt][ly][lx]: geometric means over 34 real
 * clips of many kinds at 256 x 256 and 8 frames a second, and over synthetic ones (synth.h).  A channel is scaled to
 * 0.7. */
static const float deviation[3][3][4][4] = {
	{{{2.853f, 0.375f, 0.171f, 0.077f}, {0.389f, 0.122f, 0.063f, 0.030f}, {0.183f, 0.061f, 0.034f, 0.020f},
		 {0.082f, 0.029f, 0.018f, 0.012f}},
		{{0.480f, 0.168f, 0.082f, 0.037f}, {0.163f, 0.083f, 0.048f, 0.024f}, {0.080f, 0.044f, 0.028f, 0.016f},
			{0.037f, 0.022f, 0.014f, 0.009f}},
		{{0.241f, 0.110f, 0.064f, 0.032f}, {0.108f, 0.060f, 0.041f, 0.021f}, {0.063f, 0.036f, 0.027f, 0.016f},
			{0.032f, 0.018f, 0.014f, 0.010f}}},
	{{{1.678f, 0.194f, 0.094f, 0.049f}, {0.188f, 0.057f, 0.027f, 0.012f}, {0.087f, 0.028f, 0.014f, 0.007f},
		 {0.041f, 0.013f, 0.007f, 0.004f}},
		{{0.271f, 0.079f, 0.039f, 0.017f}, {0.099f, 0.042f, 0.023f, 0.011f}, {0.047f, 0.024f, 0.014f, 0.007f},
			{0.020f, 0.012f, 0.007f, 0.004f}},
		{{0.152f, 0.054f, 0.031f, 0.015f}, {0.072f, 0.031f, 0.020f, 0.010f}, {0.039f, 0.020f, 0.013f, 0.008f},
			{0.018f, 0.010f, 0.007f, 0.004f}}},
	{{{1.330f, 0.248f, 0.107f, 0.046f}, {0.185f, 0.059f, 0.028f, 0.013f}, {0.083f, 0.028f, 0.014f, 0.008f},
		 {0.038f, 0.012f, 0.007f, 0.004f}},
		{{0.253f, 0.086f, 0.038f, 0.016f}, {0.089f, 0.043f, 0.023f, 0.011f}, {0.041f, 0.022f, 0.013f, 0.007f},
			{0.018f, 0.010f, 0.006f, 0.004f}},
		{{0.135f, 0.057f, 0.030f, 0.014f}, {0.063f, 0.031f, 0.020f, 0.010f}, {0.035f, 0.018f, 0.013f, 0.007f},
			{0.016f, 0.009f, 0.007f, 0.004f}}},
};
static const float mean[3] = {-2.0f, -0.25f, 0.07f}; /* of the lowest coefficient of each component: between the two */

static void set_norm(struct vfm_wavelet_channel *c)
{
	c->scale = 0.7f / deviation[c->comp][level(c->kt)][level(c->ky)][level(c->kx)];
	c->shift = c->kt + c->ky + c->kx ? 0 : mean[c->comp];
}

static void make_order(void)
{
	int n = 0;

	for (int i = 0; i < 3; i++)
		for (int t = 0; t < 4; t++)
			for (int y = 0; y < 8; y++)
				for (int x = 0; x < 8; x++)
					table[n++] = (struct vfm_wavelet_channel){
						(uint8_t)i, (uint8_t)t, (uint8_t)y, (uint8_t)x, 0, 0};
	qsort(table, VFM_WAVELET_MAX, sizeof(table[0]), by_order);
	for (int c = 0; c < VFM_WAVELET_MAX; c++)
		set_norm(&table[c]);
}

const struct vfm_wavelet_channel *vfm_wavelet_channel(int c)
{
	pthread_once(&table_once, make_order);
	return &table[c];
}

int vfm_wavelet_parse(struct vfm_wavelet *t, const char *spec, struct vfm_err *err)
{
	int64_t channels = VFM_WAVELET_CHANNELS;

	if (strncmp(spec, "wavelet", 7) != 0 || (spec[7] && spec[7] != ':'))
		return vfm_fail(err, VFM_EUSAGE, "unknown tokenizer '%s': expected wavelet or wavelet:CHANNELS", spec);
	if (spec[7] == ':' && vfm_parse_i64(spec + 8, 1, VFM_WAVELET_MAX, &channels, err) < 0)
		return vfm_err_context(err, "tokenizer '%s'", spec);
	pthread_once(&table_once, make_order);
	*t = (struct vfm_wavelet){.channels = (int)channels};
	for (int c = 0; c < t->channels; c++) {
		int y = level(table[c].ky), x = level(table[c].kx), kt = level(table[c].kt);

		t->space_log = y > t->space_log ? y : t->space_log;
		t->space_log = x > t->space_log ? x : t->space_log;
		t->time_log = kt > t->time_log ? kt : t->time_log;
	}
	return 0;
}

struct vfm_encoder_id vfm_wavelet_id(const struct vfm_wavelet *t)
{
	struct vfm_encoder_id m = {.version = VFM_WAVELET_VERSION,
		.geometry = {.stride = {VFM_WAVELET_TIME, VFM_WAVELET_SPACE, VFM_WAVELET_SPACE},
			.channels = t->channels,
			.first = VFM_WAVELET_TIME,
			.step = VFM_WAVELET_TIME,
			.pad = true,
			.scaling = "shift-scale"}};

	snprintf(m.name, sizeof(m.name), "wavelet:%d", t->channels);
	return m;
}

/* ---- the transform of one row of blocks ---- */

struct row {
	int ns, nt;    /* cells of a block along x and y; along t */
	int cells;     /* nt * ns * ns */
	int ps, pt;    /* pixels of a cell along x and y; along t */
	int blocks;    /* in a row: w */
	int width;     /* pixels */
	float *v;      /* [3, nt, ns, ns, blocks] */
	uint16_t *sum; /* [width * 3] */
};

static void row_init(struct row *r, const struct vfm_wavelet *t, int w)
{
	*r = (struct row){.ns = 1 << t->space_log, .nt = 1 << t->time_log, .blocks = w, .width = w * VFM_WAVELET_SPACE};
	r->ps = VFM_WAVELET_SPACE / r->ns;
	r->pt = VFM_WAVELET_TIME / r->nt;
	r->cells = r->nt * r->ns * r->ns;
	r->v = vfm_calloc((size_t)r->cells * 3 * (size_t)w, sizeof(float));
	r->sum = vfm_calloc((size_t)r->width * 3, sizeof(uint16_t));
}

static void row_release(struct row *r)
{
	free(r->v);
	free(r->sum);
}

static float *cell(const struct row *r, int comp, int t, int y, int x)
{
	return r->v +
		((((size_t)comp * (size_t)r->nt + (size_t)t) * (size_t)r->ns + (size_t)y) * (size_t)r->ns + (size_t)x) *
		(size_t)r->blocks;
}

/* Place in the Hadamard (natural) order of the Walsh function with k sign changes, of 2^log: bit-reversed Gray code. */
static int hadamard_of(int k, int log)
{
	int g = k ^ k >> 1, r = 0;

	for (int i = 0; i < log; i++)
		r |= (g >> i & 1) << (log - 1 - i);
	return r;
}

/* In-place Walsh-Hadamard transform of the cells of every component along all axes, not normalised; it is its own
 * inverse up to a factor.  The cell index is one bit field (t, y, x), so that all axes are one run of butterflies. */
static void butterflies(struct row *r)
{
	const int w = r->blocks;

	for (int comp = 0; comp < 3; comp++) {
		float *v = r->v + (size_t)comp * (size_t)r->cells * (size_t)w;

		for (int bit = 1; bit < r->cells; bit <<= 1) {
			for (int i = 0; i < r->cells; i++) {
				float *restrict a = v + (size_t)i * (size_t)w;
				float *restrict b = v + (size_t)(i | bit) * (size_t)w;

				if (i & bit)
					continue;
				for (int x = 0; x < w; x++) {
					float p = a[x], q = b[x];

					a[x] = p + q;
					b[x] = p - q;
				}
			}
		}
	}
}

static float *coef(const struct row *r, const struct vfm_wavelet *t, const struct vfm_wavelet_channel *c)
{
	return cell(r, c->comp, hadamard_of(c->kt, t->time_log), hadamard_of(c->ky, t->space_log),
		hadamard_of(c->kx, t->space_log));
}

/* Sums of R, G, B over the cells (t, y, *) into cell arrays 0, 1, 2. */
static void sum_cells(struct row *r, const uint8_t *const frame[VFM_WAVELET_TIME], int ct, int cy)
{
	const int n = r->width * 3, ps = r->ps;

	memset(r->sum, 0, (size_t)n * sizeof(*r->sum));
	for (int t = ct * r->pt; t < (ct + 1) * r->pt; t++) {
		for (int y = cy * ps; y < (cy + 1) * ps; y++) {
			const uint8_t *restrict src = frame[t] + (size_t)y * (size_t)n;
			uint16_t *restrict sum = r->sum;

			for (int i = 0; i < n; i++) /* at most 8 * 4 * 255 */
				sum[i] = (uint16_t)(sum[i] + src[i]);
		}
	}
	for (int x = 0; x < r->ns; x++) {
		float *red = cell(r, 0, ct, cy, x), *green = cell(r, 1, ct, cy, x), *blue = cell(r, 2, ct, cy, x);

		for (int b = 0; b < r->blocks; b++) {
			const uint16_t *s = r->sum + ((size_t)b * VFM_WAVELET_SPACE + (size_t)(x * ps)) * 3;
			unsigned c0 = 0, c1 = 0, c2 = 0;

			for (int i = 0; i < ps; i++) {
				c0 += s[3 * i];
				c1 += s[3 * i + 1];
				c2 += s[3 * i + 2];
			}
			red[b] = (float)c0;
			green[b] = (float)c1;
			blue[b] = (float)c2;
		}
	}
}

/* Cell sums of bytes -> cell sums of Y, Cb, Cr, in place. */
static void to_ycc(struct row *r)
{
	const size_t n = (size_t)r->cells * (size_t)r->blocks;
	const float mid = 0.5f * (float)(r->ps * r->ps * r->pt);
	float *restrict p = r->v, *restrict q = r->v + n, *restrict s = r->v + 2 * n;

	for (size_t i = 0; i < n; i++) {
		float red = p[i] * (1 / 255.0f), green = q[i] * (1 / 255.0f), blue = s[i] * (1 / 255.0f);
		float y = 0.299f * red + 0.587f * green + 0.114f * blue;

		p[i] = y - mid;
		q[i] = (blue - y) * (1 / 1.772f);
		s[i] = (red - y) * (1 / 1.402f);
	}
}

static void encode_row(struct row *r, const struct vfm_wavelet *t, const uint8_t *const frame[VFM_WAVELET_TIME],
	float *latent, size_t plane)
{
	for (int ct = 0; ct < r->nt; ct++)
		for (int cy = 0; cy < r->ns; cy++)
			sum_cells(r, frame, ct, cy);
	to_ycc(r);
	butterflies(r);
	for (int c = 0; c < t->channels; c++) {
		const float *restrict src = coef(r, t, &table[c]);
		float *restrict dst = latent + (size_t)c * plane;
		const float scale = table[c].scale / 16, shift = table[c].shift * table[c].scale; /* 16 = sqrt(4*8*8) */

		for (int b = 0; b < r->blocks; b++)
			dst[b] = src[b] * scale - shift;
	}
}

static int check_size(int64_t frames, int64_t height, int64_t width, struct vfm_err *err)
{
	if (frames < 1 || height < VFM_WAVELET_SPACE || width < VFM_WAVELET_SPACE || height % VFM_WAVELET_SPACE ||
		width % VFM_WAVELET_SPACE || height > 1 << 16 || width > 1 << 16)
		return vfm_fail(err, VFM_EINPUT,
			"cannot tokenize %lld frames of %lldx%lld: expected at least one, with sides "
			"that are multiples of %d",
			(long long)frames, (long long)width, (long long)height, VFM_WAVELET_SPACE);
	return 0;
}

int vfm_wavelet_encode(const struct vfm_wavelet *t, const uint8_t *rgb, int64_t frames, int height, int width,
	float *latent, struct vfm_err *err)
{
	const int64_t nt = frames / VFM_WAVELET_TIME + (frames % VFM_WAVELET_TIME != 0);
	const size_t h = (size_t)height / VFM_WAVELET_SPACE, w = (size_t)width / VFM_WAVELET_SPACE;
	const size_t stride = (size_t)width * 3;
	const uint8_t *frame[VFM_WAVELET_TIME];
	struct row r;

	TRY(check_size(frames, height, width, err));
	row_init(&r, t, (int)w);
	for (int64_t it = 0; it < nt; it++) {
		for (size_t y = 0; y < h; y++) {
			for (int i = 0; i < VFM_WAVELET_TIME; i++) {
				int64_t f = it * VFM_WAVELET_TIME + i;

				f = f < frames ? f : frames - 1;
				frame[i] = rgb + ((size_t)f * (size_t)height + y * VFM_WAVELET_SPACE) * stride;
			}
			encode_row(&r, t, frame, latent + ((size_t)it * h + y) * w, (size_t)nt * h * w);
		}
	}
	row_release(&r);
	return 0;
}

/* ---- back ---- */

static uint8_t to_byte(float x)
{
	x = x * 255 + 0.5f;
	return !(x > 0) ? 0 : x >= 255 ? 255 : (uint8_t)x; /* NaN becomes 0 */
}

/* Latents -> cells of Y, Cb, Cr as pixel values. */
static void restore_cells(struct row *r, const struct vfm_wavelet *t, const float *latent, size_t plane, bool still)
{
	/* A coefficient times its basis function, whose values are +-1/16, is a pixel. */
	memset(r->v, 0, (size_t)r->cells * 3 * (size_t)r->blocks * sizeof(float));
	for (int c = 0; c < t->channels; c++) {
		const float *restrict src = latent + (size_t)c * plane;
		float *restrict dst = coef(r, t, &table[c]);
		const float scale = 1 / (table[c].scale * 16), shift = table[c].shift / 16;

		if (still && table[c].kt)
			continue;
		for (int b = 0; b < r->blocks; b++)
			dst[b] = src[b] * scale + shift;
	}
	butterflies(r);
}

/* One row of cells as one line of pixels. */
static void cells_to_line(const struct row *r, int ct, int cy, uint8_t *restrict line)
{
	for (int x = 0; x < r->ns; x++) {
		const float *py = cell(r, 0, ct, cy, x), *pb = cell(r, 1, ct, cy, x), *pr = cell(r, 2, ct, cy, x);

		for (int b = 0; b < r->blocks; b++) {
			uint8_t *dst = line + ((size_t)b * VFM_WAVELET_SPACE + (size_t)(x * r->ps)) * 3;
			float y = py[b] + 0.5f, red = y + 1.402f * pr[b], blue = y + 1.772f * pb[b];
			float green = (y - 0.299f * red - 0.114f * blue) * (1 / 0.587f);

			dst[0] = to_byte(red);
			dst[1] = to_byte(green);
			dst[2] = to_byte(blue);
			for (int i = 1; i < r->ps; i++)
				memcpy(dst + 3 * i, dst, 3);
		}
	}
}

/* Latent row (it, y) -> its 4 x 8 lines of pixels, as far as there are frames. */
static void decode_row(const struct row *r, int64_t it, size_t y, int64_t frames, size_t height, uint8_t *rgb)
{
	const size_t stride = (size_t)r->width * 3;

	for (int i = 0; i < VFM_WAVELET_TIME && it * VFM_WAVELET_TIME + i < frames; i++) {
		uint8_t *out = rgb + ((size_t)(it * VFM_WAVELET_TIME + i) * height + y * VFM_WAVELET_SPACE) * stride;

		for (int line = 0; line < VFM_WAVELET_SPACE; line++, out += stride) {
			if (line % r->ps == 0)
				cells_to_line(r, i / r->pt, line / r->ps, out);
			else
				memcpy(out, out - stride, stride);
		}
	}
}

int vfm_wavelet_decode(const struct vfm_wavelet *t, const float *latent, int64_t latent_frames, int h, int w,
	int64_t frames, uint8_t *rgb, struct vfm_err *err)
{
	const size_t plane = (size_t)latent_frames * (size_t)h * (size_t)w;
	struct row r;

	TRY(check_size(frames, (int64_t)h * VFM_WAVELET_SPACE, (int64_t)w * VFM_WAVELET_SPACE, err));
	if (frames > latent_frames * VFM_WAVELET_TIME)
		return vfm_fail(err, VFM_EINPUT, "%lld latent frames hold no %lld frames", (long long)latent_frames,
			(long long)frames);
	row_init(&r, t, w);
	for (int64_t it = 0; it < frames / VFM_WAVELET_TIME + (frames % VFM_WAVELET_TIME != 0); it++) {
		for (size_t y = 0; y < (size_t)h; y++) {
			const float *src = latent + ((size_t)it * (size_t)h + y) * (size_t)w;

			restore_cells(&r, t, src, plane, frames == 1 && latent_frames == 1);
			decode_row(&r, it, y, frames, (size_t)h * VFM_WAVELET_SPACE, rgb);
		}
	}
	row_release(&r);
	return 0;
}
