/* oom_hints.c - counts the memory of runs with one setting changed, and lists those that save. */
#include "train/predict/oom_hints.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/predict/step_memory.h"

static void keep_longest(struct vfm_oom_hints *h, const struct vfm_pack *p)
{
	int64_t tokens = p->tokens * h->mesh->size[VFM_AX_CP] / vfm_mesh_for(h->mesh, p->cp)->size[VFM_AX_CP];

	if (tokens <= h->tokens)
		return;
	h->tokens = tokens;
	h->n = p->n;
	h->cp = p->cp;
	vfm_grow(&h->sample, &h->cap, (size_t)p->n, sizeof(*h->sample));
	for (int i = 0; i < p->n; i++)
		h->sample[i] = (struct vfm_synthetic){.grid = {p->grid[i][0], p->grid[i][1], p->grid[i][2]},
			.text_len = p->cu_text[i + 1] - p->cu_text[i],
			.id = (uint64_t)i + 1};
}

static int next_seen(void *ctx, struct vfm_pack **p, struct vfm_err *err)
{
	struct vfm_oom_hints *h = ctx;

	TRY(h->src->next(h->src->ctx, p, err));
	keep_longest(h, *p);
	return 0;
}

static void release_seen(void *ctx, struct vfm_pack *p)
{
	struct vfm_oom_hints *h = ctx;

	h->src->release(h->src->ctx, p);
}

struct vfm_pack_source vfm_oom_hints_source(struct vfm_oom_hints *h, const struct vfm_pack_source *src, int64_t packs)
{
	h->src = src;
	h->packs = packs;
	return (struct vfm_pack_source){next_seen, release_seen, h};
}

/* ---- one setting ---- */

/* The run with another setting.  m.config and m.sample are set when its memory is counted. */
struct setting_trial {
	const struct vfm_oom_hints *h;
	struct vfm_config c;
	struct vfm_step_memory m;
	struct vfm_synthetic *sample; /* [m.n], owned */
};

static struct setting_trial trial_of(const struct vfm_oom_hints *h)
{
	struct setting_trial t = {.h = h, .c = *h->c};

	t.m = (struct vfm_step_memory){.ranks = h->mesh->world_size,
		.n = h->n,
		.cp = h->cp,
		.packs = h->packs,
		.dev = h->dev,
		.host_bytes = vfm_params_host_memory(h->mesh, h->dev)};
	t.c.parallel.dp = 0; /* follows from the ranks */
	t.sample = vfm_calloc((size_t)h->n + 1, sizeof(*t.sample));
	if (h->n)
		memcpy(t.sample, h->sample, (size_t)h->n * sizeof(*t.sample));
	return t;
}

/* Halves the samples, or the frames, rows or columns of a single one. */
static bool halve_pack(struct setting_trial *t)
{
	if (t->m.n > 1) {
		t->m.n /= 2;
		return true;
	}
	for (int i = 0; t->m.n == 1 && i < 3; i++)
		if (t->sample[0].grid[i] > 1) {
			t->sample[0].grid[i] /= 2;
			return true;
		}
	return false;
}

/* Returns the bytes of this pp stage; -1: such a run is refused. */
static int64_t bytes_of_trial(struct setting_trial *t)
{
	const struct vfm_oom_hints *h = t->h;
	int64_t *peak = vfm_calloc((size_t)t->c.parallel.pp, sizeof(*peak)), bytes = -1;

	t->m.config = &t->c;
	t->m.sample = t->sample;
	t->m.n = t->m.packs > 0 ? t->m.n : 0;
	if (vfm_config_check(&t->c, NULL) == 0 && vfm_step_memory(&t->m, peak, NULL) == 0)
		bytes = peak[h->mesh->coord[VFM_AX_PP]];
	free(peak);
	return bytes;
}

/* ---- the list ---- */

struct saving_list {
	const struct vfm_oom_hints *h;
	int64_t bytes; /* of the run as it is */
	struct vfm_dev_saving *v;
	int n, cap;
};

