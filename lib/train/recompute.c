#include "train/recompute.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/host_memory.h"
#include "spec/schedule.h"

/* What a plan leaves of a device's capacity to others: 5 % to chunks of the pool that are partly in use, the rest to
 * the context and to NCCL.  The latter's buffers, in GiB, are what the simulated device counts (sim/libraries.h) on
 * nodes of 8 GPUs: those of the groups of data parallelism, of the sums and messages of tp, and a third for each rank
 * that messages go to. */
static double bytes_of_others(const struct vfm_mesh *m, const struct vfm_dev *d)
{
	double tp = m->size[VFM_AX_TP], cp = m->size[VFM_AX_CP], ep = m->size[VFM_AX_EP];
	double gib = m->world->size > 1 ? 2.6 : 1;

	gib += tp > 1 ? 0.6 + 0.4 * (tp - 1) : 0;
	gib += (fmin(m->p.cp_a2a, 8) - 1) / 3 + (cp > (double)m->p.cp_a2a ? 2.0 / 3 : 0);
	gib += (fmin(ep, 8) - 1) / 3;
	gib += m->size[VFM_AX_PP] > 1 ? 1.7 : 0;
	return 0.05 * (double)d->mem_total + gib * 0x1p30;
}

/* ---- what a step needs besides the blocks ---- */

/* Inputs and targets of a pack, conditioning, positions and text.  `in->pack` is this
 * rank's share; of image rows, five arrays of the embedder in f32, or six with positions. */
static double pack_bytes(const struct vfm_config *c, const struct vfm_keep_plan_in *in)
{
	const struct vfm_model_spec *m = &c->model;
	const struct vfm_arch *a = vfm_model_arch(m);
	double h = (double)m->hidden, f = (double)vfm_model_patch_dim(m), size = (double)vfm_dtype_size(in->dtype);
	double rope = vfm_model_has_row_rope(m) ? h : (double)vfm_model_head_dim(m) * (a->n_attn > 1 ? 3 : 1);
	double token = 2 * 4 * f + size * f + 4 * rope + 32;
	double text = 4 * (double)m->text_dim + 3 * size * h, sample = 4 * (8 * h + 2 * a->n_mod * h), images;

	if (m->pos != VFM_POS_ROPE)
		token += 8 * h;
	token += 3 * 4 * f; /* prediction, target and a gradient; the head is smaller than a running block */
	token += 2 * 4 * (double)vfm_model_cond_dim(m); /* f32, and a copy behind the noisy input */
	images = (double)m->image_len * (4 * (double)m->image_dim * (m->image_pos ? 6 : 5) + 3 * size * h);
	return in->pack.q * token + in->pack.c * text + in->pack.g * sample + (m->image_dim ? in->pack.n * images : 0);
}

/* What all rows of tp take while a block runs, beside this rank's share of them: gathered inputs, outputs and their
 * gradients of its layer and of those whose gradients of weights are deferred.  A number of such arrays, which
 * tests/unit/test_recompute.c compares with simulated steps. */
static double gathered_bytes(const struct vfm_mesh *m, const struct vfm_keep_plan_in *in)
{
	double share = in->pack.q * (double)in->model->hidden * (double)vfm_dtype_size(in->dtype);

	return 6 * (m->size[VFM_AX_TP] - 1) * share;
}

/* The rows that experts on other ranks get while a block runs, and their gradients. */
static double sent_bytes(const struct vfm_mesh *m, const struct vfm_keep_plan_in *in)
{
	const struct vfm_model_spec *s = in->model;
	double rows = m->size[VFM_AX_EP] > 1 && vfm_model_has_experts(s) ? in->pack.q * s->moe_capacity : 0;

	return 2 * rows * (double)s->hidden * (double)vfm_dtype_size(in->dtype);
}

static int count_blocks(const struct vfm_config *c, const struct vfm_mesh *m, const struct vfm_load *load,
	struct vfm_keep_plan_in *in, struct vfm_err *err)
{
	int pp = m->size[VFM_AX_PP], stage = m->coord[VFM_AX_PP], vpp = (int)m->p.vpp;
	struct vfm_schedule s = {0};

