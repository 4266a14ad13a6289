#include "train/bench.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "train/madeup.h"

/* A pack of equal samples. */
static void batch_make(struct vfm_batch *b, const struct vfm_bench_step *s, const struct vfm_model_spec *m)
{
	struct vfm_madeup *all = vfm_calloc((size_t)s->samples, sizeof(*all));

	for (int64_t i = 0; i < s->samples; i++)
		all[i] = (struct vfm_madeup){
			{s->grid[0], s->grid[1], s->grid[2]}, (int32_t)s->text_len, (uint64_t)i + 1};
	vfm_madeup_pack(b, all, (int)s->samples, m, 1);
	b->step_tokens = b->tokens * s->packs;
	free(all);
}

void vfm_bench_grid(int64_t tokens, int32_t grid[3])
{
	int64_t side = 1;

	while (side < 16 && tokens % (4 * side * side) == 0)
		side *= 2;
	grid[0] = (int32_t)(tokens / (side * side));
	grid[1] = grid[2] = (int32_t)side;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Seconds of a step; means over the ranks, so that all decide alike how long to go on. */
enum { STEP, COMM, BUBBLE, COPY, HOST, AHEAD, TIMES };

/* One step by itself: begins when all ranks are there. */
static int timed_step(struct vfm_trainer *tr, const struct vfm_mesh *mesh, int64_t step, int64_t packs,
	const struct vfm_pack_source *source, double t[TIMES], struct vfm_step_stats *stats, struct vfm_err *err)
{
	double t0, put;

	TRY(vfm_barrier(mesh->world, NULL, err));
	t0 = vfm_now();
	TRY(vfm_trainer_step(tr, step, packs, source, 1e-4, err));
	put = vfm_now();
	TRY(vfm_trainer_stats(tr, stats, err));
	t[STEP] = vfm_now() - t0;
	t[COMM] = stats->comm_s;
	t[BUBBLE] = stats->bubble_s;
	t[COPY] = stats->copy_s;
	t[HOST] = stats->host_s;
	t[AHEAD] = t0 + t[STEP] - put;
	TRY(vfm_all_reduce(mesh->world, NULL, vfm_t1(t, VFM_F64, TIMES), err));
	for (int i = 0; i < TIMES; i++)
		t[i] /= mesh->world->size;
	return 0;
}

int vfm_bench_run(const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_stream *s,
	const struct vfm_bench_step *b, struct vfm_bench_result *out, struct vfm_err *err)
{
	enum { MAX = 1000 };
	struct vfm_step_stats stats = {0};
	struct vfm_trainer *tr = NULL;
	struct vfm_batch batch = {0};
	struct vfm_pack_array packs = {&batch, 1, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);
	double t[MAX], total[TIMES] = {0}, one[TIMES];
	int64_t n = 0;
	int dp = mesh->size[VFM_AX_DP], rc;

	*out = (struct vfm_bench_result){0};
	if (b->packs % dp)
		return vfm_fail(
			err, VFM_EUSAGE, "%lld packs a step cannot be divided among dp = %d", (long long)b->packs, dp);
	vfm_dev_peak_reset(s->dev);
	tr = vfm_trainer_new(c, mesh, s, err);
	if (!tr)
		return err->code;
	batch_make(&batch, b, &c->model);
	for (int64_t i = 0; n < MAX && (i < b->warmup || n < b->steps || total[STEP] < b->min_s); i++) {
		TRY_OUT(timed_step(tr, mesh, i, b->packs / dp, &source, one, &stats, err));
		if (i < b->warmup)
			continue;
		t[n++] = one[STEP];
		for (int k = 0; k < TIMES; k++)
			total[k] += one[k];
	}
	qsort(t, (size_t)n, sizeof(t[0]), by_value);
	for (int k = 0; k < TIMES; k++)
		total[k] /= (double)n;
	*out = (struct vfm_bench_result){.n = n,
		.median_s = t[n / 2],
		.min_s = t[0],
		.max_s = t[n - 1],
		.flops = stats.flops,
		.tokens = stats.tokens,
		.mem_peak_bytes = s->dev->mem_peak,
		.loss = stats.loss,
		.comm_s = total[COMM],
		.bubble_s = total[BUBBLE],
		.copy_s = total[COPY],
		.host_s = total[HOST],
		.ahead_s = total[AHEAD]};
	rc = isfinite(stats.loss) ? 0 : vfm_fail(err, VFM_EENV, "the loss of the measured step is not finite");
out:
	vfm_madeup_release(&batch);
	vfm_trainer_free(tr);
	return rc;
}
