/* straggler.h - how much slower than the mean the slowest of many GPUs is. */
#ifndef VFM_SPEC_COST_STRAGGLER_H
#define VFM_SPEC_COST_STRAGGLER_H

/* Returns the expected largest of n factors >= 1 by which the times of GPUs differ: independent, log-normal with mean 1
 * and coefficient of variation cv, 0 <= cv <= 1.  1e-6 relative. */
double vfm_straggler_factor(double cv, double n);

#endif
