/* cpu_fp8.h - results of the norm kernels as 8-bit floats. */
#ifndef VFM_DEVICE_CPU_CPU_FP8_H
#define VFM_DEVICE_CPU_CPU_FP8_H

#include "device/ops/ops.h"

/* Returns the exponent of the scale of y.  Requires a history in a. */
int vfm_cpu_norm_exponent(const struct vfm_norm *a);
/* Stores row t of y as 8-bit floats if a has a history.  y: the row in bf16; NULL: a->y has it in f32.  Returns the
 * maximum of `most` and the largest finite |y|. */
float vfm_cpu_norm_row8(const struct vfm_norm *a, int64_t t, const uint16_t *y, float most);

#endif
