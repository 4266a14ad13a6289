/* safetensors.h - strict parser and canonical writer of the header of a .safetensors file.
 *
 * A file consists of the u64 little-endian length N of the header; N bytes of JSON, padded with spaces; then the data,
 * row-major, little-endian.  Each key except "__metadata__" is a tensor:
 * {"dtype":"F32","shape":[2,3],"data_offsets":[begin,end]} with offsets from the start of the data.
 *
 * The parser refuses
 *   - headers above 100,000,000 bytes or beyond the end of the file
 *   - repeated keys, unknown dtypes
 *   - offsets that overlap, leave a gap, do not match the shape, or do not end at the end of the file
 *
 * All calls are local; several threads may read a struct. */
#ifndef VFM_CKPT_SAFETENSORS_H
#define VFM_CKPT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "spec/model/dtype.h"
#include "spec/model/shard.h"

#define VFM_ST_MAX_HEADER 100000000

struct vfm_st_tensor {
	const char *name; /* owned by the arena */
	enum vfm_dtype dtype;
	int ndim;
	int64_t shape[VFM_NDIM_MAX];
	uint64_t begin, end; /* bytes, from the start of the data */
	const void *source;  /* for a writer: the source of the values; the parser sets NULL */
};
struct vfm_st {
	struct vfm_st_tensor *t; /* by offset */
	size_t n;
	struct vfm_st_tensor **by_name; /* the same, sorted */
	uint64_t data;                  /* offset of the data in the file */
	uint64_t bytes;                 /* of the data */
	struct {
		const char *key, *value;
	} * meta; /* "__metadata__", as written */
	size_t n_meta;
	struct vfm_arena arena;
};

/* Parses the header from `head`, the first `len` bytes of a file of file_bytes.  If the header is longer than len,
 * returns VFM_EUSAGE without setting *err, and sets *need to the bytes needed; else sets *need to 0.  Messages name the
 * file `name`. */
int vfm_st_parse(struct vfm_st *st, const void *head, size_t len, uint64_t file_bytes, const char *name, uint64_t *need,
	struct vfm_err *err);
int vfm_st_open(struct vfm_st *st, int fd, uint64_t file_bytes, const char *name,
	struct vfm_err *err); /* reads the header from fd by pread */
const struct vfm_st_tensor *vfm_st_find(const struct vfm_st *st, const char *name);
void vfm_st_index(struct vfm_st *st); /* fills by_name */
void vfm_st_release(struct vfm_st *st);

/* Sorts t by descending element size, then name, so that each tensor is aligned to its element; sets begin and end of
 * each; writes length, header and padding to *out.  The data starts at a multiple of 64 bytes. */
void vfm_st_layout(struct vfm_st_tensor *t, size_t n, const char *const (*meta)[2], size_t n_meta, struct vfm_buf *out);

/* Writes the file `path` atomically.  Sorts t like vfm_st_layout, and calls put for the values of each tensor in this
 * order.  VFM_EUSAGE: the header is too long; VFM_EENV: the file cannot be written. */
typedef int vfm_st_put(void *ctx, const struct vfm_st_tensor *t, FILE *f, struct vfm_err *err);
int vfm_st_write(const char *path, struct vfm_st_tensor *t, size_t n, const char *const (*meta)[2], size_t n_meta,
	vfm_st_put *put, void *ctx, struct vfm_err *err);
/* Writes the values of a tensor.  path is for the message. */
int vfm_st_put_bytes(const char *path, const void *data, size_t len, FILE *f, struct vfm_err *err);

#endif
