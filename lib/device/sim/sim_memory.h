/* sim_memory.h - the memory of a simulated device over the time of a step, by owner: the `what` of vfm_dev_alloc.
 *
 * The pool gives memory out in the order of the host's calls, and the compute stream orders its reuse: the time of a
 * call is the begin of the next launch on the compute stream.  Work after a collective has no time until the other
 * ranks have come, so the record keeps the number of launches at each call, and the step that has ended gives the
 * times.
 *
 * The record has at most VFM_SIM_MEMORY_POINTS intervals of equally many launches, which double when a step has more.
 * Each has the state of its largest sum, so every maximum is kept.
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
	double s; /* since the begin of the step, at the middle rates */
	int64_t used;
};

struct vfm_sim_memory {
	struct vfm_sim_owner *owner; /* [owners] by bytes at the peak, then by name */
	int owners;
	int64_t peak;                       /* since the record began */
	double peak_s;                      /* when; -1: before the step */
	struct vfm_sim_memory_point *point; /* [points] ascending; each holds until the next */
	int64_t *bytes;                     /* [points, owners]; used is their sum */
	int points;
};

/* Records from now on, beginning with the allocated memory.  vfm_sim_clear begins a step. */
void vfm_sim_record_memory(struct vfm_dev *d);
/* Fills *out with the step that began with the last clear, at `begin` on the clock of the host.  The times of its work
 * are known: the host has waited for all streams.  The caller releases *out. */
void vfm_sim_memory(struct vfm_dev *d, double begin, struct vfm_sim_memory *out);
struct vfm_sim_memory vfm_sim_memory_copy(const struct vfm_sim_memory *m);
void vfm_sim_memory_release(struct vfm_sim_memory *m);

#endif
