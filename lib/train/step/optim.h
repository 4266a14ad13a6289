/* optim.h - AdamW with f32 or split master weights, clipping by the global norm, and the moving average (EMA) of the
 * weights.  State arrays hold the elements that this rank owns (net/nn/param.h).
 */
#ifndef VFM_TRAIN_STEP_OPTIM_H
#define VFM_TRAIN_STEP_OPTIM_H

#include "net/nn/param.h"
#include "train/job/config.h"

struct vfm_optim {
	struct vfm_params *ps;
	const struct vfm_train_config *c;
	bool on_host;                  /* moments and EMA in pinned host memory, which updates access over the bus */
	struct vfm_array m, v, ema;    /* [ps->n_own]; v: f32 or u8; ema: f32; ema.data NULL: none */
	void *scalars;                 /* device: norm f32, scale f32 */
	struct vfm_tensor norm, scale; /* norm: gradient norm of the last step, before clipping */
	/* Set before a step: the updates of most matrices run on `side` and overlap the next forward (net/nn/param.h),
	 * with the same bits.  Ignored without `side`. */
	bool overlaps;
	struct vfm_stream *side; /* NULL: the device runs one op at a time */
	/* private */
	float *unpacked; /* f32: 8-bit moments of a chunk, 2 per stream, for the compute stream and for side */
	int64_t chunk;   /* elements per chunk */
	size_t unpacked_bytes;
	struct vfm_event *forked;
	int *order,
		n_first; /* [ps->n_trained] buckets in the order of their updates; n_first stay on the compute stream */
};

/* new allocates zero states; start copies the weights to the EMA.  ps and c must outlive *o. */
int vfm_optim_new(struct vfm_optim *o, struct vfm_params *ps, const struct vfm_train_config *c, struct vfm_err *err);
int vfm_optim_start(struct vfm_optim *o, struct vfm_err *err);
/* Sets the 8-bit moments in o->m or o->v from x [ps->n_own] f32, in memory that the device can address. */
int vfm_optim_quantize(struct vfm_optim *o, const struct vfm_array *a, const float *x, struct vfm_err *err);
void vfm_optim_release(struct vfm_optim *o);
/* Returns the bytes of moments and EMA in host memory. */
double vfm_optim_host_bytes(const struct vfm_optim *o);

/* Collective.  Clips the owned gradients of vfm_params_grad_end by the global norm, applies one update, and ends the
 * step of the fp8 scales (net/nn/scales.h).  t = 1, 2, … is the step number.  loss: [1] f64, that of the global step;
 * may be absent.  If the norm or the loss is not finite, the device skips the step: weights, moments, average and
 * scales keep their bits, while t counts the step. */
int vfm_optim_step(struct vfm_optim *o, double lr, int64_t t, struct vfm_tensor loss, struct vfm_err *err);

#endif
