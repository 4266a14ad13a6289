/* cpu_few.inc.h - products of few rows.  Their time is that of reading B, so B is not packed as a whole: k-major f32 is
 * read in place, other forms are packed into a block of the L1 cache.  Each element is summed in the order of
 * cpu_gemm.c, so a row has the same bits as in a product of many rows.  Included by cpu_kern_<isa>.c after
 * cpu_gemm.inc.h. */

#ifdef __AVX512F__
enum { SUM_ROWS = 8 }; /* of x, by two vectors of B */
#else
enum { SUM_ROWS = 6 };
#endif
enum { SUM_K = 16 }; /* units of B added to all columns before the next ones */

/* The sums of some columns: of a run, of a slice, and of all slices; each [panel][rows][NR]. */
struct few_sums {
	float *run, *slice, *total;
	bool begins, ends; /* these units begin a run; end a run, which is then added to the slice */
};

/* The operand B of few_sum_block: vectors of `bf` elements, or of units as the tile reads them. */
struct few_b {
	const char *p;
	int64_t ld, cols; /* bytes from one unit to the next; columns that exist */
	bool ahead;       /* prefetch the next units, which may not exist */
};

/* run [r][NR] += x * `units` units of b; `at`: position of the r rows in s. */
INLINE void few_sum_block(const struct few_sums *s, int64_t at, const float *x, int64_t ldx, const struct few_b *b,
	int64_t units, int r, bool bf, enum unit how)
{
	int64_t n0 = b->cols < VW ? b->cols : VW, n1 = b->cols - n0 < VW ? b->cols - n0 : VW;
	float *run = s->run + at, *slice = s->slice + at, *to = s->ends ? slice : run;
	const char *p = b->p;
	vf sum[SUM_ROWS][2];

#pragma GCC unroll 8
	for (int i = 0; i < r; i++)
		sum[i][0] = sum[i][1] = v_set(0);
	if (!s->begins)
#pragma GCC unroll 8
		for (int i = 0; i < r; i++) {
			sum[i][0] = v_load(run + i * NR);
			sum[i][1] = v_load(run + i * NR + VW);
		}
	for (int64_t k = 0; k < units; k++, p += b->ld) {
		vf w0 = v_get(p, 0, n0, bf), w1 = v_get(p, VW, n1, bf);

		if (b->ahead)
			for (int64_t i = 0; i < NR * (bf ? 2 : 4); i += 64)
				__builtin_prefetch(p + SUM_K * b->ld + i, 0, 3);
#pragma GCC unroll 8
		for (int i = 0; i < r; i++) {
			vf v = v_set(x[i * ldx + k]);

			sum[i][0] = unit_fma(v, w0, sum[i][0], how);
			sum[i][1] = unit_fma(v, w1, sum[i][1], how);
		}
	}
	if (s->ends)
#pragma GCC unroll 8
		for (int i = 0; i < r; i++) {
			sum[i][0] += v_load(slice + i * NR);
			sum[i][1] += v_load(slice + i * NR + VW);
		}
#pragma GCC unroll 8
	for (int i = 0; i < r; i++) {
		v_store(to + i * NR, sum[i][0]);
		v_store(to + i * NR + VW, sum[i][1]);
	}
}

INLINE void few_sum_rows(const struct few_sums *s, int64_t at, const float *x, int64_t ldx, const struct few_b *b,
	int64_t units, int64_t rows, bool bf, enum unit how)
{
#define ROWS(r)                                                                                                        \
	case r:                                                                                                        \
		few_sum_block(s, at, x, ldx, b, units, r, bf, how);                                                    \
		break;
	switch (rows < SUM_ROWS ? rows : SUM_ROWS) {
		ROWS(1)
		ROWS(2)
		ROWS(3)
		ROWS(4)
		ROWS(5)
		ROWS(6)
#ifdef __AVX512F__
		ROWS(7)
		ROWS(8)
#endif
	}
#undef ROWS
}

/* Sums columns [n0, n1) of B, which is read in place, or is one panel that is packed in blocks. */
INLINE void few_columns(
	const struct vfm_few *f, int64_t n0, int64_t n1, struct few_sums *s, bool in_place, enum unit how)
{
	int64_t esize = how == UNIT_F32 ? 4 : 2, ku = how == UNIT_PAIR ? 2 : 1,
		size = (n1 - n0 + NR - 1) / NR * NR * f->rows;
	float block[SUM_K * NR + 16] __attribute__((aligned(64)));

	memset(s->total, 0, (size_t)size * sizeof(float));
	memset(s->slice, 0, (size_t)size * sizeof(float));
	for (int64_t k = 0; k < f->units; k += SUM_K) {
		int64_t units = f->units - k < SUM_K ? f->units - k : SUM_K, ke = k + units;

		s->begins = k % VFM_GEMM_RUN == 0;
		s->ends = ke % VFM_GEMM_RUN == 0 || ke == f->units;
		for (int64_t n = n0; n < n1; n += NR) {
			struct few_b b = {
				(const char *)f->b.p + (k * f->b.ld + n) * esize, f->b.ld * esize, n1 - n, in_place};

			if (!in_place) {
				pack_as(block, NR, 0, &f->b, n, n1 - n, k * ku, ke * ku < f->k ? ke * ku : f->k, NULL,
					how);
				b = (struct few_b){(const char *)block, NR * 4, NR, false};
			}
			for (int64_t i = 0; i < f->rows; i += SUM_ROWS, b.ahead = false)
				few_sum_rows(s, (n - n0) * f->rows + i * NR, f->x + i * f->ldx + k, f->ldx, &b, units,
					f->rows - i, in_place && how == UNIT_WIDEN, how);
		}
		if (ke % f->slice == 0 || ke == f->units) {
			sum_into(s->total, s->slice, size);
			memset(s->slice, 0, (size_t)size * sizeof(float));
		}
	}
}

static void few_rows(const struct vfm_few *f, int64_t n0, int64_t n1, float *tiles)
{
	int64_t size = (n1 - n0 + NR - 1) / NR * NR * f->rows;
	struct few_sums s = {.run = tiles + 2 * size, .slice = tiles + size, .total = tiles};

	if (f->b.kmajor && !f->pairs) {
		if (f->b.bf)
			few_columns(f, n0, n1, &s, true, UNIT_WIDEN);
		else
			few_columns(f, n0, n1, &s, true, UNIT_F32);
		return;
	}
	for (int64_t n = n0; n < n1; n += NR, s.total += NR * f->rows) {
		int64_t ne = n1 - n < NR ? n1 : n + NR;

		if (!f->b.bf)
			few_columns(f, n, ne, &s, false, UNIT_F32);
		else if (!f->pairs)
			few_columns(f, n, ne, &s, false, UNIT_WIDEN);
#ifdef __AVX512BF16__
		else
			few_columns(f, n, ne, &s, false, UNIT_PAIR);
#endif
	}
}
