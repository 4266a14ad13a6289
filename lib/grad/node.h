/* node.h - for those who write a differentiable op (gops*.c and the collectives of mesh). */
#ifndef VFM_GRAD_NODE_H
#define VFM_GRAD_NODE_H

#include "grad/tape.h"

enum { VFM_NODE_IN = 6, VFM_NODE_SAVED = 8 };

struct vfm_node {
	int (*backward)(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err);
	struct vfm_var *in[VFM_NODE_IN]; /* may be NULL */
	struct vfm_var *out;
	void *ctx;                        /* of the op; from vfm_tape_alloc */
	void (*drop)(struct vfm_node *n); /* optional: called once, after the backward or instead of it */
	struct vfm_store *saved[VFM_NODE_SAVED];
	int n_saved;
};

/* ---- in the forward ---- */
bool vfm_tape_failed(const struct vfm_tape *t);
void vfm_tape_fail(struct vfm_tape *t, int rc, const struct vfm_err *err); /* keeps the first */
/* A new variable with undefined contents, held by the open scope. */
struct vfm_var *vfm_var_new(struct vfm_tape *t, struct vfm_tensor like);
struct vfm_tensor vfm_like(const struct vfm_tensor *shape, enum vfm_dtype dt); /* contiguous, no data */
/* Reads x in the op being made (counts uses). */
struct vfm_tensor vfm_read(struct vfm_var *x);
/* Records a node, or returns NULL where nothing is to be recorded. */
struct vfm_node *vfm_record(struct vfm_tape *t, int (*backward)(struct vfm_tape *, struct vfm_node *, struct vfm_err *),
	struct vfm_var *out, struct vfm_var **in, int n_in);
void vfm_save(struct vfm_node *n, struct vfm_var *x); /* keep x's value until n's backward is done */

/* Selective recompute: an op whose results are kept calls vfm_kept first.  true: out[] were
 * filled from the first run, do not compute. Otherwise compute and call vfm_keep. */
bool vfm_kept(struct vfm_tape *t, struct vfm_var **out, int n);
void vfm_keep(struct vfm_tape *t, struct vfm_var **out, int n);
/* The same for the result of a linear layer, which light recompute alone keeps. */
bool vfm_kept_product(struct vfm_tape *t, struct vfm_var **out, int n);
void vfm_keep_product(struct vfm_tape *t, struct vfm_var **out, int n);
/* Whether this is the second run of a region: what adds to something outside (a loss) has done so in the first. */
bool vfm_tape_again(const struct vfm_tape *t);

/* ---- in the backward ---- */
bool vfm_wants_grad(const struct vfm_var *x); /* x may be NULL */
/* Where to put a contribution to x's gradient.  *accumulate tells whether to add or
 * to overwrite. */
int vfm_grad_into(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor *g, bool *accumulate, struct vfm_err *err);
/* The same for ops that can only overwrite: begin may hand out a temporary, end adds it. */
struct vfm_grad_tmp {
	struct vfm_tensor g;
	struct vfm_store *tmp;
};
int vfm_grad_begin(struct vfm_tape *t, struct vfm_var *x, struct vfm_grad_tmp *tmp, struct vfm_err *err);
int vfm_grad_end(struct vfm_tape *t, struct vfm_var *x, struct vfm_grad_tmp *tmp, struct vfm_err *err);
/* x's gradient gets y's, without a copy where x has none yet; y's is then x's. */
int vfm_grad_pass(struct vfm_tape *t, struct vfm_var *y, struct vfm_var *x, struct vfm_err *err);
/* Scratch memory for the time of one backward. */
int vfm_scratch(
	struct vfm_tape *t, struct vfm_tensor like, struct vfm_tensor *out, struct vfm_store **st, struct vfm_err *err);
void vfm_store_unref(struct vfm_store *s); /* NULL is fine */
/* A part of a backward that only makes gradients of parameters: fn(t, ctx) is called at once or, where the tape defers
 * it, by vfm_tape_run_deferred or vfm_tape_weights.  ctx from vfm_tape_alloc; the stores (may be NULL) stay until then.
 */
int vfm_defer(struct vfm_tape *t, int (*fn)(struct vfm_tape *t, void *ctx, struct vfm_err *err), void *ctx,
	struct vfm_store *a, struct vfm_store *b, struct vfm_err *err);
/* For an op whose backward is about to wait for another stream: computes the oldest deferred gradient of weights in the
 * meantime.  Once a backward of the tape has called it, backwards defer the gradients of up to two layers for the next
 * call, and compute what is left before they return.  No-op with vfm_tape_defer_weights. */
int vfm_tape_run_deferred(struct vfm_tape *t, struct vfm_err *err);

#endif
