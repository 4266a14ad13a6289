/* recompute.c - counts fixed memory and slots of a step, and asks keep_plan for the rest. */
#include "train/step/recompute.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "spec/cost/hw.h"
#include "spec/layout/in_flight.h"

/* The capacity that a plan leaves unused: 5 % for chunks of the pool that are partly in use, and the rest for the
 * context and NCCL.  The buffers of NCCL, in GiB, are those that the simulated device counts (device/sim/libraries.h)
 * on nodes of 8 GPUs: for the groups of data parallelism, for the sums and messages of tp, and a third for each rank
 * that receives messages. */
double vfm_recompute_capacity(const struct vfm_mesh *m, const struct vfm_dev *d)
{
	double tp = m->size[VFM_AX_TP], cp = m->size[VFM_AX_CP], ep = m->size[VFM_AX_EP];
	double gib = m->world->size > 1 ? 2.6 : 1;

	gib += tp > 1 ? 0.6 + 0.4 * (tp - 1) : 0;
	gib += (fmin(m->p.cp_a2a, 8) - 1) / 3 + (cp > (double)m->p.cp_a2a ? 2.0 / 3 : 0);
	gib += (fmin(ep, 8) - 1) / 3;
	gib += m->size[VFM_AX_PP] > 1 ? 1.7 : 0;
	return 0.95 * (double)d->mem_total - gib * 0x1p30;
}

/* ---- what a step needs besides the blocks ---- */

struct pp_stage {
	const struct vfm_keep_plan_in *in;
	struct vfm_in_flights held;
	int vpp;
	int64_t *blocks;   /* [vpp] of each chunk */
	bool first, last;  /* of the pipeline */
	double pack, slot; /* bytes of an uploaded pack, and besides blocks of one in flight in a chunk */
	double message;    /* of the residual stream of a pack */
	double deferred;   /* of the deferred gradients of weights of a block; 0: the schedule defers none */
	/* Over fsdp, of the gradients of a block that are allocated for its modulation table in the backward, and
	 * reduced with the deferred ones; 0: the schedule defers none, or blocks have no table. */
	double unit_grad;
	double tp_gathered;    /* of the inputs of other tp ranks that a block keeps, or gathers while it runs */
	int64_t double_blocks; /* the others, which are the last of the pp stage, are single-stream */
	/* results of the plan */
	struct vfm_keeps *keeps;       /* [blocks of the pp stage] */
	double *kept, *running, *host; /* [blocks of the pp stage] bytes */
};

/* This rank's rows of the residual stream that are text. */
static double text_stream_rows(const struct vfm_keep_plan_in *in)
{
	const struct vfm_pack_sums *p = &in->how.pack;

	return vfm_model_arch(in->model)->joint ? p->text_rows + p->text2_rows + p->image_rows : 0;
}

/* The rows of text of all ranks. */
static double all_text_rows(const struct vfm_config *c, const struct vfm_keep_plan_in *in)
{
	return text_stream_rows(in) * (double)(c->parallel.cp * c->parallel.tp);
}

/* The maps between tokens, text and sequences with joint attention, in i32. */
static double joint_bytes(const struct vfm_config *c, const struct vfm_keep_plan_in *in)
{
	const double text = text_stream_rows(in), rows = text > 0 ? in->how.pack.tokens + text : 0;

	return 4 * (3 * rows * (double)(1 + c->parallel.tp) + 4 * text + 3 * all_text_rows(c, in));
}

/* What the refiner saves for its backward: rows of the norms, of qkv, attention, projection and MLP, and the stream. */
static double refiner_bytes(const struct vfm_config *c, const struct vfm_keep_plan_in *in)
{
	const struct vfm_model_spec *m = &c->model;
	const double size = (double)vfm_dtype_size(in->how.dtype), stream = (double)vfm_dtype_size(in->how.residual);
	const double h = (double)m->hidden;

	if (vfm_model_arch(m)->text != VFM_TEXT_REFINER)
		return 0;
	return all_text_rows(c, in) *
		((double)m->refiner_layers * ((16 * size + 2 * stream) * h + 4 * (double)(m->heads + 4)) +
			2 * stream * h);
}