	TRY(vfm_schedule_make(
		&s, m->p.schedule == VFM_PP_ZB && pp > 1 ? VFM_PP_ZB : VFM_PP_1F1B, pp, vpp, stage, load->packs, err));
	in->copies = (double)s.in_flight / vpp;
	vfm_schedule_release(&s);
	in->blocks = 0;
	for (int k = 0; k < vpp; k++) {
		int64_t first, end;

		vfm_stage_layers(&c->model, pp * vpp, k * pp + stage, &first, &end);
		in->blocks += end - first;
	}
	return 0;
}

int vfm_recompute_input(const struct vfm_config *c, const struct vfm_params *ps, const struct vfm_load *load,
	struct vfm_keep_plan_in *in, struct vfm_recompute_plan *p, struct vfm_err *err)
{
	const struct vfm_mesh *m = ps->mesh;
	const struct vfm_dev *d = ps->stream->dev;
	double rows = 1.0 / (m->size[VFM_AX_CP] * m->size[VFM_AX_TP]), text = 1.0 / m->size[VFM_AX_TP];
	const struct vfm_pack_sums *all = &load->largest;

	*p = (struct vfm_recompute_plan){.state = (double)d->mem_now};
	p->capacity =
		c->train.memory_gib > 0 ? c->train.memory_gib * 0x1p30 : (double)d->mem_total - bytes_of_others(m, d);
	*in = (struct vfm_keep_plan_in){.model = &c->model,
		.dtype = (enum vfm_dtype)c->train.dtype,
		.residual = (enum vfm_dtype)c->train.residual,
		.pack = {all->q * rows, all->Q * rows, all->c * text, all->X * rows, all->Qs * rows, all->Qt * rows,
			all->n, c->diffusion.image_cond > 0 ? 2 * all->g : all->g},
		.tuning = vfm_saved_tuning(&c->model, &c->tuning),
		.exchanges_heads = m->p.cp_a2a > 1,
		.rates = load->rates ? *load->rates : vfm_keep_plan_h200};
	if (c->train.offload & VFM_OFFLOAD_ACTIVATIONS)
		in->host_room = c->train.host_gib > 0 ? c->train.host_gib * 0x1p30 : load->host_bytes;
	TRY(count_blocks(c, m, load, in, err));
	/* An asynchronous device has the next pack, too, which is uploaded meanwhile. */
	p->state += gathered_bytes(m, in) + sent_bytes(m, in) + vfm_params_unit_bytes(ps) +
		(ceil(in->copies) + (d->async && load->packs > 1)) * pack_bytes(c, in);
	in->room = p->capacity - p->state;
	return 0;
}

/* ---- the plan ---- */

/* Sets x [n] to the minima over the world. */
static int agree_on_least(struct vfm_comm *world, double *x, int n, struct vfm_err *err)
{
	double *all = vfm_calloc((size_t)world->size * (size_t)n, sizeof(*all));
	int rc = vfm_all_gather(world, NULL, vfm_t1(x, VFM_F64, n), vfm_t1(all, VFM_F64, world->size * n), NULL, err);

	for (int i = 0; i < world->size * n && rc == 0; i++)
		x[i % n] = fmin(x[i % n], all[i]);
	free(all);
	return rc;
}

/* Of the blocks that keep everything the first `gathered` also keep the rows of other ranks. */
static void fill_layers(const struct vfm_config *c, const struct vfm_mesh *m, const struct vfm_keep_plan *plan,
	int64_t blocks, int64_t gathered, struct vfm_keeps *keeps)
{
	struct vfm_keeps *own = vfm_calloc((size_t)blocks + 1, sizeof(*own));
	int pp = m->size[VFM_AX_PP], vpp = (int)m->p.vpp;
	int64_t at = 0;

	vfm_keep_plan_spread(plan, own);
	for (int64_t i = 0; i < blocks; i++)
		if ((own[i].keep & VFM_KEEP_REST) && gathered-- <= 0)
			own[i].keep |= VFM_KEEP_OWN_ROWS;
	for (int k = 0; k < vpp; k++) {
		int64_t first, end;

		vfm_stage_layers(&c->model, pp * vpp, k * pp + m->coord[VFM_AX_PP], &first, &end);
		while (first < end)
			keeps[first++] = own[at++];
	}
	free(own);
}

