/* tape.h - reverse-mode differentiation.
 *
 * Layers write their forward only, by calling the differentiable ops of gops.h; each
 * op computes its result on the tape's stream at once and records a node with its
 * adjoint.  vfm_tape_backward walks the nodes in reverse.
 *
 * Errors are sticky: after the first failure every op does nothing and returns a
 * harmless variable, so a forward is written without a check at each line and
 * vfm_tape_status tells at the end.
 *
 * Lifetimes.  A variable lives until vfm_tape_reset.  Its value is freed when nothing
 * needs it any more: the scope in which it was made holds it, and so does each node
 * that will read it in its backward.  A gradient is freed when the node that made its
 * variable has used it.  So the peak of memory is a property of the program.
 *
 * A tape belongs to one thread; several may be alive at once (microbatches in flight).
 */
#ifndef VFM_GRAD_TAPE_H
#define VFM_GRAD_TAPE_H

#include <stdbool.h>

#include "base/err.h"
#include "base/mem.h"
#include "dev/dev.h"
#include "ops/ops.h"
#include "spec/saved.h"

struct vfm_store; /* device memory with a reference count */
struct vfm_node;
struct vfm_tape;

struct vfm_var {
	struct vfm_tensor v; /* value */
	struct vfm_tensor g; /* gradient: same shape; its memory appears with the first contribution */
	struct vfm_store *vs, *gs;
	bool needs_grad;
	bool g_ready;           /* g holds a contribution (else it is undefined) */
	int uses;               /* ops that read it */
	struct vfm_var *parent; /* a view: v and g are slices of the parent's */
	struct vfm_var *views, *next_view;
	/* An activation's output remembers its input, so that the reader's data gradient
	 * can be multiplied by act'(z) in the GEMM that makes it. */
	enum vfm_act act;
	struct vfm_tensor z;
	bool g_is_dz;
	/* Of a parameter whose gradient has memory for a while only: called when a contribution comes and x->g.data is
	 * NULL. */
	int (*want_grad)(struct vfm_var *x, struct vfm_err *err);
};

struct vfm_tape *vfm_tape_new(struct vfm_stream *s);
void vfm_tape_free(struct vfm_tape *t);  /* NULL is fine */
void vfm_tape_reset(struct vfm_tape *t); /* frees all variables and nodes, forgets the error */

struct vfm_stream *vfm_tape_stream(struct vfm_tape *t);
/* false: ops record nothing (sampling).  Default true. */
void vfm_tape_set_recording(struct vfm_tape *t, bool on);
/* 0, or the code of the first failure with its message in *err. */
int vfm_tape_status(struct vfm_tape *t, struct vfm_err *err);

void *vfm_tape_alloc(struct vfm_tape *t, size_t size); /* zeroed, until the reset */

/* A leaf without gradient around memory that stays alive until the reset. */
struct vfm_var *vfm_input(struct vfm_tape *t, struct vfm_tensor value);
/* The same with a gradient, which vfm_leaf_grad gives until the reset once a backward has passed (no data: nothing
 * came): the input of a pipeline stage. */
struct vfm_var *vfm_leaf(struct vfm_tape *t, struct vfm_tensor value);
struct vfm_tensor vfm_leaf_grad(const struct vfm_var *x);
/* A slice of a variable: `value` must lie inside x->v.  Views of one variable are disjoint or equal. */
struct vfm_var *vfm_view(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor value);
/* Columns [i*n, (i+1)*n) of [rows, k*n]; head block i of [T, k*heads*d] as [T,heads,d]. */
struct vfm_var *vfm_view_cols(struct vfm_tape *t, struct vfm_var *x, int64_t i, int64_t n);
struct vfm_var *vfm_view_heads(struct vfm_tape *t, struct vfm_var *x, int64_t i, int64_t heads, int64_t d);

/* Scope: at the end, values made since `mark` are freed unless a node saved them or
 * they are `keep` (may be NULL). */
int vfm_scope_begin(struct vfm_tape *t);
void vfm_scope_end(struct vfm_tape *t, int mark, struct vfm_var *keep);

/* A region: out = fn(t, ctx).  With recompute it runs again in the backward, from the
 * same inputs, parameters and counters; fn must be a pure function of them and make the same calls
 * each time.  `in` are the variables it reads (all that are not parameters, at most 6; NULLs are skipped); ctx must
 * stay alive until the backward has passed. */
struct vfm_var *vfm_region(struct vfm_tape *t, enum vfm_recompute mode,
	struct vfm_var *(*fn)(struct vfm_tape *t, void *ctx), void *ctx, struct vfm_var **in, int n_in);

/* fn(ctx) when the backward comes to this point.  Does nothing on a tape that does not record. */
void vfm_hook(struct vfm_tape *t, int (*fn)(void *ctx, struct vfm_err *err), void *ctx);
/* The same, but where the gradients of weights are deferred it is vfm_tape_weights that calls it, in its place among
 * them. */
void vfm_hook_weights(struct vfm_tape *t, int (*fn)(void *ctx, struct vfm_err *err), void *ctx);

/* Where the backward starts, if not at a loss: adds d loss / d x.  The memory of g must stay until the backward has
 * passed. */
int vfm_tape_seed(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor g, struct vfm_err *err);

/* on: backwards leave out the gradients of the weights and biases of linear layers, and keep what those need;
 * vfm_tape_weights makes them up in the same order, freeing as it goes (zero-bubble pipelines).  After the backward,
 * before the reset; nothing left out: does nothing. */
void vfm_tape_defer_weights(struct vfm_tape *t, bool on);
int vfm_tape_weights(struct vfm_tape *t, struct vfm_err *err);

/* d(loss)/d(loss) = 1 is implied by the loss op.  Adds into the gradients of the
 * parameters; frees everything else as it passes. */
int vfm_tape_backward(struct vfm_tape *t, struct vfm_err *err);

#endif
