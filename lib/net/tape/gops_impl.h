/* gops_impl.h - shared by the files of the differentiable ops. */
#ifndef VFM_NET_TAPE_GOPS_IMPL_H
#define VFM_NET_TAPE_GOPS_IMPL_H

#include "net/tape/gops.h"
#include "net/tape/gops_linear.h"
#include "net/tape/node.h"

/* Runs an op of the forward; `t` keeps a failure as its status. */
#define FORWARD(op, args)                                                                                              \
	do {                                                                                                           \
		struct vfm_err err_ = {0};                                                                             \
                                                                                                                       \
		if (!vfm_tape_failed(t))                                                                               \
			vfm_tape_fail(t, vfm_op_##op(vfm_tape_stream(t), args, &err_), &err_);                         \
	} while (0)

#define BACKWARD(op, args) vfm_op_##op(vfm_tape_stream(t), args, err)

/* ---- linear layers (gops_linear.c); gops_linear.h has the steps of plain and fp8 layers ---- */

/* Reads x.  Makes y unless the caller has given it, and z if the layer has an activation. */
void vfm_product_vars(struct vfm_tape *t, struct vfm_product *p, int64_t width);
/* saved = x in the dtype of the weights: x itself, or a copy. */
void vfm_product_cast(struct vfm_tape *t, struct vfm_product *p);
/* Light recompute.  Returns true if the region's first run kept the result, which is then y.  Otherwise the caller
 * computes y and calls vfm_product_keep. */
bool vfm_product_kept(struct vfm_tape *t, struct vfm_product *p);
void vfm_product_keep(struct vfm_tape *t, struct vfm_product *p);
/* Returns the part of the context that all layers share. */
struct vfm_linear_ctx vfm_product_ctx(const struct vfm_product *p);
/* Returns the memory of a value; NULL: the caller's memory. */
struct vfm_store *vfm_store_of(const struct vfm_var *x);
/* Makes the node hold the values that the backward reads. */
void vfm_product_save(struct vfm_node *n, const struct vfm_product *p);
/* Sets *dz to the gradient before the activation, in the dtype of the weights.  Multiplies by act'(z) unless the GEMM
 * of the reader has done so.  *cast is the memory of a copy, which the caller unrefs; NULL: no copy. */
int vfm_product_dz(struct vfm_tape *t, struct vfm_var *y, enum vfm_dtype dtype, struct vfm_tensor *dz,
	struct vfm_store **cast, struct vfm_err *err);
/* The destination of the gradient of x in the GEMM of the backward. */
struct vfm_product_dx {
	struct vfm_tensor c;
	bool accumulate;
	/* Multiplies by act' of the activation that made x.  VFM_ACT_NONE if x has a gradient or a second reader. */
	enum vfm_act dact;
	struct vfm_tensor aux;
};
/* lora: the layer has an adapter, whose contribution to the gradient follows; act' is then applied later. */
int vfm_product_dx(struct vfm_tape *t, struct vfm_var *x, bool lora, struct vfm_product_dx *dx, struct vfm_err *err);

struct vfm_linear_ctx {
	struct vfm_var *x; /* vfm_product.saved, or again */
	bool q8;           /* x is the q8 of the input */
	bool few;          /* vfm_linear_args.few */
	const struct vfm_fp8_past *past;
	struct vfm_lora_args lora;
	struct vfm_var *lora_x; /* vfm_product.lora_x, or again; NULL: no adapter */
};

/* ---- low-rank adapters (gops_lora.c) ---- */

/* c += scale (x a^T) b^T; x [n,in], c [n,out], rows may be strided. */
void vfm_lora_rows(struct vfm_tape *t, const struct vfm_lora_args *l, struct vfm_tensor x, struct vfm_tensor c);
/* Computes dx += scale (dz b) a, if dx is present, and the gradients of a and b, now or deferred.  dz [T,out] has the
 * dtype of a; dz_held holds its memory. */
int vfm_lora_backward(struct vfm_tape *t, const struct vfm_linear_ctx *c, struct vfm_tensor dz,
	struct vfm_store *dz_held, struct vfm_tensor dx, struct vfm_err *err);

/* The fp8 part of the steps (gops_fp8.c): open makes variables and weights, input quantizes x, backward is the
 * adjoint. */
void vfm_fp8_open(struct vfm_tape *t, struct vfm_product *p);
void vfm_fp8_input(struct vfm_tape *t, struct vfm_product *p);
int vfm_fp8_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err);
/* Returns the variable for the result of a norm, shaped like x, with the values for a reader in fp8; sets these
 * operands of a. */
struct vfm_var *vfm_fp8_norm(
	struct vfm_tape *t, const struct vfm_var *x, const struct vfm_norm_args *args, struct vfm_norm *a);

#endif