/* Inputs, targets and positions of a pack.  `in->pack` is this rank's share. */
static double pack_bytes(const struct vfm_config *c, const struct vfm_keep_plan_in *in, bool ends)
{
	const struct vfm_model_spec *m = &c->model;
	const struct vfm_arch *a = vfm_model_arch(m);
	double h = (double)m->hidden, f = (double)vfm_model_patch_dim(m);
	double rope = vfm_model_has_row_rope(m) ? h : (double)vfm_model_head_dim(m) * (a->n_attn > 1 ? 3 : 1);
	double token = (double)vfm_dtype_size(in->how.dtype) * f + 4 * rope + 32 +
		4 * (double)(vfm_model_cond_dim(m) + vfm_model_given_dim(m));

	if (ends)
		token += 2 * 4 * f;
	if (m->pos == VFM_POS_SINCOS || m->pos == VFM_POS_BOTH)
		token += 4 * h;
	return in->how.pack.tokens * token + in->how.pack.text_rows * 4 * (double)m->text_dim +
		in->how.pack.segments * 4 * (double)m->text_dim +
		in->how.pack.samples * (double)m->image_len * 4 * (double)m->image_dim +
		in->how.pack.text2_rows * 4 * (double)m->text2_dim + joint_bytes(c, in);
}

/* Conditioning, text and positions of a pack in a chunk; of image rows, four arrays of the embedder in f32, or five
 * with positions. */
static double slot_bytes(const struct vfm_config *c, const struct vfm_keep_plan_in *in)
{
	const struct vfm_model_spec *m = &c->model;
	double h = (double)m->hidden, size = (double)vfm_dtype_size(in->how.dtype);
	double image = 4 * (double)m->image_dim * (m->image_pos ? 5 : 4) + 3 * size * h;
	double token =
		4 * (double)(vfm_model_cond_dim(m) + vfm_model_given_dim(m)) + (m->pos == VFM_POS_LEARNED ? 4 * h : 0);

	return in->how.pack.tokens * token + in->how.pack.text_rows * 3 * size * h +
		in->how.pack.segments * 4 * (8 * h + 2 * vfm_model_arch(m)->n_mod * h) +
		(m->image_dim ? in->how.pack.samples * (double)m->image_len * image : 0) + refiner_bytes(c, in);
}

/* Prediction, target and a gradient; the head is smaller than a running block.  Positions that are added to tokens, or
 * their gradient. */
static double ends_bytes(const struct vfm_config *c, const struct vfm_keep_plan_in *in)
{
	const struct vfm_model_spec *m = &c->model;

	return in->how.pack.tokens *
		(3 * 4 * (double)vfm_model_patch_dim(m) + (m->pos != VFM_POS_ROPE ? 4 * (double)m->hidden : 0));
}

/* The bytes of the rows of other tp ranks while a block runs, its inputs aside: outputs and gradients of its layer and
 * of the layers with deferred weight gradients.  A number of such arrays, which tests/unit/test_recompute.c compares
 * with simulated steps. */
static double gathered_bytes(const struct vfm_mesh *m, const struct vfm_keep_plan_in *in)
{
	double share = (in->how.pack.tokens + text_stream_rows(in)) * (double)in->model->hidden *
		(double)vfm_dtype_size(in->how.dtype);

	return 4 * (m->size[VFM_AX_TP] - 1) * share;
}

/* The rows that experts on other ranks get while a block runs, and their gradients.  On one rank, the gradient of the
 * experts' output once more, where collectives overlap with deferred gradients of weights. */
static double sent_bytes(const struct vfm_mesh *m, const struct vfm_keep_plan_in *in)
{
	const struct vfm_model_spec *s = in->model;
	double rows = vfm_model_has_experts(s) ? in->how.pack.tokens * s->moe_capacity : 0;
	int arrays = m->size[VFM_AX_EP] > 1 ? 2 : m->size[VFM_AX_TP] > 1 || m->size[VFM_AX_CP] > 1;

	return arrays * rows * (double)s->hidden * (double)vfm_dtype_size(in->how.dtype);
}

/* The scratch memory of a GPU's stream: cuBLASLt's workspace of 32 MiB, or more for dq, which a running block counts
 * (spec/cost/keep_plan.c).  A stream takes an eighth more than it needs. */
