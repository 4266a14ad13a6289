/* waits.h - how long a simulated rank waits for ranks that do unequal work. */
#ifndef VFM_DEVICE_SIM_WAITS_H
#define VFM_DEVICE_SIM_WAITS_H

#include "device/sim/sim.h"

/* Returns the seconds of launches [n] in which a collective of ranks that do unequal work (vfm_sim_launch.uneven) waits
 * for them, while no stream of this rank works, at the middle rates. */
double vfm_sim_uneven_wait(const struct vfm_sim_launch *l, size_t n);

#endif
