/* normal.h - the standard normal distribution. */
#ifndef VFM_BASE_NORMAL_H
#define VFM_BASE_NORMAL_H

double vfm_normal_cdf(double z); /* P(Z < z) */
/* Returns the z with P(Z < z) = u, 0 < u < 1, by bisection. */
double vfm_normal_quantile(double u);

#endif
