/* schedule.c - divides layers by cost, and orders 1F1B, interleaved and zero-bubble actions. */
#include "spec/layout/schedule.h"

#include <stdlib.h>

#include "base/mem.h"
#include "spec/model/linears.h"

/* ---- layers of a pp stage ---- */

/* FLOPs of a layer, the patch embedding and the head, for a typical pack: 8 samples, 8,192 tokens. */
static void costs(const struct vfm_model_spec *m, double *layer, double *end)
{
	static const int32_t grid[3] = {1, 32, 32};
	struct vfm_pack_sums p = {0};
	struct vfm_model_spec one = *m, none = *m;

	for (int i = 0; i < 8; i++)
		vfm_pack_sums_add(&p, grid, m->text_len);
	one.layers = 1;
	none.layers = 0;
	one.single_layers = none.single_layers = 0; /* a single-stream block has the same FLOPs */
	*layer = vfm_model_flops(&one, &p) - vfm_model_flops(&none, &p);
	*end = 2 * p.tokens * (double)vfm_model_patch_dim(m) * (double)m->hidden; /* a matrix [features, hidden] */
}

void vfm_pp_stage_layers(const struct vfm_model_spec *m, int parts, int part, int64_t *first, int64_t *end)
{
	int64_t *n = vfm_calloc((size_t)parts, sizeof(*n)), left = m->layers;
	double *load = vfm_calloc((size_t)parts, sizeof(*load)), layer, ends;

	costs(m, &layer, &ends);
	load[0] += ends;
	load[parts - 1] += ends;
	for (int i = 0; i < parts && m->layers >= parts; i++, left--) {
		n[i] = 1;
		load[i] += layer;
	}
	/* All layers cost the same, so assigning each to the least loaded part is optimal.  Ties go to the last part,
	 * since the first parts hold more activations. */
	for (; left > 0; left--) {
		int least = parts - 1;

		for (int i = parts - 2; i >= 0; i--)
			if (load[i] < load[least])
				least = i;
		n[least]++;
		load[least] += layer;
	}
	*first = 0;
	for (int i = 0; i < part; i++)
		*first += n[i];
	*end = *first + n[part];
	free(n);
	free(load);
}

/* ---- order of the actions ---- */

/* Interleaving processes microbatches in groups of at least pp (or all, if there are fewer).  A group passes chunk 0,
 * then chunk 1, and so on; by then its first microbatch has returned from the last pp stage. */
struct pack_groups {
	int64_t n, size, larger; /* the first `larger` groups have size + 1 */
	int vpp;
};

static struct pack_groups groups_of(int pp, int vpp, int64_t mb)
{
	struct pack_groups g = {.n = mb / pp > 0 && vpp > 1 ? mb / pp : 1, .vpp = vpp};

	g.size = mb / g.n;
	g.larger = mb % g.n;
	return g;
}

/* The chunk and microbatch of the k-th forward or backward of a pp stage. */
static struct vfm_action nth(const struct pack_groups *g, enum vfm_action_kind kind, int64_t k)
{
	int64_t big = g->larger * (g->size + 1), size = g->size + 1, first = 0, i;
	struct vfm_action a = {.kind = kind};

	if (k >= big * g->vpp) {
		k -= big * g->vpp;
		first = big;
		size = g->size;
	}
	first += k / (size * g->vpp) * size;
	i = k % (size * g->vpp);
	a.chunk = (int)(i / size);
	if (kind != VFM_DO_F)
		a.chunk = g->vpp - 1 - a.chunk;
	a.mb = first + i % size;
	return a;
}

static void append_action(struct vfm_schedule *s, struct vfm_action a)
{
	vfm_grow(&s->a, &s->cap, s->n + 1, sizeof(*s->a));
	s->a[s->n++] = a;
}

static int check_schedule_args(int pp, int vpp, int pp_stage, int64_t mb, struct vfm_err *err)
{
	if (pp < 1 || vpp < 1 || pp_stage < 0 || pp_stage >= pp)
		return vfm_fail(err, VFM_EUSAGE, "internal: stage %d of %d with %d chunks", pp_stage, pp, vpp);
	if (mb < 1 || mb > INT64_C(1) << 32)
		return vfm_fail(err, VFM_EUSAGE, "a pipeline of %lld packs a step: expected at least 1", (long long)mb);
	return 0;
}

int vfm_schedule_make(
	struct vfm_schedule *s, int schedule, int pp, int vpp, int pp_stage, int64_t mb, struct vfm_err *err)
{
	struct pack_groups g;
	int64_t n = mb * vpp, warm = pp - pp_stage - 1, f = 0, b = 0, w = 0;
	/* ZB-H1: W lags behind B by the difference between the microbatches in flight of the first pp stage and of this
	 * pp stage.  These W fill the drain phase. */
	int64_t lag = pp_stage;
	bool split = schedule == VFM_PP_ZB;

	*s = (struct vfm_schedule){0};
	TRY(check_schedule_args(pp, vpp, pp_stage, mb, err));
	g = groups_of(pp, vpp, mb);
	if (vpp > 1)
		warm = 2 * warm + (vpp - 1) * (g.size + (g.larger > 0));
	while (f < n && f < warm)
		append_action(s, nth(&g, VFM_DO_F, f++));
	while (b < n) {
		if (f < n)
			append_action(s, nth(&g, VFM_DO_F, f++));
		append_action(s, nth(&g, VFM_DO_B, b++));
		while (split && b - w > lag && w < b)
			append_action(s, nth(&g, VFM_DO_W, w++));
	}
	while (split && w < n)
		append_action(s, nth(&g, VFM_DO_W, w++));
	return 0;
}

void vfm_schedule_release(struct vfm_schedule *s)
{
	free(s->a);
	*s = (struct vfm_schedule){0};
}
