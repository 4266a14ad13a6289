/* clock.h - clocks and time limits. */
#ifndef VFM_BASE_CLOCK_H
#define VFM_BASE_CLOCK_H

#include <stdbool.h>
#include <time.h>

#include "base/err.h"

double vfm_now(void);                                            /* Returns seconds of a monotonic clock. */
double vfm_wall_time(void);                                      /* Returns seconds since 1970. */
struct timespec vfm_time_after(clockid_t clock, double seconds); /* Returns `seconds` from now on the clock. */

/* A time limit for a piece of work, such as everything a stage does for one record.  `= {0}`: no limit. */
struct vfm_limit {
	double until;   /* on the clock of vfm_now */
	double seconds; /* from the start; for messages */
};
struct vfm_limit vfm_limit_start(double seconds);
bool vfm_limit_is_over(const struct vfm_limit *l);
/* Returns VFM_EINPUT with "'path': gave up after 60 s" if the limit is over.  Every loop whose length the input
 * determines calls it. */
int vfm_limit_check(const struct vfm_limit *l, const char *path, struct vfm_err *err);

#endif