/* What is left of the room keeps gathered rows.  Sets p->gathered, adds to p->peak. */
static void use_slack_for_gathered(
	const struct vfm_mesh *m, const struct vfm_keep_plan_in *in, struct vfm_recompute_plan *p)
{
	struct vfm_saved_how how = {
		.dtype = in->dtype, .residual = in->residual, .pack = in->pack, .tuning = in->tuning};
	double each = (m->size[VFM_AX_TP] - 1) * vfm_block_gathered_bytes(in->model, &how) * in->copies;
	double left = in->room - p->blocks.device;

	for (int i = 0; i < p->blocks.n && each > 0 && left > 0; i++)
		if (p->blocks.part[i].keeps.keep & VFM_KEEP_REST)
			p->gathered = (int64_t)fmin((double)p->blocks.part[i].blocks, left / each);
	p->peak += (double)p->gathered * each;
}

int vfm_recompute_plan(const struct vfm_config *c, const struct vfm_params *ps, const struct vfm_load *load,
	struct vfm_recompute_plan *p, struct vfm_keeps *keeps, struct vfm_err *err)
{
	struct vfm_keep_plan_in in;
	double least[3];

	*p = (struct vfm_recompute_plan){0};
	if (c->train.recompute != VFM_RECOMPUTE_AUTO)
		return 0;
	TRY(vfm_recompute_input(c, ps, load, &in, p, err));
	least[0] = p->capacity;
	least[1] = in.room;
	least[2] = in.host_room;
	TRY(agree_on_least(ps->mesh->world, least, 3, err));
	if (least[0] <= 0)
		return 0;
	in.room = least[1];
	in.host_room = least[2];
	vfm_keep_plan_make(&in, &p->blocks);
	p->made = true;
	ps->stream->dev->mem_limit = (int64_t)least[0];
	p->peak = p->state + p->blocks.device;
	use_slack_for_gathered(ps->mesh, &in, p);
	fill_layers(c, ps->mesh, &p->blocks, in.blocks, p->gathered, keeps);
	return 0;
}

double vfm_recompute_host_bytes(int local_ranks)
{
	return 0.7 * vfm_host_memory() / local_ranks;
}

void vfm_recompute_text(const struct vfm_recompute_plan *p, char *buf, size_t size)
{
	double unit = p->capacity < 0x1p30 ? 0x1p20 : 0x1p30;
	size_t at = 0;

	buf[0] = '\0';
	for (int i = 0; i < p->blocks.n && at < size; i++) {
		char kind[128];

		vfm_keeps_text(p->blocks.part[i].keeps, kind, sizeof(kind));
		at += (size_t)snprintf(buf + at, size - at, "%s%lld %s%s", i ? ", " : "",
			(long long)p->blocks.part[i].blocks, i ? "" : "of the blocks keep ", kind);
	}
	if (at < size && p->gathered > 0)
		at += (size_t)snprintf(
			buf + at, size - at, "; %lld also the rows that tp gathers", (long long)p->gathered);
	if (at < size && p->blocks.host > 0)
		at += (size_t)snprintf(buf + at, size - at, "; %.1f %s on the host", p->blocks.host / unit,
			p->capacity < 0x1p30 ? "MiB" : "GiB");
	if (at < size)
		snprintf(buf + at, size - at, "; predicted peak %.1f of %.1f %s%s", p->peak / unit, p->capacity / unit,
			p->capacity < 0x1p30 ? "MiB" : "GiB", p->blocks.fits ? "" : ", which is more than there is");
}
