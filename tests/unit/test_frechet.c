/* Feature sets, their moments, and the Frechet distance, on sets whose distance is known in closed form. */
#include "data/eval/frechet.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/par.h"
#include "base/philox.h"
#include "data/eval/dense.h"
#include "data/eval/lapack.h"
#include "io/file.h"
#include "ok.h"

static char dir[] = "/tmp/vfm-frechet.XXXXXX";

static void save(const char *name, enum vfm_npy_type type, int64_t rows, int64_t dim, const void *data)
{
	OK(vfm_npy_save(name, &(struct vfm_npy){.type = type, .ndim = 2, .shape = {rows, dim}}, data, NULL, &err));
}

static double *random_rows(int64_t n, int64_t dim, double scale, double offset, uint64_t id)
{
	struct vfm_rng r = vfm_rng_stream(2, 0, id, VFM_RNG_TEST);
	double *x = malloc((size_t)(n * dim) * sizeof(*x));

	for (int64_t i = 0; i < n * dim; i++)
		x[i] = offset + scale * (double)vfm_rng_normal(&r, (uint64_t)i);
	return x;
}

static double distance(const char *a, const char *b)
{
	const struct vfm_bootstrap none = {.resamples = 0, .confidence = 0.95};
	struct vfm_features f[2] = {{0}, {0}};
	struct vfm_frechet r;

	OK(vfm_features_open(&f[0], a, "embedding", &err));
	OK(vfm_features_open(&f[1], b, "embedding", &err));
	OK(vfm_frechet_of(&r, &f[0], &f[1], &none, &err));
	vfm_features_close(&f[0]);
	vfm_features_close(&f[1]);
	assert_int_equal(r.interval.resamples, 0);
	return r.value;
}

static void close_to(double got, double want, double relative)
{
	if (!(fabs(got - want) <= relative * fabs(want)))
		fail_msg("got %.17g, want %.17g", got, want);
}

/* ---- closed forms ---- */

/* Points at +-s_i on the axis i: covariances are diagonal, d^2 = |m1 - m2|^2 + sum (s1 - s2)^2. */
static void test_diagonal(void **state)
{
	enum { D = 37, N = 2 * D };
	double *a = calloc(N * D, sizeof(*a)), *b = calloc(N * D, sizeof(*b)), want = 0;

	(void)state;
	for (int i = 0; i < D; i++) {
		double sa = i == 5 ? 0 : pow(10, i % 7 - 3), sb = 1 + 0.1 * i, mean = 0.3 * i;

		for (int r = 0; r < N; r++)
			b[r * D + i] = mean;
		a[2 * i * D + i] = sa;
		a[(2 * i + 1) * D + i] = -sa;
		b[2 * i * D + i] += sb;
		b[(2 * i + 1) * D + i] -= sb;
		want += mean * mean + 2 * (sa - sb) * (sa - sb) / (N - 1);
	}
	save("a.npy", VFM_NPY_F64, N, D, a);
	save("b.npy", VFM_NPY_F64, N, D, b);
	close_to(distance("a.npy", "b.npy"), want, 1e-13);
	close_to(distance("b.npy", "a.npy"), want, 1e-13);
	free(a);
	free(b);
}

