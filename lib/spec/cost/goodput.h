/* goodput.h - the fraction of a job's time that is useful work, given failures and slow GPUs.
 *
 * Failures are random, with a mean time M between them.  A checkpoint costs c seconds.  A failure loses the work since
 * the last checkpoint, and r seconds pass until the next step; the job may fail again meanwhile.  Then tau seconds of
 * work take on average
 *
 *	M exp(r / M) (exp((tau + c) / M) - 1)
 *
 * (Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, 2006, equation 18), and the
 * goodput is tau over this.  The formula assumes c and r short against M; where c + r >= M, it says only that the job
 * makes no progress.
 */
#ifndef VFM_SPEC_COST_GOODPUT_H
#define VFM_SPEC_COST_GOODPUT_H

#include <stdbool.h>

struct vfm_failures {
	double mtbf_s;    /* > 0: M, of the whole job */
	double save_s;    /* >= 0: c */
	double restart_s; /* >= 0: r */
};

/* Returns whether a restart and a checkpoint are shorter than the time between failures. */
bool vfm_goodput_applies(const struct vfm_failures *f);
/* Returns the goodput, 0 to 1, with a checkpoint after every tau > 0 seconds of work. */
double vfm_goodput(const struct vfm_failures *f, double tau);
/* Returns the tau with the highest goodput; 1e-3 M if save_s is 0. */
double vfm_best_interval(const struct vfm_failures *f);

/* Returns the expected maximum of n >= 1 factors between the times of GPUs.  The factors are independent and
 * log-normal, with mean 1 and coefficient of variation cv, 0 <= cv <= 1.  Relative error 1e-6. */
double vfm_straggler_factor(double cv, double n);

#endif
