/* prune.h - removes old checkpoints and the leftovers of killed saves; renames damaged checkpoints. */
#ifndef VFM_CKPT_PRUNE_H
#define VFM_CKPT_PRUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_ckpt_prune {
	int keep_last;      /* keeps this many of the newest; < 1: all */
	int64_t keep_every; /* keeps steps that are multiples; 0: none */
	int64_t spare;      /* keeps this step; -1: none */
	/* a checkpoint is good if vfm_ckpt_check finds no fault; else, if vfm_ckpt_open succeeds and the manifest
	 * records no NaN or infinity */
	bool deep;
	bool dry;                              /* removes nothing */
	void (*gone)(void *ctx, int64_t step); /* called for each removed step; may be NULL */
	void *ctx;
};
/* Removes old checkpoints from dir.  If no kept checkpoint is good, also keeps the newest good one, and warns.
 * VFM_EUSAGE: no checkpoint is good; nothing was removed. */
int vfm_ckpt_prune(const char *dir, const struct vfm_ckpt_prune *p, struct vfm_err *err);
/* Removes the leftovers of killed saves and removals in dir.  No process may be saving into dir. */
void vfm_ckpt_sweep(const char *dir);
/* Renames the checkpoint of a step to step-….damaged, or to step-….damaged-2 and so on if that exists; no reader uses
 * such a name.  Sets *name to the new path; the caller frees it. */
int vfm_ckpt_set_aside(const char *dir, int64_t step, char **name, struct vfm_err *err);

#endif