/* In two dimensions, tr M^(1/2) = (tr M + 2 det(M)^(1/2))^(1/2) for M = S1 S2. */
static double plane_distance(const double *a, const double *b, int64_t n)
{
	const double *set[2] = {a, b};
	double m[2][2] = {{0}}, s[2][3] = {{0}}, trace, det, d = 0;

	for (int k = 0; k < 2; k++) {
		for (int64_t r = 0; r < n; r++)
			for (int i = 0; i < 2; i++)
				m[k][i] += set[k][2 * r + i] / (double)n;
		for (int64_t r = 0; r < n; r++) {
			double x = set[k][2 * r] - m[k][0], y = set[k][2 * r + 1] - m[k][1];

			s[k][0] += x * x / (double)(n - 1);
			s[k][1] += x * y / (double)(n - 1);
			s[k][2] += y * y / (double)(n - 1);
		}
	}
	trace = s[0][0] * s[1][0] + 2 * s[0][1] * s[1][1] + s[0][2] * s[1][2];
	det = (s[0][0] * s[0][2] - s[0][1] * s[0][1]) * (s[1][0] * s[1][2] - s[1][1] * s[1][1]);
	for (int i = 0; i < 2; i++)
		d += (m[0][i] - m[1][i]) * (m[0][i] - m[1][i]);
	return d + s[0][0] + s[0][2] + s[1][0] + s[1][2] - 2 * sqrt(trace + 2 * sqrt(det));
}

static void test_plane(void **state)
{
	enum { N = 700 }; /* more than a block of rows */
	double *a = random_rows(N, 2, 1, 0, 1), *b = random_rows(N, 2, 2, 1, 2);

	(void)state;
	for (int r = 0; r < N; r++)
		a[2 * r + 1] += 3 * a[2 * r]; /* correlated */
	save("a.npy", VFM_NPY_F64, N, 2, a);
	save("b.npy", VFM_NPY_F64, N, 2, b);
	close_to(distance("a.npy", "b.npy"), plane_distance(a, b, N), 1e-12);
	for (int i = 0; i < 2 * N; i++) { /* a common offset costs only the digits that the numbers themselves lose */
		a[i] += 1e6;
		b[i] += 1e6;
	}
	save("a.npy", VFM_NPY_F64, N, 2, a);
	save("b.npy", VFM_NPY_F64, N, 2, b);
	close_to(distance("a.npy", "b.npy"), plane_distance(a, b, N), 1e-8);
	free(a);
	free(b);
}

/* Sets on two lines, x = t u and x = t v: tr (S1 S2)^(1/2) = |u v| s1 s2, with fewer rows than dimensions. */
static void test_rank_one(void **state)
{
	enum { D = 50, N = 8 };
	double a[N * D], b[N * D], t2 = 0, uu = 0, vv = 0, uv = 0, mean = 3.5, scale = 2, want;

	(void)state;
	for (int r = 0; r < N; r++)
		for (int i = 0; i < D; i++) {
			a[r * D + i] = r * sin(i + 1);
			b[r * D + i] = scale * r * cos(i * i);
		}
	for (int r = 0; r < N; r++)
		t2 += (r - mean) * (r - mean) / (N - 1);
	for (int i = 0; i < D; i++) {
		uu += sin(i + 1) * sin(i + 1);
		vv += scale * scale * cos(i * i) * cos(i * i);
		uv += scale * sin(i + 1) * cos(i * i);
	}
	want = mean * mean * (uu + vv - 2 * uv) + t2 * (uu + vv - 2 * fabs(uv));
	save("a.npy", VFM_NPY_F64, N, D, a);
	save("b.npy", VFM_NPY_F64, N, D, b);
	close_to(distance("a.npy", "b.npy"), want, 1e-12);
	assert_true(distance("a.npy", "a.npy") < 1e-12 * uu);
}

/* A set and a multiple of it: d^2 = (c - 1)^2 (|m|^2 + tr S), for full, deficient and padded ranks, in all types. */
static void test_multiple(void **state)
{
	static const int64_t sizes[][2] = {{400, 32}, {20, 48}, {300, 1}, {65, 64}, {64, 64}, {2, 17}};

	(void)state;
	for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
		int64_t n = sizes[k][0], d = sizes[k][1];
		double *a = random_rows(n, d, 1, 0.5, k), want = 0;
		float *f = malloc((size_t)(n * d) * sizeof(*f));

		for (int64_t i = 0; i < n * d; i++)
			f[i] = (float)a[i];
		for (int64_t i = 0; i < d; i++) {
			double m = 0, s = 0;

			for (int64_t r = 0; r < n; r++)
				m += (double)f[r * d + i] / (double)n;
			for (int64_t r = 0; r < n; r++)
				s += ((double)f[r * d + i] - m) * ((double)f[r * d + i] - m) / (double)(n - 1);
			want += m * m + s;
		}
		for (int64_t i = 0; i < n * d; i++)
			a[i] = 3 * (double)f[i];
		save("a.npy", VFM_NPY_F32, n, d, f);
		save("b.npy", VFM_NPY_F64, n, d, a);
		close_to(distance("a.npy", "b.npy"), 4 * want, 1e-11);
		assert_true(distance("b.npy", "b.npy") < 1e-11 * want);
		free(a);
		free(f);
	}
}

