/* zip.h - the directory of a zip archive whose entries are stored, not compressed, as torch.save writes it.
 *
 * Format: PKWARE's APPNOTE 6.3.10, with the zip64 extensions.  The reader refuses compressed and encrypted entries,
 * several disks, more than 2^18 entries, and sizes beyond the file.  Local; a struct may be read from several threads.
 * libzip would copy the data; here an entry's place in the file is found, and the file is mapped.
 */
#ifndef VFM_CKPT_ZIP_H
#define VFM_CKPT_ZIP_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

struct vfm_zip_entry {
	const char *name;    /* owned by the arena; without NUL */
	uint64_t head, size; /* where its local header begins; bytes of the data */
};
struct vfm_zip {
	struct vfm_zip_entry *e; /* sorted by name, which are unique */
	size_t n;
	uint64_t directory; /* where the directory begins; all data lie before it */
	struct vfm_arena arena;
};

/* Reads the directory from fd by pread.  VFM_EUSAGE: no such archive; the message names the file `name` and the
 * entry. */
int vfm_zip_open(struct vfm_zip *z, int fd, uint64_t file_bytes, const char *name, struct vfm_err *err);
void vfm_zip_release(struct vfm_zip *z);
const struct vfm_zip_entry *vfm_zip_find(const struct vfm_zip *z, const char *name);
/* Sets *off to where the data of an entry begin; checks its local header. */
int vfm_zip_data(const struct vfm_zip *z, int fd, const struct vfm_zip_entry *e, const char *name, uint64_t *off,
	struct vfm_err *err);

#endif
