/* node.h - the interface for implementing differentiable ops (gops*.c and the collectives of mesh). */
#ifndef VFM_NET_TAPE_NODE_H
#define VFM_NET_TAPE_NODE_H

#include "net/tape/tape.h"

enum { VFM_NODE_IN = 8, VFM_NODE_SAVED = 10 };

struct vfm_node {
	int (*backward)(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err);
	struct vfm_var *in[VFM_NODE_IN]; /* may be NULL */
	struct vfm_var *out;
	void *ctx; /* the op's own data; from vfm_tape_alloc */
	void (*drop)(
		struct vfm_node *n); /* optional; called once when the node is released, with or without backward */
	struct vfm_store *saved[VFM_NODE_SAVED];
	int n_saved;
};

/* ---- in the forward ---- */
bool vfm_tape_failed(const struct vfm_tape *t);
void vfm_tape_fail(
	struct vfm_tape *t, int rc, const struct vfm_err *err); /* no-op if rc is 0, and after the first failure */
/* Returns a new variable with undefined contents.  The open scope holds it. */
struct vfm_var *vfm_var_new(struct vfm_tape *t, struct vfm_tensor like);
struct vfm_tensor vfm_like(
	const struct vfm_tensor *shape, enum vfm_dtype dt); /* returns a contiguous tensor without data */
/* Returns the value of x as an operand of a new op, and counts the use. */
struct vfm_tensor vfm_read(struct vfm_var *x);
typedef int (*vfm_backward)(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err);
/* Records a node.  Returns NULL if the tape does not record, has failed, or out needs no gradient. */
struct vfm_node *vfm_record(
	struct vfm_tape *t, vfm_backward backward, struct vfm_var *out, struct vfm_var **in, int n_in);
/* The same; the node's ctx is a copy of the `size` bytes at ctx. */
struct vfm_node *vfm_record_ctx(struct vfm_tape *t, vfm_backward backward, struct vfm_var *out, struct vfm_var **in,
	int n_in, const void *ctx, size_t size);
/* Keeps the value of x until n is released.  No-op if n or x is NULL. */
void vfm_save(struct vfm_node *n, struct vfm_var *x);

/* ---- in the backward ---- */
bool vfm_wants_grad(const struct vfm_var *x); /* x may be NULL */
/* Sets *g to the memory for a contribution to x's gradient.  The op adds to it if *accumulate, otherwise it overwrites
 * it. */
int vfm_grad_into(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor *g, bool *accumulate, struct vfm_err *err);
/* As vfm_grad_into for ops that can only add: zeroes the memory before the first contribution.  For parameters that are
 * vectors (biases, weights of norms), such ops call vfm_grad_into and ignore *accumulate, since vfm_params_grad_begin
 * (net/nn/param.h) has zeroed their gradients. */
int vfm_grad_add(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor *g, struct vfm_err *err);
/* As vfm_grad_into for ops that can only overwrite.  begin may return a temporary; end adds it to the gradient, or
 * drops it if x wants none. */
struct vfm_grad_tmp {
	struct vfm_tensor g;
	struct vfm_store *tmp;
};
int vfm_grad_begin(struct vfm_tape *t, struct vfm_var *x, struct vfm_grad_tmp *tmp, struct vfm_err *err);
int vfm_grad_end(struct vfm_tape *t, struct vfm_var *x, struct vfm_grad_tmp *tmp, struct vfm_err *err);
/* Adds g to x's gradient, which has its own memory. */
int vfm_grad_copy(struct vfm_tape *t, struct vfm_tensor g, struct vfm_var *x, struct vfm_err *err);
/* Adds y's gradient to x's.  If x has none yet and the dtypes agree, x shares y's gradient without a copy. */
int vfm_grad_pass(struct vfm_tape *t, struct vfm_var *y, struct vfm_var *x, struct vfm_err *err);
/* Allocates scratch memory for a backward; the caller releases *st with vfm_store_unref. */
int vfm_scratch(
	struct vfm_tape *t, struct vfm_tensor like, struct vfm_tensor *out, struct vfm_store **st, struct vfm_err *err);
void vfm_store_unref(struct vfm_store *s); /* no-op if s is NULL */
/* Makes the compute stream wait until v is valid.  x may be NULL. */
int vfm_arrive(struct vfm_tape *t, struct vfm_var *x, struct vfm_err *err);

#endif
