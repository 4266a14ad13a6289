/* turns.c - the share of each network, and its blocks of packs. */
#include "train/job/turns.h"

const char *const vfm_expert_names[VFM_EXPERTS] = {"high", "low"};

enum { SHARE_BITS = 20 };

/* Returns the share of draws with t of at least the boundary, for samples of `tokens` tokens. */
static double share_above(const struct vfm_config *c, int64_t tokens)
{
	struct vfm_diffusion d = c->diffusion;
	double lo = 0, hi = 1; /* quantiles below and above the boundary */

	d.t_min = 0;
	d.t_max = 1;
	for (int i = 0; i < 60; i++) {
		double u = (lo + hi) / 2;

		if (vfm_diffusion_quantile(&d, u, tokens) < c->experts.boundary)
			lo = u;
		else
			hi = u;
	}
	return 1 - lo;
}

int vfm_turns_of(
	struct vfm_turns *t, const struct vfm_config *c, const struct vfm_plan_header *plan, struct vfm_err *err)
{
	const int64_t packs = c->experts.turn_packs;
	const double units = 1 << SHARE_BITS;

	*t = (struct vfm_turns){.block = packs ? packs : c->experts.turn * plan->batch,
		.batch = plan->batch,
		.share = (int64_t)(share_above(c, plan->context) * units + 0.5)};
	if (packs && c->experts.turn != 1)
		return vfm_fail(err, VFM_EUSAGE, "experts.turn_packs: not with experts.turn");
	if (t->block % t->batch && t->batch % t->block)
		return vfm_fail(err, VFM_EUSAGE,
			"experts.turn_packs is %lld, which is neither a divisor nor a multiple of the %lld packs of a "
			"step",
			(long long)packs, (long long)t->batch);
	if (vfm_turns_divide(t) && plan->cp)
		return vfm_fail(err, VFM_EUSAGE,
			"experts.turn_packs: a step of a plan of vfm-pack --cp trains one network (experts.turn)");
	return 0;
}

bool vfm_turns_divide(const struct vfm_turns *t)
{
	return t->block < t->batch;
}

/* Returns the blocks of the high network among the first n. */
static int64_t high_blocks(const struct vfm_turns *t, int64_t n)
{
	return (int64_t)(((__int128)n * t->share) >> SHARE_BITS);
}

int vfm_turns_at(const struct vfm_turns *t, int64_t step, int64_t pack)
{
	int64_t block = (step * t->batch + pack) / t->block;

	return high_blocks(t, block + 1) > high_blocks(t, block) ? VFM_EXPERT_HIGH : VFM_EXPERT_LOW;
}

/* Returns the packs of the high network in the steps below `step`. */
static int64_t high_packs(const struct vfm_turns *t, int64_t step)
{
	int64_t packs = step * t->batch, high = high_blocks(t, packs / t->block) * t->block;

	return high + (vfm_turns_at(t, step, 0) == VFM_EXPERT_HIGH ? packs % t->block : 0);
}

int64_t vfm_turns_packs(const struct vfm_turns *t, int expert, int64_t step)
{
	int64_t high = high_packs(t, step + 1) - high_packs(t, step);

	return expert == VFM_EXPERT_HIGH ? high : t->batch - high;
}

int vfm_turns_first(const struct vfm_turns *t, int64_t step)
{
	int64_t high = vfm_turns_packs(t, VFM_EXPERT_HIGH, step);

	if (high == 0 || high == t->batch)
		return high ? VFM_EXPERT_HIGH : VFM_EXPERT_LOW;
	return step % 2 ? VFM_EXPERT_LOW : VFM_EXPERT_HIGH; /* the last step ended with it */
}

int64_t vfm_turns_before(const struct vfm_turns *t, int expert, int64_t step)
{
	int64_t high = high_packs(t, step), packs = expert == VFM_EXPERT_HIGH ? high : step * t->batch - high;
	int64_t blocks = packs / t->block, per_step = t->batch / t->block;
	int64_t share = expert == VFM_EXPERT_HIGH ? t->share : (1 << SHARE_BITS) - t->share;

	if (!vfm_turns_divide(t))
		return packs / t->batch;
	/* Of at least one block a step on average, it has one in every step; of less, never two in one. */
	return share * per_step >= 1 << SHARE_BITS ? step : blocks;
}

double vfm_turns_share(const struct vfm_turns *t)
{
	return (double)t->share / (1 << SHARE_BITS);
}

double vfm_turns_exchanges(const struct vfm_turns *t)
{
	enum { STEPS = 1 << 16 };
	int active = vfm_turns_first(t, 0), n = 0;

	for (int64_t step = 0; step < STEPS; step++) {
		n += vfm_turns_first(t, step) != active;
		active = vfm_turns_first(t, step);
		if (vfm_turns_packs(t, !active, step)) {
			active = !active;
			n++;
		}
	}
	return (double)n / STEPS;
}
