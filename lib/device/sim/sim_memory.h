/* sim_memory.h - the memory of a simulated device over the time of a step, by owner: the `what` of vfm_dev_alloc.
 *
 * The pool allocates in the order of the host's calls, and the compute stream orders the reuse of memory.  The time of
 * a call is therefore the begin of the next launch on the compute stream.  Work behind a collective has no time until
 * the other ranks have arrived, so the record stores the number of launches at each call, and the completed step
 * provides the times.
 *
 * The record has at most VFM_SIM_MEMORY_POINTS intervals with equal numbers of launches, which double if a step has
 * more.  Each interval has the state at its largest sum, so every maximum is kept.
 */
#ifndef VFM_DEVICE_SIM_SIM_MEMORY_H
#define VFM_DEVICE_SIM_SIM_MEMORY_H

#include "device/sim/sim.h"

enum { VFM_SIM_MEMORY_POINTS = 2048 };

struct vfm_sim_owner {
	char name[56];
	int64_t at_peak; /* bytes */
};

struct vfm_sim_memory_point {
	double s; /* since the start of the step, at the middle rates */
	int64_t used;
};

struct vfm_sim_memory {
	struct vfm_sim_owner *owner; /* [owners] by bytes at the peak, then by name */
	int owners;
	int64_t peak;                       /* since the record began */
	double peak_s;                      /* time of the peak; -1: before the step */
	struct vfm_sim_memory_point *point; /* [points] ascending; each is valid until the next */
	int64_t *bytes;                     /* [points, owners]; used is their sum */
	int points;
};

/* Starts the record with the memory that is allocated now.  vfm_sim_clear begins a step. */
void vfm_sim_record_memory(struct vfm_dev *d);
/* Fills *out with the step that began with the last clear, at `begin` on the clock of the host.  The host must have
 * waited for all streams, so that the times are known.  The caller releases *out. */
void vfm_sim_memory(struct vfm_dev *d, double begin, struct vfm_sim_memory *out);
struct vfm_sim_memory vfm_sim_memory_copy(const struct vfm_sim_memory *m);
void vfm_sim_memory_release(struct vfm_sim_memory *m);

#endif
