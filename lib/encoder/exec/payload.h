/* payload.h - the slots of a pool of children (exec.h), and the arrays in their files. */
#ifndef VFM_ENCODER_EXEC_PAYLOAD_H
#define VFM_ENCODER_EXEC_PAYLOAD_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "encoder/exec/exec.h"
#include "io/npy.h"

/* Returns slot i, 0 <= i < n.  One thread at a time uses a slot. */
struct vfm_exec_slot *vfm_exec_slot(struct vfm_exec *x, int i);

/* Writes `bytes` of data to the slot's `in` file, at offset `at`.  An array may be written in parts; the first is at
 * 0.  VFM_EENV: no space. */
int vfm_exec_input(struct vfm_exec_slot *s, size_t at, const void *data, size_t bytes, struct vfm_err *err);
/* Reads back bytes that were written there since the last call.  VFM_EENV: a read failed. */
int vfm_exec_read_input(struct vfm_exec_slot *s, size_t at, void *data, size_t bytes, struct vfm_err *err);

#define VFM_EXEC_MAX_ARRAY ((size_t)16 << 30) /* bytes */

/* Reads the array that the answer describes under `key` ({"shape":[…],"dtype":"…"}) from the slot's `out` file: uint8,
 * float16, bfloat16 or float32.  *data belongs to the slot and is valid until its next array or call.  Does not check
 * the elements.  VFM_EINPUT: the description is invalid, or the file has another length. */
int vfm_exec_read_array(struct vfm_exec_slot *s, const json_t *answer, const char *key, struct vfm_npy *npy,
	const void **data, struct vfm_err *err);

/* Truncates the slot's `in` file after the elements of the shape.  Sets *o to {"path":…,"shape":[…],"dtype":…}, which
 * the caller owns. */
int vfm_exec_describe(struct vfm_exec_slot *s, enum vfm_npy_type dtype, int ndim, const int64_t *shape, json_t **o,
	struct vfm_err *err);

#endif
