/* gops_impl.h - shared by the files of the differentiable ops. */
#ifndef VFM_NET_TAPE_GOPS_IMPL_H
#define VFM_NET_TAPE_GOPS_IMPL_H

#include "net/tape/gops.h"
#include "net/tape/gops_linear.h"
#include "net/tape/node.h"

/* Runs an op of the forward; a failure sticks to the tape `t`. */
#define FORWARD(op, args)                                                                                              \
	do {                                                                                                           \
		struct vfm_err err_ = {0};                                                                             \
                                                                                                                       \
		if (!vfm_tape_failed(t))                                                                               \
			vfm_tape_fail(t, vfm_op_##op(vfm_tape_stream(t), args, &err_), &err_);                         \
	} while (0)

#define BACKWARD(op, args) vfm_op_##op(vfm_tape_stream(t), args, err)

/* ---- linear layers (gops_linear.c); gops_linear.h has the steps that plain and fp8 layers are made of ---- */

/* Reads x and makes y, unless the caller has given it, and z where the layer has an activation. */
void vfm_product_vars(struct vfm_tape *t, struct vfm_product *p, int64_t width);
/* saved = x in the dtype of the weights: x itself, or a copy. */
void vfm_product_cast(struct vfm_tape *t, struct vfm_product *p);
/* Light recompute.  Returns true if the region's first run kept the result, which is then y; otherwise the caller
 * computes y and calls vfm_product_keep. */
bool vfm_product_kept(struct vfm_tape *t, struct vfm_product *p);
void vfm_product_keep(struct vfm_tape *t, struct vfm_product *p);
/* Returns the part of the context that all layers have. */
struct vfm_linear_ctx vfm_product_ctx(const struct vfm_product *p);
/* Returns the memory of a value; NULL: memory of the caller. */
struct vfm_store *vfm_store_of(const struct vfm_var *x);
/* Makes the node hold the values that the backward reads. */
void vfm_product_save(struct vfm_node *n, const struct vfm_product *p);
/* Returns in *dz the gradient before the activation, in the dtype of the weights.  Multiplies by act'(z) unless the
 * GEMM of the reader has done so.  *cast: the memory of a copy, which the caller unrefs; NULL: no copy. */
int vfm_product_dz(struct vfm_tape *t, struct vfm_var *y, enum vfm_dtype dtype, struct vfm_tensor *dz,
	struct vfm_store **cast, struct vfm_err *err);
/* Where the GEMM of the backward stores the gradient of x. */
struct vfm_product_dx {
	struct vfm_tensor c;
	bool accumulate;
	/* Multiplies by act' of the activation that made x; none if x has a gradient or a second reader. */
	enum vfm_act dact;
	struct vfm_tensor aux;
};
/* lora: the layer has an adapter, whose contribution to the gradient follows.  act' is then applied later. */
int vfm_product_dx(struct vfm_tape *t, struct vfm_var *x, bool lora, struct vfm_product_dx *dx, struct vfm_err *err);

struct vfm_linear_ctx {
	struct vfm_var *x; /* vfm_product.saved, or again */
	bool q8;           /* it is the q8 of the input */
	const struct vfm_fp8_past *past;
	struct vfm_lora_args lora;
	struct vfm_var *lora_x; /* vfm_product.lora_x, or again; NULL: no adapter */
};

/* ---- low-rank adapters (gops_lora.c) ---- */

/* c += scale (x a^T) b^T; x [n,in], c [n,out], rows may be strided. */
void vfm_lora_rows(struct vfm_tape *t, const struct vfm_lora_args *l, struct vfm_tensor x, struct vfm_tensor c);
/* dx += scale (dz b) a, if dx is present, and the gradients of a and b, now or deferred.  dz [T,out] in the dtype of a,
 * which the store dz_held holds. */
int vfm_lora_backward(struct vfm_tape *t, const struct vfm_linear_ctx *c, struct vfm_tensor dz,
	struct vfm_store *dz_held, struct vfm_tensor dx, struct vfm_err *err);

/* The fp8 part of the steps (gops_fp8.c): variables and weights; x; the adjoint. */
void vfm_fp8_open(struct vfm_tape *t, struct vfm_product *p);
void vfm_fp8_input(struct vfm_tape *t, struct vfm_product *p);
int vfm_fp8_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err);
/* Returns the result of a norm, shaped like x, with what a reader in fp8 takes from it, and sets these operands of a.
 */
struct vfm_var *vfm_fp8_norm(
	struct vfm_tape *t, const struct vfm_var *x, const struct vfm_norm_args *args, struct vfm_norm *a);

#endif
