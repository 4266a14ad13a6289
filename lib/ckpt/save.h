/* save.h - saves checkpoints, synchronously or in a thread. */
#ifndef VFM_CKPT_SAVE_H
#define VFM_CKPT_SAVE_H

#include "ckpt/ckpt.h"

/* The collectives that commit a checkpoint of several ranks; NULL in the spec means a single rank. */
struct vfm_ckpt_comm {
	void *ctx;
	/* Collective.  Sets *all to a malloc'ed array of [size] malloc'ed strings on rank 0, to NULL on the others. */
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
	int keep_last;        /* a successful save keeps the newest keep_last checkpoints (0: all) ... */
	int64_t keep_every;   /* ... and those whose step is a multiple of keep_every (0: none) */
	const struct vfm_ckpt_comm *comm;
};

/* A writer is not thread-safe.  It accesses the file system only in the save. */
struct vfm_ckpt_writer;
struct vfm_ckpt_writer *vfm_ckpt_begin(const struct vfm_ckpt_spec *spec);
/* Adds a slice of the tensor `name`.  Local.  `data` must not change until the save has returned.  For a replicated
 * slice, only one rank calls this.  VFM_EUSAGE: the name or slice is invalid. */
int vfm_ckpt_add(struct vfm_ckpt_writer *w, const char *name, enum vfm_dtype dtype, int ndim, const int64_t *shape,
	const struct vfm_slice *slice, const void *data, struct vfm_err *err);
/* Adds a slice whose values the save reads from the tensor t of the checkpoint `src`, block by block, and converts to
 * dtype.  src must stay open until the save has returned. */
int vfm_ckpt_add_from(struct vfm_ckpt_writer *w, const char *name, enum vfm_dtype dtype, const struct vfm_slice *slice,
	struct vfm_ckpt *src, const struct vfm_ckpt_tensor *t, struct vfm_err *err);
/* Writes the checkpoint.  Collective.  Frees w in any case.  A failed save removes its files and leaves earlier
 * checkpoints unchanged: "cannot save checkpoint 'run/ckpt/step-00000123': No space left on device". */
int vfm_ckpt_save(struct vfm_ckpt_writer *w, struct vfm_err *err);
/* Saves the checkpoint of n writers, one for each rank, sequentially in one process.  Local. */
int vfm_ckpt_save_all(struct vfm_ckpt_writer **w, int n, struct vfm_err *err);
void vfm_ckpt_abandon(struct vfm_ckpt_writer *w); /* frees w without saving; accepts NULL */

/* Starts vfm_ckpt_save in a new thread, which owns w.  The data must not change until vfm_ckpt_wait has returned. */
struct vfm_ckpt_job;
int vfm_ckpt_save_async(struct vfm_ckpt_writer *w, struct vfm_ckpt_job **job, struct vfm_err *err);
bool vfm_ckpt_done(struct vfm_ckpt_job *job); /* does not block */
int vfm_ckpt_wait(
	struct vfm_ckpt_job *job, struct vfm_err *err); /* blocks; returns the save's code, frees job; NULL: 0 */

#endif
