/* rows.h - sums of rows by index (rows.cu), for other ops. */
#ifndef VFM_DEVICE_CUDA_KERN_ROWS_H
#define VFM_DEVICE_CUDA_KERN_ROWS_H

#include "device/cuda/kern/kern.h"

/* y[m] (+)= sum over the i with index[i * step] == m, ascending, of weight[i] x[i]. */
struct row_sums {
	const void *x;
	void *y;
	int64_t x_stride, y_stride; /* in elements */
	bool x_bf, y_bf, accumulate;
	const int32_t *index;
	int64_t step;
	const float *weight; /* may be NULL */
	int64_t n, m, d;
	int32_t least;   /* INT32_MIN: a negative index means "no row"; 0: it is an error */
	uint64_t *fault; /* word of the op */
};

size_t vfm_row_sums_ws(int64_t n, int64_t m, int64_t d);
void vfm_row_sums(struct vfm_stream *s, const struct row_sums *a, void *ws);
/* Returns VFM_EUSAGE if the lists exceed 32-bit indices. */
int vfm_row_sums_fit(const char *op, int64_t n, int64_t m, struct vfm_err *err);

#endif
