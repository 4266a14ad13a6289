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
	int64_t tokens;  /* of the largest batch of a group of ranks, guidance included: for -1 */
	int64_t samples; /* of that batch, with the copies of guidance: for -1 */
	int64_t text;    /* text rows of a sample at most; 0: model.text_len: for -1 */
	double beside;   /* device bytes that other work needs when no batch runs, such as a decoder: for -1 */
	int networks;    /* number of such networks that are in memory together: for -1 */
};

/* Sets offload from "auto" or the number of blocks.  VFM_EUSAGE: neither. */
int vfm_inference_parse_offload(
	struct vfm_inference_opts *o, const char *text, const struct vfm_model_spec *m, struct vfm_err *err);
/* Sets the layout of `ranks` ranks from set [n], assignments "parallel.KEY=VALUE"; cp takes the ranks that tp and dp
 * leave.  dp ranks sample different videos; with split_cfg, two of them compute the texts and the negative texts of the
 * same.  Local.  VFM_EUSAGE: a key of another section, degrees that do not fit, or a layout that sampling lacks. */
int vfm_inference_layout(
	struct vfm_config *c, const char *const *set, int n, bool split_cfg, int ranks, struct vfm_err *err);
/* Initializes *ps and makes the network of c->model, without values (vfm_state_load_weights, vfm_params_fill).  Local.
 * The caller frees *model and releases *ps in any case.  The mesh must outlive both. */
int vfm_inference_new(struct vfm_params *ps, struct vfm_model **model, const struct vfm_config *c,
	const struct vfm_inference_opts *o, const struct vfm_mesh *mesh, struct vfm_stream *s, struct vfm_err *err);

#endif
