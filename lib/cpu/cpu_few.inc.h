/* cpu_few.inc.h - products of few rows, which read B where it is.  Included by cpu_kern_<isa>.c after cpu_gemm.inc.h.
 *
 * Memory bounds these products: packing B would cost more than to multiply it. */

enum {
	DOT_ROWS = 4, /* of x, by … */
	DOT_COLS = 3, /* … rows of B: 12 sums in registers */
	SUM_ROWS = 6, /* of x, by two vectors of B */
	SUM_K = 16,   /* rows of B that are added to all columns before the next */
};

/* Adds to the sums of r rows of x and c rows of B the elements [k0, k1) along K. */
INLINE void few_dot_block(
	float *out, int64_t ldo, const struct vfm_few *f, int64_t row, int64_t n, int r, int c, bool bf)
{
	const float *x = f->x + row * f->ldx;
	const char *b = (const char *)f->b.p + n * f->b.ld * (bf ? 2 : 4);
	int64_t ldb = f->b.ld * (bf ? 2 : 4);
	vf sum[DOT_ROWS][DOT_COLS];

#pragma GCC unroll 4
	for (int i = 0; i < r; i++)
#pragma GCC unroll 3
		for (int j = 0; j < c; j++)
			sum[i][j] = v_set(0);
	V_FOR(k, len, 0, f->k)
	{
		vf w[DOT_COLS];

		if (row == 0) /* the next columns, which may not exist */
#pragma GCC unroll 3
			for (int j = 0; j < c; j++)
				__builtin_prefetch(b + (j + DOT_COLS) * ldb + k * (bf ? 2 : 4), 0, 3);
#pragma GCC unroll 3
		for (int j = 0; j < c; j++)
			w[j] = v_get(b + j * ldb, k, len, bf);
#pragma GCC unroll 4
		for (int i = 0; i < r; i++) {
			vf v = v_get(x + i * f->ldx, k, len, false);

#pragma GCC unroll 3
			for (int j = 0; j < c; j++)
				sum[i][j] = v_fma(v, w[j], sum[i][j]);
		}
	}
#pragma GCC unroll 4
	for (int i = 0; i < r; i++)
#pragma GCC unroll 3
		for (int j = 0; j < c; j++)
			out[i * ldo + j] = v_sum(sum[i][j]);
}

INLINE void few_dot_rows(float *out, int64_t ldo, const struct vfm_few *f, int64_t row, int64_t n, int c, bool bf)
{
	int64_t left = f->rows - row;

	if (left >= 4)
		few_dot_block(out, ldo, f, row, n, 4, c, bf);
	else if (left == 3)
		few_dot_block(out, ldo, f, row, n, 3, c, bf);
	else if (left == 2)
		few_dot_block(out, ldo, f, row, n, 2, c, bf);
	else
		few_dot_block(out, ldo, f, row, n, 1, c, bf);
}

/* B has rows that are contiguous along K. */
INLINE void few_dots(const struct vfm_few *f, int64_t n0, int64_t n1, float *tiles, bool bf)
{
	for (int64_t p = n0; p < n1; p += NR, tiles += f->rows * NR) {
		int64_t end = n1 - p < NR ? n1 : p + NR, n = p;

		for (; n + DOT_COLS <= end; n += DOT_COLS)
			for (int64_t i = 0; i < f->rows; i += DOT_ROWS)
				few_dot_rows(tiles + i * NR + n - p, NR, f, i, n, DOT_COLS, bf);
		for (; n < end; n++)
			for (int64_t i = 0; i < f->rows; i += DOT_ROWS)
				few_dot_rows(tiles + i * NR + n - p, NR, f, i, n, 1, bf);
	}
}

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

/* B is k-major. */
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
	if (f->b.kmajor && f->b.bf)
		few_sums(f, n0, n1, tiles, true);
	else if (f->b.kmajor)
		few_sums(f, n0, n1, tiles, false);
	else if (f->b.bf)
		few_dots(f, n0, n1, tiles, true);
	else
		few_dots(f, n0, n1, tiles, false);
}
