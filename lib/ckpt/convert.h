/* convert.h - converts checkpoints: reshards them for another number of writers, converts dtypes, and exports to and
 * imports from the .safetensors files of other programs.
 *
 * All calls stream values in blocks of about 1 MiB, so that memory does not depend on the size of the model.  They
 * verify the data they read as vfm_ckpt_read_tensor does, and rename their output into place once it is complete.
 * Local; no device.
 */
#ifndef VFM_CKPT_CONVERT_H
#define VFM_CKPT_CONVERT_H

#include "ckpt/ckpt.h"

enum { VFM_CKPT_FILES_MAX = 65536 };

/* own() sets *out to the slice of tensor t that `writer` writes and returns 1, or returns 0 if it writes none. Pointers
 * in *out must stay valid until vfm_ckpt_reshard has returned.  The slices of all writers must cover each tensor
 * exactly once. */
struct vfm_ckpt_cut {
	void *ctx;
	int (*own)(void *ctx, int writer, const struct vfm_ckpt_tensor *t, struct vfm_slice *out, struct vfm_err *err);
};

/* Writes the tensors of c into the directory of checkpoints `dir`, with the files that `writers` ranks would write.
 * Step, configuration and state stay the same.  cut NULL: each writer gets an equal share of the bytes of each part,
 * in whole tensors where possible. */
int vfm_ckpt_reshard(
	struct vfm_ckpt *c, const char *dir, int writers, const struct vfm_ckpt_cut *cut, struct vfm_err *err);

/* Exports one part of a checkpoint, or plain files, to .safetensors. */
struct vfm_ckpt_export {
	const char *part; /* "model", "ema", …; ignored for plain files */
	int dtype;        /* enum vfm_dtype of floating-point tensors in the output; -1: unchanged */
	/* 0: `out` is one file.  Else `out` is a new or empty directory of files with at most about shard_bytes of
	 * data each, and model.safetensors.index.json.  It appears when all of it is written. */
	int64_t shard_bytes;
	const char *out;
	/* The layout of another program (spec/model/foreign.h), and the model, which must have passed vfm_model_check.
	 * A directory then has the names of diffusers, and config.json.  NULL: our names. */
	const char *layout;
	const struct vfm_model_spec *model;
	/* The checkpoint of the adapters that are attached, which may record the range of t; NULL: none */
	const struct vfm_ckpt *adapters;
};
/* VFM_EUSAGE: with a layout, the message lists every tensor that is unknown, missing or has another shape than the
 * model.  Writes nothing then. */
int vfm_ckpt_export(struct vfm_ckpt *c, const struct vfm_ckpt_export *x, struct vfm_err *err);
/* Exports a part as one file without converting dtypes. */
int vfm_ckpt_consolidate(struct vfm_ckpt *c, const char *part, const char *out, struct vfm_err *err);

/* Imports the tensors of plain files as the part `part` of a new checkpoint of `step` in the directory of checkpoints
 * `dir`.  config NULL: that of c, if it has one. */
int vfm_ckpt_import(struct vfm_ckpt *c, const char *part, int dtype, const json_t *config, const char *dir,
	int64_t step, struct vfm_err *err);

#endif
