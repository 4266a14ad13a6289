/* world.h - the simulated ranks of a job, which are threads of this process, and where they meet.
 *
 * One thread runs at a time: a rank runs until it waits for other ranks, and then the next one runs that can.  So the
 * order in which the ranks' work becomes known does not depend on the machine, and equal programs make equal records.
 *
 *	struct vfm_sim_world *w = vfm_sim_world_new(n, 1);
 *	// in the thread of rank i, of 0 to n - 1
 *	vfm_sim_world_enter(w, i);
 *	...
 *	vfm_sim_world_leave(w, i);
 *
 * All other calls are made by the thread that runs.
 */
#ifndef VFM_SIM_WORLD_H
#define VFM_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "sim/machine.h"

struct vfm_sim_world;

/* more_memory: the devices have so many times the capacity of the machine, but say that they have it once (mem_total),
 * by which programs plan: to count what a program needs that runs out of memory. */
struct vfm_sim_world *vfm_sim_world_new(int n, int more_memory);
void vfm_sim_world_free(struct vfm_sim_world *w); /* all ranks have left; accepts NULL */

void vfm_sim_world_enter(struct vfm_sim_world *w, int rank); /* blocks until it is this rank's turn */
void vfm_sim_world_leave(struct vfm_sim_world *w, int rank); /* lets others run */
/* For a rank that will not enter: all waits fail with `why`.  From any thread. */
void vfm_sim_world_give_up(struct vfm_sim_world *w, int rank, const char *why);

/* A meeting of n ranks, which is known by `group` and by its number in the group, both equal on all ranks. */
struct vfm_sim_meeting {
	uint64_t group, number;
	int n, came, left;
	double at[VFM_ESTIMATES]; /* the time of the last one that came */
	const void **brought;     /* [n], by place; NULL: none came yet */
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

/* Lets the other ranks run until a meeting has become complete meanwhile.  VFM_EENV if all ranks wait, or if a rank
 * failed: the message says what each waits for, `what` for this one. */
int vfm_sim_world_wait(struct vfm_sim_world *w, int rank, const char *what, struct vfm_err *err);
/* Lets the other ranks that can run do so first. */
void vfm_sim_world_yield(struct vfm_sim_world *w, int rank);
/* All waits fail from now on; the first message stays. */
void vfm_sim_world_fail(struct vfm_sim_world *w, int rank, const char *why);
/* Whether the memory of a rank ran out. */
void vfm_sim_world_set_full(struct vfm_sim_world *w);
bool vfm_sim_world_is_full(const struct vfm_sim_world *w);
int vfm_sim_world_more_memory(const struct vfm_sim_world *w); /* 1 for NULL */
int vfm_sim_world_check(struct vfm_sim_world *w, struct vfm_err *err);

#endif
