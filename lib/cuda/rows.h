/* rows.h - sums of rows by index, for ops that need them: rows.cu. */
#ifndef VFM_CUDA_ROWS_H
#define VFM_CUDA_ROWS_H

#include "cuda/kern.h"

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
	int32_t least;   /* INT32_MIN: negative is no row; 0: it is a fault */
	uint64_t *fault; /* of the op */
};

size_t vfm_row_sums_ws(int64_t n, int64_t m, int64_t d);
void vfm_row_sums(struct vfm_stream *s, const struct row_sums *a, void *ws);
/* VFM_EUSAGE if the lists would not fit into 32 bits. */
int vfm_row_sums_fit(const char *op, int64_t n, int64_t m, struct vfm_err *err);

#endif
