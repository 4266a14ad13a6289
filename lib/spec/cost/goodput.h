/* goodput.h - the part of a job's time that is work, despite failures and slow GPUs.
 *
 * Failures come at random with a mean time M between them.  A checkpoint costs c seconds; a failure loses the work
 * since the last one, and costs r seconds until the next step.  The job may fail again meanwhile.  Then tau seconds of
 * work take on average
 *
 *	M exp(r / M) (exp((tau + c) / M) - 1)
 *
 * (Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, 2006, equation 18); the goodput
 * is tau over this.  It assumes c and r short against M; where c + r >= M, it says only that the job makes no progress.
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
/* Returns the tau with the most goodput; with save_s 0, 1e-3 M. */
double vfm_best_interval(const struct vfm_failures *f);

/* Returns the expected largest of n factors >= 1 between the times of GPUs: independent, log-normal with mean 1 and
 * coefficient of variation cv, 0 <= cv <= 1.  1e-6 relative. */
double vfm_straggler_factor(double cv, double n);

#endif
