/* convert.h - checkpoints from checkpoints: cut for other writers, in another element type, to and from
 * the files that other programs read.
 *
 * Values are streamed in blocks of about a megabyte: memory does not depend on the size of the model.  What is read is
 * verified as in vfm_ckpt_read_tensor; what is written appears whole or not at all.  Local calls, without a device.
 */
#ifndef VFM_CKPT_CONVERT_H
#define VFM_CKPT_CONVERT_H

#include "ckpt/ckpt.h"

enum { VFM_CKPT_FILES_MAX = 65536 };

/* Which slice of a tensor writer r writes: 1 and *out (what it borrows stays until the reshard returned), or 0: none.
 * All writers together must cover each tensor once. */
struct vfm_ckpt_cut {
	void *ctx;
	int (*own)(void *ctx, int writer, const struct vfm_ckpt_tensor *t, struct vfm_slice *out, struct vfm_err *err);
};

/* Writes the tensors of c as a checkpoint of the same step, configuration and state into the directory of checkpoints
 * `dir`, as `writers` ranks would have.  cut NULL: equal shares of the bytes of each part, tensors whole where that is
 * possible. */
int vfm_ckpt_reshard(
	struct vfm_ckpt *c, const char *dir, int writers, const struct vfm_ckpt_cut *cut, struct vfm_err *err);

/* From a checkpoint (or plain files) to .safetensors. */
struct vfm_ckpt_export {
	const char *part; /* "model", "ema", …; ignored for plain files */
	int dtype;        /* enum vfm_dtype that floating-point tensors are converted to; -1: as they are */
	/* 0: `out` is one file; else a directory (made when missing) of files of at most about so many bytes of data
	 * each, and model.safetensors.index.json */
	int64_t shard_bytes;
	const char *out;
};
int vfm_ckpt_export(struct vfm_ckpt *c, const struct vfm_ckpt_export *x, struct vfm_err *err);
/* One file, types as they are. */
int vfm_ckpt_consolidate(struct vfm_ckpt *c, const char *part, const char *out, struct vfm_err *err);

/* The other way: the tensors of plain files as the part `part` of a checkpoint of `step` in the directory `dir`. config
 * may be NULL. */
int vfm_ckpt_import(struct vfm_ckpt *c, const char *part, int dtype, const json_t *config, const char *dir,
	int64_t step, struct vfm_err *err);

#endif