/* ---- moments, resamples ---- */

static void test_counts(void **state)
{
	enum { N = 300, D = 5 };
	double *a = random_rows(N, D, 1, 2, 9), *rows = malloc(N * D * sizeof(*rows));
	struct vfm_features f = {0}, g = {0};
	struct vfm_moments all, m, want;
	uint32_t counts[N];
	int n = 0;

	(void)state;
	vfm_bootstrap_counts(1, 0, 0, N, counts);
	for (int r = 0; r < N; r++)
		for (uint32_t k = 0; k < counts[r]; k++)
			memcpy(rows + n++ * D, a + r * D, D * sizeof(*a));
	assert_int_equal(n, N);
	save("a.npy", VFM_NPY_F64, N, D, a);
	save("b.npy", VFM_NPY_F64, N, D, rows);
	OK(vfm_features_open(&f, "a.npy", "", &err));
	OK(vfm_features_open(&g, "b.npy", "", &err));
	OK(vfm_moments_init(&all, D, &err));
	OK(vfm_moments_init(&m, D, &err));
	OK(vfm_moments_init(&want, D, &err));
	OK(vfm_moments_of(&all, &f, NULL, NULL, &err));
	OK(vfm_moments_of(&m, &f, counts, all.mean, &err));
	OK(vfm_moments_of(&want, &g, NULL, NULL, &err));
	for (int i = 0; i < D; i++) {
		assert_true(fabs(m.mean[i] - want.mean[i]) < 1e-13);
		for (int j = i; j < D; j++)
			assert_true(fabs(m.cov[i * m.ld + j] - want.cov[i * m.ld + j]) < 1e-13);
	}
	vfm_moments_release(&all);
	vfm_moments_release(&m);
	vfm_moments_release(&want);
	vfm_features_close(&f);
	vfm_features_close(&g);
	free(a);
	free(rows);
}

static void test_interval(void **state)
{
	enum { N = 400, D = 32 };
	const struct vfm_bootstrap boot = {.seed = 3, .resamples = 200, .confidence = 0.95};
	double *a = random_rows(N, D, 1, 0, 1), *b = random_rows(N, D, 1, 0.2, 2);
	struct vfm_features f[2] = {{0}, {0}};
	struct vfm_frechet r, again;

	(void)state;
	save("a.npy", VFM_NPY_F64, N, D, a);
	save("b.npy", VFM_NPY_F64, N, D, b);
	OK(vfm_features_open(&f[0], "a.npy", "", &err));
	OK(vfm_features_open(&f[1], "b.npy", "", &err));
	OK(vfm_frechet_of(&r, &f[0], &f[1], &boot, &err));
	assert_int_equal(r.interval.resamples, 200);
	assert_true(r.bias > 0 && r.bias < r.value);
	assert_true(0 < r.interval.low && r.interval.low < r.value && r.value < r.interval.high);
	assert_true(
		r.interval.high - r.interval.low < r.bias); /* without the shift, no interval would hold the value */
	vfm_par_serial();
	OK(vfm_frechet_of(&again, &f[0], &f[1], &boot, &err));
	assert_memory_equal(&r, &again, sizeof(r));
	OK(vfm_frechet_of(&again, &f[0], &f[1], &(struct vfm_bootstrap){3, -1, 0.95}, &err));
	assert_int_equal(again.interval.resamples, 1000); /* cheap */
	vfm_features_close(&f[0]);
	vfm_features_close(&f[1]);
	free(a);
	free(b);
}

