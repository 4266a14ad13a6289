/* ckpt.h - checkpoints: save (also beside training), find, open, read in any layout.
 *
 * A checkpoint is a directory step-00000123/ of safetensors files and a manifest.json
 * (format: vfm-checkpoint(5)).  Tensors are named "PART/NAME": "model/blocks.0.fc1.weight" (fp32 master),
 * "optim/m/…", "optim/v/…", "ema/…", "fp8/…"; each part has files of its own, in which the part's name is left
 * out, so that model-00000.safetensors can be read by anybody.  A directory counts only under
 * its final name: what is being written is called step-….tmp.
 *
 * The layout of the ranks that wrote plays no role for those that read: each side says
 * what it owns as a struct vfm_slice, and the rest is arithmetic (spec/shard.h).
 */
#ifndef VFM_CKPT_CKPT_H
#define VFM_CKPT_CKPT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "spec/dtype.h"
#include "spec/shard.h"

/* What a caller's memory holds of a global tensor: elements [a, b) of the local tensor
 * `part`; without a part, elements [a, b) of the flat global tensor; with b == 0, all of it. */
struct vfm_slice {
	const struct vfm_part *part; /* borrowed for the call */
	int64_t a, b;
};

/* ---- saving ---- */

struct vfm_ckpt;
struct vfm_ckpt_tensor;

/* What many ranks need to commit together.  NULL in the spec: a single rank. */
struct vfm_ckpt_comm {
	void *ctx;
	/* Collective.  On rank 0 *all is [size] malloc'ed texts in a malloc'ed array, elsewhere NULL. */
	int (*gather)(void *ctx, const char *mine, char ***all, struct vfm_err *err);
	/* Collective, a barrier: every rank returns the worst of the codes, with that rank's message. */
	int (*agree)(void *ctx, int rc, struct vfm_err *err);
};

struct vfm_ckpt_spec {
	const char *dir; /* the directory of checkpoints, "run/ckpt"; made when missing */
	int64_t step;
	int rank, size;       /* size 0 means 1 */
	const json_t *config; /* copied; may be NULL */
	const json_t *state;  /* copied; seed, samples seen, … ; may be NULL */
	bool snapshot;        /* add() copies the data, so that the caller may go on changing it */
	int keep_last;        /* after success keep this many newest (0: all) … */
	int64_t keep_every;   /* … and every step divisible by this (0: none) */
	const struct vfm_ckpt_comm *comm;
};

/* Not thread-safe; touches no file before the save. */
struct vfm_ckpt_writer;
struct vfm_ckpt_writer *vfm_ckpt_begin(const struct vfm_ckpt_spec *spec);
/* `data` must stay as it is until the save returned, unless spec.snapshot.  Replicated
 * slices are to be added by one rank only.  VFM_EUSAGE: bad name or slice; VFM_EENV: no memory. */
int vfm_ckpt_add(struct vfm_ckpt_writer *w, const char *name, enum vfm_dtype dtype, int ndim, const int64_t *shape,
	const struct vfm_slice *slice, const void *data, struct vfm_err *err);
/* A tensor whose values are read from another checkpoint, in small blocks, when the save writes them, converted to
 * dtype. */
int vfm_ckpt_add_from(struct vfm_ckpt_writer *w, const char *name, enum vfm_dtype dtype, const struct vfm_slice *slice,
	struct vfm_ckpt *src, const struct vfm_ckpt_tensor *t, struct vfm_err *err);
/* Collective.  Frees w in any case.  After a failure the earlier checkpoints are as they were
 * and nothing is left of this one.  "cannot save checkpoint 'run/ckpt/step-00000123': No space left on device". */
int vfm_ckpt_save(struct vfm_ckpt_writer *w, struct vfm_err *err);
/* The same for the writers of all n ranks, held by one process: one after the other.  Local. */
int vfm_ckpt_save_all(struct vfm_ckpt_writer **w, int n, struct vfm_err *err);
void vfm_ckpt_abandon(struct vfm_ckpt_writer *w); /* frees without saving; NULL is fine */

/* The same in a thread of its own; takes w, whose data must be snapshots (or stay untouched). */
struct vfm_ckpt_job;
int vfm_ckpt_save_async(struct vfm_ckpt_writer *w, struct vfm_ckpt_job **job, struct vfm_err *err);
bool vfm_ckpt_done(struct vfm_ckpt_job *job);                     /* does not wait */
int vfm_ckpt_wait(struct vfm_ckpt_job *job, struct vfm_err *err); /* the save's result; frees job; NULL: 0 */

