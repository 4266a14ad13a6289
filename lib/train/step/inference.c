/* inference.c - makes the parameters of a network that only runs forward, and places them. */
#include "train/step/inference.h"

#include <math.h>
#include <string.h>

#include "base/num.h"
#include "net/diffusion/solver.h"
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

int vfm_inference_layout(
	struct vfm_config *c, const char *const *set, int n, bool split_cfg, int ranks, struct vfm_err *err)
{
	const int64_t halves = split_cfg ? 2 : 1;
	struct vfm_parallel *p = &c->parallel;

	vfm_parallel_defaults(p);
	p->cp = p->dp = 0;
	for (int i = 0; i < n; i++) {
		if (strncmp(set[i], "parallel.", 9) != 0)
			return vfm_fail(
				err, VFM_EUSAGE, "--set %s: only keys of the section parallel can be set here", set[i]);
		TRY(vfm_config_set(c, set[i], err));
	}
	if (!p->dp && halves == 2)
		p->dp = 2;
	if (!p->cp) {
		int64_t others = p->tp * (p->dp ? p->dp : 1);

		p->cp = ranks % others ? 1 : ranks / others;
	}
	TRY(vfm_parallel_check(p, &c->model, ranks, err));
	if (p->pp > 1)
		return vfm_fail(err, VFM_EUSAGE, "parallel.pp: sampling uses tp, cp and dp; expected 1");
	if (p->dp > 1 && p->ep > 1)
		return vfm_fail(err, VFM_EUSAGE, "parallel.dp: experts over ep need dp = 1 in sampling");
	if (p->dp % halves)
		return vfm_fail(err, VFM_EUSAGE,
			"parallel.dp: guidance over two groups of ranks needs an even number, got %lld",
			(long long)p->dp);
	return 0;
}

/* Returns the bytes that the forward of a batch needs at most on a rank.  A rank has the whole state of the sampler:
 * the points, the predictions and the history of the solver. */
static double batch_bytes(const struct vfm_config *c, const struct vfm_inference_opts *o, const struct vfm_mesh *m,
	const struct vfm_dev *d)
{
	const double state = (3 + VFM_SOLVER_HISTORY + (m->seq->size > 1 ? 2 : 0)) * 4.0;
	const int64_t text = vfm_model_text_rows(&c->model, o->text ? o->text : c->model.text_len);
	const struct vfm_pack_sums batch = {.tokens = (double)o->tokens,
		.text_rows = (double)(o->samples * text),
		.samples = (double)o->samples,
		.segments = (double)o->samples};

	return vfm_recompute_forward_bytes(c, m, d, &batch) +
		state * (double)o->tokens * (double)vfm_model_patch_dim(&c->model);
}

/* Returns the least number of offloaded blocks with which the network fits; all if it never does. */
static int64_t blocks_to_offload(const struct vfm_params *ps, const struct vfm_config *c,
	const struct vfm_inference_opts *o, const struct vfm_mesh *m)
{
	const struct vfm_dev *d = ps->stream->dev;
	const double room = vfm_recompute_capacity(m, d) - fmax(batch_bytes(c, o, m, d), o->beside);
	double most, mine;
	const int64_t of = vfm_params_stores(ps, &most);

	if (d->mem_total <= 0)
		return 0;
	mine = room / fmax(1, o->networks) - (double)ps->copy_bytes - vfm_params_unit_bytes(ps);
	if ((double)of * most <= mine)
		return 0;
	return (int64_t)fmin((double)of, fmax(1, ceil((double)of + VFM_STORES_FETCHED - mine / most)));
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
