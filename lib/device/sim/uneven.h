/* uneven.h - unequal work of simulated ranks: a slow GPU, experts chosen by tokens, waits for other ranks. */
#ifndef VFM_DEVICE_SIM_UNEVEN_H
#define VFM_DEVICE_SIM_UNEVEN_H

#include "device/sim/machine.h"
#include "device/sim/sim.h"

/* Makes all kernels last `factor` times as long, but not the gaps before them, collectives, and copies to the host. */
void vfm_sim_slow_kernels(struct vfm_machine *m, double factor);

/* Fills count [E] with the number of choices, out of n by tokens, that each expert gets; the counts sum to n.  Shares
 * follow Zipf's law: that of the r-th most popular expert is proportional to r^-skew, skew >= 0.  The popularity of
 * each expert depends only on the layer.  most: the number of tokens, E most >= n.  A token chooses no expert twice, so
 * no count exceeds most; the other experts get the rest. */
void vfm_sim_route(int32_t *count, int64_t E, int64_t n, int64_t most, double skew, uint64_t layer);

/* Returns the seconds, at the middle rates, that collectives among launches [n] wait for ranks with unequal work
 * (vfm_sim_launch.uneven) while no stream of this rank is active. */
double vfm_sim_uneven_wait(const struct vfm_sim_launch *l, size_t n);

#endif
