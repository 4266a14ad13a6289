/* launch_impl.h - what the fillings of launch.h share. */
#ifndef VFM_LAUNCH_LAUNCH_IMPL_H
#define VFM_LAUNCH_LAUNCH_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "launch/launch.h"

struct vfm_launch_table {
	const char *name; /* "fork", "pmi2" */
	int (*exchange)(struct vfm_launch *l, const void *mine, size_t n, void *all, struct vfm_err *err);
	int (*share)(struct vfm_launch *l, void *x, size_t n, struct vfm_err *err); /* NULL: by an exchange */
	void (*end)(struct vfm_launch *l);
	void (*abort)(struct vfm_launch *l, int status, const char *why);
};

/* Each fills *l but for what vfm_launch_place does.  fork: 0 in a rank, 1 in the parent when all have ended. */
int vfm_launch_fork(struct vfm_launch *l, int n, struct vfm_err *err);
int vfm_launch_pmi2(struct vfm_launch *l, struct vfm_err *err);

/* local_rank, local_size, node, nodes from node_of, whose entries are renumbered to 0 .. nodes-1 in the order of their
 * first rank. */
void vfm_launch_place(struct vfm_launch *l);

/* PMI_process_mapping, "(vector,(first node,nodes,ranks on each),…)", into node_of [size].  The list starts again where
 * it ends before the ranks do.  false: it is malformed. */
bool vfm_launch_mapping(const char *s, int size, int *node_of);

void vfm_launch_local_job(struct vfm_launch *l); /* sets l->job */
double vfm_launch_timeout(void);                 /* seconds: VFM_COMM_TIMEOUT_S, else 600 */

/* ---- processors (bind.c) ---- */

/* Compute threads of this rank, when neither OMP_NUM_THREADS nor the command line says: `sharers` ranks have its
 * affinity mask. */
void vfm_launch_threads(const struct vfm_launch *l, int sharers);
/* Gives this rank its part of the mask: 0 of the local ranks the first processors, counted so that the hardware threads
 * of a core, then the cores of a socket, stand beside each other.  Does nothing with VFM_BIND=none or more ranks than
 * processors; true: bound. */
bool vfm_launch_bind(const struct vfm_launch *l);
uint64_t vfm_launch_mask_hash(void);

#endif
