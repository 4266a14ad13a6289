/* candidates.h - the checkpoints that a run may begin from, newest first.  If one is damaged, the run tries the next.
 * A checkpoint of the run is any directory with the name of a checkpoint (vfm_ckpt_steps, all).
 *
 *	TRY(vfm_candidates_list(&k, run, dir, "auto", err));
 *	while ((path = vfm_candidates_next(&k)))
 *		if (load(path, &why) == damaged)
 *			vfm_candidates_reject(&k, why.msg);
 *		else
 *			return vfm_candidates_accept(&k, err);
 *
 * All calls are local.  Only one rank makes them, since the directory may change between the reads of several ranks.
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
	size_t n, cap, at;  /* at: the current candidate */
	struct vfm_buf why; /* the reasons of rejected candidates */
};

/* Lists the candidates; the list may be empty.  run: RUN, for messages.  dir: its directory of checkpoints, which need
 * not exist.  resume: as in struct vfm_run_opts.  VFM_EUSAGE: resume contradicts the content of dir, or is not a
 * checkpoint. */
int vfm_candidates_list(
	struct vfm_candidates *k, const char *run, const char *dir, const char *resume, struct vfm_err *err);
/* Returns the current candidate, owned by k; NULL if there is none left. */
const char *vfm_candidates_next(const struct vfm_candidates *k);
void vfm_candidates_reject(struct vfm_candidates *k, const char *why);
/* Starts the run from the current candidate, or from none after the last.  Renames the rejected checkpoints of the run
 * (vfm_ckpt_set_aside) and warns.  VFM_EUSAGE: there were candidates, but all were rejected. */
int vfm_candidates_accept(struct vfm_candidates *k, struct vfm_err *err);
void vfm_candidates_release(struct vfm_candidates *k);

/* Opens the newest checkpoint that the run in RUN can resume from, as far as opening shows; *c is NULL if there is
 * none.  Renames nothing and does not warn, which the run does.  If why is not NULL, sets *why to the reasons of
 * rejected checkpoints, or NULL; the caller frees it.  VFM_EENV: a file exists but cannot be read. */
int vfm_candidates_newest(const char *run, struct vfm_ckpt **c, char **why, struct vfm_err *err);

/* Opens a candidate like vfm_ckpt_open.  VFM_EUSAGE also for weight files. */
int vfm_candidate_open(struct vfm_ckpt **c, const char *path, struct vfm_err *err);

/* Returns whether path is dir or below it, after resolving links.  Both must exist. */
bool vfm_path_is_inside(const char *path, const char *dir);

#endif
