/* tensor.h - a view of device memory: address, dtype, shape, strides.  Owns nothing.  The last dimension is contiguous;
 * outer strides may exceed the shape (a slice of a fused qkv).  ndim == 0 marks an absent optional operand.
 */
#ifndef VFM_DEVICE_OPS_TENSOR_H
#define VFM_DEVICE_OPS_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/suballoc.h"
#include "spec/model/dtype.h"

enum { VFM_MAX_DIM = 4 };

/* Held contents: an op may keep its own copy, in another layout, of a tensor with a nonzero `version`.  It uses the
 * copy when the same address and version come again (vfm_dev_version, vfm_dev_drop_copies), so the caller must keep the
 * contents unchanged.  Tensors that an op writes have version 0. */
struct vfm_tensor {
	void *data;
	enum vfm_dtype dtype;
	int ndim;
	int64_t shape[VFM_MAX_DIM];
	int64_t stride[VFM_MAX_DIM]; /* in elements; stride[ndim-1] == 1 */
	int64_t version;             /* 0: the contents may change at any time */
};

static inline bool vfm_has(const struct vfm_tensor *t)
{
	return t->ndim > 0;
}

static inline int64_t vfm_numel(const struct vfm_tensor *t)
{
	int64_t n = 1;

	for (int i = 0; i < t->ndim; i++)
		n *= t->shape[i];
	return t->ndim ? n : 0;
}

static inline size_t vfm_nbytes(const struct vfm_tensor *t)
{
	return (size_t)vfm_numel(t) * vfm_dtype_size(t->dtype);
}

bool vfm_contiguous(const struct vfm_tensor *t);

/* Contiguous views of `data`. */
struct vfm_tensor vfm_t1(void *data, enum vfm_dtype dt, int64_t n);
struct vfm_tensor vfm_t2(void *data, enum vfm_dtype dt, int64_t rows, int64_t cols);
struct vfm_tensor vfm_t3(void *data, enum vfm_dtype dt, int64_t a, int64_t b, int64_t c);
struct vfm_tensor vfm_t4(void *data, enum vfm_dtype dt, int64_t a, int64_t b, int64_t c, int64_t d);
/* As vfm_t1 to vfm_t4 for the next bytes of a block; without memory in the pass that counts bytes (base/suballoc.h). */
struct vfm_tensor vfm_sub_t1(struct vfm_suballoc *a, enum vfm_dtype dt, int64_t n);
struct vfm_tensor vfm_sub_t2(struct vfm_suballoc *a, enum vfm_dtype dt, int64_t rows, int64_t cols);
struct vfm_tensor vfm_sub_t3(struct vfm_suballoc *a, enum vfm_dtype dt, int64_t n, int64_t rows, int64_t cols);

/* Returns columns [first, first + n) of [rows, cols], with the row stride of t. */
struct vfm_tensor vfm_cols(const struct vfm_tensor *t, int64_t first, int64_t n);
/* Returns rows [first, first + n): a slice along the first dimension. */
struct vfm_tensor vfm_row_slice(const struct vfm_tensor *t, int64_t first, int64_t n);
/* Returns part i of n (q, k or v of a fused projection) of [T, n * heads * hd] as [T, heads, hd]. */
struct vfm_tensor vfm_heads(const struct vfm_tensor *t, int64_t i, int64_t heads, int64_t hd);

/* Writes "bf16 [512, 3, 64]" into buf, for errors.  Returns buf. */
const char *vfm_tensor_str(const struct vfm_tensor *t, char *buf, size_t len);

#endif
