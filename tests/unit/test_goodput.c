/* Goodput against a simulation of failures, and the best interval against its neighbours. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/philox.h"
#include "spec/cost/goodput.h"

struct dice {
	struct vfm_rng rng;
	uint64_t n;
};

static double next_failure(struct dice *d, double mtbf)
{
	return -mtbf * log(1 - (double)vfm_rng_uniform(&d->rng, d->n++));
}

/* Returns the goodput of `n` intervals of work. */
static double simulate(const struct vfm_failures *f, double tau, int n)
{
	struct dice d = {.rng = vfm_rng_stream(1, 2, 3, VFM_RNG_TEST)};
	double time = 0, left = next_failure(&d, f->mtbf_s);

	for (int i = 0; i < n;) {
		double need = tau + f->save_s;

		if (need <= left) {
			time += need;
			left -= need;
			i++;
			continue;
		}
		time += left;
		left = next_failure(&d, f->mtbf_s);
		while (f->restart_s > left) {
			time += left;
			left = next_failure(&d, f->mtbf_s);
		}
		time += f->restart_s;
		left -= f->restart_s;
	}
	return n * tau / time;
}

static void test_formula(void **state)
{
	static const struct vfm_failures f[] = {{3600, 60, 300}, {86400, 30, 600}, {1800, 5, 900}, {7200, 600, 0}};

	(void)state;
	for (size_t i = 0; i < sizeof(f) / sizeof(*f); i++)
		for (double tau = 200; tau < 4000; tau *= 3) {
			double want = simulate(&f[i], tau, 200000), got = vfm_goodput(&f[i], tau);

			if (fabs(got / want - 1) > 0.015)
				fail_msg("every %g s: %g, simulated %g", tau, got, want);
		}
}

static void test_best(void **state)
{
	static const struct vfm_failures f[] = {{3600, 60, 300}, {86400, 30, 600}, {1e7, 1, 10}, {100, 200, 50}};

	(void)state;
	for (size_t i = 0; i < sizeof(f) / sizeof(*f); i++) {
		double best = vfm_best_interval(&f[i]);

		assert_true(best > 0 && best < f[i].mtbf_s);
		assert_true(vfm_goodput(&f[i], best) >= vfm_goodput(&f[i], best * 1.01));
		assert_true(vfm_goodput(&f[i], best) >= vfm_goodput(&f[i], best / 1.01));
	}
	/* Young (1974): sqrt(2 c M) for c << M */
	assert_true(fabs(vfm_best_interval(&f[2]) / sqrt(2 * 1 * 1e7) - 1) < 1e-3);
}

/* A restart and a checkpoint are shorter than the time between failures. */
static void test_range(void **state)
{
	(void)state;
	assert_true(vfm_goodput_applies(&(struct vfm_failures){311, 10, 300}));
	assert_false(vfm_goodput_applies(&(struct vfm_failures){310, 10, 300}));
	assert_false(vfm_goodput_applies(&(struct vfm_failures){3.6, 10, 0}));
	assert_true(vfm_goodput_applies(&(struct vfm_failures){3.6, 0, 0}));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_formula), cmocka_unit_test(test_best), cmocka_unit_test(test_range)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
