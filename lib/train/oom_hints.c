#include "train/oom_hints.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops/dynamic8.h"
#include "ops/ops.h"

/* ---- this rank's share ---- */

struct share {
	const struct vfm_oom_hints *a;
	struct vfm_pack_sums pack; /* its rows on this rank, over all packs in flight */
	struct vfm_saved_tuning tuning;
	double blocks;   /* blocks on this stage */
	double remade;   /* blocks of this stage that recompute */
	double matrices; /* owned state elements that have a copy in the compute dtype */
	double own;      /* all owned state elements */
};

static struct share share_of(const struct vfm_oom_hints *a)
{
	const struct vfm_train_config *t = &a->c->train;
	const struct vfm_mesh *m = a->mesh;
	double pp = m->size[VFM_AX_PP], flight = pp - m->coord[VFM_AX_PP];
	struct share s = {.a = a,
		.blocks = (double)a->c->model.layers / pp,
		.own = (double)a->ps->n_own,
		.tuning = vfm_saved_tuning(&a->c->model, &a->c->tuning)};

	if (a->packs > 0 && flight > (double)a->packs)
		flight = (double)a->packs;
	s.pack.q = (double)a->rows[VFM_ROWS_TOKENS] * flight / (m->size[VFM_AX_CP] * m->size[VFM_AX_TP]);
	s.pack.c = (double)a->rows[VFM_ROWS_TEXT] * flight / m->size[VFM_AX_TP];
	s.pack.n = (double)a->rows[VFM_ROWS_SAMPLES] * flight;
	s.pack.g = (double)a->rows[VFM_ROWS_SEGMENTS] * flight;
	if (!(vfm_recompute_keeps((enum vfm_recompute)t->recompute) & VFM_KEEP_REST))
		s.remade = t->recompute_blocks ? (double)t->recompute_blocks / pp : s.blocks;
	for (int i = 0; i < a->ps->n_trained; i++)
		s.matrices += a->ps->bucket[i].matrix ? (double)a->ps->bucket[i].own_n : 0;
	return s;
}

/* Returns the bytes that one block saves in a recompute mode, with the dtypes of t. */
static double block_bytes(const struct share *s, int mode, const struct vfm_train_config *t)
{
	struct vfm_saved_how how = {.keep = vfm_recompute_keeps((enum vfm_recompute)mode),
		.dtype = (enum vfm_dtype)t->dtype,
		.residual = (enum vfm_dtype)t->residual,
		.pack = s->pack,
		.tuning = s->tuning};

	return vfm_block_saved_bytes(&s->a->c->model, &how);
}

/* Returns the activation bytes of a step if `remade` blocks recompute in mode t->recompute.  One recomputed block at a
 * time holds all of its activations. */
static double activation_bytes(const struct share *s, const struct vfm_train_config *t, double remade)
{
	double all = block_bytes(s, VFM_RECOMPUTE_NONE, t);

	return (s->blocks - remade + (remade > 0)) * all + remade * block_bytes(s, t->recompute, t);
}

static double current_activations(const struct share *s)
{
	if (s->a->plan)
		return s->a->plan->blocks.device;
	return activation_bytes(s, &s->a->c->train, s->remade);
}

/* Returns the bytes of moments and EMA, on the device or the host. */
static double moment_bytes(const struct share *s)
{
	const struct vfm_train_config *t = &s->a->c->train;

	double moments = t->moments == VFM_U8 ? 2 + 8.0 / VFM_BLOCK8 : t->moments == VFM_BF16 ? 6 : 8;

	return s->own * (moments + (t->ema_decay > 0 ? 4 : 0));
}

static double master_bytes(const struct share *s)
{
	return 4 * (double)s->a->ps->n_master + 2 * (double)s->a->ps->n_master_lo;
}

/* ---- the list ---- */

struct list {
	struct vfm_dev_saving *v;
	int n, cap;
};

static void add_hint(struct list *l, double bytes, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void add_hint(struct list *l, double bytes, const char *fmt, ...)
{
	va_list ap;

	if (l->n == l->cap || bytes < 1)
		return;
	va_start(ap, fmt);
	vsnprintf(l->v[l->n].how, sizeof(l->v[l->n].how), fmt, ap);
	va_end(ap);
	l->v[l->n].more_ranks = false;
	l->v[l->n++].bytes = (int64_t)bytes;
}

static void add_activations(struct list *l, const struct share *s)
{
	static const struct {
		int mode;
		const char *name;
	} modes[] = {{VFM_RECOMPUTE_LIGHT, "light"}, {VFM_RECOMPUTE_OUTPUTS, "outputs"},
		{VFM_RECOMPUTE_SELECTIVE, "selective"}, {VFM_RECOMPUTE_FULL, "full"}};
	const struct vfm_train_config *t = &s->a->c->train;
	struct vfm_train_config other;
	double is = current_activations(s), remade = s->remade > 0 ? s->remade : s->blocks;

	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
		other = *t;
		other.recompute = modes[i].mode;
		if (other.recompute != t->recompute)
			add_hint(l, is - activation_bytes(s, &other, remade), "train.recompute=%s", modes[i].name);
	}
	if (s->remade > 0 && s->remade < s->blocks)
		add_hint(l, is - activation_bytes(s, t, s->blocks), "train.recompute_blocks=0");
	if (s->remade > 2 &&
		!(t->offload & VFM_OFFLOAD_ACTIVATIONS)) /* the activations of two blocks stay on the device */
		add_hint(l, (s->remade - 2) * block_bytes(s, t->recompute, t), "train.offload=%s",
			t->offload & VFM_OFFLOAD_OPTIMIZER ? "both" : "activations");
	if (s->a->plan && !s->a->plan->blocks.host)
		add_hint(l, is / 2, "train.offload=%s", t->offload & VFM_OFFLOAD_OPTIMIZER ? "both" : "activations");
	other = *t;
	other.dtype = other.residual = VFM_BF16;
	if (t->dtype != VFM_BF16)
		add_hint(l, is - activation_bytes(s, &other, s->remade) - 2 * s->matrices, "train.dtype=bf16");
	else if (t->residual != VFM_BF16)
		add_hint(l, is - activation_bytes(s, &other, s->remade), "train.residual=bf16");
	add_hint(l, is / 2, "packs of half as many tokens");
}

