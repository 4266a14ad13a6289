/* ops_precision.c - products in f32 on the levels of the CPU: errors against float64 below the bounds of
 * cpu_bf16x3.h and of sequential FMAs, for values of any size; NaN and infinity as in f32. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/cpu/cpu_isa.h"
#include "ops_test.h"

enum values { NORMAL, SCALED_ROWS, MIXED, CANCELLING, TINY, HUGE, NOT_FINITE, N_VALUES };
static const char *const value_names[N_VALUES] = {
	"normal", "rows of 2^-40 to 2^40", "elements of 2^-40 to 2^40", "cancelling", "tiny", "huge", "not finite"};

struct product {
	int64_t m, n, k;
	bool trans_a, trans_b;
	enum values values;
	float *a, *b, *c; /* as stored */
};

static float *get_a(const struct product *p, int64_t i, int64_t k)
{
	return p->a + (p->trans_a ? k * p->m + i : i * p->k + k);
}

static float *get_b(const struct product *p, int64_t k, int64_t j)
{
	return p->b + (p->trans_b ? j * p->k + k : k * p->n + j);
}

/* A power of two between 2^-40 and 2^40. */
static float get_scale(uint64_t i)
{
	return ldexpf(1, (int)(i * 2654435761u % 81) - 40);
}

static float get_value(const struct product *p, float x, int64_t row, int64_t k, bool is_a)
{
	switch (p->values) {
	case SCALED_ROWS:
		return x * get_scale((uint64_t)row);
	case MIXED: /* products stay between 2^-80 and 2^80 */
		return x * get_scale((uint64_t)(row * p->k + k) * 2 + is_a);
	case TINY: /* down to the smallest normal float */
		return is_a ? ldexpf(x, -(int)(row * 7 + k) % 24 - 100) : ldexpf(x, (int)(k % 30));
	case HUGE: /* up to the largest float, which rounds to a bf16 that is infinite */
		return is_a ? (k % 5 ? ldexpf(x, 100) : copysignf(3.4028235e38f, x)) : ldexpf(x, -30);
	default:
		return x;
	}
}

/* Makes neighbours along K cancel up to their last bits. */
static void cancel(struct product *p)
{
	for (int64_t k = 0; k + 1 < p->k; k += 2) {
		for (int64_t i = 0; i < p->m; i++)
			*get_a(p, i, k + 1) = *get_a(p, i, k) * 1.0000004f;
		for (int64_t j = 0; j < p->n; j++)
			*get_b(p, k + 1, j) = -*get_b(p, k, j);
	}
}

/* Every row of A and column of B below has other neighbours, so each kind meets zeros, finite values and the others. */
static void spoil(struct product *p)
{
	static const uint32_t bits[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffffffff, 0x7fffffff, 0x7f800001,
		0x7f7fffff, 0x00000000, 0x00000001};

	for (int64_t i = 0; i < p->m; i++)
		*get_a(p, i, 2 + 9 * 6) *= 0.001f; /* so that the largest float does not overflow */
	for (int64_t j = 0; j < p->n; j++)
		*get_b(p, 5 + 11 * 6, j) *= 0.001f;
	for (int i = 0; i < 9; i++) {
		memcpy(get_a(p, 3 + i, 5 + 11 * i), &bits[i], 4);
		memcpy(get_b(p, 2 + 9 * i, 4 + i), &bits[i], 4);
	}
	*get_b(p, 5, 20) = 0; /* times the infinity of row 3 */
	*get_b(p, 16, 21) = 1;
}

static void make_product(struct product *p)
{
	struct vfm_rng r = vfm_rng_stream(7, (uint64_t)p->values, 0, VFM_RNG_TEST);

	p->a = vfm_calloc((size_t)(p->m * p->k), sizeof(float));
	p->b = vfm_calloc((size_t)(p->k * p->n), sizeof(float));
	p->c = vfm_calloc((size_t)(p->m * p->n), sizeof(float));
	for (int64_t i = 0; i < p->m * p->k; i++)
		*get_a(p, i / p->k, i % p->k) = get_value(p, vfm_rng_normal(&r, (uint64_t)i), i / p->k, i % p->k, true);
	for (int64_t i = 0; i < p->k * p->n; i++)
		*get_b(p, i / p->n, i % p->n) =
			get_value(p, vfm_rng_normal(&r, (uint64_t)i + (1 << 20)), i % p->n, i / p->n, false);
	if (p->values == CANCELLING)
		cancel(p);
	if (p->values == NOT_FINITE)
		spoil(p);
}

