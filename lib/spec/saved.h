/* saved.h - the tensors that a transformer block saves from its forward for its backward, for every architecture and
 * mode of recompute.  The list follows from the row of the architecture (spec/arch.h); OOM hints and whoever plans
 * memory read it.  tests/unit/test_saved.c compares it with the bytes that a device counts.
 */
#ifndef VFM_SPEC_SAVED_H
#define VFM_SPEC_SAVED_H

#include "spec/dtype.h"
#include "spec/model.h"

enum vfm_recompute {
	VFM_RECOMPUTE_NONE,      /* save what the backward reads */
	VFM_RECOMPUTE_SELECTIVE, /* run blocks again, but save the output and lse of attention */
	VFM_RECOMPUTE_FULL,      /* run blocks again, save their inputs alone */
	VFM_RECOMPUTE_LIGHT,     /* run blocks again, but save the outputs of matrix products and attention */
};

enum vfm_saved_rows { VFM_ROWS_TOKENS, VFM_ROWS_TEXT, VFM_ROWS_SAMPLES, VFM_ROW_KINDS };
enum vfm_saved_dtype { VFM_SAVED_COMPUTE, VFM_SAVED_RESIDUAL, VFM_SAVED_F32 };

struct vfm_saved {
	const char *name;
	enum vfm_saved_rows rows;
	double width; /* elements a row; of experts the mean over tokens */
	enum vfm_saved_dtype dtype;
	unsigned modes; /* bit 1 << mode for each mode (enum vfm_recompute) that saves it */
	bool cast;      /* a copy in the compute dtype of an f32 tensor: none where that is f32 */
};

enum { VFM_SAVED_MAX = 64 };
/* Returns how many tensors one block has.  m must have passed the check.  Widths are those of the whole model: a rank
 * holds its share over tp.  fp8 is not considered. */
int vfm_block_saved(const struct vfm_model_spec *m, struct vfm_saved out[VFM_SAVED_MAX]);

struct vfm_saved_how {
	enum vfm_recompute mode;
	enum vfm_dtype dtype, residual; /* of activations, and of the residual stream */
	double rows[VFM_ROW_KINDS];     /* tokens, text rows and samples of a pack */
};
/* Bytes that one block saves. */
double vfm_block_saved_bytes(const struct vfm_model_spec *m, const struct vfm_saved_how *how);

#endif
