/* slow.h - a GPU that is slower than others of its kind. */
#ifndef VFM_DEVICE_SIM_SLOW_H
#define VFM_DEVICE_SIM_SLOW_H

#include "device/sim/machine.h"

/* Makes all kernels last `factor` times as long, but not the gaps before them, collectives and copies to the host. */
void vfm_sim_slow_kernels(struct vfm_machine *m, double factor);

#endif