static void drop_product(struct product *p)
{
	free(p->a);
	free(p->b);
	free(p->c);
}

/* Compares an element with the sum in float64: returns its error in units of the bound. */
static double check_element(const struct product *p, bool tiles, const char *level, int64_t i, int64_t j)
{
	const double u = ldexp(1, -24), units = (double)((p->k + 31) / 32);
	double sum = 0, abs_sum = 0, parts = 0, bound, got = (double)p->c[i * p->n + j];

	for (int64_t k = 0; k < p->k; k++) {
		double x = (double)*get_a(p, i, k), y = (double)*get_b(p, k, j);

		sum += x * y;
		abs_sum += fabs(x * y);
		parts += fabs(x) + fabs(y);
	}
	if (!isfinite(sum)) {
		if (isnan(sum) ? !isnan(got) : got != sum)
			fail_msg("%s: element %lld, %lld is %g, not %g", level, (long long)i, (long long)j, got, sum);
		return 0;
	}
	/* without FMA an element is rounded twice */
	bound = 1.001 * u * abs_sum * (tiles ? 6 * units + 18 : 2 * (double)p->k) + ldexp((double)p->k, -149);
	if (tiles)
		bound += ldexp(parts, -125) + ldexp((double)p->k, -123);
	if (!(fabs(got - sum) <= bound))
		fail_msg("%s, %s, %lld x %lld x %lld%s%s: element %lld, %lld is %.9g, not %.9g: error %g, bound %g",
			level, value_names[p->values], (long long)p->m, (long long)p->n, (long long)p->k,
			p->trans_a ? ", A transposed" : "", p->trans_b ? ", B transposed" : "", (long long)i,
			(long long)j, got, sum, fabs(got - sum), bound);
	return abs_sum > 0 ? fabs(got - sum) / (u * abs_sum) : 0;
}

static void run_product(struct product *p, const struct op_level *l, bool tiles)
{
	struct vfm_gemm g = {.a = p->trans_a ? vfm_t2(p->a, VFM_F32, p->k, p->m) : vfm_t2(p->a, VFM_F32, p->m, p->k),
		.b = p->trans_b ? vfm_t2(p->b, VFM_F32, p->n, p->k) : vfm_t2(p->b, VFM_F32, p->k, p->n),
		.c = vfm_t2(p->c, VFM_F32, p->m, p->n),
		.trans_a = p->trans_a,
		.trans_b = p->trans_b};
	struct vfm_err err = {0};
	double most = 0, squares = 0;

	assert_int_equal(vfm_op_gemm(l->s, &g, &err), 0);
	for (int64_t i = 0; i < p->m * p->n; i++) {
		double e = check_element(p, tiles, l->name, i / p->n, i % p->n);

		most = fmax(most, e);
		squares += e * e;
	}
	if (getenv("VFM_TEST_V"))
		fprintf(stderr, "%-14s k %4lld %-26s error in 2^-24 sum |a b|: rms %.3f, largest %.3f\n", l->name,
			(long long)p->k, value_names[p->values], sqrt(squares / (double)(p->m * p->n)), most);
}

void test_gemm_precision(void **state)
{
	static const int64_t depths[] = {32, 100, 512, 1100};

	(void)state;
	for (int v = 0; v < N_VALUES; v++)
		for (int i = 0; i < 4; i++) {
			struct product p = {.m = 47,
				.n = 40,
				.k = depths[i],
				.trans_a = i & 1,
				.trans_b = i < 2,
				.values = (enum values)v};

			if (v == NOT_FINITE && p.k < 100)
				continue;
			make_product(&p);
			for (int l = 0; l < n_isa; l++)
				run_product(&p, &levels[l], l == VFM_ISA_AMX);
			run_product(&p, &levels[n_full], true);
			drop_product(&p);
		}
}

