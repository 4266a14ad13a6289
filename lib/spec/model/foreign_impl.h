/* foreign_impl.h - the letters of shapes, for foreign.c and foreign_config.c. */
#ifndef VFM_SPEC_MODEL_FOREIGN_IMPL_H
#define VFM_SPEC_MODEL_FOREIGN_IMPL_H

#include "spec/model/foreign.h"

/* Returns the address of the dimension of a letter in *m, or NULL.  Until vfm_foreign_finish, model.cond_channels is
 * that of X, and model.text_proj that of Y. */
int64_t *vfm_foreign_dim(struct vfm_model_spec *m, char letter);
int64_t vfm_foreign_inputs(const struct vfm_model_spec *m); /* channels of the input */

#endif
