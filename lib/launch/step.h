/* step.h - the tasks of a Slurm step, as its environment tells them. */
#ifndef VFM_LAUNCH_STEP_H
#define VFM_LAUNCH_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Zeros: no step, or no figure of its nodes. */
struct vfm_step_tasks {
	int64_t tasks;
	int64_t nodes, per_node; /* tasks of each node, in the order of the ranks */
};

/* Parses SLURM_STEP_NUM_TASKS, SLURM_STEP_TASKS_PER_NODE ("4(x16)", "4,3(x2)") and SLURM_DISTRIBUTION, each NULL if it
 * is not set.  VFM_EUSAGE, naming the variable: one is malformed, they contradict each other, nodes have different
 * numbers of tasks, or consecutive ranks are on different nodes. */
int vfm_step_tasks_parse(struct vfm_step_tasks *out, const char *tasks, const char *nodes, const char *distribution,
	struct vfm_err *err);
int vfm_step_tasks_read(struct vfm_step_tasks *out, struct vfm_err *err); /* parses those of the environment */
/* Sets *n to the tasks alone, 0: no step. */
int vfm_step_count(int64_t *n, struct vfm_err *err);

#endif
