/* pack.h - a pack: samples of different sizes concatenated into one token sequence, as host arrays.  The tokens of a
 * sample are contiguous, in the order (t, h, w) of its grid.
 *
 *	struct vfm_pack p = {.n = 2, .tokens = 24, .text_tokens = 5, .patch_dim = 16, .text_dim = 8};
 *
 *	TRY(vfm_pack_alloc(&p, err));
 *	for (int i = 0; i < p.n; i++)
 *		vfm_pack_set(&p, i, id[i], grid[i], text_rows[i]);
 *	// write x0 and text
 *	vfm_pack_release(&p);
 *
 * One block of host memory holds all arrays, each 64-byte aligned; the owner of the pack owns it.
 *
 * The condition of a sample (image to video) is [cond_channels, t, h, w] like its latents: for Wan 4 channels of the
 * mask, 1 where a latent frame is given, then the latents of the given frames.  It gets no noise and has no loss.
 */
#ifndef VFM_SPEC_LAYOUT_PACK_H
#define VFM_SPEC_LAYOUT_PACK_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "spec/model/dtype.h"

struct vfm_pack {
	int n;               /* samples */
	int64_t tokens;      /* == cu_seqlens[n] */
	int64_t text_tokens; /* == cu_text[n]; a sample without text has 0 rows */
	int32_t patch_dim;   /* features of a token, channels * pt * ph * pw; 0: no latents (sampling) */
	int32_t text_dim;    /* features of a text row */
	/* rows of a second text encoder: == cu_text2[n]; features of a row, 0: no second encoder */
	int64_t text2_tokens;
	int32_t text2_dim;
	int32_t cond_dim; /* features of a token's condition; 0: no conditions */
	/* features of an image row; every sample has image_len rows; 0: no image rows */
	int32_t image_dim, image_len;
	enum vfm_dtype x0_dtype; /* of the latents: f32, bf16 or, without conditions, f16 */

	int32_t cp; /* the context-parallel ranks that compute it (net/mesh/mesh.h); 0: all */

	int64_t step, index; /* global step of the plan, and the pack within it; 0 without a plan */
	int64_t step_tokens; /* tokens of the global step over all ranks, the denominator of losses; 0: no loss
				(sampling) */

	uint64_t *id;        /* [n] sample id, the key of its random numbers */
	int32_t (*grid)[3];  /* [n] size in patches: t, h, w */
	int32_t *cu_seqlens; /* [n+1] boundaries of the samples in the tokens */
	int32_t *cu_text;    /* [n+1] boundaries of the samples in the text rows */
	int32_t *cu_text2;   /* [n+1] likewise of the second encoder; NULL: none */
	/* [tokens, patch_dim] patchified latents (spec/layout/patch.h), feature order (c, pt, ph, pw); NULL: none */
	void *x0;
	void *cond;        /* [tokens, cond_dim] patchified conditions, as x0 and in its dtype; NULL: none */
	float *image;      /* [n * image_len, image_dim] in the order of the samples; NULL: none */
	float *text;       /* [text_tokens, text_dim] */
	float *text2;      /* [text2_tokens, text2_dim]; NULL: none */
	int32_t *seg;      /* [tokens] sample of the token */
	int32_t *idx;      /* [tokens] token within its sample */
	int16_t (*pos)[3]; /* [tokens] t, h, w within its sample, in patches */

	void *mem; /* private: the block */
	size_t bytes;
};

/* Allocates arrays for the sizes that the caller has set: n, tokens, text_tokens, patch_dim, text_dim, text2_tokens,
 * text2_dim, cond_dim, image_dim, image_len, x0_dtype.  Reuses the block of an earlier call if it is large enough.  Sets
 * cu_seqlens[0], cu_text[0] and cu_text2[0] to 0; other elements are undefined.  VFM_EENV: out of memory; the pack may
 * be released or allocated again. */
int vfm_pack_alloc(struct vfm_pack *p, struct vfm_err *err);
/* For arrays in the caller's memory: the bytes for the sizes that the caller has set, and the placement of the arrays
 * at `mem`, which is 64-byte aligned.  The caller sets the first elements of cu_seqlens, cu_text and cu_text2 to 0 and
 * does not release the pack. */
size_t vfm_pack_bytes(const struct vfm_pack *p);
void vfm_pack_place(struct vfm_pack *p, void *mem);
/* Sets id and grid of sample i, cu_seqlens[i+1] and cu_text[i+1], and seg, idx and pos of its tokens.  The sample has no
 * rows of a second text encoder.  Call in ascending order of i. */
void vfm_pack_set(struct vfm_pack *p, int i, uint64_t id, const int32_t grid[3], int32_t text_rows);
/* After vfm_pack_set of sample i, and before that of the next: gives it rows of the second text encoder. */
void vfm_pack_set_text2(struct vfm_pack *p, int i, int32_t rows);
void vfm_pack_release(struct vfm_pack *p); /* accepts `{0}` */

#endif