/* Adds what the trial saves. */
static void add_trial(struct saving_list *l, struct setting_trial *t, const char *how)
{
	int64_t bytes = l->n < l->cap ? bytes_of_trial(t) : -1;

	if (bytes >= 0 && bytes < l->bytes) {
		struct vfm_dev_saving *s = &l->v[l->n++];

		*s = (struct vfm_dev_saving){
			.bytes = l->bytes - bytes, .more_ranks = t->m.ranks > l->h->mesh->world_size};
		snprintf(s->how, sizeof(s->how), "%s", how);
	}
}

/* With `times` the ranks. */
static void add_setting(struct saving_list *l, int times, const char *how)
{
	struct setting_trial t = trial_of(l->h);

	t.m.ranks *= times;
	if (vfm_config_set(&t.c, how, NULL) == 0) {
		if (t.c.train.dtype != l->h->c->train.dtype) /* which the residual follows, as by default */
			t.c.train.residual = VFM_RESIDUAL_AUTO;
		add_trial(l, &t, how);
	}
	free(t.sample);
}

static void add_offload(struct saving_list *l, unsigned more)
{
	unsigned both = VFM_OFFLOAD_ACTIVATIONS | VFM_OFFLOAD_OPTIMIZER, is = (unsigned)l->h->c->train.offload | more;

	add_setting(l, 1,
		is == both                              ? "train.offload=both"
			: more == VFM_OFFLOAD_OPTIMIZER ? "train.offload=optimizer"
							: "train.offload=activations");
}

/* Weights of all blocks in host memory, or with a plan of as many as do not fit. */
static void add_offloaded_weights(struct saving_list *l)
{
	const struct vfm_config *c = l->h->c;
	char how[64];

	if (c->train.recompute == VFM_RECOMPUTE_AUTO)
		snprintf(how, sizeof(how), "train.offload_weights=auto");
	else
		snprintf(how, sizeof(how), "train.offload_weights=%lld", (long long)c->model.layers);
	add_setting(l, 1, how);
}

static void add_degree(struct saving_list *l, const char *key, int64_t degree)
{
	char how[64];

	snprintf(how, sizeof(how), "%s=%lld", key, (long long)degree);
	add_setting(l, 2, how);
}

/* Writes at most n savings; returns their number. */
static int list_savings(void *ctx, struct vfm_dev_saving *v, int n)
{
	const struct vfm_oom_hints *h = ctx;
	static const char *const settings[] = {"train.recompute=light", "train.recompute=outputs",
		"train.recompute=selective", "train.recompute=full", "train.recompute_blocks=0", "train.dtype=bf16",
		"train.residual=bf16", "train.frozen_dtype=fp8", "train.frozen_dtype=nf4", "train.master=split",
		"train.moments=bf16", "parallel.fsdp=true", "parallel.distopt=true", "parallel.shard=0"};
	const struct vfm_parallel *p = &h->mesh->p;
	struct saving_list l = {.h = h, .v = v, .cap = n};
	struct setting_trial now = trial_of(h), half = trial_of(h);

	l.bytes = bytes_of_trial(&now);
	free(now.sample);
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		add_setting(&l, 1, settings[i]);
	add_offloaded_weights(&l);
	add_offload(&l, VFM_OFFLOAD_ACTIVATIONS);
	add_offload(&l, VFM_OFFLOAD_OPTIMIZER);
	if (halve_pack(&half))
		add_trial(&l, &half, "packs of half as many tokens");
	free(half.sample);
	add_setting(&l, 2, p->distopt ? "parallel.distopt=true" : "parallel.fsdp=true");
	add_degree(&l, "parallel.cp", 2 * p->cp);
	add_degree(&l, "parallel.tp", 2 * p->tp);
	return l.n;
}

/* ---- the device ---- */

void vfm_oom_hints_install(
	struct vfm_oom_hints *h, const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_dev *dev)
{
	*h = (struct vfm_oom_hints){.c = c, .mesh = mesh, .dev = dev};
	if (vfm_dev_predicts(dev))
		return;
	dev->oom_hints.savings = list_savings;
	dev->oom_hints.ctx = h;
}

void vfm_oom_hints_remove(struct vfm_oom_hints *h)
{
	if (h->dev && h->dev->oom_hints.ctx == h)
		h->dev->oom_hints = (struct vfm_dev_oom_hints){0};
	free(h->sample);
	*h = (struct vfm_oom_hints){0};
}
