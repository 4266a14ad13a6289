/* gops_int.h - what the files of the differentiable ops share. */
#ifndef VFM_GRAD_GOPS_INT_H
#define VFM_GRAD_GOPS_INT_H

#include "grad/gops.h"
#include "grad/node.h"

/* Runs an op of the forward; a failure sticks to the tape `t`. */
#define FORWARD(op, args)                                                                                              \
	do {                                                                                                           \
		struct vfm_err err_ = {0};                                                                             \
		int rc_ = vfm_tape_failed(t) ? 0 : vfm_op_##op(vfm_tape_stream(t), args, &err_);                       \
		if (rc_ < 0)                                                                                           \
			vfm_tape_fail(t, rc_, &err_);                                                                  \
	} while (0)

#define BACKWARD(op, args) vfm_op_##op(vfm_tape_stream(t), args, err)

/* A new variable of this shape. */
#define VAR_NEW(dt, ...)                                                                                               \
	vfm_var_new(t,                                                                                                 \
		vfm_like(&(struct vfm_tensor){.ndim = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),       \
				 .shape = {__VA_ARGS__}},                                                              \
			dt))

/* A linear layer, plain or in groups, around its product: x in the dtype of the weights (saved first), the result, and
 * with an activation its input. */
struct vfm_product {
	struct vfm_var *x, *y, *z; /* z NULL: no activation */
	enum vfm_act act;
};
/* Reads x and makes the variables; false: the tape has failed. */
bool vfm_product_open(struct vfm_tape *t, struct vfm_product *p, struct vfm_var *x, enum vfm_dtype dtype, int64_t width,
	enum vfm_act act, enum vfm_dtype out);
/* Around the product: light recompute has what it gave (true: nothing is to be computed), or is given it. */
bool vfm_product_kept(struct vfm_tape *t, struct vfm_product *p);
void vfm_product_keep(struct vfm_tape *t, struct vfm_product *p);
/* The product: all at once, or in the pieces that the tape has been given. */
void vfm_product_gemm(struct vfm_tape *t, const struct vfm_gemm *a);
void vfm_product_save(struct vfm_node *n, const struct vfm_product *p);
/* The gradient of an activated product's sum, in the dtype of the weights: either the reader's GEMM has multiplied by
 * act'(z) already, or it is done here.  *cast: the memory of a copy, for the caller to unref; NULL: none was needed. */
int vfm_product_dz(struct vfm_tape *t, struct vfm_var *y, enum vfm_dtype dtype, struct vfm_tensor *dz,
	struct vfm_store **cast, struct vfm_err *err);
/* Whether the product that makes the gradient of x, of which there is none yet, may multiply by act' of x's own
 * activation. */
bool vfm_product_fuses(const struct vfm_var *x);

#endif
