/* gops_linear.h - a linear layer in steps, for ops that obtain the rows of x, or pass on the rows of y, in chunks.
 *
 *     struct vfm_product p = {.args = *args, .x = x};
 *
 *     vfm_product_open(t, &p);
 *     vfm_product_input(t, &p);
 *     vfm_product_rows(t, &p, 0, rows);
 *     return vfm_product_close(t, &p);
 *
 * is vfm_g_linear.  A failure is kept in the tape; the following steps are then no-ops.
 */
#ifndef VFM_NET_TAPE_GOPS_LINEAR_H
#define VFM_NET_TAPE_GOPS_LINEAR_H

#include "net/tape/gops.h"
#include "net/tape/node.h"

struct vfm_product {
	struct vfm_linear_args args;
	struct vfm_var *x; /* [T,in] */
	/* [T,out].  NULL: open makes y, and light recompute keeps it.  If the caller gives y, it keeps its own result,
	 * and the layer has no activation. */
	struct vfm_var *y;
	/* A variable without memory that has the value of x once the backward runs; NULL: the backward reads x. */
	struct vfm_var *again;
	/* Light recompute kept the result, so no row is computed.  Set by the caller if it gives y, otherwise by
	 * open. */
	bool known;
	/* private */
	bool keeps;             /* open made y */
	struct vfm_var *z;      /* the input of the activation; NULL: none */
	struct vfm_var *saved;  /* for the backward: x in the dtype of the weights, its 8-bit transpose, or x->q8 */
	struct vfm_var *lora_x; /* x in the dtype of the adapter; NULL: no adapter */
	struct vfm_gemm gemm;   /* of all rows */
};

/* Makes the variables, and in fp8 the 8-bit weights.  Reads only the shape of x. */
void vfm_product_open(struct vfm_tape *t, struct vfm_product *p);
/* Returns whether rows of y may be computed before all of x is valid.  False in fp8, where a scale depends on all
 * elements of x, and if x is cast. */
bool vfm_product_by_rows(const struct vfm_product *p);
/* Computes rows [first, first + x.shape[0]) of y from x, a copy of these rows of p->x.  Call it before
 * vfm_product_input. */
void vfm_product_early_rows(struct vfm_tape *t, const struct vfm_product *p, struct vfm_tensor x, int64_t first);
/* Casts or quantizes x if necessary.  All of x must be valid. */
void vfm_product_input(struct vfm_tape *t, struct vfm_product *p);
/* Computes rows [first, first + n) of y.  No-op if `known`. */
void vfm_product_rows(struct vfm_tape *t, const struct vfm_product *p, int64_t first, int64_t n);
/* Returns whether the backward reads `again`.  Call it after vfm_product_input. */
bool vfm_product_reads_again(const struct vfm_product *p);
/* Records the adjoint and returns y.  The caller has computed every row of y. */
struct vfm_var *vfm_product_close(struct vfm_tape *t, struct vfm_product *p);

#endif
