/* Times, shifts and loss weights against values of diffusers and NumPy (tests/ref/make_diffusion.py), and the
 * distribution of the draws against the closed forms. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "diffusion_values.h"
#include "net/diffusion/diffusion.h"
#include "ok.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))

static struct vfm_diffusion flow(void)
{
	struct vfm_diffusion d;

	vfm_diffusion_defaults(&d);
	d.kind = VFM_FLOW;
	return d;
}

static void check_near(const char *what, double x, double expected, double rel)
{
	if (fabs(x - expected) > rel * fabs(expected))
		fail_msg("%s: %.17g, expected %.17g", what, x, expected);
}

static void test_flow_weights(void **state)
{
	static const enum vfm_weighting kinds[] = {VFM_WEIGHT_COSMAP, VFM_WEIGHT_SIGMA_SQRT, VFM_WEIGHT_BELL};
	static const double gammas[] = {1, 5};
	struct vfm_diffusion d = flow();

	(void)state;
	for (size_t i = 0; i < N(flow_weights); i++) {
		const double *r = flow_weights[i];

		d.weighting = VFM_WEIGHT_NONE;
		assert_true(vfm_diffusion_at(&d, r[0]).weight == 1);
		for (size_t k = 0; k < N(kinds); k++) {
			d.weighting = kinds[k];
			/* diffusers rounds sigma_sqrt to f32 */
			check_near("weight", vfm_diffusion_at(&d, r[0]).weight, r[1 + k], k == 1 ? 1e-7 : 1e-9);
		}
		d.weighting = VFM_WEIGHT_MIN_SNR;
		for (size_t k = 0; k < N(gammas); k++) {
			d.snr_gamma = gammas[k];
			check_near("min_snr", vfm_diffusion_at(&d, r[0]).weight, r[4 + k], 1e-11);
		}
	}
}

static void test_edm_weights(void **state)
{
	static const double gammas[] = {1, 5};
	struct vfm_diffusion d;

	(void)state;
	vfm_diffusion_defaults(&d);
	d.weighting = VFM_WEIGHT_MIN_SNR;
	for (size_t i = 0; i < N(edm_weights); i++)
		for (size_t k = 0; k < N(gammas); k++) {
			d.snr_gamma = gammas[k];
			check_near("min_snr", vfm_diffusion_at(&d, edm_weights[i][0]).weight, edm_weights[i][1 + k],
				1e-11);
		}
}

static void test_quantiles(void **state)
{
	struct vfm_diffusion d = flow();

	(void)state;
	for (size_t i = 0; i < N(logit_normals); i++) {
		const double *r = logit_normals[i];

		d.t_mean = r[0];
		d.t_std = r[1];
		check_near("logit-normal", vfm_diffusion_quantile(&d, r[2], 7), r[3], 1e-9);
	}
	d = flow();
	d.t_dist = VFM_TIME_MODE;
	for (size_t i = 0; i < N(modes); i++) {
		d.mode_scale = modes[i][0];
		check_near("mode", vfm_diffusion_quantile(&d, modes[i][1], 7), modes[i][2], 1e-9);
	}
	d = flow();
	d.t_dist = VFM_TIME_UNIFORM;
	for (size_t i = 0; i < N(shifts); i++) {
		const double *r = shifts[i];

		d.shift = r[0];
		d.shift_tokens = (int64_t)r[1];
		check_near("shift", vfm_diffusion_quantile(&d, r[3], (int64_t)r[2]), r[4], 1e-12);
	}
	vfm_diffusion_defaults(&d);
	d.p_mean = -1.2;
	d.p_std = 1.2;
	check_near("edm", vfm_diffusion_quantile(&d, 0.5, 7), exp(-1.2), 1e-12);
	check_near("edm", vfm_diffusion_quantile(&d, 0.8413447460685429, 7), 1, 1e-9);
}

/* The largest distance between the empirical distribution of n draws and the closed form. */
static double kolmogorov(const struct vfm_diffusion *d, int n, int64_t tokens, uint64_t seed)
{
	double worst = 0;

	for (int q = 1; q < 100; q++) {
		double t = vfm_diffusion_quantile(d, q / 100.0, tokens);
		int below = 0;

		for (int i = 0; i < n; i++)
			below += vfm_diffusion_draw(d, seed, 3, (uint64_t)i, tokens).noise < t;
		worst = fmax(worst, fabs((double)below / n - q / 100.0));
	}
	return worst;
}

/* 1.95 / sqrt(n) is exceeded with probability 0.001 (Kolmogorov); the draws are fixed. */
static void test_draws(void **state)
{
	enum { DRAWS = 8000 };
	const double limit = 1.95 / sqrt(DRAWS);
	struct vfm_diffusion d = flow(), other;

	(void)state;
	d.shift = 3;
	d.shift_tokens = 100;
	for (d.t_dist = VFM_TIME_LOGIT_NORMAL; d.t_dist <= VFM_TIME_MODE; d.t_dist++) {
		assert_true(kolmogorov(&d, DRAWS, 400, 1) < limit);
		other = d; /* and the test can tell: 10 % of the shift */
		other.shift = 3.3;
		for (int i = 0; i < DRAWS; i++) {
			struct vfm_draw a = vfm_diffusion_draw(&d, 1, 3, (uint64_t)i, 400),
					b = vfm_diffusion_draw(&other, 1, 3, (uint64_t)i, 400);

			assert_true(a.noise > 0 && a.noise < b.noise && b.noise < 1);
		}
	}
	vfm_diffusion_defaults(&d);
	assert_true(kolmogorov(&d, DRAWS, 400, 1) < limit);
}

