/* clock.h - time. */
#ifndef VFM_BASE_CLOCK_H
#define VFM_BASE_CLOCK_H

double vfm_now(void);       /* seconds, monotonic */
double vfm_wall_time(void); /* seconds since 1970 */

#endif