/* ---- products and factors ---- */

static void test_dense(void **state)
{
	enum { K = 300, M = 80, N = 144 };
	double *a = vfm_big_alloc(K * M * 8, "a", &err), *b = vfm_big_alloc(K * N * 8, "b", &err);
	double *c = vfm_big_alloc(M * N * 8, "c", &err), *r = random_rows(K, M + N, 1, 0, 4);

	(void)state;
	memcpy(a, r, K * M * 8);
	memcpy(b, r + K * M, K * N * 8);
	memset(c, 0, M * N * 8);
	vfm_dense_add_atb(c, a, b, K, M, N, false);
	for (int i = 0; i < M; i++)
		for (int j = 0; j < N; j++) {
			double sum = 0;

			for (int k = 0; k < K; k++)
				sum += a[k * M + i] * b[k * N + j];
			assert_true(c[i * N + j] == sum); /* in this order, without fused products */
		}
	vfm_big_free(a, K * M * 8);
	vfm_big_free(b, K * N * 8);
	vfm_big_free(c, M * N * 8);
	free(r);
}

static void test_lapack(void **state)
{
	double s[] = {4, 2, 2, 2, 5, 7, 2, 7, 13}, copy[9], sigma[2], a[] = {3, 0, 0, 0, -4, 0},
	       deficient[] = {1, 1, 1, 1};
	int32_t piv[3];
	int64_t rank;

	(void)state;
	memcpy(copy, s, sizeof(s));
	OK(vfm_lapack_pivoted_cholesky(s, 3, 3, 1e-14, piv, &rank, &err));
	assert_int_equal(rank, 3);
	assert_int_equal(piv[0], 2); /* the largest */
	for (int i = 0; i < 3; i++)
		for (int j = 0; j <= i; j++) {
			double sum = 0;

			for (int k = 0; k <= j; k++)
				sum += s[3 * i + k] * s[3 * j + k];
			close_to(sum, copy[3 * piv[i] + piv[j]], 1e-14);
		}
	OK(vfm_lapack_pivoted_cholesky(deficient, 2, 2, 1e-14, piv, &rank, &err));
	assert_int_equal(rank, 1);
	OK(vfm_lapack_singular_values(a, 2, 3, 3, sigma, &err));
	close_to(sigma[0], 4, 1e-15);
	close_to(sigma[1], 3, 1e-15);
}

/* ---- what is refused ---- */

static void refused(const char *path, const char *message)
{
	struct vfm_features f = {0};

	assert_int_equal(vfm_features_open(&f, path, "embedding", &err), VFM_EINPUT);
	assert_string_equal(err.msg, message);
	vfm_features_close(&f);
}