/* ---- a row alone ---- */

enum { ALL_ROWS = 40 };

struct alone {
	int64_t n, k;
	bool bf, trans_a, trans_b;
};

/* Computes rows [first, first + m) of gelu(a b + bias) into c[m][n]. */
static void multiply_some(struct vfm_stream *s, const struct alone *x, const struct product *p, float *bias,
	int64_t first, int64_t m, float *c)
{
	enum vfm_dtype t = x->bf ? VFM_BF16 : VFM_F32;
	int64_t esize = x->bf ? 2 : 4, ka = x->trans_a ? ALL_ROWS : x->k;
	char *a = (char *)p->a + (x->trans_a ? first : first * x->k) * esize;
	struct vfm_gemm g = {.trans_a = x->trans_a,
		.trans_b = x->trans_b,
		.act = VFM_ACT_GELU_TANH,
		.a = x->trans_a ? vfm_t2(a, t, x->k, m) : vfm_t2(a, t, m, x->k),
		.b = x->trans_b ? vfm_t2(p->b, t, x->n, x->k) : vfm_t2(p->b, t, x->k, x->n),
		.c = vfm_t2(c, t, m, x->n),
		.bias = vfm_t1(bias, VFM_F32, x->n)};
	struct vfm_err err = {0};

	g.a.stride[0] = ka;
	assert_int_equal(vfm_op_gemm(s, &g, &err), 0);
}

static void check_alone(struct vfm_stream *s, const char *level, const struct alone *x)
{
	static const int64_t some[] = {1, 2, 5, 6, 7, 8, 9, 14, 15, 16, 17};
	struct product p = {.m = ALL_ROWS, .n = x->n, .k = x->k, .trans_a = x->trans_a, .trans_b = x->trans_b};
	size_t row = (size_t)x->n * (x->bf ? 2 : 4);
	float *bias = vfm_calloc((size_t)x->n, sizeof(*bias)), *all, *part;

	make_product(&p);
	all = p.c;
	part = vfm_calloc((size_t)(ALL_ROWS * x->n), sizeof(*part));
	for (int64_t j = 0; j < x->n; j++)
		bias[j] = (float)(j % 7) - 3;
	for (int64_t i = 0; x->bf && i < ALL_ROWS * x->k; i++)
		((uint16_t *)p.a)[i] = vfm_f32_to_bf16(p.a[i]);
	for (int64_t i = 0; x->bf && i < x->k * x->n; i++)
		((uint16_t *)p.b)[i] = vfm_f32_to_bf16(p.b[i]);
	multiply_some(s, x, &p, bias, 0, ALL_ROWS, all);
	for (size_t i = 0; i < sizeof(some) / sizeof(*some); i++) {
		multiply_some(s, x, &p, bias, 3, some[i], part);
		if (memcmp(part, (char *)all + 3 * row, (size_t)some[i] * row) != 0)
			fail_msg("%s, %s, %lld x %lld%s%s: %lld rows have other bits than in %d rows", level,
				x->bf ? "bf16" : "f32", (long long)x->n, (long long)x->k,
				x->trans_a ? ", A transposed" : "", x->trans_b ? ", B transposed" : "",
				(long long)some[i], ALL_ROWS);
	}
	free(bias);
	free(part);
	drop_product(&p);
}

/* A row has the same bits in a product of any number of rows. */
void test_rows_alone(void **state)
{
	static const int64_t n[] = {33, 96, 130}, k[] = {7, 256, 300, 1001, 4500};

	(void)state;
	for (int i = 0; i < 3 * 5 * 8; i++) {
		struct alone x = {n[i / 8 / 5], k[i / 8 % 5], i & 1, i & 2, i & 4};

		for (int l = 0; l <= n_isa; l++) {
			const struct op_level *v = &levels[l < n_isa ? l : n_full]; /* last: the model of AMX */

			check_alone(v->s, v->name, &x);
		}
	}
}
