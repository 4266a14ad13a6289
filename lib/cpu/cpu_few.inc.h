/* cpu_few.inc.h - products of few rows and a k-major B, which read B where it is.  Included by cpu_kern_<isa>.c after
 * cpu_gemm.inc.h.
 *
 * Memory bounds these products: packing B would cost more than to multiply it.  Each element is summed in the order of
 * the tiles of cpu_gemm.inc.h, so a row has the same bits in a product of many rows. */

enum {
	SUM_ROWS = 6, /* of x, by two vectors of B */
	SUM_K = 16,   /* rows of B that are added to all columns before the next */
};

/* tile [r][NR] += the rows [k0, k1) of B, of which the first `cols` columns exist. */
INLINE void few_sum_block(float *tile, const float *x, int64_t ldx, const char *b, int64_t ldb, int64_t steps,
	int64_t cols, int r, bool ahead, bool bf)
{
	int64_t n0 = cols < VW ? cols : VW, n1 = cols - n0 < VW ? cols - n0 : VW;
	vf sum[SUM_ROWS][2];

#pragma GCC unroll 6
	for (int i = 0; i < r; i++) {
		sum[i][0] = v_load(tile + i * NR);
		sum[i][1] = v_load(tile + i * NR + VW);
	}
	for (int64_t k = 0; k < steps; k++, b += ldb) {
		vf w0 = v_get(b, 0, n0, bf), w1 = v_get(b, VW, n1, bf);

		if (ahead) /* the next rows, which may not exist */
			for (int64_t i = 0; i < NR * (bf ? 2 : 4); i += 64)
				__builtin_prefetch(b + SUM_K * ldb + i, 0, 3);
#pragma GCC unroll 6
		for (int i = 0; i < r; i++) {
			vf v = v_set(x[i * ldx + k]);

			sum[i][0] = v_fma(v, w0, sum[i][0]);
			sum[i][1] = v_fma(v, w1, sum[i][1]);
		}
	}
#pragma GCC unroll 6
	for (int i = 0; i < r; i++) {
		v_store(tile + i * NR, sum[i][0]);
		v_store(tile + i * NR + VW, sum[i][1]);
	}
}

INLINE void few_sum_rows(float *tile, const float *x, int64_t ldx, const char *b, int64_t ldb, int64_t steps,
	int64_t cols, int64_t rows, bool ahead, bool bf)
{
	switch (rows) {
	case 1:
		few_sum_block(tile, x, ldx, b, ldb, steps, cols, 1, ahead, bf);
		break;
	case 2:
		few_sum_block(tile, x, ldx, b, ldb, steps, cols, 2, ahead, bf);
		break;
	case 3:
		few_sum_block(tile, x, ldx, b, ldb, steps, cols, 3, ahead, bf);
		break;
	case 4:
		few_sum_block(tile, x, ldx, b, ldb, steps, cols, 4, ahead, bf);
		break;
	case 5:
		few_sum_block(tile, x, ldx, b, ldb, steps, cols, 5, ahead, bf);
		break;
	default:
		few_sum_block(tile, x, ldx, b, ldb, steps, cols, SUM_ROWS, ahead, bf);
	}
}

INLINE void few_sums(const struct vfm_few *f, int64_t n0, int64_t n1, float *tiles, bool bf)
{
	int64_t esize = bf ? 2 : 4;

	memset(tiles, 0, (size_t)((n1 - n0 + NR - 1) / NR * NR * f->rows) * sizeof(*tiles));
	for (int64_t k = 0; k < f->k; k += SUM_K) {
		int64_t steps = f->k - k < SUM_K ? f->k - k : SUM_K;

		for (int64_t n = n0; n < n1; n += NR)
			for (int64_t i = 0; i < f->rows; i += SUM_ROWS)
				few_sum_rows(tiles + (n - n0) * f->rows + i * NR, f->x + i * f->ldx + k, f->ldx,
					(const char *)f->b.p + (k * f->b.ld + n) * esize, f->b.ld * esize, steps,
					n1 - n, f->rows - i, i == 0, bf);
	}
}

static void few_rows(const struct vfm_few *f, int64_t n0, int64_t n1, float *tiles)
{
	if (f->b.bf)
		few_sums(f, n0, n1, tiles, true);
	else
		few_sums(f, n0, n1, tiles, false);
}