static double scratch_bytes(const struct vfm_dev *d, const struct vfm_keep_plan_in *in)
{
	double dq = in->how.dtype != VFM_F32 ? 4 * in->how.pack.tokens * (double)in->model->hidden : 0;

	return d->async ? fmax(0, 36 * 0x1p20 - dq) : 0;
}

static void stage_release(struct pp_stage *s)
{
	vfm_in_flight_release(&s->held);
	free(s->blocks);
	free(s->keeps);
	free(s->kept);
}

/* Counts the blocks of the pp stage and what it holds when.  The caller releases *s, also after a failure. */
static int stage_make(struct pp_stage *s, const struct vfm_config *c, const struct vfm_params *ps,
	const struct vfm_load *load, struct vfm_keep_plan_in *in, struct vfm_err *err)
{
	const struct vfm_mesh *m = ps->mesh;
	int pp = m->size[VFM_AX_PP], at = m->coord[VFM_AX_PP], tp = m->size[VFM_AX_TP];
	int schedule = m->p.schedule == VFM_PP_ZB && pp > 1 ? VFM_PP_ZB : VFM_PP_1F1B;
	int64_t single = 0;

	*s = (struct pp_stage){.in = in,
		.vpp = (int)m->p.vpp,
		.first = at == 0,
		.last = at == pp - 1,
		.slot = slot_bytes(c, in),
		.message = (in->how.pack.tokens + text_stream_rows(in)) * (double)c->model.hidden *
			(double)vfm_dtype_size(in->how.residual),
		.unit_grad = schedule == VFM_PP_ZB && vfm_model_arch(&c->model)->mod == VFM_MOD_TABLE
			? vfm_params_unit_grad_bytes(ps)
			: 0};
	s->pack = pack_bytes(c, in, s->first || s->last);
	s->blocks = vfm_calloc((size_t)s->vpp, sizeof(*s->blocks));
	in->blocks = 0;
	for (int k = 0; k < s->vpp; k++) {
		int64_t first, end;

		vfm_pp_stage_layers(&c->model, pp * s->vpp, k * pp + at, &first, &end);
		s->blocks[k] = end - first;
		in->blocks += end - first;
		for (int64_t i = first; i < end; i++)
			single += vfm_model_is_single(&c->model, i);
	}
	in->how.single = in->blocks > 0 ? (double)single / (double)in->blocks : 0;
	s->double_blocks = in->blocks - single;
	s->deferred = schedule == VFM_PP_ZB ? vfm_block_deferred_bytes(&c->model, &in->how, tp) : 0;
	s->tp_gathered = (tp - 1) * vfm_block_gathered_bytes(&c->model, &in->how);
	s->keeps = vfm_calloc((size_t)in->blocks + 1, sizeof(*s->keeps));
	s->kept = vfm_calloc((size_t)in->blocks * 3 + 1, sizeof(*s->kept));
	s->running = s->kept + in->blocks;
	s->host = s->running + in->blocks;
	/* The backward of the model's last block follows its forward: a copy to the host would only delay it. */
	in->offloading = s->last ? in->blocks - 1 : in->blocks;
	in->staged = s->last && s->vpp == 1 ? 1 : 3;
	return vfm_in_flight_list(&s->held, schedule, pp, s->vpp, at, load->packs, ps->stream->dev->async, err);
}

/* Measures the rate of copies to the host, because hosts differ by ten times; all ranks at the same time, because they
 * may share a link.  A deterministic run must not depend on a measurement. */
static int find_host_rate(const struct vfm_config *c, const struct vfm_params *ps, struct vfm_err *err)
{
	const struct vfm_dev *d = ps->stream->dev;

	if (!(c->train.offload & VFM_OFFLOAD_ACTIVATIONS || c->train.offload_weights < 0) || c->train.deterministic ||
		d->host_memory || d->host_rate > 0)
		return 0;
	TRY(vfm_barrier(ps->mesh->world, NULL, err));
	vfm_dev_host_rate(ps->stream);
	return 0;
}

/* Returns the rates of a device by its data sheet, relative to those measured on an H200. */
static struct vfm_keep_plan_rates rates_of(const struct vfm_dev *d)
{
	const double peak = vfm_hw_peak(d->name, VFM_BF16), h200 = vfm_hw_peak("H200", VFM_BF16);
	struct vfm_keep_plan_rates r = vfm_keep_plan_h200;