/* ---- finding ---- */

/* Step of the newest complete checkpoint in `dir` (a directory of step-*), -1 when there is none;
 * also when dir does not exist.  VFM_EENV when it cannot be read. */
int vfm_ckpt_latest(const char *dir, int64_t *step, struct vfm_err *err);
char *vfm_ckpt_path(const char *dir, int64_t step); /* "dir/step-00000123", for the caller to free */
/* From a checkpoint, a directory of checkpoints, a run (has ckpt/), a .safetensors file or a directory with
 * model.safetensors.index.json to the path of the checkpoint, file or directory.  VFM_EUSAGE when there is none. */
int vfm_ckpt_resolve(const char *operand, char **path, struct vfm_err *err);
/* Removes all but the newest keep_last and those at multiples of keep_every; never `spare` (-1: none).
 * `gone`, if not NULL, is called with each step; with dry nothing is removed.  keep_last < 1 keeps all. */
int vfm_ckpt_prune(const char *dir, int keep_last, int64_t keep_every, int64_t spare, bool dry,
	void (*gone)(void *ctx, int64_t step), void *ctx, struct vfm_err *err);

/* ---- reading ---- */

struct vfm_ckpt_piece {
	int file;           /* index into files */
	const char *tensor; /* its name there */
	bool is_range;      /* else the box */
	struct vfm_box box;
	int64_t a, b;
	int64_t numel;
};
struct vfm_ckpt_tensor {
	const char *name;
	enum vfm_dtype dtype;
	int ndim;
	int64_t shape[VFM_NDIM_MAX];
	int64_t numel, bytes;
	struct vfm_ckpt_piece *piece;
	int n_pieces;
};
struct vfm_ckpt_file;
struct vfm_ckpt { /* read only for the caller */
	char *path;
	bool plain;   /* .safetensors files (one, or several with an index): no hashes, no step, no config */
	int64_t step; /* -1 when plain */
	int world;
	const json_t *config, *state; /* borrowed; may be NULL */
	struct vfm_ckpt_tensor *t;    /* sorted by name */
	int n;
	struct vfm_ckpt_file *file;
	int n_files;
	int64_t bytes;   /* of all data files */
	double saved_at; /* seconds since 1970; 0 unknown */
	void *priv;
};

/* Parses and checks the manifest (its own hash, shapes, that pieces cover each tensor once, file sizes)
 * without reading data.  `path` as for vfm_ckpt_resolve.  VFM_EUSAGE names file and tensor; VFM_EENV: I/O. */
int vfm_ckpt_open(struct vfm_ckpt **out, const char *path, struct vfm_err *err);
/* The text of a manifest, as open does it but without looking at files (dir == NULL: sizes unchecked). */
int vfm_ckpt_parse(struct vfm_ckpt **out, const char *text, size_t len, const char *dir, struct vfm_err *err);
void vfm_ckpt_close(struct vfm_ckpt *c); /* NULL is fine */
const struct vfm_ckpt_tensor *vfm_ckpt_find(const struct vfm_ckpt *c, const char *name);

/* Fills dst with a slice (NULL: all) of a tensor, converted to `dtype`.  Reads only the 4 MiB
 * chunks that it needs and checks the sha256 of each before a byte of it is used.
 * One thread at a time per vfm_ckpt.  VFM_EUSAGE: wrong slice, damaged data. */
int vfm_ckpt_read_tensor(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_slice *slice,
	enum vfm_dtype dtype, void *dst, struct vfm_err *err);

/* Names the data: the sha256 of manifest.json, which holds those of all files; of a plain file that of the file, of
 * several that of their lines "SHA256  NAME\n".  Plain files are read whole. */
int vfm_ckpt_sha256(const struct vfm_ckpt *c, char hex[65], struct vfm_err *err);

/* Reads every byte of every file and checks all there is to check; calls fault() for each
 * fault, goes on, and returns the number of faults, or VFM_EENV. */
int vfm_ckpt_check(const char *path, void (*fault)(void *ctx, const char *what), void *ctx, struct vfm_err *err);

#endif