/* Returns the bytes that frozen weights in fp8 save: of each owned element, and with fsdp of the gathered ones of two
 * units, without the copy of a unit. */
static double frozen_fp8_bytes(const struct share *s)
{
	const struct vfm_params *ps = s->a->ps;
	double per_element = (double)vfm_dtype_size(ps->dtype) - 1 - 1.0 / VFM_MX_BLOCK, own = 0, most = 0;
	double *unit = vfm_calloc((size_t)ps->units + 1, sizeof(*unit));
	bool gathered = false;

	for (size_t i = 0; i < ps->n; i++) {
		const struct vfm_param *p = ps->p[i];

		if (!p->may_be_mxfp8 || p->mxfp8 || p->part.shape[p->part.ndim - 1] % VFM_MX_BLOCK)
			continue;
		own += (double)p->n / ps->bucket[p->bucket].shard->size;
		gathered |= ps->bucket[p->bucket].sharding == VFM_SHARDING_FULL;
		unit[p->unit] += (double)p->n;
		most = fmax(most, unit[p->unit]);
	}
	free(unit);
	return (own + (gathered ? 2 * most : 0)) * per_element - most * (double)vfm_dtype_size(ps->dtype);
}

static void add_state(struct list *l, const struct share *s)
{
	const struct vfm_train_config *t = &s->a->c->train;
	bool away = t->offload & VFM_OFFLOAD_OPTIMIZER;

	add_hint(l, frozen_fp8_bytes(s), "train.frozen_dtype=fp8");
	if (t->master == VFM_MASTER_F32 && t->dtype == VFM_BF16)
		add_hint(l, 2 * s->matrices, "train.master=split");
	if (t->moments == VFM_F32 && t->beta1 <= 0.99 && !away)
		add_hint(l, 2 * s->own, "train.moments=bf16");
	if (!away)
		add_hint(l, moment_bytes(s), "train.offload=%s",
			t->offload & VFM_OFFLOAD_ACTIVATIONS ? "both" : "optimizer");
}

/* Adds the savings from sharding over the present ranks and over more ranks. */
static void add_ranks(struct list *l, const struct share *s)
{
	const struct vfm_parallel *p = &s->a->mesh->p;
	const struct vfm_mesh *m = s->a->mesh;
	bool away = s->a->c->train.offload & VFM_OFFLOAD_OPTIMIZER, sharded = p->fsdp || p->distopt;
	double data = m->size[VFM_AX_DP] * m->size[VFM_AX_CP], part = 1 - 1 / data;
	int from;
	double update = master_bytes(s) + (away ? 0 : moment_bytes(s)),
	       all = update + (double)s->a->ps->copy_bytes + 4 * (double)s->a->ps->n_grad;

	if (data > 1 && !p->fsdp)
		add_hint(l, part * (all - (p->distopt ? update : 0)), "parallel.fsdp=true");
	if (data > 1 && !sharded)
		add_hint(l, part * update, "parallel.distopt=true");
	if (data > 1 && sharded && (double)p->shard < data)
		add_hint(l, (p->fsdp ? all : update) * (1 - (double)p->shard / data), "parallel.shard=0");
	from = l->n;
	add_hint(l, all / 2, "parallel.fsdp=true");
	add_hint(l, current_activations(s) / 2, "parallel.cp=%d", 2 * m->size[VFM_AX_CP]);
	if (s->a->c->model.heads % (2 * m->size[VFM_AX_TP]) == 0)
		add_hint(l, (all + current_activations(s)) / 2, "parallel.tp=%d", 2 * m->size[VFM_AX_TP]);
	for (; from < l->n; from++)
		l->v[from].more_ranks = true;
}

int vfm_oom_hints_savings(void *ctx, struct vfm_dev_saving *v, int n)
{
	struct share s = share_of(ctx);
	struct list l = {v, 0, n};

	add_activations(&l, &s);
	add_state(&l, &s);
	add_ranks(&l, &s);
	return l.n;
}
