/* saved.h - the tensors that a transformer block saves in its forward for its backward, for each architecture and
 * recompute mode.  The list follows from the row of the architecture (spec/arch.h); OOM hints and memory estimates use
 * it.  tests/unit/test_saved.c compares it with the bytes that a device allocates.
 */
#ifndef VFM_SPEC_SAVED_H
#define VFM_SPEC_SAVED_H

#include "spec/dtype.h"
#include "spec/model.h"

enum vfm_recompute {
	VFM_RECOMPUTE_NONE,      /* saves all tensors that the backward reads */
	VFM_RECOMPUTE_SELECTIVE, /* recomputes blocks; saves output and lse of attention */
	VFM_RECOMPUTE_FULL,      /* recomputes blocks; saves only their inputs */
	VFM_RECOMPUTE_LIGHT,     /* recomputes blocks; saves the outputs of matrix products and attention */
};

enum vfm_saved_rows { VFM_ROWS_TOKENS, VFM_ROWS_TEXT, VFM_ROWS_SAMPLES, VFM_ROW_KINDS };
enum vfm_saved_dtype { VFM_SAVED_COMPUTE, VFM_SAVED_RESIDUAL, VFM_SAVED_F32 };

struct vfm_saved {
	const char *name;
	enum vfm_saved_rows rows;
	double width; /* elements per row; for experts, the mean over tokens */
	enum vfm_saved_dtype dtype;
	unsigned modes; /* bit 1 << mode for each enum vfm_recompute mode that saves it */
	bool cast;      /* a cast of an f32 tensor to the compute dtype; not saved if that is f32 */
};

enum { VFM_SAVED_MAX = 64 };
/* Fills `out` with the tensors of one block and returns their number.  m must have passed the check.  Widths are those
 * of the unsharded model; a rank holds 1/tp of them.  Ignores fp8. */
int vfm_block_saved(const struct vfm_model_spec *m, struct vfm_saved out[VFM_SAVED_MAX]);

struct vfm_saved_how {
	enum vfm_recompute mode;
	enum vfm_dtype dtype, residual; /* of activations, and of the residual stream */
	double rows[VFM_ROW_KINDS];     /* tokens, text rows and samples of a pack */
};
/* Returns the bytes that one block saves. */
double vfm_block_saved_bytes(const struct vfm_model_spec *m, const struct vfm_saved_how *how);

#endif
