/* world.h - the simulated ranks of a job, which are coroutines of one thread, and where they meet.  A rank runs until
 * it waits for others, and then the next one runs that can, so equal programs make equal records.
 *
 *	struct vfm_sim_world *w = vfm_sim_world_new(n, 1);
 *	TRY(vfm_sim_world_run(w, fn, self, err));	// fn(self[i]) is rank i
 *
 * All other calls are made by the rank that runs, from fn.  All ranks share the variables of the thread
 * (_Thread_local), but for the silence of the log.
 */
#ifndef VFM_DEVICE_SIM_WORLD_H
#define VFM_DEVICE_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "device/sim/machine.h"

struct vfm_sim_world;

/* more_memory: the devices have so many times the machine's capacity, to count the needs of a program that runs out of
 * memory.  They report the capacity once (mem_total), because programs plan by it. */
struct vfm_sim_world *vfm_sim_world_new(int n, int more_memory);
void vfm_sim_world_free(struct vfm_sim_world *w); /* accepts NULL */

/* Runs fn(self[i]) for each rank i, in their order at first, until all have returned.  Once for a world, and not within
 * a rank of another.  VFM_EENV: no memory for their stacks; nothing ran. */
int vfm_sim_world_run(struct vfm_sim_world *w, void (*fn)(void *self), void *const *self, struct vfm_err *err);
void *vfm_sim_world_self(void); /* of the rank that runs in this thread */

/* A meeting of n ranks, which is known by `group` and by its number in the group, both equal on all ranks. */
struct vfm_sim_meeting {
	uint64_t group, number;
	int n, came, left;
	double at[VFM_ESTIMATES]; /* the time of the last one that came */
	struct vfm_sim_comer {
		int rank;
		const void *brought;
	} comer[]; /* [n], by place; zeros: not come yet */
};
/* This rank comes to a meeting, at the place `place` of n, and brings something that stays valid until all have left.
 */
struct vfm_sim_meeting *vfm_sim_meet(struct vfm_sim_world *w, uint64_t group, uint64_t number, int n, int place,
	const double at[VFM_ESTIMATES], const void *brought);
static inline bool vfm_sim_met(const struct vfm_sim_meeting *m)
{
	return m->came == m->n;
}
/* Each rank leaves a complete meeting once; the last one frees it. */
void vfm_sim_part(struct vfm_sim_world *w, struct vfm_sim_meeting *m);

/* Lets the other ranks run until one of this rank's meetings is complete.  VFM_EENV if all ranks wait, or if a rank
 * failed: the message says what each waits for, "what of" for this one. */
int vfm_sim_world_wait(struct vfm_sim_world *w, const char *what, const char *of, struct vfm_err *err);
/* Lets the other ranks that can run do so first. */
void vfm_sim_world_yield(struct vfm_sim_world *w);
/* This rank has failed: all waits fail from now on; the first message stays. */
void vfm_sim_world_fail(struct vfm_sim_world *w, const char *why);
/* Whether the memory of a rank ran out. */
void vfm_sim_world_set_full(struct vfm_sim_world *w);
bool vfm_sim_world_is_full(const struct vfm_sim_world *w);
int vfm_sim_world_more_memory(const struct vfm_sim_world *w); /* 1 for NULL */
int vfm_sim_world_check(struct vfm_sim_world *w, struct vfm_err *err);

#endif
