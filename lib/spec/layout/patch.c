/* patch.c - latents to tokens and back. */
#include "spec/layout/patch.h"

#include <stdio.h>
#include <stdlib.h>
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
	MOST_ROWS = 64,     /* of the matrix, that are transposed at once */
	GROUP_ROWS = 4,     /* that are widened at once, */
	PIECE = 256,        /* by so many elements */
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

/* Rows of tokens as the transpose of a matrix of patches.  The matrix has `rows` rows, one for each channel and line of
 * a patch, with n elements of `patch` bytes; the elements of a row go to positions `stride` bytes apart.  in [rows]. */
struct patch_rows {
	const char *const *in;
	int64_t rows, n, stride;
	size_t patch;
};

/* Transposes rows [r0, r1) of elements [i0, i1), one by one. */
static inline __attribute__((always_inline)) void transpose_rest(
	const struct patch_rows *m, char *out, int64_t r0, int64_t r1, int64_t i0, int64_t i1, size_t patch)
{
	for (int64_t r = r0; r < r1; r++)
		for (int64_t i = i0; i < i1; i++)
			memcpy(out + i * m->stride + r * (int64_t)patch, m->in[r] + i * (int64_t)patch, patch);
}

typedef uint32_t quad __attribute__((vector_size(16)));
typedef uint64_t pair __attribute__((vector_size(16)));

/* Transposes four elements of four rows, of 4 bytes each. */
static inline void transpose_4x4(char *out, int64_t stride, const char *const *in, int64_t at)
{
	quad a, b, c, d, ab, cd;

	memcpy(&a, in[0] + at, 16);
	memcpy(&b, in[1] + at, 16);
	memcpy(&c, in[2] + at, 16);
	memcpy(&d, in[3] + at, 16);
	ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
	cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
	a = __builtin_shufflevector(a, b, 2, 6, 3, 7);
	c = __builtin_shufflevector(c, d, 2, 6, 3, 7);
	b = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
	memcpy(out, &b, 16);
	b = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
	memcpy(out + stride, &b, 16);
	b = __builtin_shufflevector(a, c, 0, 1, 4, 5);
	memcpy(out + 2 * stride, &b, 16);
	b = __builtin_shufflevector(a, c, 2, 3, 6, 7);
	memcpy(out + 3 * stride, &b, 16);
}

static void transpose_quads(const struct patch_rows *m, char *out)
{
	const int64_t rows = m->rows / 4 * 4, n = m->n / 4 * 4;

	for (int64_t i = 0; i < n; i += 4)
		for (int64_t r = 0; r < rows; r += 4)
			transpose_4x4(out + i * m->stride + r * 4, m->stride, m->in + r, i * 4);
	transpose_rest(m, out, 0, rows, n, m->n, 4);
	transpose_rest(m, out, rows, m->rows, 0, m->n, 4);
}

static void transpose_pairs(const struct patch_rows *m, char *out)
{
	const int64_t rows = m->rows / 2 * 2, n = m->n / 2 * 2;

	for (int64_t i = 0; i < n; i += 2)
		for (int64_t r = 0; r < rows; r += 2) {
			char *to = out + i * m->stride + r * 8;
			pair a, b, x;

			memcpy(&a, m->in[r] + i * 8, 16);
			memcpy(&b, m->in[r + 1] + i * 8, 16);
			x = __builtin_shufflevector(a, b, 0, 2);
			memcpy(to, &x, 16);
			x = __builtin_shufflevector(a, b, 1, 3);
			memcpy(to + m->stride, &x, 16);
		}
	transpose_rest(m, out, 0, rows, n, m->n, 8);
	transpose_rest(m, out, rows, m->rows, 0, m->n, 8);
}

static void transpose_patches(const struct patch_rows *m, char *out)
{
	if (m->patch == 4)
		transpose_quads(m, out);
	else if (m->patch == 8)
		transpose_pairs(m, out);
	else
		transpose_rest(m, out, 0, m->rows, 0, m->n, m->patch);
}

