/* npy.h - NumPy's .npy files (format versions 1.0 to 3.0), C order, little endian.
 *
 * A header is at most VFM_NPY_HEADER_MAX bytes and is read strictly.  It has the three keys descr, fortran_order and
 * shape, each once, and at most VFM_NPY_DIMS dimensions.  The payload must be exactly as long as header and shape say.
 * Python objects, big-endian numbers, structured types and Fortran order are refused by name.
 *
 * NumPy has no name for bfloat16: np.save writes an array of ml_dtypes.bfloat16 as "<V2", opaque elements of two bytes.
 * Here "<V2" and "|V2" are therefore bfloat16.
 *
 * All functions are local and thread-safe.
 */
#ifndef VFM_IO_NPY_H
#define VFM_IO_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/hash.h"

#define VFM_NPY_DIMS       8
#define VFM_NPY_HEADER_MAX 4096

/* These numbers are stored in index.vfmi (index.h) and never change. */
enum vfm_npy_type {
	VFM_NPY_NONE = 0,
	VFM_NPY_F16 = 1,
	VFM_NPY_F32 = 2,
	VFM_NPY_F64 = 3,
	VFM_NPY_U8 = 4,
	VFM_NPY_I32 = 5,
	VFM_NPY_I64 = 6,
	VFM_NPY_BF16 = 7,
};

size_t vfm_npy_type_size(enum vfm_npy_type t);      /* bytes of an element; 0 for an unknown type */
const char *vfm_npy_type_name(enum vfm_npy_type t); /* "float16"; a valid type */

struct vfm_npy { /* plain data */
	enum vfm_npy_type type;
	int ndim;
	int64_t shape[VFM_NPY_DIMS]; /* each >= 0 */
	size_t header_bytes;         /* where the elements start */
	uint64_t data_bytes;         /* product of the shape times the element size */
};

/* Elements in all (1 for a scalar); 0 if any dimension is 0. */
uint64_t vfm_npy_count(const struct vfm_npy *n);

/* Reads the header from the first `len` bytes (more than the header is fine) of a payload of `total`
 * bytes.  VFM_EINPUT names `what` and the fault; *n is then unchanged. */
int vfm_npy_parse(
	struct vfm_npy *n, const void *buf, size_t len, uint64_t total, const char *what, struct vfm_err *err);

/* Looks for NaN and infinities among the elements `data` of n, at any alignment.  VFM_EINPUT names `what` and the first
 * of them: "x.npy: element [3,0,2,7] is NaN".  Integers are always finite. */
int vfm_npy_check_finite(const struct vfm_npy *n, const void *data, const char *what, struct vfm_err *err);

/* Returns whether the elements in `bytes` of data, at any alignment, are finite. */
bool vfm_npy_is_finite(enum vfm_npy_type type, const void *data, size_t bytes);

/* Writes the version 1.0 header that numpy itself would write (a multiple of 64 bytes) into buf
 * [VFM_NPY_HEADER_MAX] and returns its length.  ndim <= VFM_NPY_DIMS. */
size_t vfm_npy_header(char *buf, enum vfm_npy_type type, int ndim, const int64_t *shape);

/* Writes a file atomically: type and shape of n, and its elements.  `sha256` gets the digest of the file; NULL: none.
 */
int vfm_npy_save(
	const char *path, const struct vfm_npy *n, const void *data, char sha256[VFM_SHA256_HEX], struct vfm_err *err);

#endif
