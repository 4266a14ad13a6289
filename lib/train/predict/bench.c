/* bench.c - builds synthetic packs, and times or simulates steps of the trainer. */
#include "train/predict/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/coll/comm.h"
#include "net/nn/param.h"
#include "train/predict/oom_hints.h"
#include "train/step/idle.h"
#include "train/step/synthetic.h"

static const int32_t *grid_of_sample(const struct vfm_bench_step *b, int64_t i)
{
	return i % 2 && b->second[0] ? b->second : b->grid;
}

/* Makes a pack of samples of one or two grids. */
static int make_samples(struct vfm_pack *p, const struct vfm_bench_step *b, const struct vfm_model_spec *m, bool values,
	struct vfm_err *err)
{
	struct vfm_synthetic *all = vfm_calloc((size_t)b->samples, sizeof(*all));
	int rc;

	for (int64_t i = 0; i < b->samples; i++) {
		const int32_t *grid = grid_of_sample(b, i);

		all[i] = (struct vfm_synthetic){{grid[0], grid[1], grid[2]}, (int32_t)b->text_len, (uint64_t)i + 1};
	}
	rc = values ? vfm_synthetic_pack(p, all, (int)b->samples, m, 1, err)
		    : vfm_synthetic_shapes(p, all, (int)b->samples, m, err);
	p->step_tokens = p->tokens * b->packs;
	free(all);
	return rc;
}

bool vfm_bench_cp_apart(const struct vfm_bench_step *b, const struct vfm_config *c)
{
	bool units = vfm_model_has_units(&c->model);
	int64_t cp = c->parallel.cp;

	if (units && b->samples > 1) /* those of a pack are divided, not those of each sample */
		return cp > 1;
	for (int64_t i = 0; i < b->samples && i < 2; i++) {
		const int32_t *grid = grid_of_sample(b, i);
		int64_t area = (int64_t)grid[1] * grid[2];

		if (grid[0] * area % cp || (units && (grid[0] % cp || area % cp)))
			return true;
	}
	return false;
}

static bool has_positions(const struct vfm_model_spec *m, int64_t t, int64_t h, int64_t w)
{
	return m->pos != VFM_POS_LEARNED || (t <= m->pos_max[0] && h <= m->pos_max[1] && w <= m->pos_max[2]);
}

/* Returns whether a frame of h x w is nearer to a square than the best, or as near and smaller. */
static bool is_better_frame(int64_t h, int64_t w, const int32_t best[3])
{
	int64_t low = h < w ? h : w, high = h < w ? w : h;
	int64_t best_low = best[1] < best[2] ? best[1] : best[2], best_high = best[1] < best[2] ? best[2] : best[1];
	int64_t ratio = high * best_low - best_high * low; /* of high / low to that of the best */

	return !best[0] || ratio < 0 || (ratio == 0 && h * w < (int64_t)best[1] * best[2]);
}

/* Sets best to zeros if there is none. */
static void find_grid(const struct vfm_model_spec *m, int64_t tokens, int32_t best[3])
{
	best[0] = best[1] = best[2] = 0;
	for (int64_t h = 1; h <= m->pos_max[1] && h <= tokens; h++)
		for (int64_t w = 1; tokens % h == 0 && w <= m->pos_max[2] && w <= tokens / h; w++) {
			int64_t t = tokens / h / w;

			if (t * h * w != tokens || !has_positions(m, t, h, w) || !is_better_frame(h, w, best))
				continue;
			best[0] = (int32_t)t;
			best[1] = (int32_t)h;
			best[2] = (int32_t)w;
		}
}

int vfm_bench_grid(const struct vfm_model_spec *m, int64_t tokens, int32_t grid[3], struct vfm_err *err)
{
	int64_t side = 1;
	int32_t other[3];

	while (side < 16 && tokens % (4 * side * side) == 0)
		side *= 2;
	grid[0] = (int32_t)(tokens / (side * side));
	grid[1] = grid[2] = (int32_t)side;
	if (has_positions(m, grid[0], side, side))
		return 0;
	find_grid(m, tokens, other);
	if (!other[0])
		return vfm_fail(err, VFM_EUSAGE,
			"no shape of %lld patches has positions: model.pos_max is %lld, %lld, %lld in t, h, w",
			(long long)tokens, (long long)m->pos_max[0], (long long)m->pos_max[1],
			(long long)m->pos_max[2]);
	memcpy(grid, other, sizeof(other));
	return 0;
}

