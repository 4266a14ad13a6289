/* spread.h - smallest, median and largest of repeated measurements. */
#ifndef VFM_BASE_SPREAD_H
#define VFM_BASE_SPREAD_H

#include <stddef.h>

struct vfm_spread {
	double min, median, max;
};

void vfm_sort(double *x, size_t n); /* ascending */

/* Returns the spread of x [n], n >= 1, and sorts x.  The median of an even number of values is the mean of the two in
 * the middle. */
struct vfm_spread vfm_spread_of(double *x, size_t n);

#endif
