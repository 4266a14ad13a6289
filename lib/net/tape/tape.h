/* tape.h - reverse-mode differentiation.
 *
 * Layers implement only their forward and call the differentiable ops of gops.h.  Each op immediately computes its
 * result on the tape's stream and records a node with its adjoint.  vfm_tape_backward runs the nodes in reverse order.
 *
 * Errors are sticky: after the first failure every op is a no-op and returns a placeholder variable.  A forward
 * therefore checks nothing per line, and the caller checks vfm_tape_status at the end.
 *
 * A variable lives until vfm_tape_reset.  Its value lives while it is referenced: by the scope that made it, and by
 * each node that reads it in its backward.  A gradient is freed once the node that made its variable has used it.
 *
 * A tape belongs to one thread; several may exist at once (microbatches in flight).
 */
#ifndef VFM_NET_TAPE_TAPE_H
#define VFM_NET_TAPE_TAPE_H

#include <stdbool.h>

#include "base/err.h"
#include "base/mem.h"
#include "device/dev/dev.h"
#include "device/ops/ops.h"

struct vfm_store; /* device memory with a reference count */
struct vfm_node;
struct vfm_tape;

struct vfm_var {
	struct vfm_tensor v; /* value */
	struct vfm_tensor g; /* gradient, of the same shape; allocated with the first contribution */
	struct vfm_store *vs, *gs;
	bool needs_grad;
	bool g_ready;           /* g holds a contribution; if false, g is undefined */
	int uses;               /* number of ops that read it */
	int result;             /* 1 + the number of the call of vfm_result_new that made it; 0: none */
	struct vfm_var *parent; /* of a view: v and g are slices of the parent's */
	struct vfm_var *views, *next_view;
	/* Output of an activation: z is its input, so that the GEMM that computes the gradient of this variable can
	 * also multiply by act'(z). */
	enum vfm_act act;
	struct vfm_tensor z;
	bool g_is_dz;
	/* Output of a norm that fp8 layers read (struct vfm_norm_fp8).  q8: the value as 8-bit floats for these layers,
	 * followed by scalars (gops_fp8.c); v then has no memory, so no other op can read it.  amax: the largest finite
	 * |v|, [1] f32. */
	struct vfm_var *q8, *amax;
	/* Output of a linear layer: its bias, whose gradient is the sum over the rows of g.  A reader that computes
	 * this sum together with g sets bias_done. */
	struct vfm_var *bias;
	bool bias_done;
	/* Another stream writes v until this event; NULL: v is valid (vfm_arrive in node.h). */
	struct vfm_event *coming;
	/* Allocates the gradient of a parameter that has memory only temporarily.  The tape calls it before a
	 * contribution if g.data is NULL. */
	int (*want_grad)(struct vfm_var *x, struct vfm_err *err);
};

struct vfm_tape *vfm_tape_new(struct vfm_stream *s);
void vfm_tape_free(struct vfm_tape *t);  /* no-op if t is NULL */
void vfm_tape_reset(struct vfm_tape *t); /* frees all variables and nodes, clears the error */

struct vfm_stream *vfm_tape_stream(struct vfm_tape *t);
/* Sets whether ops record nodes (default true); false is for sampling. */
void vfm_tape_set_recording(struct vfm_tape *t, bool on);
/* Returns 0, or the code of the first failure with its message in *err. */
int vfm_tape_status(struct vfm_tape *t, struct vfm_err *err);

/* Returns zeroed host memory that lives until the reset. */
void *vfm_tape_alloc(struct vfm_tape *t, size_t size);

/* Makes a leaf without gradient.  The caller keeps the memory of `value` until the reset. */
struct vfm_var *vfm_input(struct vfm_tape *t, struct vfm_tensor value);
/* Makes a leaf with a gradient: the input of a pp stage.  Between a backward and the reset, vfm_leaf_grad returns the
 * gradient, or a tensor without data if the leaf got no contribution. */
struct vfm_var *vfm_leaf(struct vfm_tape *t, struct vfm_tensor value);
struct vfm_tensor vfm_leaf_grad(const struct vfm_var *x);
/* Returns a slice of a variable.  `value` must lie inside x->v.  Views of one variable are disjoint or equal. */
struct vfm_var *vfm_view(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor value);
/* Return columns [i*n, (i+1)*n) of [rows, k*n], or head block i of [T, k*heads*d] as [T,heads,d]. */
struct vfm_var *vfm_view_cols(struct vfm_tape *t, struct vfm_var *x, int64_t i, int64_t n);
struct vfm_var *vfm_view_heads(struct vfm_tape *t, struct vfm_var *x, int64_t i, int64_t heads, int64_t d);

/* A scope.  begin returns a mark; end frees the values made since `mark`, except `keep` (may be NULL) and those saved
 * by a node. */
int vfm_scope_begin(struct vfm_tape *t);
void vfm_scope_end(struct vfm_tape *t, int mark, struct vfm_var *keep);
/* As vfm_scope_end with n variables to keep. */
void vfm_scope_end_keep(struct vfm_tape *t, int mark, struct vfm_var **keep, int n);

/* Starts the backward at x instead of at a loss: adds g to d loss / d x.  The memory of g must stay alive until the end
 * of the backward. */
int vfm_tape_seed(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor g, struct vfm_err *err);

/* Runs the backward.  Adds to the gradients of the parameters and frees all other values and gradients as it proceeds.
 * The loss op implies d loss / d loss = 1. */
int vfm_tape_backward(struct vfm_tape *t, struct vfm_err *err);

#endif
