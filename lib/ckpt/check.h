/* check.h - verifies and identifies the files of a checkpoint. */
#ifndef VFM_CKPT_CHECK_H
#define VFM_CKPT_CHECK_H

#include "ckpt/ckpt.h"

/* Sets hex to a sha256 that identifies the data: for a checkpoint, that of manifest.json, which contains the sha256 of
 * each file; for a plain file, its own; for several plain files, that of the lines "SHA256 NAME\n".  Reads plain files
 * in full. */
int vfm_ckpt_sha256(const struct vfm_ckpt *c, char hex[65], struct vfm_err *err);

struct vfm_ckpt_faults {
	void (*fn)(void *ctx, const char *what); /* called for each fault; may be NULL */
	void *ctx;
	int damaged;   /* faults of files: hash, size, header, manifest */
	int nonfinite; /* tensors with NaN or infinite elements, in files without such faults */
};
/* Reads every file in full, verifies all hashes, headers and sizes, and looks for NaN and infinities.  Adds to *f and
 * continues after a fault.  VFM_EENV: a file cannot be read, or as for vfm_ckpt_open; VFM_EUSAGE: path is not a
 * checkpoint. */
int vfm_ckpt_check(const char *path, struct vfm_ckpt_faults *f, struct vfm_err *err);

#endif
