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
		all[i] = (struct vfm_madeup){{s->grid[0], s->grid[1], s->grid[2]}, (int32_t)s->text_len, (uint64_t)i + 1};
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

int vfm_bench_run(const struct vfm_config *c, struct vfm_stream *s, const struct vfm_bench_step *b, struct vfm_bench_result *out,
	struct vfm_err *err)
{
	enum { MAX = 1000 };
	struct vfm_step_stats stats = {0};
	struct vfm_trainer *tr = NULL;
	struct vfm_batch batch = {0};
	struct vfm_pack_array packs = {&batch, 1, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);
	double t[MAX], total = 0;
	int64_t n = 0;
	int rc;

	vfm_dev_peak_reset(s->dev);
	tr = vfm_trainer_new(c, vfm_mesh_one(), s, err);
	if (!tr)
		return err->code;
	batch_make(&batch, b, &c->model);
	for (int64_t i = 0; n < MAX && (i < b->warmup || n < b->steps || total < b->min_s); i++) {
		double t0 = vfm_now();

		TRY_OUT(vfm_trainer_step(tr, i, b->packs, &source, 1e-4, err));
		TRY_OUT(vfm_trainer_stats(tr, &stats, err));
		if (i < b->warmup)
			continue;
		t[n] = vfm_now() - t0;
		total += t[n++];
	}
	qsort(t, (size_t)n, sizeof(t[0]), by_value);
	*out = (struct vfm_bench_result){.n = n, .median_s = t[n / 2], .min_s = t[0], .max_s = t[n - 1], .flops = stats.flops,
		.tokens = stats.tokens, .mem_peak_bytes = s->dev->mem_peak, .loss = stats.loss};
	rc = isfinite(stats.loss) ? 0 : vfm_fail(err, VFM_EENV, "the loss of the measured step is not finite");
out:
	vfm_madeup_release(&batch);
	vfm_trainer_free(tr);
	return rc;
}
