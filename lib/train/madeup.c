#include "train/madeup.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/philox.h"

static void count(struct vfm_batch *b, const struct vfm_madeup *s, int n)
{
	b->n_samples = n;
	b->id = vfm_calloc((size_t)n, sizeof(*b->id));
	b->grid = vfm_calloc((size_t)n, sizeof(*b->grid));
	b->cu_seqlens = vfm_calloc((size_t)n + 1, sizeof(int32_t));
	b->cu_text = vfm_calloc((size_t)n + 1, sizeof(int32_t));
	for (int i = 0; i < n; i++) {
		const int32_t *g = s[i].grid;

		b->id[i] = s[i].id;
		for (int k = 0; k < 3; k++)
			b->grid[i][k] = g[k];
		b->cu_seqlens[i + 1] = b->cu_seqlens[i] + g[0] * g[1] * g[2];
		b->cu_text[i + 1] = b->cu_text[i] + s[i].text_len;
	}
	b->tokens = b->step_tokens = b->cu_seqlens[n];
	b->text_tokens = b->cu_text[n];
}

static void place(struct vfm_batch *b, int sample)
{
	const int32_t *g = b->grid[sample];

	for (int32_t t = b->cu_seqlens[sample]; t < b->cu_seqlens[sample + 1]; t++) {
		int32_t k = t - b->cu_seqlens[sample];

		b->seg[t] = sample;
		b->idx[t] = k;
		b->pos[t][0] = (int16_t)(k / (g[1] * g[2]));
		b->pos[t][1] = (int16_t)(k / g[2] % g[1]);
		b->pos[t][2] = (int16_t)(k % g[2]);
	}
}

void vfm_madeup_pack(
	struct vfm_batch *b, const struct vfm_madeup *s, int n, const struct vfm_model_spec *m, uint64_t seed)
{
	*b = (struct vfm_batch){.patch_dim = (int32_t)vfm_model_patch_dim(m), .text_dim = (int32_t)m->text_dim};
	count(b, s, n);
	b->seg = vfm_calloc((size_t)b->tokens, sizeof(int32_t));
	b->idx = vfm_calloc((size_t)b->tokens, sizeof(int32_t));
	b->pos = vfm_calloc((size_t)b->tokens, sizeof(*b->pos));
	b->x0 = vfm_calloc((size_t)(b->tokens * b->patch_dim), sizeof(float));
	b->text = vfm_calloc((size_t)(b->text_tokens * b->text_dim) + 1, sizeof(float));
	for (int i = 0; i < n; i++) {
		struct vfm_rng x = vfm_rng_stream(seed, 0, b->id[i], VFM_RNG_TEST),
			       t = vfm_rng_stream(seed, 1, b->id[i], VFM_RNG_TEST);
		int64_t x_at = (int64_t)b->cu_seqlens[i] * b->patch_dim, t_at = (int64_t)b->cu_text[i] * b->text_dim;

		place(b, i);
		for (int64_t k = 0; x_at + k < (int64_t)b->cu_seqlens[i + 1] * b->patch_dim; k++)
			b->x0[x_at + k] = 0.5f * vfm_rng_normal(&x, (uint64_t)k);
		for (int64_t k = 0; t_at + k < (int64_t)b->cu_text[i + 1] * b->text_dim; k++)
			b->text[t_at + k] = vfm_rng_normal(&t, (uint64_t)k);
	}
}

void vfm_madeup_release(struct vfm_batch *b)
{
	free(b->id);
	free(b->grid);
	free(b->cu_seqlens);
	free(b->cu_text);
	free(b->seg);
	free(b->idx);
	free(b->pos);
	free(b->x0);
	free(b->text);
	*b = (struct vfm_batch){0};
}
