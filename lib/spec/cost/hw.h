/* hw.h - peak rates of accelerators, by the name that the driver reports, for MFU. */
#ifndef VFM_SPEC_COST_HW_H
#define VFM_SPEC_COST_HW_H

#include "spec/model/dtype.h"

/* Returns the dense peak TFLOP/s of a device such as "NVIDIA H100 80GB HBM3" for matrix products in this type; 0 if it
 * is unknown or a CPU. */
double vfm_hw_peak(const char *device_name, enum vfm_dtype t);

#endif
