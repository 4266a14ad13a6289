/* weights.h - the weights of another project's model: a folder or file whose tensors are mapped into memory.
 *
 * The code of a model requests each tensor by name and shape; vfm_weights_check then reports all that do not fit at
 * once:
 *
 *	vfm_weights_open(&w, path, err);
 *	q = vfm_weights_want(w, 2, (int64_t[]){dim, dim}, "blocks.%d.attn.q.weight", i);
 *	vfm_weights_check(w, "the text encoder UMT5", err);
 *
 * Opening reads only headers.  The files must not change while they are open.  Local calls; one thread at a time, but
 * any thread may read the data.
 */
#ifndef VFM_CKPT_WEIGHTS_H
#define VFM_CKPT_WEIGHTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "io/hash.h"
#include "spec/model/dtype.h"
#include "spec/model/shard.h"

struct vfm_weights;
struct vfm_weight {
	const char *name;
	enum vfm_dtype dtype;
	int ndim;
	int64_t shape[VFM_NDIM_MAX], numel;
	const void *data; /* contiguous, in the mapping; current writers align it to the element */
};

/* Opens path: a .safetensors or .pth file, or a folder with model.safetensors, diffusion_pytorch_model.safetensors (or
 * .bin), or the index of several such files.  VFM_EUSAGE: there are no weights, or a file is damaged or truncated;
 * VFM_EENV: a file cannot be read. */
int vfm_weights_open(struct vfm_weights **w, const char *path, struct vfm_err *err);
/* Returns the path of one model in a folder of several models: PATH/NAME of the first name that exists, else a copy of
 * path.  `names` ends with NULL.  The caller frees it. */
char *vfm_weights_within(const char *path, const char *const *names);
void vfm_weights_close(struct vfm_weights *w); /* accepts NULL; ends the mapping */

const char *vfm_weights_path(const struct vfm_weights *w);     /* as given */
const json_t *vfm_weights_config(const struct vfm_weights *w); /* config.json next to the weights; NULL: none */
/* Finds a tensor of any shape, without marking it as known.  Returns NULL if there is none. */
const struct vfm_weight *vfm_weights_find(const struct vfm_weights *w, const char *name);
static inline bool vfm_weights_has(const struct vfm_weights *w, const char *name)
{
	return vfm_weights_find(w, name) != NULL;
}

/* Returns the tensor of this name and shape and marks it as known.  On NULL, vfm_weights_check will report it. */
const struct vfm_weight *vfm_weights_want(struct vfm_weights *w, int ndim, const int64_t *shape, const char *format,
	...) __attribute__((format(printf, 4, 5)));
/* Marks the tensors whose names begin with `prefix` as known: the model does not use them. */
void vfm_weights_ignore(struct vfm_weights *w, const char *prefix);
/* VFM_EUSAGE: a tensor is missing, has another shape or no floating-point type, or was not requested by the model.  The
 * message lists all of them and names the model `what`. */
int vfm_weights_check(struct vfm_weights *w, const char *what, struct vfm_err *err);

/* Converts a tensor to dst [numel]. */
void vfm_weight_to_f32(const struct vfm_weight *t, float *dst);
/* Removes the tensor from the memory of the process; a later read maps it again. */
void vfm_weight_drop_pages(const struct vfm_weight *t);

/* Returns the JSON under a key in the metadata of the first .safetensors file, a new reference; NULL: there is none.
 * VFM_EUSAGE: it is not JSON. */
int vfm_weights_metadata(const struct vfm_weights *w, const char *key, json_t **out, struct vfm_err *err);

/* Sets hex to the sha256 of the weights (vfm_ckpt_sha256).  Reads the files in full. */
int vfm_weights_sha256(const struct vfm_weights *w, char hex[VFM_SHA256_HEX], struct vfm_err *err);
/* Sets hex to the sha256 of the tensors that were requested and have the requested shape: of their names, types, shapes
 * and elements, in the order of names.  Other tensors of the files, such as those of another model, do not change it. */
int vfm_weights_sha256_used(const struct vfm_weights *w, char hex[VFM_SHA256_HEX], struct vfm_err *err);

#endif
