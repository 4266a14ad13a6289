/* clock.h - the time. */
#ifndef VFM_BASE_CLOCK_H
#define VFM_BASE_CLOCK_H

double vfm_now(void);       /* Returns seconds of a monotonic clock. */
double vfm_wall_time(void); /* Returns seconds since 1970. */

#endif
