/* synthetic.c - shapes and normal values of synthetic packs. */
#include "train/step/synthetic.h"

#include "base/philox.h"

static void fill_normal(float *x, int64_t n, float std, struct vfm_rng rng)
{
	for (int64_t k = 0; k < n; k++)
		x[k] = std * vfm_rng_normal(&rng, (uint64_t)k);
}

/* Every second sample has a second text, of different lengths. */
static int32_t synthetic_text2_rows(uint64_t id, const struct vfm_model_spec *m)
{
	return m->text2_dim && id % 2 ? (int32_t)(1 + id / 2 % (uint64_t)m->text2_len) : 0;
}

void vfm_synthetic_add_sums(struct vfm_pack_sums *sums, const int32_t grid[3], int64_t text_len, uint64_t id,
	const struct vfm_model_spec *m)
{
	const int64_t image = m->image_dim && vfm_model_arch(m)->joint ? m->image_len : 0;

	vfm_pack_sums_add_joint(sums, grid, vfm_model_text_rows(m, text_len),
		vfm_model_text2_rows(m, synthetic_text2_rows(id, m)), image);
}

int vfm_synthetic_shapes(
	struct vfm_pack *p, const struct vfm_synthetic *s, int n, const struct vfm_model_spec *m, struct vfm_err *err)
{
	*p = (struct vfm_pack){.n = n,
		.patch_dim = (int32_t)vfm_model_patch_dim(m),
		.text_dim = (int32_t)m->text_dim,
		.text2_dim = (int32_t)m->text2_dim,
		.cond_dim = (int32_t)vfm_model_cond_dim(m),
		.image_dim = (int32_t)m->image_dim,
		.image_len = m->image_dim ? (int32_t)m->image_len : 0};
	for (int i = 0; i < n; i++) {
		p->tokens += (int64_t)s[i].grid[0] * s[i].grid[1] * s[i].grid[2];
		p->text_tokens += s[i].text_len;
		p->text2_tokens += synthetic_text2_rows(s[i].id, m);
	}
	p->step_tokens = p->tokens;
	TRY(vfm_pack_alloc(p, err));
	for (int i = 0; i < n; i++) {
		vfm_pack_set(p, i, s[i].id, s[i].grid, s[i].text_len);
		if (p->text2_dim)
			vfm_pack_set_text2(p, i, synthetic_text2_rows(s[i].id, m));
	}
	return 0;
}

int vfm_synthetic_pack(struct vfm_pack *p, const struct vfm_synthetic *s, int n, const struct vfm_model_spec *m,
	uint64_t seed, struct vfm_err *err)
{
	TRY(vfm_synthetic_shapes(p, s, n, m, err));
	for (int i = 0; i < n; i++) {
		int64_t token = p->cu_seqlens[i], row = p->cu_text[i];

		fill_normal((float *)p->x0 + token * p->patch_dim, (p->cu_seqlens[i + 1] - token) * p->patch_dim, 0.5f,
			vfm_rng_stream(seed, 0, s[i].id, VFM_RNG_TEST));
		fill_normal(p->text + row * p->text_dim, (int64_t)s[i].text_len * p->text_dim, 1,
			vfm_rng_stream(seed, 1, s[i].id, VFM_RNG_TEST));
		if (p->cond)
			fill_normal((float *)p->cond + token * p->cond_dim,
				(p->cu_seqlens[i + 1] - token) * p->cond_dim, 0.5f,
				vfm_rng_stream(seed, 2, s[i].id, VFM_RNG_TEST));
		if (p->image)
			fill_normal(p->image + (int64_t)i * p->image_len * p->image_dim,
				(int64_t)p->image_len * p->image_dim, 1,
				vfm_rng_stream(seed, 3, s[i].id, VFM_RNG_TEST));
		if (p->text2)
			fill_normal(p->text2 + (int64_t)p->cu_text2[i] * p->text2_dim,
				(int64_t)(p->cu_text2[i + 1] - p->cu_text2[i]) * p->text2_dim, 1,
				vfm_rng_stream(seed, 4, s[i].id, VFM_RNG_TEST));
	}
	return 0;
}
