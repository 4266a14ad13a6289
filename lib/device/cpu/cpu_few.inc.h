/* cpu_few.inc.h - products of few rows and a k-major B.  They are bound by memory, so they read B in place.  Included
 * by cpu_kern_<isa>.c after cpu_gemm.inc.h.  Each element is summed in the order of cpu_gemm.c, so a row has the same
 * bits as in a product of many rows. */

enum {
	SUM_ROWS = 6, /* of x, by two vectors of B */
	SUM_K = 16,   /* rows of B added to all columns before the next ones */
};

/* The sums of columns [n0, n1): of a run, of a slice, and of all slices; each [panel][rows][NR]. */
struct few_sums {
	float *run, *slice, *total;
	bool begins, ends; /* these rows of B begin a run; end a run, which is then added to the slice */
};

/* run [r][NR] += x * the first `cols` columns of `steps` rows of B; `at`: position of the r rows in s. */
INLINE void few_sum_block(const struct few_sums *s, int64_t at, const float *x, int64_t ldx, const char *b, int64_t ldb,
	int64_t steps, int64_t cols, int r, bool ahead, bool bf)
{
	int64_t n0 = cols < VW ? cols : VW, n1 = cols - n0 < VW ? cols - n0 : VW;
	float *run = s->run + at, *slice = s->slice + at, *to = s->ends ? slice : run;
	vf sum[SUM_ROWS][2];

#pragma GCC unroll 6
	for (int i = 0; i < r; i++)
		sum[i][0] = sum[i][1] = v_set(0);
	if (!s->begins)
#pragma GCC unroll 6
		for (int i = 0; i < r; i++) {
			sum[i][0] = v_load(run + i * NR);
			sum[i][1] = v_load(run + i * NR + VW);
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
	if (s->ends)
#pragma GCC unroll 6
		for (int i = 0; i < r; i++) {
			sum[i][0] += v_load(slice + i * NR);
			sum[i][1] += v_load(slice + i * NR + VW);
		}
#pragma GCC unroll 6
	for (int i = 0; i < r; i++) {
		v_store(to + i * NR, sum[i][0]);
		v_store(to + i * NR + VW, sum[i][1]);
	}
}

INLINE void few_sum_rows(const struct few_sums *s, int64_t at, const float *x, int64_t ldx, const char *b, int64_t ldb,
	int64_t steps, int64_t cols, int64_t rows, bool ahead, bool bf)
{
	switch (rows) {
	case 1:
		few_sum_block(s, at, x, ldx, b, ldb, steps, cols, 1, ahead, bf);
		break;
	case 2:
		few_sum_block(s, at, x, ldx, b, ldb, steps, cols, 2, ahead, bf);
		break;
	case 3:
		few_sum_block(s, at, x, ldx, b, ldb, steps, cols, 3, ahead, bf);
		break;
	case 4:
		few_sum_block(s, at, x, ldx, b, ldb, steps, cols, 4, ahead, bf);
		break;
	case 5:
		few_sum_block(s, at, x, ldx, b, ldb, steps, cols, 5, ahead, bf);
		break;
	default:
		few_sum_block(s, at, x, ldx, b, ldb, steps, cols, SUM_ROWS, ahead, bf);
	}
}

INLINE void few_all(const struct vfm_few *f, int64_t n0, int64_t n1, float *tiles, bool bf)
{
	int64_t esize = bf ? 2 : 4, size = (n1 - n0 + NR - 1) / NR * NR * f->rows;
	struct few_sums s = {.run = tiles + 2 * size, .slice = tiles + size, .total = tiles};

	memset(s.total, 0, (size_t)(2 * size) * sizeof(*tiles));
	for (int64_t k = 0; k < f->k; k += SUM_K) {
		int64_t steps = f->k - k < SUM_K ? f->k - k : SUM_K, ke = k + steps;

		s.begins = k % VFM_GEMM_RUN == 0;
		s.ends = ke % VFM_GEMM_RUN == 0 || ke == f->k;
		for (int64_t n = n0; n < n1; n += NR)
			for (int64_t i = 0; i < f->rows; i += SUM_ROWS)
				few_sum_rows(&s, (n - n0) * f->rows + i * NR, f->x + i * f->ldx + k, f->ldx,
					(const char *)f->b.p + (k * f->b.ld + n) * esize, f->b.ld * esize, steps,
					n1 - n, f->rows - i, i == 0, bf);
		if (ke % f->slice == 0 || ke == f->k) {
			sum_into(s.total, s.slice, size);
			memset(s.slice, 0, (size_t)size * sizeof(*tiles));
		}
	}
}

static void few_rows(const struct vfm_few *f, int64_t n0, int64_t n1, float *tiles)
{
	BF1(f->b.bf, few_all(f, n0, n1, tiles, B0));
}
