/* ckpt.h - checkpoints: open them and read them in any layout.  save.h, find.h, check.h and prune.h have the rest.
 *
 * A checkpoint is a directory step-00000123/ of safetensors files and a manifest.json (format: vfm-checkpoint(5)).
 * Tensors are named "PART/NAME": "model/blocks.0.fc1.weight" (fp32 master), "optim/m/…", "optim/v/…", "ema/…", "fp8/…".
 * Directories whose names end in .tmp are incomplete and ignored.
 *
 * The reader's layout is independent of the writers'.  Each rank describes its share of a tensor as a struct vfm_slice;
 * the library intersects the slices (spec/model/shard.h).
 */
#ifndef VFM_CKPT_CKPT_H
#define VFM_CKPT_CKPT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "spec/model/dtype.h"
#include "spec/model/model.h"
#include "spec/model/shard.h"

/* The elements of a global tensor that a caller's buffer holds: elements [a, b) of the local tensor `part`.
 * part NULL: elements [a, b) of the flattened global tensor, or all of it if b == 0. */
struct vfm_slice {
	const struct vfm_part *part; /* borrowed for the call */
	int64_t a, b;
};

struct vfm_ckpt_piece {
	int file;           /* index into files */
	const char *tensor; /* name in that file */
	bool is_range;      /* elements [a, b) of the flattened tensor; false: the box */
	struct vfm_box box;
	int64_t a, b;
	int64_t numel;
	int64_t from; /* for files of other programs: the first element in the file's flattened tensor */
	/* If not 0, the tensor is f32, and its elements are those of the file, of type `stored`, times the scale. */
	float scale;
	enum vfm_dtype stored;
};
struct vfm_ckpt_tensor {
	const char *name;
	enum vfm_dtype dtype;
	int ndim;
	int64_t shape[VFM_NDIM_MAX];
	int64_t numel, bytes;
	int64_t nonfinite; /* elements that are NaN or infinite, as the manifest records */
	struct vfm_ckpt_piece *piece;
	int n_pieces;
};
struct vfm_ckpt_file;
struct ckpt_priv;
struct vfm_ckpt { /* read-only for the caller */
	char *path;
	bool plain;         /* .safetensors files (one, or several with an index), without hashes, step and config */
	const char *layout; /* of another program whose tensors have our names here; NULL: names are as in the files */
	int64_t step;       /* -1 when plain */
	int world;
	const json_t *config, *state; /* borrowed; may be NULL */
	struct vfm_ckpt_tensor *t;    /* sorted by name */
	int n;
	struct vfm_ckpt_file *file;
	int n_files;
	int64_t nonfinite; /* NaN and infinite elements of all tensors; -1: not recorded in the manifest */
	bool damaged;      /* a read found data that do not match the manifest */
	int64_t bytes;     /* of all data files */
	double saved_at;   /* seconds since 1970; 0: unknown */
	struct ckpt_priv *priv;
};

/* Opens a checkpoint; `path` as for vfm_ckpt_resolve.  Parses the manifest and checks its hash, the shapes, that the
 * pieces cover each tensor exactly once, and the file sizes.  Reads no tensor data.  VFM_EUSAGE: there is no
 * checkpoint, or it is damaged; the message names file and tensor.  VFM_EENV: a file exists but cannot be read, or the
 * format is newer than this program. */
int vfm_ckpt_open(struct vfm_ckpt **out, const char *path, struct vfm_err *err);

/* Plain files with the tensor names of another program (spec/model/foreign.h) open as a checkpoint with our names,
 * shapes and configuration; c->layout names their layout.  The dimensions come from the config.json in their directory,
 * or else from the shapes of the tensors.  VFM_EUSAGE: the message lists every tensor that is unknown, missing or has
 * another shape. */
struct vfm_ckpt_how {
	bool raw;                           /* plain files: names and shapes as in the files */
	const struct vfm_model_spec *model; /* replaces config.json; borrowed for the call; NULL: use config.json */
};
int vfm_ckpt_open_as(struct vfm_ckpt **out, const char *path, const struct vfm_ckpt_how *how, struct vfm_err *err);
/* VFM_EUSAGE: the plain files of c hold low-rank adapters (LoRA) instead of a model.  The message explains how to use
 * them. */
int vfm_ckpt_want_model(const struct vfm_ckpt *c, struct vfm_err *err);
void vfm_ckpt_close(struct vfm_ckpt *c); /* accepts NULL */
/* Sets t to the range of t that the network of c was trained for (diffusion.t_min, t_max).  If c does not record it,
 * sets [0, 1] and returns false. */
bool vfm_ckpt_time_range(const struct vfm_ckpt *c, double t[2]);
/* Returns the tensor `name`, or NULL. */
const struct vfm_ckpt_tensor *vfm_ckpt_find(const struct vfm_ckpt *c, const char *name);
/* Returns the tensor `name` of a part, or NULL.  Plain files have no parts.  For parameters that a run froze
 * (train.freeze), the averages ("ema") are the values of "model". */
const struct vfm_ckpt_tensor *vfm_ckpt_find_in(const struct vfm_ckpt *c, const char *part, const char *name);
/* Returns the name of t within its part, or NULL if t belongs to another part. */
const char *vfm_ckpt_name_in(const struct vfm_ckpt *c, const char *part, const struct vfm_ckpt_tensor *t);
bool vfm_ckpt_has_shape(const struct vfm_ckpt_tensor *t, int ndim, const int64_t *shape);
void vfm_ckpt_add_shape(struct vfm_buf *b, int ndim, const int64_t *shape); /* "[2, 3]" */

/* Reads a slice (NULL: all) of a tensor into dst, converted to `dtype`.  Reads only the chunks (4 MiB) that contain the
 * slice, and verifies the sha256 of each chunk before using its data.  One thread at a time per vfm_ckpt.  VFM_EUSAGE:
 * the slice is invalid, or the data is damaged, which sets c->damaged. */
int vfm_ckpt_read_tensor(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_slice *slice,
	enum vfm_dtype dtype, void *dst, struct vfm_err *err);

/* VFM_EUSAGE: the manifest of c records NaN or infinite elements; the message names the first such tensor. */
int vfm_ckpt_finite(const struct vfm_ckpt *c, struct vfm_err *err);

#endif
