/* cpu_fp8.h - for the kernels of norms whose result is read as 8-bit floats. */
#ifndef VFM_DEVICE_CPU_CPU_FP8_H
#define VFM_DEVICE_CPU_CPU_FP8_H

#include "device/ops/ops.h"

/* Returns the exponent of the scale of y; a has a history. */
int vfm_cpu_norm_exponent(const struct vfm_norm *a);
/* If a has a history, stores row t of y as 8-bit floats.  y: the row in bf16; NULL: it is in a->y, in f32.  Returns the
 * larger of `most` and the largest finite |y|. */
float vfm_cpu_norm_row8(const struct vfm_norm *a, int64_t t, const uint16_t *y, float most);

#endif
