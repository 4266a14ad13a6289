/* inspect.h - statistics, comparison and a hash of tensors, streamed block by block.
 * Every byte is verified as in vfm_ckpt_read_tensor.  Local calls; one thread at a time per vfm_ckpt.
 */
#ifndef VFM_CKPT_INSPECT_H
#define VFM_CKPT_INSPECT_H

#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "ckpt/ckpt.h"

/* Over the finite elements; min, max, mean, std (of the population) are NaN when there are none. */
struct vfm_tensor_stat {
	int64_t n, nan, inf, zero;
	double min, max, mean, std, norm; /* norm: sqrt of the sum of squares */
};
int vfm_ckpt_stat(
	struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, struct vfm_tensor_stat *out, struct vfm_err *err);

/* Two tensors of the same shape, compared as float64; NaN equals NaN. */
struct vfm_tensor_diff {
	int64_t n, differ; /* elements with not |a - b| <= atol + rtol |b| */
	double max_abs;    /* infinite when a number meets a NaN or an infinity */
	double max_rel;    /* of |a - b| / max(|a|, |b|) */
};
int vfm_ckpt_diff(struct vfm_ckpt *a, const struct vfm_ckpt_tensor *ta, struct vfm_ckpt *b,
	const struct vfm_ckpt_tensor *tb, double atol, double rtol, struct vfm_tensor_diff *out, struct vfm_err *err);

/* sha256 of a tensor's values, row-major, little-endian, however it is cut. */
int vfm_ckpt_tensor_hash(
	struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, char hex[VFM_SHA256_HEX], struct vfm_err *err);

#endif