/* Runs one step in isolation, after a barrier.  Reduces stats->rank over the ranks, so that all ranks decide alike when
 * to stop. */
static int timed_step(struct vfm_trainer *tr, const struct vfm_context *x, int64_t step, int64_t packs,
	const struct vfm_pack_source *source, struct vfm_step_stats *stats, struct vfm_err *err)
{
	struct vfm_comm *world = x->mesh.world;
	int64_t tuned = x->device.dev->tuned;
	double t0, enqueued, done;
	int n;

	TRY(vfm_barrier(world, NULL, err));
	t0 = vfm_dev_now(x->device.dev);
	TRY(vfm_trainer_step(tr, step, packs, source, 1e-4, err));
	enqueued = vfm_dev_now(x->device.dev);
	TRY(vfm_trainer_stats(tr, stats, err));
	done = vfm_dev_now(x->device.dev);
	stats->rank.step_s = done - t0;
	stats->rank.ahead_s = done - enqueued;
	stats->rank.tuned = (double)(x->device.dev->tuned - tuned);
	n = vfm_rank_stats_reduce(world, &stats->rank, 1, 1, err);
	return n < 0 ? n : 0;
}

/* Accumulates the measured steps. */
struct step_timing {
	double *step_s; /* [n] */
	size_t n, cap;
	struct vfm_rank_stats total;
	struct vfm_step_stats last;
	int64_t compactions; /* of the device, before the first measured step */
};

static int time_steps(struct vfm_trainer *tr, const struct vfm_context *x, const struct vfm_bench_step *b,
	struct vfm_oom_hints *hints, const struct vfm_pack_source *source, struct step_timing *t, struct vfm_err *err)
{
	int64_t packs = b->packs / x->mesh.size[VFM_AX_DP], warmup = b->warmup;
	struct vfm_pack_source seen = vfm_oom_hints_source(hints, source, packs);

	for (int64_t i = 0; i < warmup || (int64_t)t->n < b->steps || t->total.step_s < b->min_s; i++) {
		if (i == warmup)
			t->compactions = x->device.dev->mem_compactions;
		if (b->before)
			b->before(b->ctx, x->device.dev);
		TRY(timed_step(tr, x, i, packs, &seen, &t->last, err));
		if (b->after)
			b->after(b->ctx, x->device.dev);
		if (i + 1 == warmup && t->last.rank.tuned > 0 && warmup < b->warmup + VFM_BENCH_MORE_WARMUP)
			warmup++;
		if (i < warmup)
			continue;
		vfm_grow(&t->step_s, &t->cap, t->n + 1, sizeof(*t->step_s));
		t->step_s[t->n++] = t->last.rank.step_s;
		for (int k = 0; k < VFM_STATS; k++)
			*vfm_stat_at(&t->total, k) += *vfm_stat_at(&t->last.rank, k);
	}
	return isfinite(t->last.loss) ? 0 : vfm_fail(err, VFM_EENV, "the loss of the measured step is not finite");
}

/* A simulated job sums no values of its ranks, which have packs of equal shape. */
static struct vfm_bench_result result_of(const struct step_timing *t, const struct vfm_dev *d, int dp)
{
	double n = (double)t->n, parts = vfm_dev_predicts(d) ? dp : 1;

