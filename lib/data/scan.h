/* scan.h - reads a shard as it is: its samples, where their parts lie, and the index records they deserve.
 *
 * Writer and checker both go by what this finds, so that an index describes the file and not somebody's idea of it.
 */
#ifndef VFM_DATA_SCAN_H
#define VFM_DATA_SCAN_H

#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "data/index.h"

struct vfm_scan_part {
	const char *name; /* "latent.npy" */
	uint64_t offset, bytes;
};

struct vfm_scan_sample {
	const char *key;
	const char *fault;        /* NULL, or why it cannot be an index record */
	struct vfm_makers makers; /* as its json names them */
	struct vfm_record rec;    /* shard and index are 0; valid without fault */
	struct vfm_scan_part *parts;
	int n_parts;
};

struct vfm_scan { /* `= {0}` before; release in any case */
	struct vfm_scan_sample *samples;
	size_t n, cap;
	uint64_t bytes;         /* of the file */
	uint64_t end;           /* offset of the first zero block */
	struct vfm_arena arena; /* holds all strings and parts */
};

/* Reads all of the tar at `path`.  VFM_EINPUT: the tar itself is damaged, or a member is no sample's part or
 * is apart from the others of its sample (what was read before stays in *s); VFM_EENV: cannot read. */
int vfm_scan_tar(struct vfm_scan *s, const char *path, struct vfm_err *err);
void vfm_scan_release(struct vfm_scan *s);

#endif
