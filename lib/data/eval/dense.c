/* dense.c - tiles of A^T B in float64 with SIMD vectors, on all threads. */
#include "data/eval/dense.h"

#include "base/clones.h"
#include "base/par.h"

enum { TILE = 64, MR = 4, NR = VFM_DENSE_PAD, LANES = 8 };
typedef double lanes __attribute__((vector_size(LANES * sizeof(double))));

int64_t vfm_dense_padded(int64_t n)
{
	return (n + VFM_DENSE_PAD - 1) / VFM_DENSE_PAD * VFM_DENSE_PAD;
}

struct atb {
	double *c;
	const double *a, *b;
	int64_t k, m, n, tiles_n;
	bool symmetric;
};

/* Adds to MR x NR elements of c from (i, j) on, with the sums in registers. */
VFM_CLONES("avx512f", "avx2", "default")
static void add_dense_block(const struct atb *p, int64_t i, int64_t j)
{
	lanes sum[MR][NR / LANES];

	for (int r = 0; r < MR; r++)
		for (int v = 0; v < NR / LANES; v++)
			sum[r][v] = *(const lanes *)(p->c + (i + r) * p->n + j + v * LANES);
	for (int64_t k = 0; k < p->k; k++) {
		const double *a = p->a + k * p->m + i;
		const lanes *b = (const lanes *)(p->b + k * p->n + j);

		for (int r = 0; r < MR; r++)
			for (int v = 0; v < NR / LANES; v++)
				sum[r][v] += a[r] * b[v];
	}
	for (int r = 0; r < MR; r++)
		for (int v = 0; v < NR / LANES; v++)
			*(lanes *)(p->c + (i + r) * p->n + j + v * LANES) = sum[r][v];
}

static void add_tiles(int64_t t0, int64_t t1, void *ctx)
{
	const struct atb *p = ctx;

	for (int64_t t = t0; t < t1; t++) {
		int64_t i0 = t / p->tiles_n * TILE, j0 = t % p->tiles_n * TILE;
		int64_t i1 = i0 + TILE < p->m ? i0 + TILE : p->m, j1 = j0 + TILE < p->n ? j0 + TILE : p->n;

		if (p->symmetric && j1 <= i0)
			continue;
		for (int64_t j = j0; j < j1; j += NR)
			for (int64_t i = i0; i < i1; i += MR)
				add_dense_block(p, i, j);
	}
}

void vfm_dense_add_atb(double *c, const double *a, const double *b, int64_t k, int64_t m, int64_t n, bool symmetric)
{
	struct atb p = {.c = c, .a = a, .b = b, .m = m, .n = n, .symmetric = symmetric};
	const int64_t depth = 256; /* rows of a and b that caches hold */

	p.tiles_n = (n + TILE - 1) / TILE;
	for (int64_t k0 = 0; k0 < k; k0 += depth) {
		p.k = k - k0 < depth ? k - k0 : depth;
		p.a = a + k0 * m;
		p.b = b + k0 * n;
		vfm_par_for((m + TILE - 1) / TILE * p.tiles_n, 1, add_tiles, &p);
	}
}
