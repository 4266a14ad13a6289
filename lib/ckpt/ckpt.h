/* ckpt.h - checkpoints: save (synchronously or in a background thread), find, open, read in any layout.
 *
 * A checkpoint is a directory step-00000123/ of safetensors files and a manifest.json
 * (format: vfm-checkpoint(5)).  Tensors are named "PART/NAME": "model/blocks.0.fc1.weight" (fp32 master),
 * "optim/m/…", "optim/v/…", "ema/…", "fp8/…".  Each part has its own files, which omit PART from the names, so that
 * other programs read model-00000.safetensors.  The writer writes into step-….tmp and renames the directory when it is
 * complete; readers ignore names that end in .tmp.
 *
 * The reader's layout is independent of the writers' layout.  Each rank states its share of a tensor as a struct
 * vfm_slice; the library intersects the slices (spec/model/shard.h).
 */
#ifndef VFM_CKPT_CKPT_H
#define VFM_CKPT_CKPT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "spec/model/dtype.h"
#include "spec/model/model.h"
#include "spec/model/shard.h"

/* The elements of a global tensor that a caller's buffer holds: elements [a, b) of the local tensor `part`.
 * part NULL: elements [a, b) of the flattened global tensor, or all of it if b == 0. */
struct vfm_slice {
	const struct vfm_part *part; /* borrowed for the call */
	int64_t a, b;
};

/* ---- saving ---- */

struct vfm_ckpt;
struct vfm_ckpt_tensor;

/* The collectives with which several ranks commit one checkpoint.  NULL in the spec: a single rank. */
struct vfm_ckpt_comm {
	void *ctx;
	/* Collective.  Sets *all to a malloc'ed array of [size] malloc'ed texts on rank 0, to NULL on the others. */
	int (*gather)(void *ctx, const char *mine, char ***all, struct vfm_err *err);
	/* Collective and a barrier.  Every rank returns the worst code of all ranks, with that rank's message. */
	int (*agree)(void *ctx, int rc, struct vfm_err *err);
};

struct vfm_ckpt_spec {
	const char *dir; /* the directory of checkpoints, "run/ckpt"; created if missing */
	int64_t step;
	int rank, size;       /* size 0 means 1 */
	const json_t *config; /* copied; may be NULL */
	const json_t *state;  /* copied; seed, samples seen, … ; may be NULL */
	bool snapshot;        /* vfm_ckpt_add copies the data; the caller may change it afterwards */
	int keep_last;        /* a successful save keeps the newest keep_last checkpoints (0: all) */
	int64_t keep_every;   /* and those whose step is a multiple of keep_every (0: none) */
	const struct vfm_ckpt_comm *comm;
};

/* Not thread-safe.  A writer accesses the file system only in the save. */
struct vfm_ckpt_writer;
struct vfm_ckpt_writer *vfm_ckpt_begin(const struct vfm_ckpt_spec *spec);
/* Adds a slice of the tensor `name`.  Local.  `data` must not change until the save has returned, unless
 * spec.snapshot.  Only one rank adds a replicated slice.  VFM_EUSAGE: bad name or slice; VFM_EENV: out of memory. */
int vfm_ckpt_add(struct vfm_ckpt_writer *w, const char *name, enum vfm_dtype dtype, int ndim, const int64_t *shape,
	const struct vfm_slice *slice, const void *data, struct vfm_err *err);
/* Adds a slice whose values the save reads from the tensor t of the checkpoint `src`, block by block, and converts to
 * dtype.  src must stay open until the save has returned. */
int vfm_ckpt_add_from(struct vfm_ckpt_writer *w, const char *name, enum vfm_dtype dtype, const struct vfm_slice *slice,
	struct vfm_ckpt *src, const struct vfm_ckpt_tensor *t, struct vfm_err *err);
/* Writes the checkpoint.  Collective.  Frees w on success and on failure.  A failed save removes its files and leaves
 * earlier checkpoints unchanged: "cannot save checkpoint 'run/ckpt/step-00000123': No space left on device". */
int vfm_ckpt_save(struct vfm_ckpt_writer *w, struct vfm_err *err);
/* Saves the checkpoint of n writers, one per rank, from one process, one after another.  Local. */
int vfm_ckpt_save_all(struct vfm_ckpt_writer **w, int n, struct vfm_err *err);
void vfm_ckpt_abandon(struct vfm_ckpt_writer *w); /* frees w without saving; accepts NULL */

/* Starts vfm_ckpt_save in a new thread, which owns w.  The data must be snapshots or must not change until
 * vfm_ckpt_wait has returned. */
struct vfm_ckpt_job;
int vfm_ckpt_save_async(struct vfm_ckpt_writer *w, struct vfm_ckpt_job **job, struct vfm_err *err);
bool vfm_ckpt_done(struct vfm_ckpt_job *job); /* does not block */
int vfm_ckpt_wait(
	struct vfm_ckpt_job *job, struct vfm_err *err); /* blocks; returns the save's code, frees job; NULL: 0 */

/* ---- finding ---- */

/* Sets *step to the step of the newest complete checkpoint in `dir` (a directory of step-*), or to -1 if dir has none
 * or does not exist.  VFM_EENV: dir cannot be read. */
int vfm_ckpt_latest(const char *dir, int64_t *step, struct vfm_err *err);
char *vfm_ckpt_path(const char *dir, int64_t step); /* "dir/step-00000123"; the caller frees it */
/* Sets *path to the checkpoint that `operand` names; the caller frees it.  operand: a checkpoint, a directory of
 * checkpoints or a run (has ckpt/), of which the newest is taken; a .safetensors or .pth file; or a directory with
 * model.safetensors.index.json, or with diffusion_pytorch_model.* or their index.  VFM_EUSAGE: no checkpoint. */
