/* patch.c - latents to tokens and back. */
#include "data/patch.h"

#include <stdio.h>
#include <string.h>

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

enum { ROW = 256 }; /* elements that are converted at once */

struct patch_shape {
	int32_t channels, t, h, w, pt, ph, pw;
};

/* Calls `body` for each row of a latent, [w] at latent[src].  Its patches, pw elements each, lie `width` elements apart
 * from tokens[dst] on.  A row of tokens is complete before the next one begins, so that it stays in the cache. */
#define FOR_ROWS(s, body)                                                                                              \
	do {                                                                                                           \
		const int64_t gw = (s)->w / (s)->pw, gh = (s)->h / (s)->ph;                                            \
		const int64_t width = (int64_t)(s)->channels * (s)->pt * (s)->ph * (s)->pw;                            \
		for (int32_t t = 0; t < (s)->t; t += (s)->pt)                                                          \
			for (int32_t h = 0; h < (s)->h; h += (s)->ph)                                                  \
				for (int32_t c = 0; c < (s)->channels; c++)                                            \
					for (int32_t j = 0; j < (s)->pt * (s)->ph; j++) {                              \
						const int64_t jt = j / (s)->ph, jh = j % (s)->ph;                      \
						const int64_t src =                                                    \
							(((int64_t)c * (s)->t + t + jt) * (s)->h + h + jh) * (s)->w;   \
						const int64_t dst =                                                    \
							((int64_t)t / (s)->pt * gh + h / (s)->ph) * gw * width +       \
							((int64_t)c * (s)->pt * (s)->ph + j) * (s)->pw;                \
						body;                                                                  \
					}                                                                              \
	} while (0)

static struct patch_shape patch_shape(int32_t channels, const int32_t dims[3], const int32_t patch[3])
{
	return (struct patch_shape){channels, dims[0], dims[1], dims[2], patch[0], patch[1], patch[2]};
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
	const int64_t piece = ROW / pw * pw;
	float row[ROW];

	for (int64_t i = 0, k; i < n; i += k, out += k / pw * stride) {
		k = n - i < piece ? n - i : piece;
		if (type == VFM_NPY_BF16)
			vfm_bf16s_to_f32(row, in + i, (size_t)k);
		else
			vfm_f16s_to_f32(row, in + i, (size_t)k);
		scatter(out, row, k * (int64_t)sizeof(*row), stride, (size_t)pw * sizeof(*row));
	}
}

void vfm_patchify(const void *latent, enum vfm_npy_type type, int32_t channels, const int32_t dims[3],
	const int32_t patch[3], void *tokens, enum vfm_dtype dtype)
{
	const struct patch_shape s = patch_shape(channels, dims, patch);
	const int64_t size = (int64_t)vfm_npy_type_size(type), wide = (int64_t)vfm_dtype_size(dtype);
	const uint16_t *half = latent;

	if (size == wide)
		FOR_ROWS(&s,
			scatter((char *)tokens + dst * size, (const char *)latent + src * size, s.w * size,
				width * size, (size_t)(s.pw * size)));
	else
		FOR_ROWS(&s, scatter_wide((char *)tokens + dst * wide, half + src, type, s.w, s.pw, width * wide));
}

void vfm_unpatchify(const float *tokens, int32_t channels, const int32_t dims[3], const int32_t patch[3], float *latent)
{
	const struct patch_shape s = patch_shape(channels, dims, patch);

	FOR_ROWS(&s, for (int64_t i = 0; i < s.w; i++) latent[src + i] = tokens[dst + i / s.pw * width + i % s.pw]);
}
