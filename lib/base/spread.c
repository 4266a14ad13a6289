#include "base/spread.h"

#include <stdlib.h>

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

void vfm_sort(double *x, size_t n)
{
	qsort(x, n, sizeof(*x), compare_doubles);
}

struct vfm_spread vfm_spread_of(double *x, size_t n)
{
	vfm_sort(x, n);
	return (struct vfm_spread){
		.min = x[0], .median = n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2, .max = x[n - 1]};
}
