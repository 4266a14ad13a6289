/* task.h - the task that this process is, and the step of Slurm that it belongs to, as the environment tells them. */
#ifndef VFM_IO_TASK_H
#define VFM_IO_TASK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_task {
	bool launched;  /* a launcher started it; else it is task 0 of 1 */
	int64_t count;  /* tasks that do the work together */
	int64_t number; /* of this one, from 0; -1: the launcher does not say */
	int64_t local;  /* among those of its node; 0 if the launcher does not say */
};

/* Reads which task of how many this process is: of a step of Slurm (SLURM_STEP_NUM_TASKS, SLURM_PROCID, SLURM_LOCALID)
 * or, without one, of a launcher with PMI2 (PMI_FD, PMI_SIZE, PMI_RANK, MPI_LOCALRANKID).  A shell or a script of a job
 * has SLURM_NTASKS and SLURM_PROCID, too; they are those of the job, and the shell is one process.
 *
 * VFM_EUSAGE, naming the variable: it is malformed, contradicts another, or says that torchrun or mpirun started
 * several processes: each would do the work of all.  Thread-safe as long as no thread changes the environment. */
int vfm_task_read(struct vfm_task *out, struct vfm_err *err);

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

#endif