	if (peak > 0) {
		r.flops *= peak / h200;
		r.mem *= peak / h200;
	}
	return r;
}

/* Returns this rank's share of a pack, and how its blocks save it. */
static struct vfm_saved_how share_of_pack(
	const struct vfm_config *c, const struct vfm_mesh *m, const struct vfm_pack_sums *all)
{
	const double rows = 1.0 / (m->size[VFM_AX_CP] * m->size[VFM_AX_TP]);
	const double text = vfm_model_arch(&c->model)->joint ? rows : 1.0 / m->size[VFM_AX_TP];

	return (struct vfm_saved_how){.dtype = (enum vfm_dtype)c->train.dtype,
		.residual = (enum vfm_dtype)c->train.residual,
		.pack = {.tokens = all->tokens * rows,
			.text_rows = all->text_rows * text,
			.text2_rows = all->text2_rows * text,
			.image_rows = all->image_rows * text,
			.pairs_joint = all->pairs_joint * rows,
			.samples = all->samples,
			.segments = c->diffusion.image_cond > 0 ? 2 * all->segments : all->segments,
			.pairs_full = all->pairs_full * rows,
			.pairs_spatial = all->pairs_spatial * rows,
			.pairs_temporal = all->pairs_temporal * rows,
			.pairs_cross = all->pairs_cross * rows},
		.exchanges_heads = m->p.cp_a2a > 1,
		.exchanges_units = m->size[VFM_AX_CP] > 1,
		.tp = m->size[VFM_AX_TP]};
}

double vfm_recompute_forward_bytes(
	const struct vfm_config *c, const struct vfm_mesh *m, const struct vfm_dev *d, const struct vfm_pack_sums *all)
{
	const struct vfm_keep_plan_in in = {.model = &c->model, .how = share_of_pack(c, m, all)};
	/* the texts are cast once before the blocks */
	const double text = in.how.pack.text_rows * (double)c->model.text_dim * (double)vfm_dtype_size(in.how.dtype);

	return text + vfm_block_forward_bytes(&c->model, &in.how) +
		(m->size[VFM_AX_TP] - 1) * vfm_block_gathered_bytes(&c->model, &in.how) + sent_bytes(m, &in) +
		pack_bytes(c, &in, true) + slot_bytes(c, &in) + ends_bytes(c, &in) + scratch_bytes(d, &in);
}

/* Sets *p and *in for this rank, except in->copies.  in->room is what the capacity leaves to packs and activations; at
 * most 0 if the state alone does not fit. */
static void make_plan_input(const struct vfm_config *c, const struct vfm_params *ps, const struct vfm_load *load,
	struct vfm_keep_plan_in *in, struct vfm_recompute_plan *p)
{
	const struct vfm_mesh *m = ps->mesh;
	const struct vfm_dev *d = ps->stream->dev;
	double most;

	*p = (struct vfm_recompute_plan){.state = (double)d->mem_now};
	p->capacity = c->train.memory_gib > 0 ? c->train.memory_gib * 0x1p30 : vfm_recompute_capacity(m, d);
	*in = (struct vfm_keep_plan_in){.model = &c->model,
		.how = share_of_pack(c, m, &load->largest),
		.rates = load->rates ? *load->rates : rates_of(d)};
	in->how.tuning = vfm_saved_tuning(&c->model, &c->tuning);
	if (!load->rates && d->host_rate > 0 && !c->train.deterministic)
		in->rates.host = d->host_rate;
	if (c->train.offload & VFM_OFFLOAD_ACTIVATIONS || ps->stores)
		p->host = c->train.host_gib > 0 ? c->train.host_gib * 0x1p30 : load->host_bytes;
	in->host_room = c->train.offload & VFM_OFFLOAD_ACTIVATIONS ? p->host : 0;
	p->state += gathered_bytes(m, in) + sent_bytes(m, in) + vfm_params_unit_bytes(ps) + ends_bytes(c, in) +
		scratch_bytes(d, in);
	in->room = p->capacity - p->state;
	p->stores = vfm_params_stores(ps, &most);
	p->offloaded = ps->host_units;
	p->weights = (double)ps->host_units * most;
}

/* ---- the peak of a plan ---- */

