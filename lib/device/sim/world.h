/* world.h - the simulated ranks of a job, which are coroutines of one thread, and their meetings.  A rank runs until it
 * waits for others; then the next rank that can run does.  Equal programs therefore make equal records.
 *
 *	struct vfm_sim_world *w = vfm_sim_world_new(n, 1);
 *	TRY(vfm_sim_world_run(w, fn, self, err));	// fn(self[i]) is rank i
 *
 * The running rank makes all other calls, from fn.  All ranks share the variables of the thread (_Thread_local), except
 * the silence of the log.
 */
#ifndef VFM_DEVICE_SIM_WORLD_H
#define VFM_DEVICE_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "device/sim/machine.h"

struct vfm_sim_world;

/* more_memory: the devices have this multiple of the machine's capacity, to count the needs of a program that runs out
 * of memory.  They report the single capacity (mem_total), because programs plan by it. */
struct vfm_sim_world *vfm_sim_world_new(int n, int more_memory);
void vfm_sim_world_free(struct vfm_sim_world *w); /* accepts NULL */

/* Runs fn(self[i]) for each rank i, initially in order, until all have returned.  Call it once per world, and not
 * within a rank of another world.  VFM_EENV: no memory for the stacks; nothing ran. */
int vfm_sim_world_run(struct vfm_sim_world *w, void (*fn)(void *self), void *const *self, struct vfm_err *err);
void *vfm_sim_world_self(void); /* of the running rank in this thread */

/* A meeting of n ranks, identified by `group` and by its number in the group, which are equal on all ranks. */
struct vfm_sim_meeting {
	uint64_t group, number;
	int n, came, left;
	double at[VFM_ESTIMATES]; /* the time of the last arrival */
	struct vfm_sim_comer {
		int rank;
		const void *brought;
	} comer[]; /* [n], by place; zeros: not arrived yet */
};
/* Arrives at a meeting, at the place `place` of n, and brings a value that stays valid until all have left. */
struct vfm_sim_meeting *vfm_sim_meet(struct vfm_sim_world *w, uint64_t group, uint64_t number, int n, int place,
	const double at[VFM_ESTIMATES], const void *brought);
static inline bool vfm_sim_met(const struct vfm_sim_meeting *m)
{
	return m->came == m->n;
}
/* Leaves a complete meeting.  Each rank leaves once; the last one frees the meeting. */
void vfm_sim_part(struct vfm_sim_world *w, struct vfm_sim_meeting *m);

/* Lets the other ranks run until one of this rank's meetings is complete.  VFM_EENV: all ranks wait, or a rank failed;
 * the message says what each waits for, "what of" for this one. */
int vfm_sim_world_wait(struct vfm_sim_world *w, const char *what, const char *of, struct vfm_err *err);
/* Lets all other ranks that can run do so first. */
void vfm_sim_world_yield(struct vfm_sim_world *w);
/* Records that this rank has failed.  All waits fail from now on, with the first message. */
void vfm_sim_world_fail(struct vfm_sim_world *w, const char *why);
/* Set and return whether a rank ran out of memory. */
void vfm_sim_world_set_full(struct vfm_sim_world *w);
bool vfm_sim_world_is_full(const struct vfm_sim_world *w);
int vfm_sim_world_more_memory(const struct vfm_sim_world *w); /* 1 for NULL */
int vfm_sim_world_check(struct vfm_sim_world *w, struct vfm_err *err);

#endif
