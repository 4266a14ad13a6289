/* export.h - exports a part of a checkpoint to .safetensors files, in our layout or that of another program.
 *
 * Streams, verifies and renames like convert.h.
 */
#ifndef VFM_CKPT_EXPORT_H
#define VFM_CKPT_EXPORT_H

#include "ckpt/ckpt.h"

/* Exports one part of a checkpoint, or plain files, to .safetensors. */
struct vfm_ckpt_export {
	const char *part; /* "model", "ema", …; ignored for plain files */
	int dtype;        /* enum vfm_dtype of floating-point tensors in the output; -1: unchanged */
	/* 0: `out` is one file.  Else `out` is a new or empty directory of files with at most about shard_bytes of data
	 * each, and model.safetensors.index.json.  The directory appears once it is complete. */
	int64_t shard_bytes;
	const char *out;
	/* The layout of another program (spec/model/foreign.h), and the model, which must have passed vfm_model_check.
	 * A directory then has the names of diffusers, and config.json.  NULL: our names. */
	const char *layout;
	const struct vfm_model_spec *model;
	/* The checkpoint of the attached adapters, which may record the range of t; NULL: none */
	const struct vfm_ckpt *adapters;
};
/* VFM_EUSAGE: with a layout, a tensor is unknown, missing or has another shape than in the model.  The message lists
 * all of them, and nothing is written. */
int vfm_ckpt_export(struct vfm_ckpt *c, const struct vfm_ckpt_export *x, struct vfm_err *err);

#endif
