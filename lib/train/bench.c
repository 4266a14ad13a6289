#include "train/bench.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"

/* A pack of `samples` equal samples with normal latents and text. */
static void batch_make(struct vfm_batch *b, const struct vfm_bench_step *s, const struct vfm_model_spec *m)
{
	int64_t per = (int64_t)s->grid[0] * s->grid[1] * s->grid[2];
	struct vfm_rng rng = vfm_rng_stream(1, 0, 0, VFM_RNG_TEST);
	int64_t nx, nt;

	*b = (struct vfm_batch){.n_samples = (int32_t)s->samples, .tokens = s->samples * per, .text_tokens = s->samples * s->text_len,
		.patch_dim = (int32_t)vfm_model_patch_dim(m), .text_dim = (int32_t)m->text_dim};
	b->step_tokens = b->tokens * s->packs;
	b->id = vfm_calloc((size_t)s->samples, sizeof(*b->id));
	b->cu_seqlens = vfm_calloc((size_t)s->samples + 1, sizeof(int32_t));
	b->cu_text = vfm_calloc((size_t)s->samples + 1, sizeof(int32_t));
	b->seg = vfm_calloc((size_t)b->tokens, sizeof(int32_t));
	b->idx = vfm_calloc((size_t)b->tokens, sizeof(int32_t));
	b->pos = vfm_calloc((size_t)b->tokens, sizeof(*b->pos));
	nx = b->tokens * b->patch_dim;
	nt = b->text_tokens * b->text_dim;
	b->x0 = vfm_calloc((size_t)nx, sizeof(float));
	b->text = vfm_calloc((size_t)nt + 1, sizeof(float));
	for (int64_t i = 0; i < nx; i++)
		b->x0[i] = 0.5f * vfm_rng_normal(&rng, (uint64_t)i);
	for (int64_t i = 0; i < nt; i++)
		b->text[i] = vfm_rng_normal(&rng, (uint64_t)(nx + i));
	for (int64_t i = 0; i < s->samples; i++) {
		b->id[i] = (uint64_t)i + 1;
		b->cu_seqlens[i + 1] = (int32_t)((i + 1) * per);
		b->cu_text[i + 1] = (int32_t)((i + 1) * s->text_len);
	}
	for (int64_t i = 0; i < b->tokens; i++) {
		int64_t k = i % per;

		b->seg[i] = (int32_t)(i / per);
		b->idx[i] = (int32_t)k;
		b->pos[i][0] = (int16_t)(k / (s->grid[1] * s->grid[2]));
		b->pos[i][1] = (int16_t)(k / s->grid[2] % s->grid[1]);
		b->pos[i][2] = (int16_t)(k % s->grid[2]);
	}
}

static void batch_release(struct vfm_batch *b)
{
	free(b->id);
	free(b->cu_seqlens);
	free(b->cu_text);
	free(b->seg);
	free(b->idx);
	free(b->pos);
	free(b->x0);
	free(b->text);
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
	struct vfm_launch launch = {.size = 1, .local_size = 1};
	struct vfm_step_stats stats = {0};
	struct vfm_parallel par = c->parallel;
	struct vfm_trainer *tr = NULL;
	struct vfm_batch batch = {0};
	struct vfm_mesh mesh;
	double t[MAX], total = 0;
	int64_t n = 0;
	int rc;

	TRY(vfm_parallel_check(&par, launch.size, err));
	TRY(vfm_mesh_init(&mesh, &par, &launch, err));
	vfm_dev_peak_reset(s->dev);
	tr = vfm_trainer_new(c, &mesh, s, err);
	if (!tr)
		return err->code;
	batch_make(&batch, b, &c->model);
	for (int64_t i = 0; n < MAX && (i < b->warmup || n < b->steps || total < b->min_s); i++) {
		double t0 = vfm_now();

		TRY_OUT(vfm_trainer_begin(tr, i, batch.step_tokens, err));
		for (int64_t p = 0; p < b->packs; p++)
			TRY_OUT(vfm_trainer_pack(tr, &batch, err));
		TRY_OUT(vfm_trainer_end(tr, 1e-4, err));
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
	batch_release(&batch);
	vfm_trainer_free(tr);
	return rc;
}
