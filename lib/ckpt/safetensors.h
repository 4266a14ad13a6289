/* safetensors.h - the header of a .safetensors file, read strictly and written in a fixed form.
 *
 * File: u64 little-endian length N of the header; N bytes of JSON, padded with spaces;
 * then the data, row-major, little-endian.  Each key but "__metadata__" is a tensor:
 * {"dtype":"F32","shape":[2,3],"data_offsets":[begin,end]} with offsets from the start of the data.
 * What is refused: a header beyond 100,000,000 bytes or the file, repeated keys, unknown types,
 * offsets that overlap, leave a hole, do not match the shape, or do not end with the file.
 * All calls are local; a struct may be read from several threads.
 */
#ifndef VFM_CKPT_SAFETENSORS_H
#define VFM_CKPT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "spec/dtype.h"
#include "spec/shard.h"

#define VFM_ST_MAX_HEADER 100000000

struct vfm_st_tensor {
	const char *name; /* owned by the arena */
	enum vfm_dtype dtype;
	int ndim;
	int64_t shape[VFM_NDIM_MAX];
	uint64_t begin, end; /* bytes, from the start of the data */
};
struct vfm_st {
	struct vfm_st_tensor *t; /* by offset */
	size_t n;
	struct vfm_st_tensor **by_name; /* the same, sorted */
	uint64_t data;                  /* where the data begins in the file */
	uint64_t bytes;                 /* of the data */
	struct {
		const char *key, *value;
	} * meta; /* "__metadata__", as written */
	size_t n_meta;
	struct vfm_arena arena;
};

/* `head` is the first `len` bytes of a file of file_bytes; when they do not reach to the
 * end of the header, *need says how many must be there (VFM_EUSAGE is returned with *need set and *err untouched; 0
 * otherwise). `name` names the file in errors.  VFM_EUSAGE. */
int vfm_st_parse(struct vfm_st *st, const void *head, size_t len, uint64_t file_bytes, const char *name, uint64_t *need,
	struct vfm_err *err);
int vfm_st_open(
	struct vfm_st *st, int fd, uint64_t file_bytes, const char *name, struct vfm_err *err); /* the same, by pread */
const struct vfm_st_tensor *vfm_st_find(const struct vfm_st *st, const char *name);
void vfm_st_release(struct vfm_st *st);

/* Sets begin, end of each (sorted by element size downwards, then name, so that every tensor is aligned to its
 * element) and writes length, header and padding to *out; the data then begins at a multiple of 64. */
void vfm_st_layout(struct vfm_st_tensor *t, size_t n, const char *const (*meta)[2], size_t n_meta, struct vfm_buf *out);

#endif