	return (struct vfm_bench_result){.n = (int64_t)t->n,
		.step_s = vfm_spread_of(t->step_s, t->n),
		.flops = t->last.flops * parts,
		.tokens = t->last.tokens * (int64_t)parts,
		.mem_peak_bytes = (int64_t)t->last.rank.mem_peak_bytes,
		.compactions = d->mem_compactions - t->compactions,
		.loss = t->last.loss,
		.comm_s = t->total.comm_s / n,
		.bubble_s = t->total.bubble_s / n,
		.copy_s = t->total.copy_s / n,
		.host_s = t->total.host_s / n,
		.ahead_s = t->total.ahead_s / n};
}

int vfm_bench_check(const struct vfm_bench_step *b, struct vfm_err *err)
{
	if (b->samples < 1 || b->samples > 1 << 20 || b->packs < 1 || b->packs > 1 << 20)
		return vfm_fail(err, VFM_EUSAGE, "expected 1 to %d samples in a pack and packs in a step", 1 << 20);
	if (b->text_len < 1 || b->text_len > 65536)
		return vfm_fail(
			err, VFM_EUSAGE, "expected 1 to 65536 text rows of a sample, got %lld", (long long)b->text_len);
	if (b->steps < 1 || b->steps > 1 << 20 || b->warmup < 0 || b->warmup > 1 << 20)
		return vfm_fail(err, VFM_EUSAGE, "expected 1 to %d measured steps after 0 or more to warm up", 1 << 20);
	if (!(b->min_s >= 0 && b->min_s <= 1e6))
		return vfm_fail(err, VFM_EUSAGE, "expected 0 to 1e6 seconds of measured steps, got %g", b->min_s);
	return 0;
}

int vfm_bench_divides(int64_t packs, int64_t dp, struct vfm_err *err)
{
	if (packs % dp == 0)
		return 0;
	return vfm_fail(err, VFM_EUSAGE, "%lld packs a step cannot be divided among dp = %lld: use --packs %lld",
		(long long)packs, (long long)dp, (long long)(packs / dp * dp + dp));
}

int vfm_bench_set(struct vfm_config *c, const char *assignment, struct vfm_err *err)
{
	static const char *const unused[] = {"data.", "ckpt.", "experts.",
		"train.steps=", "train.lr=", "train.min_lr=", "train.warmup_steps=", "train.schedule="};

	for (size_t i = 0; i < sizeof(unused) / sizeof(unused[0]); i++)
		if (!strncmp(assignment, unused[i], strlen(unused[i])))
			return vfm_fail(err, VFM_EUSAGE, "%.*s: a benchmark of a step does not use this key",
				(int)strcspn(assignment, "="), assignment);
	return vfm_config_set(c, assignment, err);
}

struct vfm_trainer *vfm_bench_trainer(struct vfm_context *x, const struct vfm_config *c, struct vfm_err *err)
{
	struct vfm_trainer *tr = vfm_trainer_new(c, &x->mesh, x->device.stream, err);
	int rc = vfm_job_agree(&x->job, tr ? 0 : err->code, err);

	if (rc == 0)
		rc = vfm_params_fill_dense(vfm_trainer_params(tr), c->train.seed, err);
	if (rc == 0)
		rc = vfm_optim_start(vfm_trainer_optim(tr), err);
	if (rc == 0)
		return tr;
	vfm_job_failed(&x->job, rc, err);
	vfm_trainer_free(tr);
	return NULL;
}

/* Of two networks, allocates the one that waits, and predicts an exchange. */
static int predict_exchange(struct vfm_idle *idle, struct vfm_trainer *tr, const struct vfm_context *x,
	const struct vfm_config *c, struct vfm_bench_exchange *out, struct vfm_err *err)
{
	double start[VFM_ESTIMATES];

	if (!(c->experts.boundary > 0) || !vfm_dev_predicts(x->device.dev))
		return 0;
	TRY(vfm_idle_new(idle, tr, c->experts.idle == VFM_IDLE_DEVICE, err));
	vfm_sim_host_now(x->device.dev, start);
	TRY(vfm_idle_exchange(idle, err));
	vfm_sim_host_now(x->device.dev, out->s);
	for (int e = 0; e < VFM_ESTIMATES; e++)
		out->s[e] -= start[e];
	out->bytes = (int64_t)idle->moved;
	return 0;
}

