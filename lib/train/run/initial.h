/* initial.h - the configuration that initial weights bring with them. */
#ifndef VFM_TRAIN_RUN_INITIAL_H
#define VFM_TRAIN_RUN_INITIAL_H

#include "train/job/config.h"

/* Sets the section "model" of *c, and the kind, t_min and t_max of "diffusion", to those of the weights in `path`, as
 * far as they have a configuration.  If the run in `dir` (NULL: none) has a checkpoint, takes them from the newest that
 * it can resume from: --init is not read then.  Local.  VFM_EUSAGE, VFM_EENV: as vfm_ckpt_open; VFM_EUSAGE also for a
 * LoRA file. */
int vfm_config_initial(struct vfm_config *c, const char *path, const char *dir, struct vfm_err *err);

#endif
