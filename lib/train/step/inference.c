/* inference.c - makes the parameters of a network that only runs forward, and places them. */
#include "train/step/inference.h"

#include <math.h>
#include <string.h>

#include "base/num.h"
#include "spec/cost/keep_plan.h"
#include "train/step/recompute.h"

int vfm_inference_parse_offload(
	struct vfm_inference_opts *o, const char *text, const struct vfm_model_spec *m, struct vfm_err *err)
{
	if (!strcmp(text, "auto")) {
		o->offload = -1;
		return 0;
	}
	if (vfm_parse_i64(text, 0, m->layers, &o->offload, NULL) < 0)
		return vfm_fail(err, VFM_EUSAGE, "--offload-weights: expected auto or 0 to %lld blocks, got '%s'",
			(long long)m->layers, text);
	return 0;
}

/* Returns the bytes that the forward of a batch needs at most on a rank: the running block, and the residual stream,
 * predictions and inputs of the batch around it. */
static double forward_bytes(const struct vfm_config *c, const struct vfm_inference_opts *o, const struct vfm_mesh *m)
{
	const double rows = (double)o->tokens / (m->size[VFM_AX_CP] * m->size[VFM_AX_TP]);
	const struct vfm_saved_how how = {.dtype = (enum vfm_dtype)c->train.dtype,
		.residual = (enum vfm_dtype)c->train.residual,
		.pack = {.tokens = rows, .text_rows = (double)c->model.text_len, .samples = 1, .segments = 1},
		.tp = m->size[VFM_AX_TP]};

	return vfm_keep_plan_running(&c->model, &how) +
		rows * (4 * (double)c->model.hidden + 16 * (double)vfm_model_patch_dim(&c->model));
}

/* Returns the least number of offloaded blocks with which the network fits; all if it never does. */
static int64_t blocks_to_offload(const struct vfm_params *ps, const struct vfm_config *c,
	const struct vfm_inference_opts *o, const struct vfm_mesh *m)
{
	const struct vfm_dev *d = ps->stream->dev;
	const double room = vfm_recompute_capacity(m, d) - fmax(forward_bytes(c, o, m), o->beside);
	double most, mine;
	const int64_t of = vfm_params_stores(ps, &most);

	if (d->mem_total <= 0)
		return 0;
	mine = room / fmax(1, o->networks) - (double)ps->copy_bytes - vfm_params_unit_bytes(ps);
	if ((double)of * most <= mine)
		return 0;
	return (int64_t)fmin((double)of, fmax(1, ceil((double)of + 2 - mine / most)));
}

int vfm_inference_new(struct vfm_params *ps, struct vfm_model **model, const struct vfm_config *c,
	const struct vfm_inference_opts *o, const struct vfm_mesh *mesh, struct vfm_stream *s, struct vfm_err *err)
{
	vfm_params_init(ps, s, mesh);
	vfm_tuning_defaults(&ps->tuning);
	strcpy(ps->tuning.freeze.text, "*");
	ps->tuning.frozen_dtype = o->stored;
	ps->stores = o->offload != 0;
	*model = vfm_model_new(&c->model, ps);
	vfm_model_set_residual(*model, (enum vfm_dtype)c->train.residual);
	if (vfm_params_alloc(ps, (enum vfm_dtype)c->train.dtype, false, err) < 0)
		return err->code;
	return vfm_params_place(ps, o->offload < 0 ? blocks_to_offload(ps, c, o, mesh) : o->offload, err);
}