/* Returns the first element of row (h + jh) of frame (t + jt) of a channel; j = jt ph + jh. */
static int64_t row_of(const struct patches *p, int32_t c, int32_t t, int32_t h, int32_t j)
{
	return (((int64_t)c * p->t + t + j / p->ph) * p->h + h + j % p->ph) * p->w;
}

/* The same of rows of 16-bit elements that are widened to f32: a piece of GROUP_ROWS rows at a time. */
static void transpose_wide(const struct patch_rows *m, enum vfm_npy_type type, int32_t pw, char *out)
{
	float wide[GROUP_ROWS][PIECE];
	const char *in[GROUP_ROWS];
	const int64_t piece = PIECE / pw, size = pw * (int64_t)sizeof(float);

	for (int64_t r = 0, rows; r < m->rows; r += rows) {
		rows = m->rows - r < GROUP_ROWS ? m->rows - r : GROUP_ROWS;
		for (int64_t i = 0, n; i < m->n; i += n) {
			n = m->n - i < piece ? m->n - i : piece;
			for (int64_t k = 0; k < rows; k++) {
				vfm_dtype_convert(VFM_F32, wide[k], vfm_dtype_of_npy(type), m->in[r + k] + i * size / 2,
					(size_t)(n * pw));
				in[k] = (const char *)wide[k];
			}
			transpose_patches(&(struct patch_rows){in, rows, n, m->stride, (size_t)size},
				out + i * m->stride + r * size);
		}
	}
}

/* Returns the elements from the first line of a patch to each of its lines in each channel, [channels * pt * ph]. */
static int64_t *line_offsets(const struct patches *p)
{
	int64_t *offset = vfm_calloc((size_t)p->channels * (size_t)(p->pt * p->ph), sizeof(*offset)), n = 0;

	for (int32_t c = 0; c < p->channels; c++)
		for (int32_t j = 0; j < p->pt * p->ph; j++)
			offset[n++] = row_of(p, c, 0, 0, j);
	return offset;
}

/* Writes the row of gw tokens whose first line begins at `latent`. */
static void patchify_row(const struct patches *p, const int64_t *offset, const char *latent, enum vfm_npy_type type,
	char *row, enum vfm_dtype dtype)
{
	const int64_t size = (int64_t)vfm_npy_type_size(type), wide = (int64_t)vfm_dtype_size(dtype);
	const int64_t rows = (int64_t)p->channels * p->pt * p->ph;
	const char *in[MOST_ROWS];
	struct patch_rows m = {in, 0, p->gw, p->width * wide, (size_t)(p->pw * wide)};

	for (int64_t first = 0; first < rows; first += m.rows) {
		char *out = row + first * p->pw * wide;

		m.rows = rows - first < MOST_ROWS ? rows - first : MOST_ROWS;
		for (int64_t r = 0; r < m.rows; r++)
			in[r] = latent + offset[first + r] * size;
		if (size == wide)
			transpose_patches(&m, out);
		else
			transpose_wide(&m, type, p->pw, out);
	}
}

/* A row of tokens is complete before the next one begins, so that it stays in the cache; a large result then passes the
 * caches by. */
void vfm_patchify(const void *latent, enum vfm_npy_type type, int32_t channels, const int32_t dims[3],
	const int32_t patch[3], void *tokens, enum vfm_dtype dtype)
{
	const struct patches p = make_patches(channels, dims, patch);
	const size_t row = (size_t)(p.gw * p.width) * vfm_dtype_size(dtype);
	const int64_t line = (int64_t)p.w * (int64_t)vfm_npy_type_size(type);
	int64_t *offset = line_offsets(&p);
	const bool streams = row <= TILE && row * (size_t)(p.t / p.pt * p.gh) >= LARGE;
	_Alignas(64) char tile[TILE];
	char *out = tokens;

	for (int32_t t = 0; t < p.t; t += p.pt)
		for (int32_t h = 0; h < p.h; h += p.ph, out += row) {
			patchify_row(&p, offset, (const char *)latent + ((int64_t)t * p.h + h) * line, type,
				streams ? tile : out, dtype);
			if (streams)
				vfm_copy_streaming(out, tile, row);
		}
	free(offset);
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