static void test_refused(void **state)
{
	const struct vfm_bootstrap none = {.resamples = 0, .confidence = 0.95};
	double x[6] = {1, 2, 3, NAN, 5, 6}, huge[] = {1e200, -1e200};
	struct vfm_features f[2] = {{0}, {0}};
	struct vfm_frechet r;

	(void)state;
	save("x.npy", VFM_NPY_F64, 3, 2, x);
	refused("x.npy", "x.npy: element [1,1] is NaN");
	x[3] = 4;
	save("x.npy", VFM_NPY_F64, 3, 2, x);
	assert_int_equal(truncate("x.npy", 128 + 47), 0);
	refused("x.npy", "x.npy: truncated: the shape asks for more bytes than there are");
	save("x.npy", VFM_NPY_I64, 3, 2, x);
	refused("x.npy", "x.npy: expected floating-point numbers, got int64");
	OK(vfm_npy_save("x.npy", &(struct vfm_npy){.type = VFM_NPY_F64, .ndim = 1, .shape = {6}}, x, NULL, &err));
	refused("x.npy", "x.npy: 1 dimensions, expected 2: a row for each vector");
	save("x.npy", VFM_NPY_F64, 0, 20000, x);
	refused("x.npy", "x.npy: vectors of 20000 elements, expected 1 to 16384");
	save("x.npy", VFM_NPY_F64, 1, 6, x);
	save("y.npy", VFM_NPY_F64, 3, 2, x);
	OK(vfm_features_open(&f[0], "x.npy", "", &err));
	OK(vfm_features_open(&f[1], "y.npy", "", &err));
	assert_int_equal(vfm_frechet_of(&r, &f[0], &f[1], &none, &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "'x.npy' has 1 vectors: a covariance needs at least 2");
	vfm_features_close(&f[0]);
	save("x.npy", VFM_NPY_F64, 2, 3, x);
	OK(vfm_features_open(&f[0], "x.npy", "", &err));
	assert_int_equal(vfm_frechet_of(&r, &f[0], &f[1], &none, &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "vectors of 'x.npy' have 3 elements, those of 'y.npy' 2");
	vfm_features_close(&f[0]);
	save("x.npy", VFM_NPY_F64, 2, 1, huge);
	OK(vfm_features_open(&f[0], "x.npy", "", &err));
	assert_int_equal(vfm_frechet_of(&r, &f[0], &f[0], &none, &err), VFM_EINPUT);
	vfm_features_close(&f[0]);
	vfm_features_close(&f[1]);
}

/* ---- cosines ---- */

static void test_cosine(void **state)
{
	double a[] = {1, 0, 3, 4, 1e300, 1e300, 1e-300, 0}, b[] = {-2, 0, 4, 3, 1, 1, 1, 1}, c[4],
	       want[] = {-1, 0.96, 1, sqrt(0.5)};
	struct vfm_features f[2] = {{0}, {0}};

	(void)state;
	save("a.npy", VFM_NPY_F64, 4, 2, a);
	save("b.npy", VFM_NPY_F64, 4, 2, b);
	OK(vfm_features_open(&f[0], "a.npy", "", &err));
	OK(vfm_features_open(&f[1], "b.npy", "", &err));
	OK(vfm_features_cosine(&f[0], &f[1], c, &err));
	for (int i = 0; i < 4; i++)
		close_to(c[i], want[i], 1e-15);
	vfm_features_close(&f[1]);
	b[6] = b[7] = 0;
	save("b.npy", VFM_NPY_F64, 4, 2, b);
	OK(vfm_features_open(&f[1], "b.npy", "", &err));
	assert_int_equal(vfm_features_cosine(&f[0], &f[1], c, &err), VFM_EINPUT);
	assert_string_equal(err.msg, "'b.npy': row 3 is 0: it has no direction");
	vfm_features_close(&f[1]);
	save("b.npy", VFM_NPY_F64, 2, 2, b);
	OK(vfm_features_open(&f[1], "b.npy", "", &err));
	assert_int_equal(vfm_features_cosine(&f[0], &f[1], c, &err), VFM_EUSAGE);
	vfm_features_close(&f[0]);
	vfm_features_close(&f[1]);
}

static int enter(void **state)
{
	(void)state;
	return mkdtemp(dir) && chdir(dir) == 0 ? 0 : -1;
}

static int leave(void **state)
{
	(void)state;
	return chdir("/") == 0 ? vfm_rm_rf(dir, &err) : -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_diagonal),
		cmocka_unit_test(test_plane),
		cmocka_unit_test(test_rank_one),
		cmocka_unit_test(test_multiple),
		cmocka_unit_test(test_counts),
		cmocka_unit_test(test_dense),
		cmocka_unit_test(test_lapack),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_cosine),
		cmocka_unit_test(test_interval),
	};

	return cmocka_run_group_tests(tests, enter, leave);
}
