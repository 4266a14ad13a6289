/* prune.h - removes old checkpoints and what killed saves left; renames damaged ones. */
#ifndef VFM_CKPT_PRUNE_H
#define VFM_CKPT_PRUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_ckpt_prune {
	int keep_last;      /* keeps the newest; < 1: all */
	int64_t keep_every; /* keeps multiples; 0: none */
	int64_t spare;      /* keeps this step; -1: none */
	bool deep; /* a checkpoint is good if vfm_ckpt_check finds no fault; else if vfm_ckpt_open succeeds and the
		      manifest records no NaN or infinity */
	bool dry;  /* removes nothing */
	void (*gone)(void *ctx, int64_t step); /* called with each removed step; may be NULL */
	void *ctx;
};
/* Removes old checkpoints from dir.  If none of those it keeps is good, also keeps the newest good one, and warns.
 * VFM_EUSAGE: no checkpoint is good; nothing was removed. */
int vfm_ckpt_prune(const char *dir, const struct vfm_ckpt_prune *p, struct vfm_err *err);
/* Removes what killed saves and removals left in dir.  No process may be saving into dir. */
void vfm_ckpt_sweep(const char *dir);
/* Renames the checkpoint of a step to step-….damaged, or step-….damaged-2 and so on if that exists, a name that no
 * reader uses.  Sets *name to the new path; the caller frees it. */
int vfm_ckpt_set_aside(const char *dir, int64_t step, char **name, struct vfm_err *err);

#endif
