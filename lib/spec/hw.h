/* hw.h - what accelerators can do at most, by the name that their driver gives them: what a measured rate is a share
 * of. */
#ifndef VFM_SPEC_HW_H
#define VFM_SPEC_HW_H

#include "spec/dtype.h"

struct vfm_hw {
	/* "H100 PCIe": each is a word of the device's name, in any case; the first row that fits counts */
	const char *words;
	/* TFLOP/s without sparsity: matrix products in bf16 and in fp8 (0: none), plain fp32 */
	double bf16, fp8, f32;
	double mem_gb_s; /* to the device's own memory, 10^9 bytes a second */
	double mem_gb;   /* 10^9 bytes of it */
};

/* "NVIDIA H100 80GB HBM3" -> its row; NULL: not known, as every CPU is. */
const struct vfm_hw *vfm_hw_find(const char *device_name);

/* TFLOP/s of matrix products in this type; 0: not known. */
double vfm_hw_peak(const char *device_name, enum vfm_dtype t);

#endif