/* How often blocks are saved during a backward: the mean over the blocks of the pp stage. */
static double copies_at(const struct pp_stage *s, const struct vfm_in_flight *f)
{
	double n = 0;

	for (int k = 0; k < s->vpp; k++)
		n += (double)(f->saved[k] * s->blocks[k]);
	return s->in->blocks > 0 ? n / (double)s->in->blocks : 1;
}

/* The memory held during a backward besides the tensors that blocks keep. */
static double fixed_at(const struct pp_stage *s, const struct vfm_in_flight *f)
{
	double bytes = (double)f->packs * s->pack + (double)f->messages * s->message;
	int64_t units = 0; /* with deferred gradients */

	for (int k = 0; k < s->vpp; k++) {
		bytes += (double)f->saved[k] * s->slot + (double)(f->deferred[k] * s->blocks[k]) * s->deferred;
		units += f->deferred[k] ? s->blocks[k] : 0;
	}
	/* One is among those of p->state. */
	return bytes + (units > 0 ? (double)(units - 1) * s->unit_grad : 0);
}

/* Counts the bytes of each block of s->keeps. */
static void count_blocks(struct pp_stage *s)
{
	struct vfm_saved_how how = s->in->how;
	int64_t begin = 0;

	for (int64_t i = 0; i < s->in->blocks; i++) {
		bool rest = s->keeps[i].keep & VFM_KEEP_REST;

		how.keep = s->keeps[i].keep;
		how.single = i < s->double_blocks ? 0 : 1;
		s->host[i] = vfm_block_saved_part(s->in->model, &how, s->keeps[i].offload);
		s->kept[i] = vfm_block_saved_bytes(s->in->model, &how) - s->host[i];
		s->running[i] = vfm_keep_plan_running(s->in->model, &how);
		*(rest && !(how.keep & VFM_KEEP_OWN_ROWS) ? &s->kept[i] : &s->running[i]) += s->tp_gathered;
	}
	/* A received input stays on the device. */
	for (int k = 0; k < s->vpp; begin += s->blocks[k++])
		if ((k > 0 || !s->first) && s->blocks[k] > 0 && (s->keeps[begin].offload & VFM_KEEP_INPUT))
			s->kept[begin] += s->message;
}

/* Returns the offloadable bytes (net/tape/offload.h) on the device during the backward of block i, in the chunk that
 * begins at `begin`: of this block and of the last one before it that offloads.  The last copy of a forward of another
 * pack may still be there, except where each forward is followed by its own backward. */
static double staged_bytes(const struct pp_stage *s, const struct vfm_in_flight *f, int64_t begin, int64_t i)
{
	double bytes = s->host[i], most = 0;
	int64_t before = i - 1;

	while (before > begin && s->host[before] == 0)
		before--;
	if (before >= begin)
		bytes += s->host[before];
	for (int64_t k = 0; k < s->in->blocks && !(s->last && f->chunk == s->vpp - 1); k++)
		most = fmax(most, s->host[k]);
	return bytes + most;
}

/* Returns the most that the blocks of the chunk, [begin, end), add during their backward to what they keep. */
static double running_bytes(const struct pp_stage *s, const struct vfm_in_flight *f, int64_t begin, int64_t end)
{
	bool received = f->chunk < s->vpp - 1 || !s->last;
	double deferred = s->deferred + (f->deferred[f->chunk] ? 0 : s->unit_grad);
	double change = 0, most = 0;

	for (int64_t i = end - 1; i >= begin; i--) {
		/* The gradient that the chunk received is that of its last block. */
		most = fmax(most,
			change + s->running[i] + staged_bytes(s, f, begin, i) +
				(received && i < end - 1 ? s->message : 0));
		change += deferred - s->kept[i];
	}
	return most;
}

