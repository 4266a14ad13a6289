#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "encoder/text/textbytes.h"
#include "io/hash.h"

static struct vfm_textbytes *make(const char *spec)
{
	struct vfm_textbytes *t;

	assert_int_equal(vfm_textbytes_new(&t, spec, NULL), 0);
	return t;
}

static void words(void **state)
{
	char many[4000] = "";

	(void)state;
	assert_int_equal(vfm_textbytes_rows(""), 1);
	assert_int_equal(vfm_textbytes_rows(" \t\n"), 1);
	assert_int_equal(vfm_textbytes_rows("a red square moves left"), 5);
	assert_int_equal(vfm_textbytes_rows("A red, square's  move."), 8); /* A red , square ' s move . */
	assert_int_equal(vfm_textbytes_rows("gr\xc3\xbcn r\xc3\xb6t"), 2);
	for (int i = 0; i < 600; i++)
		strcat(many, "x ");
	assert_int_equal(vfm_textbytes_rows(many), VFM_TEXT_ROWS);
}

static double dot(const float *a, const float *b, int n)
{
	double s = 0;

	for (int i = 0; i < n; i++)
		s += (double)a[i] * b[i];
	return s / n;
}

static void rows_follow_the_formula(void **state)
{
	enum { D = 64 };
	static const char *const grams[] = {"<ab", "ab>", "<ab>"};
	struct vfm_textbytes *t = make("bytes:64");
	double a[D] = {0}, u[D], ra, rb = 0, ru = 0;
	float got[2 * D], b[D], g[4];

	(void)state;
	assert_int_equal(vfm_textbytes_encode(t, "x AB", got), 2);
	for (int k = 0; k < 4; k++) {
		const char *s = k < 3 ? grams[k] : "=ab";
		struct vfm_rng r = vfm_rng_stream(0, 0, vfm_fnv64(s, strlen(s)), VFM_RNG_TEXT);

		for (int i = 0; i < D; i++) {
			vfm_rng_normal4(&r, (uint64_t)i / 4, g);
			if (k < 3)
				a[i] += g[i % 4];
			else
				b[i] = g[i % 4];
		}
	}
	ra = 0;
	for (int i = 0; i < D; i++) {
		ra += a[i] * a[i] / D;
		rb += (double)b[i] * b[i] / D;
	}
	for (int i = 0; i < D; i++) {
		u[i] = a[i] / sqrt(ra) + b[i] / sqrt(rb);
		ru += u[i] * u[i] / D;
	}
	for (int i = 0; i < D; i++) {
		double angle = 1 / pow(10000, (double)(i / 2 * 2) / D);
		double want = u[i] / sqrt(ru) + 0.1 * sqrt(2) * (i % 2 ? cos(angle) : sin(angle));

		assert_true(fabs(got[D + i] - want) < 1e-5);
	}
	vfm_textbytes_free(t);
}

static void geometry(void **state)
{
	struct vfm_textbytes *t = make("bytes"), *u = make("bytes:1024");
	float *x = malloc(5 * 1024 * sizeof(float)), *y = malloc(5 * 1024 * sizeof(float));

	(void)state;
	assert_int_equal(vfm_textbytes_dim(t), 1024);
	assert_string_equal(vfm_textbytes_id(t).name, "bytes:1024");
	assert_int_equal(vfm_textbytes_encode(t, "left right left moves moved", x), 5);
	for (int i = 0; i < 5; i++)
		assert_true(fabs(dot(x + i * 1024, x + i * 1024, 1024) - 1.01) < 0.05); /* unit variance */
	assert_true(fabs(dot(x, x + 1024, 1024)) < 0.2);                                /* different words */
	assert_true(dot(x, x + 2048, 1024) > 0.9);         /* the same word elsewhere … */
	assert_true(fabsf(x[0] - x[2048]) > 0.05f);        /* … but not the same row */
	assert_true(dot(x + 3072, x + 4096, 1024) > 0.25); /* words that share letters */
	/* another encoder, another order of words before it: the same rows */
	vfm_textbytes_encode(u, "moved", y);
	assert_int_equal(vfm_textbytes_encode(u, "LEFT right left moves moved", y), 5);
	assert_memory_equal(x, y, 5 * 1024 * sizeof(float));
	assert_int_equal(vfm_textbytes_encode(t, "", x), 1);
	assert_true(dot(x, x, 1024) > 0.9);
	free(x);
	free(y);
	vfm_textbytes_free(t);
	vfm_textbytes_free(u);
}

static void long_and_odd_input(void **state)
{
	struct vfm_textbytes *t = make("bytes:3");
	char *big = malloc(1 << 20);
	float rows[VFM_TEXT_ROWS * 3];

	(void)state;
	memset(big, 'q', 1 << 20);
	big[(1 << 20) - 1] = 0;
	assert_int_equal(vfm_textbytes_encode(t, big, rows), 1);
	for (int i = 0; i < (1 << 20) - 1; i++)
		big[i] = (char)(i % 255 + 1);
	assert_int_equal(vfm_textbytes_encode(t, big, rows), VFM_TEXT_ROWS);
	for (int i = 0; i < VFM_TEXT_ROWS * 3; i++)
		assert_true(isfinite(rows[i]));
	free(big);
	vfm_textbytes_free(t);
	vfm_textbytes_free(NULL);
}

static void bad_specs(void **state)
{
	static const char *const specs[] = {"", "byte", "bytes:", "bytes:0", "bytes:8193", "bytesx", "bytes:1k"};
	struct vfm_textbytes *t;

	(void)state;
	for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++)
		assert_int_equal(vfm_textbytes_new(&t, specs[i], NULL), VFM_EUSAGE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(words),
		cmocka_unit_test(rows_follow_the_formula),
		cmocka_unit_test(geometry),
		cmocka_unit_test(long_and_odd_input),
		cmocka_unit_test(bad_specs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
