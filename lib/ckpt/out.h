/* out.h - a data file of a checkpoint: hashed in chunks, and written by a thread of its own while the caller reads and
 * converts the next chunk. */
#ifndef VFM_CKPT_OUT_H
#define VFM_CKPT_OUT_H

#include <jansson.h>

#include "base/err.h"
#include "io/hash.h"

struct ckpt_out;

struct ckpt_out_sums {
	uint64_t bytes;
	char sha256[VFM_SHA256_HEX]; /* of the file */
	json_t *chunks;              /* hexadecimal sha256 of each CKPT_CHUNK bytes; the caller owns it */
};

/* Creates a file.  what: names the checkpoint in messages; borrowed.  NULL, with VFM_EENV, on failure. */
struct ckpt_out *ckpt_out_open(const char *path, const char *what, struct vfm_err *err);
/* Appends data.  VFM_EENV: an earlier chunk could not be written. */
int ckpt_out_add(struct ckpt_out *o, const void *data, size_t len, struct vfm_err *err);
/* Writes the rest, syncs and closes the file, and frees o. */
int ckpt_out_close(struct ckpt_out *o, struct ckpt_out_sums *sums, struct vfm_err *err);
void ckpt_out_abandon(struct ckpt_out *o); /* closes the file, and frees o */

/* Writes all of data.  Syncs and closes fd; closes it in any case.  VFM_EENV. */
int ckpt_write_all(const char *what, int fd, const void *data, size_t len, struct vfm_err *err);
int ckpt_close_synced(const char *what, int fd, struct vfm_err *err);
int ckpt_save_fail(const char *what, struct vfm_err *err); /* with errno */

#endif
