/* convert.h - reshards checkpoints for another number of writers, and imports plain files.
 *
 * All calls stream values in blocks of about 1 MiB, so memory does not depend on the size of the model.  They verify
 * the data that they read like vfm_ckpt_read_tensor, and rename their output into place once it is complete.  Local; no
 * device.
 */
#ifndef VFM_CKPT_CONVERT_H
#define VFM_CKPT_CONVERT_H

#include "ckpt/ckpt.h"

enum { VFM_CKPT_FILES_MAX = 65536 };

/* own() sets *out to the slice of tensor t that `writer` writes and returns 1, or returns 0 if it writes none.
 * Pointers in *out must stay valid until vfm_ckpt_reshard returns.  The slices of all writers must cover each tensor
 * exactly once. */
struct vfm_ckpt_cut {
	void *ctx;
	int (*own)(void *ctx, int writer, const struct vfm_ckpt_tensor *t, struct vfm_slice *out, struct vfm_err *err);
};

/* Writes the tensors of c into the directory of checkpoints `dir`, with the files that `writers` ranks would write.
 * Step, configuration and state stay the same.  cut NULL: each writer gets an equal share of the bytes of each part, in
 * whole tensors if possible. */
int vfm_ckpt_reshard(
	struct vfm_ckpt *c, const char *dir, int writers, const struct vfm_ckpt_cut *cut, struct vfm_err *err);

/* Imports the tensors of plain files as the part `part` of a new checkpoint of `step` in the directory of checkpoints
 * `dir`.  config NULL: that of c, if any. */
int vfm_ckpt_import(struct vfm_ckpt *c, const char *part, int dtype, const json_t *config, const char *dir,
	int64_t step, struct vfm_err *err);

#endif
