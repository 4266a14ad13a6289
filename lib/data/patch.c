/* patch.c - latents to tokens and back. */
#include "data/patch.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

int vfm_patch_parse(const char *s, int32_t patch[3], struct vfm_err *err)
{
	int used = 0;

	if (sscanf(s, "%2dx%2dx%2d%n", &patch[0], &patch[1], &patch[2], &used) != 3 || s[used] || patch[0] < 1 ||
		patch[1] < 1 || patch[2] < 1 || patch[0] > 64 || patch[1] > 64 || patch[2] > 64)
		return vfm_fail(err, VFM_EUSAGE, "expected TxHxW, each 1 to 64, got '%s'", s);
	return 0;
}

int64_t vfm_patch_grid(const int32_t dims[3], const int32_t patch[3], int32_t grid[3], struct vfm_err *err)
{
	int64_t n = 1;

	for (int i = 0; i < 3; i++) {
		if (dims[i] < 1 || patch[i] < 1)
			return vfm_fail(err, VFM_EINPUT, "a latent of %dx%dx%d", dims[0], dims[1], dims[2]);
		if (dims[i] % patch[i])
			return vfm_fail(err, VFM_EINPUT, "a latent of %dx%dx%d is not divisible by the patch %dx%dx%d",
				dims[0], dims[1], dims[2], patch[0], patch[1], patch[2]);
		grid[i] = dims[i] / patch[i];
		n *= grid[i];
		if (n > INT32_MAX)
			return vfm_fail(
				err, VFM_EINPUT, "a latent of %dx%dx%d is too large", dims[0], dims[1], dims[2]);
	}
	return n;
}

/* ---- the permutation ---- */

enum {
	PIECE = 256,        /* elements that are widened at once */
	TILE = 64 << 10,    /* bytes of a row of tokens on the stack */
	LARGE = 1024 << 10, /* tokens of so many bytes are not read again from the cache */
};

struct patches {
	int32_t channels, t, h, w, pt, ph, pw;
	int64_t gw, gh, width; /* grid; elements of a token */
};

static struct patches make_patches(int32_t channels, const int32_t dims[3], const int32_t patch[3])
{
	return (struct patches){channels, dims[0], dims[1], dims[2], patch[0], patch[1], patch[2], dims[2] / patch[2],
		dims[1] / patch[1], (int64_t)channels * patch[0] * patch[1] * patch[2]};
}

/* Copies `patch` bytes at a time to places that lie `stride` bytes apart. */
static inline __attribute__((always_inline)) void scatter_patches(
	char *out, const char *in, int64_t bytes, int64_t stride, size_t patch)
{
	for (int64_t i = 0; i < bytes; i += (int64_t)patch, out += stride)
		memcpy(out, in + i, patch);
}

static void scatter(char *out, const void *in, int64_t bytes, int64_t stride, size_t patch)
{
	if (patch == 4)
		scatter_patches(out, in, bytes, stride, 4);
	else if (patch == 8)
		scatter_patches(out, in, bytes, stride, 8);
	else
		scatter_patches(out, in, bytes, stride, patch);
}

/* Widens n elements to f32 and scatters them, pw at a time. */
static void scatter_wide(char *out, const uint16_t *in, enum vfm_npy_type type, int64_t n, int32_t pw, int64_t stride)
{
	const int64_t piece = PIECE / pw * pw;
	float wide[PIECE];

	for (int64_t i = 0, k; i < n; i += k, out += k / pw * stride) {
		k = n - i < piece ? n - i : piece;
		if (type == VFM_NPY_BF16)
			vfm_bf16s_to_f32(wide, in + i, (size_t)k);
		else
			vfm_f16s_to_f32(wide, in + i, (size_t)k);
		scatter(out, wide, k * (int64_t)sizeof(*wide), stride, (size_t)pw * sizeof(*wide));
	}
}

/* Returns the first element of row (h + jh) of frame (t + jt) of a channel; j = jt ph + jh. */
static int64_t row_of(const struct patches *p, int32_t c, int32_t t, int32_t h, int32_t j)
{
	return (((int64_t)c * p->t + t + j / p->ph) * p->h + h + j % p->ph) * p->w;
}

/* Writes the row of gw tokens from frame t and line h on. */
static void patchify_row(const struct patches *p, const void *latent, enum vfm_npy_type type, int32_t t, int32_t h,
	char *row, enum vfm_dtype dtype)
{
	const int64_t size = (int64_t)vfm_npy_type_size(type), wide = (int64_t)vfm_dtype_size(dtype);

	for (int32_t c = 0; c < p->channels; c++)
		for (int32_t j = 0; j < p->pt * p->ph; j++) {
			const char *in = (const char *)latent + row_of(p, c, t, h, j) * size;
			char *out = row + ((int64_t)c * p->pt * p->ph + j) * p->pw * wide;

			if (size == wide)
				scatter(out, in, p->w * size, p->width * size, (size_t)(p->pw * size));
			else
				scatter_wide(
					out, (const uint16_t *)(const void *)in, type, p->w, p->pw, p->width * wide);
		}
}

/* A row of tokens is complete before the next one begins, so that it stays in the cache; a large result then passes the
 * caches by. */
void vfm_patchify(const void *latent, enum vfm_npy_type type, int32_t channels, const int32_t dims[3],
	const int32_t patch[3], void *tokens, enum vfm_dtype dtype)
{
	const struct patches p = make_patches(channels, dims, patch);
	const size_t row = (size_t)(p.gw * p.width) * vfm_dtype_size(dtype);
	const bool streams = row <= TILE && row * (size_t)(p.t / p.pt * p.gh) >= LARGE;
	_Alignas(64) char tile[TILE];
	char *out = tokens;

	for (int32_t t = 0; t < p.t; t += p.pt)
		for (int32_t h = 0; h < p.h; h += p.ph, out += row) {
			patchify_row(&p, latent, type, t, h, streams ? tile : out, dtype);
			if (streams)
				vfm_copy_streaming(out, tile, row);
		}
}

void vfm_unpatchify(const float *tokens, int32_t channels, const int32_t dims[3], const int32_t patch[3], float *latent)
{
	const struct patches p = make_patches(channels, dims, patch);

	for (int32_t t = 0; t < p.t; t += p.pt)
		for (int32_t h = 0; h < p.h; h += p.ph, tokens += p.gw * p.width)
			for (int32_t c = 0; c < p.channels; c++)
				for (int32_t j = 0; j < p.pt * p.ph; j++) {
					const float *in = tokens + ((int64_t)c * p.pt * p.ph + j) * p.pw;
					float *out = latent + row_of(&p, c, t, h, j);

					for (int64_t i = 0; i < p.w; i++)
						out[i] = in[i / p.pw * p.width + i % p.pw];
				}
}
