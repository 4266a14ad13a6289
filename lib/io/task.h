/* task.h - the task that this process is, and its Slurm step, from the environment. */
#ifndef VFM_IO_TASK_H
#define VFM_IO_TASK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_task {
	bool launched;  /* a launcher started it; else it is task 0 of 1 */
	int64_t count;  /* tasks that share the work */
	int64_t number; /* of this task, from 0; -1: the launcher does not say */
	int64_t local;  /* number among the tasks of its node; 0 if the launcher does not say */
};

/* Reads which task of how many this process is: of a Slurm step (SLURM_STEP_NUM_TASKS, SLURM_PROCID, SLURM_LOCALID),
 * else of a launcher with PMI2 (PMI_FD, PMI_SIZE, PMI_RANK, MPI_LOCALRANKID).  A shell or batch script of a job counts
 * as one process: its SLURM_NTASKS and SLURM_PROCID are those of the job.
 *
 * VFM_EUSAGE: a variable, which the message names, is malformed, contradicts another, or shows that torchrun or mpirun
 * started several processes; each of them would do all the work.  Thread-safe as long as no thread changes the
 * environment. */
int vfm_task_read(struct vfm_task *out, struct vfm_err *err);

/* All zero: no step, or the number of its nodes is unknown. */
struct vfm_step_tasks {
	int64_t tasks;
	int64_t nodes, per_node; /* tasks of each node, in the order of the ranks */
};

/* Parses SLURM_STEP_NUM_TASKS, SLURM_STEP_TASKS_PER_NODE ("4(x16)", "4,3(x2)") and SLURM_DISTRIBUTION; each is NULL if
 * unset.  VFM_EUSAGE names the variable: it is malformed or contradicts another, nodes have different numbers of tasks,
 * or consecutive ranks are on different nodes. */
int vfm_step_tasks_parse(struct vfm_step_tasks *out, const char *tasks, const char *nodes, const char *distribution,
	struct vfm_err *err);
int vfm_step_tasks_read(struct vfm_step_tasks *out, struct vfm_err *err); /* parses the environment */

#endif
