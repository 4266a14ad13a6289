/* patch.c - latents to tokens and back. */
#include "data/patch.h"

#include <stdio.h>

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

/* Iterates in latent order, for both directions: `body` gets rows of pw values that are contiguous on both
 * sides, at latent[src] and tokens[dst]. */
#define FOR_ROWS(body)                                                                                                 \
	do {                                                                                                           \
		const int32_t pt = patch[0], ph = patch[1], pw = patch[2];                                             \
		const int64_t gw = dims[2] / pw, gh = dims[1] / ph, width = (int64_t)channels * pt * ph * pw;          \
		int64_t src = 0;                                                                                       \
		for (int32_t c = 0; c < channels; c++)                                                                 \
			for (int32_t t = 0; t < dims[0]; t++)                                                          \
				for (int32_t h = 0; h < dims[1]; h++) {                                                \
					int64_t token = ((int64_t)(t / pt) * gh + h / ph) * gw;                        \
					int64_t feature = (((int64_t)c * pt + t % pt) * ph + h % ph) * pw;             \
					int64_t dst = token * width + feature;                                         \
					for (int64_t w = 0; w < gw; w++, src += pw, dst += width)                      \
						body;                                                                  \
				}                                                                                      \
	} while (0)

static void patchify32(
	const uint32_t *latent, int32_t channels, const int32_t dims[3], const int32_t patch[3], uint32_t *tokens)
{
	FOR_ROWS(for (int32_t j = 0; j < pw; j++) tokens[dst + j] = latent[src + j]);
}

static void patchify16(
	const uint16_t *latent, int32_t channels, const int32_t dims[3], const int32_t patch[3], uint16_t *tokens)
{
	FOR_ROWS(for (int32_t j = 0; j < pw; j++) tokens[dst + j] = latent[src + j]);
}

void vfm_patchify(const void *latent, size_t element_size, int32_t channels, const int32_t dims[3],
	const int32_t patch[3], void *tokens)
{
	if (element_size == 2)
		patchify16(latent, channels, dims, patch, tokens);
	else
		patchify32(latent, channels, dims, patch, tokens);
}

void vfm_unpatchify(const float *tokens, int32_t channels, const int32_t dims[3], const int32_t patch[3], float *latent)
{
	FOR_ROWS(for (int32_t j = 0; j < pw; j++) latent[src + j] = tokens[dst + j]);
}
