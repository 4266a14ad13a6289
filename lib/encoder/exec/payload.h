/* payload.h - the slots of a pool of children (exec.h), and the arrays in their files. */
#ifndef VFM_ENCODER_EXEC_PAYLOAD_H
#define VFM_ENCODER_EXEC_PAYLOAD_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "encoder/exec/exec.h"

/* Slot i, 0 <= i < n.  Used by one thread at a time. */
struct vfm_exec_slot *vfm_exec_slot(struct vfm_exec *x, int i);

/* Writes `bytes` of data to the slot's `in` file, `at` bytes from its beginning.  An array may be written in parts, the
 * first of them at 0.  VFM_EENV: no space. */
int vfm_exec_input(struct vfm_exec_slot *s, size_t at, const void *data, size_t bytes, struct vfm_err *err);
/* Reads back what was written there since the last call.  VFM_EENV: it cannot be read. */
int vfm_exec_read_input(struct vfm_exec_slot *s, size_t at, void *data, size_t bytes, struct vfm_err *err);

enum vfm_exec_dtype { VFM_EXEC_U8, VFM_EXEC_F16, VFM_EXEC_BF16, VFM_EXEC_F32 };
size_t vfm_exec_dtype_size(enum vfm_exec_dtype t);

#define VFM_EXEC_DIMS      5
#define VFM_EXEC_MAX_ARRAY ((size_t)16 << 30) /* bytes */

struct vfm_exec_array {
	enum vfm_exec_dtype dtype;
	int ndim;
	int64_t shape[VFM_EXEC_DIMS];
	size_t count;     /* elements */
	const void *data; /* C order; belongs to the slot, valid until its next array or call */
};

/* Reads the array that the answer describes under `key` ({"shape":[…],"dtype":"…"}) from the slot's `out` file.
 * VFM_EINPUT: the description is invalid, or the file has another length.  Elements are not checked. */
int vfm_exec_read_array(
	struct vfm_exec_slot *s, const json_t *answer, const char *key, struct vfm_exec_array *a, struct vfm_err *err);

/* Ends the slot's `in` file after the elements of the shape.  *o: {"path":…,"shape":[…],"dtype":…}; the caller owns it.
 */
int vfm_exec_describe(struct vfm_exec_slot *s, enum vfm_exec_dtype dtype, int ndim, const int64_t *shape, json_t **o,
	struct vfm_err *err);

#endif