/* Returns the peak of packs and activations; *at: the backward that has it. */
static double peak_of_stage(const struct pp_stage *s, const struct vfm_in_flight **at)
{
	double peak = 0;

	*at = s->held.v;
	for (int j = 0; j < s->held.n; j++) {
		const struct vfm_in_flight *f = &s->held.v[j];
		double bytes = fixed_at(s, f);
		int64_t i = 0;

		for (int k = 0; k < s->vpp; k++) {
			int64_t begin = i;

			for (; i < begin + s->blocks[k]; i++)
				bytes += (double)f->saved[k] * s->kept[i];
			bytes += f->chunk == k ? running_bytes(s, f, begin, i) : 0;
		}
		if (bytes > peak) {
			peak = bytes;
			*at = f;
		}
	}
	return peak;
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

/* Swaps the last block with one that offloads nothing, of the kind that keeps most. */
static void fill_last_block(const struct vfm_keep_plan *plan, struct vfm_keeps *keeps, int64_t blocks)
{
	int i = 0;

	while (i < plan->n && plan->part[i].keeps.offload)
		i++;
	for (int64_t at = blocks - 1; at >= 0 && i < plan->n; at--)
		if (keeps[at].keep == plan->part[i].keeps.keep && !keeps[at].offload) {
			keeps[at] = keeps[blocks - 1];
			keeps[blocks - 1] = plan->part[i].keeps;
			return;
		}
}

/* Fills s->keeps.  Of the blocks that keep everything the first `gathered` also keep the rows of other ranks. */
static void fill_blocks(struct pp_stage *s, const struct vfm_keep_plan *plan, int64_t gathered)
{
	vfm_keep_plan_spread(plan, s->keeps);
	if (s->last && plan->host > 0)
		fill_last_block(plan, s->keeps, s->in->blocks);
	for (int64_t i = 0; i < s->in->blocks; i++)
		if ((s->keeps[i].keep & VFM_KEEP_REST) && gathered-- <= 0)
			s->keeps[i].keep |= VFM_KEEP_OWN_ROWS;
}

static void fill_layers(
	const struct vfm_config *c, const struct vfm_mesh *m, const struct pp_stage *s, struct vfm_keeps *keeps)
{
	int pp = m->size[VFM_AX_PP];
	int64_t at = 0;

	for (int k = 0; k < s->vpp; k++) {
		int64_t first, end;

		vfm_pp_stage_layers(&c->model, pp * s->vpp, k * pp + m->coord[VFM_AX_PP], &first, &end);
		while (first < end)
			keeps[first++] = s->keeps[at++];
	}
}

/* Returns how many blocks of a plan keep gathered rows in the remaining room. */
static int64_t use_slack_for_gathered(const struct pp_stage *s, const struct vfm_keep_plan *plan)
{
	double each = s->tp_gathered * s->in->copies, left = s->in->room - plan->device;

	for (int i = 0; i < plan->n && each > 0 && left > 0; i++)
		if (plan->part[i].keeps.keep & VFM_KEEP_REST)
			return (int64_t)fmin((double)plan->part[i].blocks, left / each);
	return 0;
}

struct keep_trial {
	struct vfm_keep_plan blocks;
	int64_t gathered;
	double peak; /* bytes of packs and activations */
};

/* Plans for one backward with `lacking` bytes less than the room.  Returns the backward that has the peak. */
static const struct vfm_in_flight *try_plan(struct pp_stage *s, struct vfm_keep_plan_in *in, double room,
	double lacking, const struct vfm_in_flight *at, struct keep_trial *t)
{
	const struct vfm_in_flight *worst;

	in->copies = fmax(copies_at(s, at), 1);
	in->room = room - fixed_at(s, at) - s->tp_gathered - lacking;
	vfm_keep_plan_make(in, &t->blocks);
	t->gathered = use_slack_for_gathered(s, &t->blocks);
	fill_blocks(s, &t->blocks, t->gathered);
	count_blocks(s);
	t->peak = peak_of_stage(s, &worst);
	return worst;
}

/* Plans for the backward during which blocks are saved most often, or for that with the peak of this plan.  Blocks and
 * chunks keep different tensors, so the peak may differ from that of a mean block.  A search finds the least bytes that
 * the plan has to leave, or the most that it may exceed the room by. */
static void plan_stage(struct pp_stage *s, struct vfm_keep_plan_in *in, struct vfm_recompute_plan *p)
{
	enum { TRIES = 10 };
	const double room = in->room, close = 1e-3 * fabs(room);
	const struct vfm_in_flight *at = s->held.v, *worst;
	struct keep_trial t = {0}, best = {0};
	double lacking = 0, over = -INFINITY, enough = INFINITY; /* the most that did not suffice, the least that did */

	for (int j = 1; j < s->held.n; j++)
		if (copies_at(s, &s->held.v[j]) > copies_at(s, at))
			at = &s->held.v[j];
	for (int i = 0; i < TRIES && enough - over > close; i++) {
		worst = try_plan(s, in, room, lacking, at, &t);
		if (t.peak <= room) {
			if (isinf(enough) || t.blocks.again_s < best.blocks.again_s)
				best = t;
			enough = lacking;
		} else if (worst != at && lacking == 0 && i < 2) {
			at = worst;
			continue;
		} else {
			over = lacking;
		}
		if (isinf(enough) ? !t.blocks.fits : best.blocks.again_s == 0)
			break;
		if (isinf(enough))
			lacking = 2 * over + t.peak - room;
		else if (isinf(over) && room - t.peak <= close)
			break;
		else
			lacking = isinf(over) ? lacking + t.peak - room : (over + enough) / 2;
	}
	if (isinf(enough))
		best = t;
	fill_blocks(s, &best.blocks, best.gathered);
	p->blocks = best.blocks;
	p->blocks.fits = !isinf(enough);
	p->gathered = best.gathered;
	p->peak = p->state + best.peak;
}

/* ---- weights in host memory ---- */

/* The state of the search for the number of blocks with base weights in host memory. */
struct weight_search {
	struct pp_stage *s;
	struct vfm_keep_plan_in in; /* as if all were in host memory */
	struct vfm_recompute_plan p;
	double bytes; /* of the base weights of a block */
	struct vfm_recompute_plan best;
};

/* The seconds that a pack waits for copies of weights in the forward, and in the backward, whose copies of activations
 * use the same direction of the link.  The rate of a disk is assumed. */
static double copy_stall(const struct weight_search *w, const struct vfm_recompute_plan *p)
{
	const double disk = 2e9, in_files = fmax(0, p->weights + p->blocks.host - p->host),
		     forward = (double)w->in.blocks * vfm_keep_plan_forward_s(&w->in),
		     copies = p->weights / w->in.rates.host + in_files / disk,
		     fetched = p->blocks.host / fmax(w->in.copies, 1) / w->in.rates.host;

	return fmax(0, copies - forward) + fmax(0, copies + fetched - 2 * forward - p->blocks.again_s);
}

/* Plans activations for host memory that also holds offloaded weights.  If the step then does not fit, weights leave
 * pinned memory to them, and are in files instead. */
static void plan_in_host(struct pp_stage *s, struct vfm_keep_plan_in *in, struct vfm_recompute_plan *p)
{
	const double limit = in->host_room;

	in->host_room = fmax(0, limit - p->weights);
	plan_stage(s, in, p);
	if (!p->blocks.fits && in->host_room < limit) {
		in->host_room = limit;
		plan_stage(s, in, p);
	}
	in->host_room = limit;
}

static bool is_better(const struct vfm_recompute_plan *a, const struct vfm_recompute_plan *b)
{
	if (!b->made || a->blocks.fits != b->blocks.fits)
		return !b->made || a->blocks.fits;
	return a->blocks.fits ? a->blocks.again_s + a->copy_s < b->blocks.again_s + b->copy_s : a->peak < b->peak;
}

/* Plans with the weights of n blocks in host memory.  Returns whether the step fits. */
static bool try_offloaded(struct weight_search *w, int64_t n)
{
	struct vfm_keep_plan_in in = w->in;
	struct vfm_recompute_plan p = w->p;
	const double resident = (double)(p.stores - n) * w->bytes - (n == 0 ? VFM_STORES_FETCHED * w->bytes : 0);

	in.room -= resident;
	w->s->in = &in;
	p.state += resident;
	p.offloaded = n;
	p.weights = (double)n * w->bytes;
	plan_in_host(w->s, &in, &p);
	p.copy_s = copy_stall(w, &p);
	if (is_better(&p, &w->best)) {
		w->best = p;
		w->best.made = true;
	}
	return p.blocks.fits;
}

/* Finds the number with the fastest step that fits.  More offloaded weights leave room for activations, and so save
 * recompute until their copies take longer than the blocks that run meanwhile.  A few offloaded blocks only take
 * buffers. */
static void plan_weights(struct pp_stage *s, struct vfm_keep_plan_in *in, double bytes, struct vfm_recompute_plan *p)
{
	enum { BETWEEN = 4 };
	struct weight_search w = {.s = s, .in = *in, .p = *p, .bytes = bytes};
	int64_t few = VFM_STORES_FETCHED, enough = p->stores, hidden;

	if (try_offloaded(&w, 0) && w.best.blocks.again_s == 0)
		enough = 0;
	if (!w.best.blocks.fits && p->stores > few && try_offloaded(&w, enough)) {
		while (enough - few > 1) {
			int64_t n = (few + enough) / 2;

			*(try_offloaded(&w, n) ? &enough : &few) = n;
		}
	}
	hidden = (int64_t)((double)in->blocks * vfm_keep_plan_forward_s(in) * in->rates.host / w.bytes);
	hidden = hidden < p->stores ? hidden : p->stores;
	few = w.best.offloaded > few ? w.best.offloaded : few;
	for (int i = 1; i <= BETWEEN && w.best.blocks.again_s > 0 && hidden > few; i++)
		try_offloaded(&w, few + (hidden - few) * i / BETWEEN);
	try_offloaded(&w, w.best.offloaded); /* fills s->keeps */
	*p = w.best;
	s->in = in;
}

int vfm_recompute_plan(const struct vfm_config *c, const struct vfm_params *ps, const struct vfm_load *load,
	struct vfm_recompute_plan *p, struct vfm_keeps *keeps, struct vfm_err *err)
{
	const struct vfm_mesh *m = ps->mesh;
	struct vfm_dev *d = ps->stream->dev;
	struct vfm_keep_plan_in in;
	struct pp_stage s = {0};
	double least[4];
	int rc = 0;

	*p = (struct vfm_recompute_plan){0};
	if (c->train.recompute != VFM_RECOMPUTE_AUTO)
		return 0;
	TRY(find_host_rate(c, ps, err));
	make_plan_input(c, ps, load, &in, p);
	TRY_OUT(stage_make(&s, c, ps, load, &in, err));
	least[0] = p->capacity;
	least[1] = in.room;
	least[2] = in.host_room;
	least[3] = in.rates.host;
	TRY_OUT(agree_on_least(m->world, least, 4, err));
	if (least[0] <= 0)
		goto out;
	in.room = least[1];
	in.host_room = least[2];
	in.rates.host = least[3];
	if (c->train.offload_weights < 0 && p->stores > 0)
		plan_weights(&s, &in, p->weights / (double)p->stores, p);
	else
		plan_in_host(&s, &in, p);
	p->made = true;
	d->mem_limit = (int64_t)least[0];
	fill_layers(c, m, &s, keeps);
out:
	stage_release(&s);
	return rc;
}

/* Returns the length. */
static size_t write_kept(const struct vfm_recompute_plan *p, char *buf, size_t size)
{
	double unit = p->capacity < 0x1p30 ? 0x1p20 : 0x1p30, host;
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
	if (at < size && p->offloaded > 0)
		at += (size_t)snprintf(buf + at, size - at, "; weights of %lld of %lld blocks on the host",
			(long long)p->offloaded, (long long)p->stores);
	host = p->weights + p->blocks.host;
	if (at < size && (host > 0 || (p->host > 0 && !p->blocks.fits))) {
		at += (size_t)snprintf(buf + at, size - at, "; %.1f", host / unit);
		if (at < size && isfinite(p->host))
			at += (size_t)snprintf(buf + at, size - at, " of %.1f", p->host / unit);
		if (at < size)
			at += (size_t)snprintf(buf + at, size - at, " %s on the host%s",
				p->capacity < 0x1p30 ? "MiB" : "GiB", host > p->host ? ", the rest in files" : "");
	}
	return at;
}

void vfm_recompute_keeps_text(const struct vfm_recompute_plan *p, char *buf, size_t size)
{
	size_t at = write_kept(p, buf, size);

	if (at < size && !p->blocks.fits)
		snprintf(buf + at, size - at, "; the step needs more memory than there is");
}

void vfm_recompute_text(const struct vfm_recompute_plan *p, char *buf, size_t size)
{
	double unit = p->capacity < 0x1p30 ? 0x1p20 : 0x1p30;
	size_t at = write_kept(p, buf, size);

	if (at < size)
		snprintf(buf + at, size - at, "; predicted peak %.1f of %.1f %s%s", p->peak / unit, p->capacity / unit,
			p->capacity < 0x1p30 ? "MiB" : "GiB", p->blocks.fits ? "" : ", which is more than there is");
}
