/* routing.h - which experts the tokens of a simulated device choose (vfm_sim_set_routing). */
#ifndef VFM_DEVICE_SIM_ROUTING_H
#define VFM_DEVICE_SIM_ROUTING_H

#include <stdint.h>

/* Fills count [E] with the number of n choices of tokens that each expert gets: shares follow Zipf's law, the r-th most
 * popular expert's is proportional to r^-skew, skew >= 0.  Which expert is how popular depends on the layer alone.
 * most: the number of tokens, E most >= n: a token chooses no expert twice, and what is more goes to the others.  The
 * counts sum to n. */
void vfm_sim_route(int32_t *count, int64_t E, int64_t n, int64_t most, double skew, uint64_t layer);

#endif
