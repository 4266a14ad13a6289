/* Constant and variable frame rates, told from timestamps alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "media/av/times.h"

/* Adds n timestamps, rounded to the clock of the file. */
static struct vfm_times times_of(int n, double tick_s, double (*time_of)(int i))
{
	struct vfm_times t = {.tick_s = tick_s};

	for (int i = 0; i < n; i++)
		vfm_times_add(&t, round(time_of(i) / tick_s) * tick_s);
	return t;
}

static double ntsc(int i)
{
	return i * 1001 / 30000.0;
}

static double ntsc_film(int i)
{
	return i * 1001 / 24000.0;
}

static double thirty(int i)
{
	return i / 30.0;
}

static double fast(int i)
{
	return i / 480.0;
}

static double telecine(int i)
{
	return ((i / 4) * 10 + (int[]){0, 3, 5, 8}[i % 4]) * 1001 / 60000.0;
}

static double alternating(int i)
{
	return (i / 2) * 0.08 + (i % 2) * 0.02;
}

static double freezing(int i)
{
	return i / 30.0 + (i >= 50 ? 20 : 0);
}

static double one_lost(int i)
{
	return (i + (i >= 50)) / 30.0;
}

static double mostly_regular(int i)
{
	return i * 0.033 + (i / 20) * 0.3;
}

static double drifting(int i)
{
	return i / 30.0 + 1e-5 * i * i;
}

static double screen(int i)
{
	return i < 60 ? i / 60.0 : 1 + (i - 60) * 0.5;
}

static double one_repeated(int i)
{
	return (i - (i == 50)) * 0.04;
}

static double all_equal(int i)
{
	return 0 * i;
}

static double backwards(int i)
{
	return i == 70 ? 1 : i * 0.04;
}

static double wrapping(int i)
{
	return i * 0.04 + (i >= 40 ? 95443 : 0);
}

static void check_rate(const struct vfm_times *t, struct vfm_frame_rate header, int num, int den)
{
	struct vfm_frame_rate r = vfm_times_rate(t, header);

	assert_false(vfm_times_vary(t) || vfm_times_bad(t));
	assert_int_equal(r.num, num);
	assert_int_equal(r.den, den);
}

/* A header is believed when it is right; without one, or with a wrong one, the rate is measured. */
static void test_constant(void **state)
{
	static const struct {
		double (*time_of)(int i);
		int num, den;
	} cases[] = {{ntsc, 30000, 1001}, {ntsc_film, 24000, 1001}, {thirty, 30, 1}, {telecine, 24000, 1001}};
	static const double ticks[] = {1e-3, 1 / 90000.0, 1e-6};
	static const struct vfm_frame_rate wrong[] = {{0, 1}, {60, 1}, {30300, 1000}, {12, 1}, {1000, 1}};

	(void)state;
	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
		for (size_t k = 0; k < 3; k++) {
			struct vfm_times t = times_of(600, ticks[k], cases[c].time_of);

			check_rate(&t, (struct vfm_frame_rate){cases[c].num, cases[c].den}, cases[c].num, cases[c].den);
			for (size_t w = 0; w < sizeof(wrong) / sizeof(wrong[0]); w++)
				check_rate(&t, wrong[w], cases[c].num, cases[c].den);
			assert_true(
				fabs(vfm_times_duration(&t, (struct vfm_frame_rate){cases[c].num, cases[c].den}, -1) -
					600.0 * cases[c].den / cases[c].num) < 0.012);
		}
	/* A clock of milliseconds at 480 frames per second: gaps of 2 and 3 ms. */
	check_rate(&(struct vfm_times){0}, (struct vfm_frame_rate){25, 1}, 25, 1);
	{
		struct vfm_times t = times_of(2000, 1e-3, fast);

		check_rate(&t, (struct vfm_frame_rate){480, 1}, 480, 1);
	}
}

static void test_variable(void **state)
{
	static const struct {
		double (*time_of)(int i);
		double duration; /* of 100 frames */
	} cases[] = {{alternating, 4}, {freezing, 100 / 30.0 + 20}, {one_lost, 101 / 30.0}, {mostly_regular, 4.5},
		{drifting, 3.434}, {screen, 20.73}};

	(void)state;
	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		struct vfm_times t = times_of(100, 1e-3, cases[c].time_of);
		struct vfm_frame_rate r = vfm_times_rate(&t, (struct vfm_frame_rate){30, 1});
		double last = cases[c].time_of(99), mean = 99 / last;

		assert_true(vfm_times_vary(&t) && !vfm_times_bad(&t));
		assert_true(fabs((double)r.num / r.den / mean - 1) < 1e-3);
		/* the end of the last frame: a mean gap after it, or as the file says */
		assert_true(fabs(vfm_times_duration(&t, r, -1) - last * 100 / 99) < 2e-3);
		assert_true(fabs(vfm_times_duration(&t, r, cases[c].duration) - fmax(cases[c].duration, last)) < 0.25);
		assert_true(fabs(vfm_times_duration(&t, r, last / 2) - last * 100 / 99) < 2e-3);
		assert_true(fabs(vfm_times_duration(&t, r, last + 1000) - last * 100 / 99) < 2e-3);
	}
}

static double wrong_unit(int i)
{
	return i * 1e-6;
}

static void test_bad(void **state)
{
	static double (*const cases[])(int i) = {all_equal, backwards, wrapping, wrong_unit};
	struct vfm_times t;

	(void)state;
	for (size_t c = 0; c < 4; c++) {
		struct vfm_frame_rate r;

		t = times_of(100, 1e-3, cases[c]);
		r = vfm_times_rate(&t, (struct vfm_frame_rate){25, 1});
		assert_true(vfm_times_bad(&t) && !vfm_times_vary(&t));
		assert_true(r.num == 25 && r.den == 1);
		assert_true(fabs(vfm_times_duration(&t, r, 77) - 4) < 1e-9);
	}
	t = times_of(100, 1e-3, one_repeated); /* one of a hundred is no reason to forget the others */
	assert_false(vfm_times_bad(&t));
	assert_true(vfm_times_vary(&t));
}

static void test_few(void **state)
{
	struct vfm_times t = {.tick_s = 1e-3};

	(void)state;
	vfm_times_add(&t, 0);
	check_rate(&t, (struct vfm_frame_rate){25, 1}, 25, 1);
	assert_true(fabs(vfm_times_duration(&t, (struct vfm_frame_rate){25, 1}, -1) - 0.04) < 1e-9);
	vfm_times_add(&t, 0.5);
	check_rate(&t, (struct vfm_frame_rate){25, 1}, 2, 1);
	assert_true(fabs(vfm_times_duration(&t, (struct vfm_frame_rate){2, 1}, -1) - 1) < 1e-9);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_constant),
		cmocka_unit_test(test_variable),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_few),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
