#include "base/normal.h"

#include <math.h>

double vfm_normal_cdf(double z)
{
	return 0.5 * erfc(-z * M_SQRT1_2);
}

double vfm_normal_quantile(double u)
{
	double lo = -40, hi = 40;

	for (int i = 0; i < 100; i++) {
		double mid = (lo + hi) / 2;

		if (vfm_normal_cdf(mid) < u)
			lo = mid;
		else
			hi = mid;
	}
	return (lo + hi) / 2;
}
