/* clip_vision_picture.c - resizes, crops and normalizes a picture, as the programs that trained models on such rows.
 *
 * The results of Pillow's filter have its bits: 8-bit pixels between the passes, and coefficients of 22 bits.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "encoder/image/clip_vision_impl.h"

/* The cubic convolution kernel (Keys, 1981, equation 15), with its free parameter a. */
static double cubic_kernel(double x, double a)
{
	x = fabs(x);
	if (x < 1)
		return ((a + 2) * x - (a + 3)) * x * x + 1;
	return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/* Returns how a value of a channel enters the network. */
static float normalize_value(const struct vision_picture *p, float x, int channel)
{
	return (x - p->mean[channel]) / p->std[channel];
}

/* ---- Pillow ---- */

enum { TAP_BITS = 22 }; /* of a coefficient behind the point */

/* Coefficients for consecutive output pixels of a row or column. */
struct taps {
	int n, most;  /* output pixels; coefficients of one, at most */
	int *first;   /* [n] input pixel of the first coefficient */
	int *count;   /* [n] */
	int32_t *tap; /* [n, most] */
};

static void free_taps(struct taps *t)
{
	free(t->first);
	free(t->count);
	free(t->tap);
}

/* The output pixels [from, from + n) of `in` pixels resized to `out`.  The kernel is wider if the picture shrinks. */
static struct taps make_taps(int64_t in, int64_t out, int64_t from, int n)
{
	const double scale = (double)in / (double)out, wide = scale < 1 ? 1 : scale, support = 2 * wide;
	struct taps t = {.n = n, .most = (int)ceil(support) * 2 + 1};
	double *w = vfm_calloc((size_t)t.most, sizeof(*w));

	t.first = vfm_calloc((size_t)n, sizeof(*t.first));
	t.count = vfm_calloc((size_t)n, sizeof(*t.count));
	t.tap = vfm_calloc((size_t)n * (size_t)t.most, sizeof(*t.tap));
	for (int i = 0; i < n; i++) {
		const double center = ((double)(from + i) + 0.5) * scale;
		const int64_t low = (int64_t)(center - support + 0.5), high = (int64_t)(center + support + 0.5);
		const int first = low < 0 ? 0 : (int)low, count = (int)(high < in ? high : in) - first;
		double sum = 0;

		for (int k = 0; k < count; k++)
			sum += w[k] = cubic_kernel(((double)(k + first) - center + 0.5) * (1 / wide), -0.5);
		for (int k = 0; k < count; k++) {
			const double tap = w[k] / sum * (1 << TAP_BITS);

			t.tap[i * t.most + k] = (int32_t)(tap < 0 ? tap - 0.5 : tap + 0.5);
		}
		t.first[i] = first;
		t.count[i] = count;
	}
	free(w);
	return t;
}

/* Returns the weighted sum of pixels, `step` bytes apart, in 8 bits. */
static uint8_t filter_pixel(const struct taps *t, int i, const uint8_t *in, size_t step)
{
	const int32_t *tap = t->tap + (size_t)i * (size_t)t->most;
	int32_t sum = 1 << (TAP_BITS - 1);

	for (int k = 0; k < t->count[i]; k++)
		sum += in[(size_t)k * step] * tap[k];
	sum >>= TAP_BITS;
	return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/* Writes the window [side, side, 3] of the resized picture: columns across, then down. */
static int filter_window(const struct taps *across, const struct taps *down, const uint8_t *rgb, int width,
	uint8_t *out, struct vfm_err *err)
{
	const int first = down->first[0], last = down->first[down->n - 1] + down->count[down->n - 1];
	const size_t row = (size_t)across->n * 3, bytes = (size_t)(last - first) * row;
	uint8_t *rows = vfm_big_alloc(bytes, "a resized picture", err);

	if (!rows)
		return VFM_EENV;
	for (int y = first; y < last; y++)
		for (int x = 0; x < across->n; x++)
			for (int c = 0; c < 3; c++)
				rows[(size_t)(y - first) * row + (size_t)x * 3 + (size_t)c] = filter_pixel(across, x,
					rgb + ((size_t)y * (size_t)width + (size_t)across->first[x]) * 3 + c, 3);
	for (int y = 0; y < down->n; y++)
		for (size_t i = 0; i < row; i++)
			out[(size_t)y * row + i] =
				filter_pixel(down, y, rows + (size_t)(down->first[y] - first) * row + i, row);
	vfm_big_free(rows, bytes);
	return 0;
}

static int pillow_pixels(
	const struct vision_picture *p, const uint8_t *rgb, int height, int width, float *pixels, struct vfm_err *err)
{
	const int64_t n = p->side, shorter = height < width ? height : width;
	const int64_t h = p->shortest ? (int64_t)p->shortest * height / shorter : n;
	const int64_t w = p->shortest ? (int64_t)p->shortest * width / shorter : n;
	struct taps across = make_taps(width, w, (w - n) / 2, (int)n), down = make_taps(height, h, (h - n) / 2, (int)n);
	const size_t area = (size_t)n * (size_t)n;
	uint8_t *window = vfm_malloc(area * 3);
	int rc = filter_window(&across, &down, rgb, width, window, err);

	for (size_t i = 0; i < area && rc >= 0; i++)
		for (int c = 0; c < 3; c++)
			pixels[(size_t)c * area + i] =
				normalize_value(p, (float)(window[i * 3 + (size_t)c] * p->rescale), c);
	free(window);
	free_taps(&across);
	free_taps(&down);
	return rc;
}

/* ---- interpolate of PyTorch ---- */

/* The four input pixels of an output pixel, clamped to the picture, and their weights, in f32 as in PyTorch. */
struct four {
	int at[4];
	float w[4];
};

static struct four *make_fours(int in, int out)
{
	const float scale = (float)in / (float)out;
	struct four *f = vfm_calloc((size_t)out, sizeof(*f));

	for (int i = 0; i < out; i++) {
		const float place = fmaf((float)i + 0.5f, scale, -0.5f), low = floorf(place), t = place - low;

		for (int k = 0; k < 4; k++) {
			int at = (int)low - 1 + k;

			f[i].at[k] = at < 0 ? 0 : at < in ? at : in - 1;
			f[i].w[k] = (float)cubic_kernel((double)t + 1 - k, -0.75);
		}
	}
	return f;
}

static void interpolate_pixels(const struct vision_picture *p, const uint8_t *rgb, int height, int width, float *pixels)
{
	struct four *down = make_fours(height, p->side), *across = make_fours(width, p->side);
	float value[256];

	for (int i = 0; i < 256; i++)
		value[i] = ((float)i / 255 - 0.5f) / 0.5f;
	for (int c = 0; c < 3; c++)
		for (int y = 0; y < p->side; y++)
			for (int x = 0; x < p->side; x++) {
				float sum = 0;

				for (int j = 0; j < 4; j++) {
					const uint8_t *row = rgb + (size_t)down[y].at[j] * (size_t)width * 3 + c;
					float part = 0;

					for (int k = 0; k < 4; k++)
						part += value[row[(size_t)across[x].at[k] * 3]] * across[x].w[k];
					sum += part * down[y].w[j];
				}
				*pixels++ = normalize_value(p, sum * 0.5f + 0.5f, c);
			}
	free(down);
	free(across);
}

int vision_picture_pixels(
	const struct vision_picture *p, const uint8_t *rgb, int height, int width, float *pixels, struct vfm_err *err)
{
	if (height < 1 || width < 1 || height > VISION_PICTURE_MAX || width > VISION_PICTURE_MAX)
		return vfm_fail(err, VFM_EINPUT, "a picture of %d x %d: expected 1 to %d pixels a side", width, height,
			VISION_PICTURE_MAX);
	if (p->pillow)
		return pillow_pixels(p, rgb, height, width, pixels, err);
	interpolate_pixels(p, rgb, height, width, pixels);
	return 0;
}
