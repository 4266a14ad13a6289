/* candidates.h - the checkpoints that a run may begin from, newest first.  The run tries the next one if one is
 * damaged.  A checkpoint of the run is any directory with the name of one (vfm_ckpt_steps, all).
 *
 *	TRY(vfm_candidates_list(&k, run, dir, "auto", err));
 *	while ((path = vfm_candidates_next(&k)))
 *		if (load(path, &why) == damaged)
 *			vfm_candidates_reject(&k, why.msg);
 *		else
 *			return vfm_candidates_accept(&k, err);
 *
 * All calls are local; only one rank makes them, since the directory may change between the reads of several.
 */
#ifndef VFM_TRAIN_RUN_CANDIDATES_H
#define VFM_TRAIN_RUN_CANDIDATES_H

#include "base/mem.h"
#include "ckpt/ckpt.h"

struct vfm_ckpt_candidate {
	char *path;
	int64_t step;
	bool own, rejected; /* own: in the run's directory of checkpoints */
};

struct vfm_candidates {        /* `= {0}` before list */
	const char *run, *dir; /* borrowed */
	struct vfm_ckpt_candidate *c;
	size_t n, cap, at;  /* at: the current one */
	struct vfm_buf why; /* the reasons of the rejected ones */
};

/* run: RUN, for messages; dir: its directory of checkpoints, which need not exist.  resume: as in struct vfm_run_opts.
 * VFM_EUSAGE: resume contradicts the content of dir, or names no checkpoint.  A list may be empty. */
int vfm_candidates_list(
	struct vfm_candidates *k, const char *run, const char *dir, const char *resume, struct vfm_err *err);
/* Returns the current candidate, owned by k; NULL if all were rejected, or there was none. */
const char *vfm_candidates_next(const struct vfm_candidates *k);
void vfm_candidates_reject(struct vfm_candidates *k, const char *why);
/* The run begins from the current candidate, or, after the last, from none.  Renames the rejected checkpoints of the
 * run (vfm_ckpt_set_aside) and warns.  VFM_EUSAGE: there were candidates, and all were rejected. */
int vfm_candidates_accept(struct vfm_candidates *k, struct vfm_err *err);
void vfm_candidates_release(struct vfm_candidates *k);

/* Opens the newest checkpoint that the run in RUN can resume from, as far as opening tells; *c = NULL: there is none.
 * Renames nothing and does not warn: the run does.  *why, unless why is NULL: the reasons of rejected ones, or NULL;
 * the caller frees it.  VFM_EENV: a file exists but cannot be read. */
int vfm_candidates_newest(const char *run, struct vfm_ckpt **c, char **why, struct vfm_err *err);

/* Opens a candidate as vfm_ckpt_open does.  VFM_EUSAGE: also for files of weights. */
int vfm_candidate_open(struct vfm_ckpt **c, const char *path, struct vfm_err *err);

/* Returns whether path is in dir or below, after resolving links.  Both exist. */
bool vfm_path_is_inside(const char *path, const char *dir);

#endif
