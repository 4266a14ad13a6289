/* clip_vision.c - opens a vision tower of CLIP, identifies it, and runs its blocks. */
#include "encoder/image/clip_vision.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/dev/upload.h"
#include "encoder/image/clip_vision_impl.h"
#include "io/hash.h"

enum { CLIP_VISION_VERSION = 1 };
#define QUICK_GELU 1.702f

/* ---- open and close ---- */

/* Everything that changes results is in the sha256. */
static int identify_tower(struct vfm_clip_vision *v, struct vfm_err *err)
{
	const struct vision_dims *d = &v->d;
	const struct vision_picture *p = &v->picture;
	char weights[VFM_SHA256_HEX], *all;

	TRY(vfm_weights_sha256(v->weights, weights, err));
	v->id = (struct vfm_encoder_id){.dim = (int32_t)d->dim, .rows = (int32_t)d->rows};
	all = vfm_strfmt("%d %s f32 image=%lld patch=%lld heads=%lld act=%s eps=%.9g %s shortest=%d rescale=%.17g "
			 "mean=%.9g,%.9g,%.9g std=%.9g,%.9g,%.9g",
		CLIP_VISION_VERSION, weights, (long long)d->image, (long long)d->patch, (long long)d->heads,
		d->quick ? "quick_gelu" : "gelu", (double)d->eps, p->pillow ? "pillow" : "interpolate", p->shortest,
		p->rescale, (double)p->mean[0], (double)p->mean[1], (double)p->mean[2], (double)p->std[0],
		(double)p->std[1], (double)p->std[2]);
	vfm_sha256_of(all, strlen(all), v->id.sha256);
	free(all);
	snprintf(v->id.name, sizeof(v->id.name), "clip-vision-%lldx%lld-f32", (long long)d->layers, (long long)d->dim);
	snprintf(v->id.version, sizeof(v->id.version), "%d", CLIP_VISION_VERSION);
	return 0;
}

int vfm_clip_vision_open(struct vfm_clip_vision **out, struct vfm_stream *s, const char *path, struct vfm_err *err)
{
	struct vfm_clip_vision *v = vfm_calloc(1, sizeof(*v));
	int rc;

	v->s = s;
	TRY_OUT(vision_open_files(v, path, err));
	TRY_OUT(identify_tower(v, err));
	*out = v;
	return 0;
out:
	vfm_clip_vision_close(v);
	return rc;
}

void vfm_clip_vision_close(struct vfm_clip_vision *v)
{
	if (!v)
		return;
	vision_unload(v);
	vfm_weights_close(v->weights);
	free(v->block);
	free(v);
}

void vfm_clip_vision_unload(struct vfm_clip_vision *v)
{
	if (v)
		vision_unload(v);
}

const struct vfm_encoder_id *vfm_clip_vision_id(const struct vfm_clip_vision *v)
{
	return &v->id;
}

/* ---- the network ---- */

/* y (+)= x weight^T + bias */
static int run_linear(const struct vfm_clip_vision *v, const struct vision_layer *l, const struct vfm_tensor *x,
	const struct vfm_tensor *y, bool accumulate, struct vfm_err *err)
{
	return vfm_op_gemm(v->s,
		&(struct vfm_gemm){
			.a = *x, .b = l->weight, .c = *y, .bias = l->bias, .trans_b = true, .accumulate = accumulate},
		err);
}

static int run_norm(const struct vfm_clip_vision *v, const struct vision_layer *l, const struct vfm_tensor *x,
	const struct vfm_tensor *y, struct vfm_err *err)
{
	return vfm_op_norm(v->s,
		&(struct vfm_norm){.kind = VFM_NORM_LAYER,
			.eps = v->d.eps,
			.x = *x,
			.y = *y,
			.weight = l->weight,
			.bias = l->bias},
		err);
}

/* ff = gelu(ff).  x sigmoid(c x) is silu(c x) / c. */
static int run_gelu(const struct vfm_clip_vision *v, struct vfm_err *err)
{
	const struct vfm_tensor *x = &v->ff;

	if (!v->d.quick)
		return vfm_op_unary(v->s, &(struct vfm_unary){.act = VFM_ACT_GELU, .x = *x, .y = *x}, err);
	TRY(vfm_op_axpby(v->s, &(struct vfm_axpby){.beta = QUICK_GELU, .x = *x, .y = *x}, err));
	TRY(vfm_op_unary(v->s, &(struct vfm_unary){.act = VFM_ACT_SILU, .x = *x, .y = *x}, err));
	return vfm_op_axpby(v->s, &(struct vfm_axpby){.beta = 1 / QUICK_GELU, .x = *x, .y = *x}, err);
}

