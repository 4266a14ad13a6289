/* find.h - finds checkpoints in directories. */
#ifndef VFM_CKPT_FIND_H
#define VFM_CKPT_FIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Sets *step to the step of the newest complete checkpoint in `dir` (a directory of step-*), or to -1 if dir has none
 * or does not exist.  VFM_EENV: dir cannot be read. */
int vfm_ckpt_latest(const char *dir, int64_t *step, struct vfm_err *err);
char *vfm_ckpt_path(const char *dir, int64_t step); /* "dir/step-00000123"; the caller frees it */
/* Sets *path to the checkpoint that `operand` names; the caller frees it.  VFM_EUSAGE: there is no checkpoint.  operand
 * is
 *
 * - a checkpoint
 * - a directory of checkpoints, or a run (has ckpt/); the newest checkpoint is used
 * - a .safetensors or .pth file
 * - a directory with model.safetensors.index.json, or with diffusion_pytorch_model.* or their index */
int vfm_ckpt_resolve(const char *operand, char **path, struct vfm_err *err);
/* Sets *steps to the steps of the complete checkpoints in dir, ascending, and *n to their number; the caller frees
 * *steps.  `all` includes every directory with the name of a checkpoint.  A directory that does not exist has none.
 * VFM_EENV: dir cannot be read. */
int vfm_ckpt_steps(const char *dir, bool all, int64_t **steps, size_t *n, struct vfm_err *err);

#endif
