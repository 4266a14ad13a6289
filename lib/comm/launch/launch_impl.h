/* launch_impl.h - shared by the backends of launch.h; private. */
#ifndef VFM_COMM_LAUNCH_LAUNCH_IMPL_H
#define VFM_COMM_LAUNCH_LAUNCH_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/launch/launch.h"
#include "io/task.h"

struct vfm_launch_table {
	const char *name; /* "fork", "pmi2" */
	int (*publish)(struct vfm_launch *l, const void *mine, size_t n, struct vfm_err *err);
	int (*fetch)(struct vfm_launch *l, int rank, void *out, size_t n, struct vfm_err *err); /* thread-safe */
	void (*end)(struct vfm_launch *l);
	void (*abort)(struct vfm_launch *l, int status, const char *why);
};

/* Fill *l, except for the fields of vfm_launch_place.  fork returns 0 in a rank, and 1 in the parent after all ranks
 * have ended. */
int vfm_launch_fork(struct vfm_launch *l, int n, struct vfm_err *err);
int vfm_launch_pmi2(struct vfm_launch *l, const struct vfm_task *task, struct vfm_err *err);

/* Sets local_rank, local_size, node and nodes from node_of.  Renumbers node_of to 0 .. nodes-1, in the order of the
 * first rank of each node. */
void vfm_launch_place(struct vfm_launch *l);

/* Parses PMI_process_mapping, "(vector,(first node,nodes,ranks on each),…)", into node_of [size].  The list repeats
 * until all ranks are placed.  Returns false if it is malformed. */
bool vfm_launch_mapping(const char *s, int size, int *node_of);

void vfm_launch_local_job(struct vfm_launch *l); /* sets l->job */

/* ---- processors (bind.c) ---- */

/* Sets the compute threads of this rank, unless OMP_NUM_THREADS or the command line does.  `sharers` is the number of
 * ranks that share its affinity mask. */
void vfm_launch_threads(const struct vfm_launch *l, int sharers);
/* Binds this rank to its part of the affinity mask; local rank 0 gets the first processors.  In that order, hardware
 * threads of a core and cores of a socket are adjacent.  Returns whether it bound the rank: false with VFM_BIND=none,
 * or with more ranks than processors. */
bool vfm_launch_bind(const struct vfm_launch *l);
uint64_t vfm_launch_mask_hash(void); /* Returns a hash of the affinity mask; 0 if it cannot be read. */

#endif
