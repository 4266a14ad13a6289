#include "spec/cost/straggler.h"

#include <math.h>

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