int vfm_ckpt_resolve(const char *operand, char **path, struct vfm_err *err);
/* Sets *steps to the steps of the complete checkpoints in dir, or with `all` of all directories with the name of one,
 * ascending, and *n to their number; the caller frees it.  A directory that does not exist has none.  VFM_EENV: dir
 * cannot be read. */
int vfm_ckpt_steps(const char *dir, bool all, int64_t **steps, size_t *n, struct vfm_err *err);

/* ---- reading ---- */

struct vfm_ckpt_piece {
	int file;           /* index into files */
	const char *tensor; /* name in that file */
	bool is_range;      /* elements [a, b) of the flattened tensor; false: the box */
	struct vfm_box box;
	int64_t a, b;
	int64_t numel;
	int64_t from; /* files of other programs: the first element in the tensor of the file, flattened */
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
struct vfm_ckpt { /* read-only for the caller */
	char *path;
	bool plain;         /* .safetensors files (one, or several with an index), without hashes, step and config */
	const char *layout; /* of another program, whose tensors have our names here; NULL: as in the files */
	int64_t step;       /* -1 when plain */
	int world;
	const json_t *config, *state; /* borrowed; may be NULL */
	struct vfm_ckpt_tensor *t;    /* sorted by name */
	int n;
	struct vfm_ckpt_file *file;
	int n_files;
	int64_t nonfinite; /* elements of all tensors that are NaN or infinite; -1: the manifest does not record it */
	bool damaged;      /* a read found that the data do not match the manifest */
	int64_t bytes;     /* of all data files */
	double saved_at;   /* seconds since 1970; 0 unknown */
	void *priv;
};

/* Opens a checkpoint: parses the manifest and checks its hash, the shapes, that the pieces cover each tensor exactly
 * once, and the file sizes.  Reads no tensor data.  `path` as for vfm_ckpt_resolve.  VFM_EUSAGE: no checkpoint, or a
 * damaged one; the message names file and tensor.  VFM_EENV: a file exists but cannot be read, or the format is newer
 * than this program. */
int vfm_ckpt_open(struct vfm_ckpt **out, const char *path, struct vfm_err *err);

/* Plain files with the tensor names of another program (spec/model/foreign.h) open as a checkpoint with our names,
 * shapes and configuration; c->layout names their layout.  A config.json in their directory gives the dimensions, else
 * the shapes of the tensors do.  VFM_EUSAGE: the message lists every tensor that is unknown, missing or has another
 * shape. */
struct vfm_ckpt_how {
	bool raw;                           /* plain files: names and shapes as in the files */
	const struct vfm_model_spec *model; /* in the place of config.json; borrowed for the call; NULL: config.json */
};
int vfm_ckpt_open_as(struct vfm_ckpt **out, const char *path, const struct vfm_ckpt_how *how, struct vfm_err *err);
/* Fails with VFM_EUSAGE if the plain files of c hold low-rank adapters (LoRA) instead of a model.  The message says how
 * to use them. */
int vfm_ckpt_want_model(const struct vfm_ckpt *c, struct vfm_err *err);
/* Parses the text of a manifest as vfm_ckpt_open does.  dir NULL: does not check file sizes. */
int vfm_ckpt_parse(struct vfm_ckpt **out, const char *text, size_t len, const char *dir, struct vfm_err *err);
void vfm_ckpt_close(struct vfm_ckpt *c); /* accepts NULL */
/* Sets t to the range of t that the network of c was trained for (diffusion.t_min, t_max), or to [0, 1] and returns
 * false if c does not record it. */
bool vfm_ckpt_time_range(const struct vfm_ckpt *c, double t[2]);
/* Returns the tensor `name`, or NULL. */
const struct vfm_ckpt_tensor *vfm_ckpt_find(const struct vfm_ckpt *c, const char *name);
/* Whether the run that wrote c froze parameters (train.freeze).  Part "ema" then lacks them: they are those of "model".
 */
bool vfm_ckpt_has_frozen(const struct vfm_ckpt *c);

/* Reads a slice (NULL: all) of a tensor into dst and converts it to `dtype`.  Reads only the chunks (4 MiB) that hold
 * the slice and verifies the sha256 of each chunk before using its data.  One thread at a time per vfm_ckpt.
 * VFM_EUSAGE: bad slice, or damaged data, which sets c->damaged. */
int vfm_ckpt_read_tensor(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_slice *slice,
	enum vfm_dtype dtype, void *dst, struct vfm_err *err);

/* Sets hex to a sha256 that identifies the data: of manifest.json, which contains the sha256 of each file; of a plain
 * file, its own; of several plain files, of the lines "SHA256  NAME\n".  Reads plain files in full. */
int vfm_ckpt_sha256(const struct vfm_ckpt *c, char hex[65], struct vfm_err *err);

/* Fails with VFM_EUSAGE if the manifest of c records elements that are NaN or infinite; names the first such tensor. */
int vfm_ckpt_finite(const struct vfm_ckpt *c, struct vfm_err *err);

struct vfm_ckpt_faults {
	void (*fn)(void *ctx, const char *what); /* called for each fault; may be NULL */
	void *ctx;
	int damaged;   /* faults of files: hash, size, header, manifest */
	int nonfinite; /* tensors with elements that are NaN or infinite, of the files without such faults */
};
/* Reads every file in full, verifies all hashes, headers and sizes, and looks for NaN and infinities.  Adds to *f and
 * continues after a fault.  VFM_EENV: a file cannot be read, or as for vfm_ckpt_open; VFM_EUSAGE: path names no
 * checkpoint. */
int vfm_ckpt_check(const char *path, struct vfm_ckpt_faults *f, struct vfm_err *err);

#endif
