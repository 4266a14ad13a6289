/* inspect.h - statistics, comparison and hash of tensors, computed block by block.  All calls verify the data that they
 * read like vfm_ckpt_read_tensor.  Local; one thread at a time per vfm_ckpt.
 */
#ifndef VFM_CKPT_INSPECT_H
#define VFM_CKPT_INSPECT_H

#include <stdint.h>

#include "base/err.h"
#include "ckpt/ckpt.h"
#include "io/hash.h"

/* min, max, mean, std (population) and norm cover the finite elements; without any, the first four are NaN. */
struct vfm_tensor_stat {
	int64_t n, nan, inf, zero;
	double min, max, mean, std, norm; /* norm: sqrt of the sum of squares */
};
int vfm_ckpt_stat(
	struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, struct vfm_tensor_stat *out, struct vfm_err *err);

/* The difference of two tensors of the same shape, compared as float64; NaN equals NaN. */
struct vfm_tensor_diff {
	int64_t n, differ; /* elements; elements that violate |a - b| <= atol + rtol |b| */
	double max_abs;    /* infinite if a finite element is compared with a NaN or an infinity */
	double max_rel;    /* maximum of |a - b| / max(|a|, |b|) */
};
int vfm_ckpt_diff(struct vfm_ckpt *a, const struct vfm_ckpt_tensor *ta, struct vfm_ckpt *b,
	const struct vfm_ckpt_tensor *tb, double atol, double rtol, struct vfm_tensor_diff *out, struct vfm_err *err);

/* Sets hex to the sha256 of a tensor's values, row-major and little-endian, independent of the sharding. */
int vfm_ckpt_tensor_hash(
	struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, char hex[VFM_SHA256_HEX], struct vfm_err *err);

#endif
