/* comm.h - a group of ranks and what they do together.
 *
 * Every call here but rank and size is *collective*: all ranks of the group make it, in
 * the same order, with operands of the same shape.  Calls are put on a stream of the
 * device and return at once; the result is there when the stream has passed.  Sums of bf16
 * are made in f32; for a given group the order of a sum is fixed.
 *
 * Fillings are tables, as devices are.  Here: the group of one, in which each collective is a copy
 * (or nothing, in place).
 */
#ifndef VFM_COMM_COMM_H
#define VFM_COMM_COMM_H

#include "dev/dev.h"
#include "ops/tensor.h"

struct vfm_comm;

struct vfm_comm_table {
	const char *name; /* "self" */
	int (*all_reduce)(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, struct vfm_err *err);
	int (*all_gather)(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out, struct vfm_err *err);
	int (*reduce_scatter)(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out, struct vfm_err *err);
	int (*all_to_all)(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out, struct vfm_err *err);
	int (*broadcast)(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int root, struct vfm_err *err);
	int (*barrier)(struct vfm_comm *c, struct vfm_stream *s, struct vfm_err *err);
	void (*free)(struct vfm_comm *c);
};

/* Fillings embed this as their first member. */
struct vfm_comm {
	const struct vfm_comm_table *t;
	int rank, size;
};

/* The group of this rank alone.  Static; never freed. */
struct vfm_comm *vfm_comm_self(void);

/* x [n] = sum over the ranks. */
int vfm_all_reduce(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, struct vfm_err *err);
/* out [size * n] = the ranks' in [n], in the order of the ranks.  in may lie in its place in out. */
int vfm_all_gather(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out, struct vfm_err *err);
/* out [n] = this rank's share of the sum of in [size * n]. */
int vfm_reduce_scatter(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out, struct vfm_err *err);
/* Block i of in [size * n] goes to rank i; block j of out came from rank j. */
int vfm_all_to_all(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out, struct vfm_err *err);
int vfm_broadcast(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int root, struct vfm_err *err);
int vfm_barrier(struct vfm_comm *c, struct vfm_stream *s, struct vfm_err *err);

#endif