/* shift_tokens is the only way in which a draw depends on the number of tokens. */
/* Text and image are dropped independently of each other, of the given frame and of the time, as often as asked for. */
static void test_drops(void **state)
{
	enum { DRAWS = 20000 };
	struct vfm_diffusion d = flow(), plain;
	int text = 0, image = 0, both = 0, given = 0, image_given = 0, other_step = 0, other_seed = 0;

	(void)state;
	d.text_drop = 0.3;
	d.image_drop = 0.2;
	d.image_cond = 0.5;
	plain = d;
	plain.image_drop = 0;
	for (uint64_t i = 0; i < DRAWS; i++) {
		struct vfm_draw r = vfm_diffusion_draw(&d, 1, 3, i, 7), p = vfm_diffusion_draw(&plain, 1, 3, i, 7);

		text += r.drop_text;
		image += r.drop_image;
		given += r.given;
		both += r.drop_text && r.drop_image;
		image_given += r.given && r.drop_image;
		assert_int_equal(vfm_diffusion_draw(&d, 1, 3, i, 9).drop_image, r.drop_image);
		other_step += vfm_diffusion_draw(&d, 1, 4, i, 7).drop_image != r.drop_image;
		other_seed += vfm_diffusion_draw(&d, 2, 3, i, 7).drop_image != r.drop_image;
		assert_false(p.drop_image);
		p.drop_image = r.drop_image;
		assert_true(p.noise == r.noise && p.drop_text == r.drop_text && p.given == r.given);
	}
	/* Four standard deviations of a share of 20,000 are at most 0.0142; the draws are fixed. */
	check_near("text", (double)text / DRAWS, 0.3, 0.0142 / 0.3);
	check_near("image", (double)image / DRAWS, 0.2, 0.0114 / 0.2);
	check_near("text and image", (double)both / DRAWS, 0.3 * 0.2, 0.0068 / 0.06);
	check_near("given", (double)given / DRAWS, 0.5, 0.0142 / 0.5);
	check_near("given and image", (double)image_given / DRAWS, 0.5 * 0.2, 0.0085 / 0.1);
	check_near("another step", (double)other_step / DRAWS, 2 * 0.2 * 0.8, 0.0132 / 0.32);
	check_near("another seed", (double)other_seed / DRAWS, 2 * 0.2 * 0.8, 0.0132 / 0.32);
	d.image_drop = 1;
	assert_true(vfm_diffusion_draw(&d, 1, 3, 5, 7).drop_image);
}

static void test_tokens(void **state)
{
	struct vfm_diffusion d = flow();
	double t, odds;

	(void)state;
	t = vfm_diffusion_draw(&d, 5, 6, 7, 64).noise;
	assert_true(t == vfm_diffusion_draw(&d, 5, 6, 7, 128).noise);
	d.shift_tokens = 64;
	assert_true(t == vfm_diffusion_draw(&d, 5, 6, 7, 64).noise);
	odds = t / (1 - t);
	t = vfm_diffusion_draw(&d, 5, 6, 7, 256).noise;
	check_near("odds", t / (1 - t), 2 * odds, 1e-12);
	assert_true(vfm_diffusion_shift(&d, 16) == 0.5);
}

static void test_refusals(void **state)
{
	struct vfm_diffusion d;

	(void)state;
	for (int i = 0; i < 6; i++) {
		static const char *const keys[] = {
			"t_dist", "shift_tokens", "weighting", "weighting", "mode_scale", "snr_gamma"};

		vfm_diffusion_defaults(&d);
		OK(vfm_diffusion_check(&d, &err));
		if (i == 0)
			d.t_dist = VFM_TIME_UNIFORM;
		if (i == 1)
			d.shift_tokens = 5;
		if (i == 2)
			d.weighting = VFM_WEIGHT_COSMAP;
		if (i == 3)
			d.weighting = VFM_WEIGHT_BELL;
		if (i == 4)
			d.mode_scale = 0.5;
		if (i == 5)
			d.snr_gamma = 3;
		assert_int_equal(vfm_diffusion_check(&d, &err), VFM_EUSAGE);
		assert_non_null(strstr(err.msg, keys[i]));
		d.kind = VFM_FLOW;
		assert_int_equal(vfm_diffusion_check(&d, &err), i < 4 ? 0 : VFM_EUSAGE);
	}
	vfm_diffusion_defaults(&d);
	d.weighting = VFM_WEIGHT_MIN_SNR;
	d.snr_gamma = 3;
	OK(vfm_diffusion_check(&d, &err));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_flow_weights),
		cmocka_unit_test(test_edm_weights),
		cmocka_unit_test(test_quantiles),
		cmocka_unit_test(test_draws),
		cmocka_unit_test(test_drops),
		cmocka_unit_test(test_tokens),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests_name("diffusion", tests, NULL, NULL);
}
