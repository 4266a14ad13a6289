/* hw.h - peak rates of accelerators by the name that their driver reports, for MFU and rooflines. */
#ifndef VFM_SPEC_COST_HW_H
#define VFM_SPEC_COST_HW_H

#include "spec/model/dtype.h"

struct vfm_hw {
	/* "H100 PCIe": words of the device's name, case-insensitive; the first matching row counts */
	const char *words;
	/* TFLOP/s without sparsity: matrix products in bf16 and in fp8 (0: none), plain fp32 */
	double bf16, fp8, f32;
	double mem_gb_s; /* bandwidth of device memory, 10^9 bytes a second */
	double mem_gb;   /* capacity, 10^9 bytes */
};

/* "NVIDIA H100 80GB HBM3" -> its row; NULL for unknown devices and CPUs. */
const struct vfm_hw *vfm_hw_find(const char *device_name);

/* Peak TFLOP/s of matrix products in this type; 0: unknown. */
double vfm_hw_peak(const char *device_name, enum vfm_dtype t);

#endif