int vfm_bench_run_packs(struct vfm_context *x, const struct vfm_config *c, const struct vfm_bench_step *b,
	struct vfm_pack *packs, int64_t n, const struct vfm_pack_sums *largest, struct vfm_bench_result *out,
	struct vfm_err *err)
{
	struct vfm_pack_array array = {packs, n, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&array);
	struct vfm_load load = {.largest = *largest,
		.packs = b->packs / x->mesh.size[VFM_AX_DP],
		.host_bytes = b->host_bytes > 0 ? b->host_bytes : vfm_params_host_memory(&x->mesh, x->device.dev)};
	struct vfm_oom_hints hints;
	struct vfm_trainer *tr;
	struct vfm_idle idle = {0};
	struct vfm_bench_exchange exchange = {0};
	struct step_timing t = {0};
	int rc;

	*out = (struct vfm_bench_result){0};
	vfm_dev_peak_reset(x->device.dev);
	vfm_oom_hints_install(&hints, c, &x->mesh, x->device.dev);
	tr = vfm_bench_trainer(x, c, err);
	TRY_OUT(tr ? 0 : err->code);
	TRY_OUT(vfm_job_failed(&x->job, predict_exchange(&idle, tr, x, c, &exchange, err), err));
	TRY_OUT(vfm_job_failed(&x->job, vfm_trainer_plan(tr, &load, err), err));
	TRY_OUT(vfm_job_failed(&x->job, time_steps(tr, x, b, &hints, &source, &t, err), err));
	*out = result_of(&t, x->device.dev, x->mesh.size[VFM_AX_DP]);
	out->exchange = exchange;
	out->host_bytes = vfm_dev_predicts(x->device.dev) ? vfm_sim_pinned_bytes(x->device.dev) : 0;
	if (vfm_trainer_recompute(tr)->made)
		vfm_recompute_keeps_text(vfm_trainer_recompute(tr), out->recompute, sizeof(out->recompute));
out:
	vfm_idle_release(&idle);
	vfm_trainer_free(tr);
	vfm_oom_hints_remove(&hints);
	free(t.step_s);
	return rc;
}

int vfm_bench_run(struct vfm_context *x, const struct vfm_config *c, const struct vfm_bench_step *b,
	struct vfm_bench_result *out, struct vfm_err *err)
{
	struct vfm_pack_sums sums = {0};
	struct vfm_pack pack = {0};
	int rc;

	*out = (struct vfm_bench_result){0};
	TRY(vfm_job_agree(&x->job, vfm_bench_divides(b->packs, x->mesh.size[VFM_AX_DP], err), err));
	for (int64_t i = 0; i < b->samples; i++)
		vfm_synthetic_add_sums(&sums, grid_of_sample(b, i), b->text_len, (uint64_t)i + 1, &c->model);
	rc = make_samples(&pack, b, &c->model, !vfm_dev_predicts(x->device.dev), err);
	vfm_job_failed(&x->job, rc, err);
	if (rc == 0)
		rc = vfm_bench_run_packs(x, c, b, &pack, 1, &sums, out, err);
	vfm_pack_release(&pack);
	return rc;
}

/* ---- simulated devices ---- */

static void begin_predicted_step(void *ctx, struct vfm_dev *dev)
{
	struct vfm_bench_predicted *p = ctx;

	vfm_sim_clear(dev);
	vfm_sim_host_now(dev, p->begin);
}

static void end_predicted_step(void *ctx, struct vfm_dev *dev)
{
	struct vfm_bench_predicted *p = ctx;

	vfm_sim_host_now(dev, p->s);
	for (int e = 0; e < VFM_ESTIMATES; e++)
		p->s[e] -= p->begin[e];
}

void vfm_bench_predict(struct vfm_bench_step *b, int64_t warmup, struct vfm_bench_predicted *p)
{
	b->before = begin_predicted_step;
	b->after = end_predicted_step;
	b->ctx = p;
	b->warmup = warmup;
	b->steps = 1;
	b->min_s = 0;
}
