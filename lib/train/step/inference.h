/* inference.h - a network that only runs forward: all its weights are frozen, stored in the dtype that the options ask
 * for, and those of blocks in host memory as far as the options or the memory of the device demand it.
 */
#ifndef VFM_TRAIN_STEP_INFERENCE_H
#define VFM_TRAIN_STEP_INFERENCE_H

#include "net/diffusion/model.h"
#include "train/job/config.h"

struct vfm_inference_opts {
	int stored;      /* enum vfm_frozen_dtype of the linear layers and experts of blocks */
	int64_t offload; /* blocks with weights in host memory, evenly spaced; -1: as many as memory requires */
	int64_t tokens;  /* of the largest batch of a group of ranks: for -1 */
	double beside;   /* device bytes that other work needs when no batch runs, such as a decoder: for -1 */
	int networks;    /* number of such networks that are in memory together: for -1 */
};

/* Sets offload from "auto" or the number of blocks.  `what` names it in errors. */
int vfm_inference_parse_offload(
	struct vfm_inference_opts *o, const char *text, const struct vfm_model_spec *m, struct vfm_err *err);
/* Initializes *ps and makes the network of c->model, without values (vfm_state_load_weights, vfm_params_fill).  Local.
 * The caller frees *model and releases *ps in any case.  The mesh must outlive both. */
int vfm_inference_new(struct vfm_params *ps, struct vfm_model **model, const struct vfm_config *c,
	const struct vfm_inference_opts *o, const struct vfm_mesh *mesh, struct vfm_stream *s, struct vfm_err *err);

#endif