static int run_attention(const struct vfm_clip_vision *v, struct vfm_err *err)
{
	const int64_t heads = v->d.heads, head = v->d.dim / heads;
	struct vfm_seqs seqs;

	vfm_seqs_init(&seqs, 1, v->cu);
	seqs.dev_cu = v->dev_cu;
	return vfm_op_attn(v->s,
		&(struct vfm_attn){.q = vfm_heads(&v->qkv, 0, heads, head),
			.k = vfm_heads(&v->qkv, 1, heads, head),
			.v = vfm_heads(&v->qkv, 2, heads, head),
			.o = vfm_heads(&v->a, 0, heads, head),
			.lse = v->lse,
			.seqs_q = &seqs,
			.seqs_k = &seqs,
			.scale = (float)(1 / sqrt((double)head))},
		err);
}

/* x += attention(norm(x)); x += down(gelu(up(norm(x)))) */
static int run_vision_block(const struct vfm_clip_vision *v, const struct vision_block *b, struct vfm_err *err)
{
	const struct vision_layer *l = b->layer;

	TRY(run_norm(v, &l[VISION_NORM1], &v->x, &v->h, err));
	TRY(run_linear(v, &l[VISION_QKV], &v->h, &v->qkv, false, err));
	TRY(run_attention(v, err));
	TRY(run_linear(v, &l[VISION_OUT], &v->a, &v->x, true, err));
	TRY(run_norm(v, &l[VISION_NORM2], &v->x, &v->h, err));
	TRY(run_linear(v, &l[VISION_UP], &v->h, &v->ff, false, err));
	TRY(run_gelu(v, err));
	return run_linear(v, &l[VISION_DOWN], &v->ff, &v->x, true, err);
}

/* x = norm(embeddings + patches patch^T), the class token first. */
static int embed_patches(const struct vfm_clip_vision *v, struct vfm_err *err)
{
	const struct vfm_gemm g = {.a = v->patches,
		.b = v->patch,
		.c = vfm_row_slice(&v->h, 1, v->d.rows - 1),
		.trans_b = true,
		.accumulate = true};

	TRY(vfm_op_axpby(v->s, &(struct vfm_axpby){.alpha = 1, .x = v->embed, .y = v->h}, err));
	TRY(vfm_op_gemm(v->s, &g, err));
	return run_norm(v, &v->norm, &v->h, &v->x, err);
}

/* pixels [3, image, image] -> patches [grid, grid, 3, patch, patch], without the rest of an image that is not whole
 * patches. */
static void cut_patches(const struct vision_dims *d, const float *pixels, float *to)
{
	const int64_t n = d->image, p = d->patch;

	for (int64_t y = 0; y < d->grid; y++)
		for (int64_t x = 0; x < d->grid; x++)
			for (int64_t c = 0; c < 3; c++)
				for (int64_t i = 0; i < p; i++, to += p)
					memcpy(to, pixels + (c * n + y * p + i) * n + x * p, (size_t)p * sizeof(*to));
}

int vfm_clip_vision_encode(
	struct vfm_clip_vision *v, const uint8_t *rgb, int height, int width, float *x, struct vfm_err *err)
{
	TRY(vision_load(v, err));
	TRY(vision_picture_pixels(&v->picture, rgb, height, width, v->pixels, err));
	cut_patches(&v->d, v->pixels, v->cut);
	TRY(vfm_dev_upload(v->s, v->patches.data, v->cut, vfm_nbytes(&v->patches), err));
	TRY(embed_patches(v, err));
	for (int64_t i = 0; i < v->d.layers - 1; i++)
		TRY(run_vision_block(v, &v->block[i], err));
	TRY(v->s->dev->t->to_host(v->s, x, v->x.data, vfm_nbytes(&v->x), err));
	return v->s->dev->t->stream_sync(v->s, err);
}
