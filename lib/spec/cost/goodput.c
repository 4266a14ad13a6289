/* goodput.c - the formulas of failures, checkpoint intervals and stragglers. */
#include "spec/cost/goodput.h"

#include <math.h>

bool vfm_goodput_applies(const struct vfm_failures *f)
{
	return f->save_s + f->restart_s < f->mtbf_s;
}

double vfm_goodput(const struct vfm_failures *f, double tau)
{
	double M = f->mtbf_s;

	return tau / (M * exp(f->restart_s / M) * expm1((tau + f->save_s) / M));
}

/* The goodput has one maximum, where exp((tau + c) / M) (1 - tau / M) = 1. */
double vfm_best_interval(const struct vfm_failures *f)
{
	double low = 0, high = f->mtbf_s, M = f->mtbf_s;

	if (f->save_s <= 0)
		return 1e-3 * M;
	for (int i = 0; i < 200; i++) {
		double tau = (low + high) / 2;

		if (exp((tau + f->save_s) / M) * (1 - tau / M) > 1)
			low = tau;
		else
			high = tau;
	}
	return (low + high) / 2;
}

/* The mean of exp(mu + sigma z) for z the largest of n standard normal numbers, whose density is n phi(z) Phi(z)^(n-1).
 * With sigma^2 = ln(1 + cv^2) and mu = -sigma^2 / 2 a factor has mean 1 and coefficient of variation cv. */
double vfm_straggler_factor(double cv, double n)
{
	enum { STEPS = 4000 };
	double variance = log1p(cv * cv), sigma = sqrt(variance), low = -12, high = 14, h = (high - low) / STEPS,
	       sum = 0;

	/* The integrand vanishes at both ends: the trapezoidal rule converges fast. */
	for (int i = 0; i <= STEPS; i++) {
		double z = low + i * h;
		double below = log1p(-0.5 * erfc(z / M_SQRT2)); /* ln Phi */

		if (z < -5)
			below = log(0.5 * erfc(-z / M_SQRT2));
		sum += exp(sigma * z - variance / 2 - z * z / 2 + (n - 1) * below);
	}
	return sum * h * n / sqrt(2 * M_PI);
}
