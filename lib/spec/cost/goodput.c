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
