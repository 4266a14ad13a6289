/* clip_vision_load.c - the weights of a vision tower in f32 on the device, with memory for one picture. */
#include <stdlib.h>

#include "base/mem.h"
#include "base/suballoc.h"
#include "device/dev/upload.h"
#include "encoder/image/clip_vision_impl.h"

static int64_t count_stack_rows(const struct vfm_weight *const from[VISION_STACK])
{
	int64_t n = 0;

	for (int i = 0; i < VISION_STACK && from[i]; i++)
		n += from[i]->shape[0];
	return n;
}

static void place_layer(struct vision_layer *l, struct vfm_suballoc *a)
{
	const int64_t rows = count_stack_rows(l->weight_from);

	l->weight = l->weight_from[0]->ndim == 1 ? vfm_sub_t1(a, VFM_F32, rows)
						 : vfm_sub_t2(a, VFM_F32, rows, l->weight_from[0]->shape[1]);
	l->bias = vfm_sub_t1(a, VFM_F32, rows);
}

/* The last block has no memory: the hidden states in front of it are the result. */
static void place_tower(struct vfm_clip_vision *v, struct vfm_suballoc *a)
{
	const struct vision_dims *d = &v->d;
	const int64_t pixels = 3 * d->patch * d->patch;

	v->patch = vfm_sub_t2(a, VFM_F32, d->dim, pixels);
	v->embed = vfm_sub_t2(a, VFM_F32, d->rows, d->dim);
	place_layer(&v->norm, a);
	for (int64_t i = 0; i < d->layers - 1; i++)
		for (int k = 0; k < VISION_LAYERS; k++)
			place_layer(&v->block[i].layer[k], a);
	v->x = vfm_sub_t2(a, VFM_F32, d->rows, d->dim);
	v->h = vfm_sub_t2(a, VFM_F32, d->rows, d->dim);
	v->qkv = vfm_sub_t2(a, VFM_F32, d->rows, 3 * d->dim);
	v->a = vfm_sub_t2(a, VFM_F32, d->rows, d->dim);
	v->lse = vfm_sub_t2(a, VFM_F32, d->rows, d->heads);
	v->ff = vfm_sub_t2(a, VFM_F32, d->rows, d->ffn);
	v->patches = vfm_sub_t2(a, VFM_F32, d->rows - 1, pixels);
	v->dev_cu = vfm_sub_t1(a, VFM_I32, 2);
}

/* Uploads tensors of the file, one after another, to a tensor of the device. */
static int upload_stack(struct vfm_clip_vision *v, const struct vfm_weight *const from[VISION_STACK],
	const struct vfm_tensor *to, struct vfm_err *err)
{
	const size_t bytes = vfm_nbytes(to);
	const bool direct = v->s->dev->host_memory;
	float *host = direct ? to->data : vfm_big_alloc(bytes, "a matrix of the vision tower", err);
	float *at = host;
	int rc = 0;

	if (!host)
		return VFM_EENV;
	for (int i = 0; i < VISION_STACK && from[i]; at += from[i]->numel, i++) {
		vfm_weight_to_f32(from[i], at);
		vfm_weight_drop_pages(from[i]);
	}
	if (!direct) {
		rc = vfm_dev_upload(v->s, to->data, host, bytes, err);
		vfm_big_free(host, bytes);
	}
	return rc;
}

static int upload_layer(struct vfm_clip_vision *v, const struct vision_layer *l, struct vfm_err *err)
{
	TRY(upload_stack(v, l->weight_from, &l->weight, err));
	return upload_stack(v, l->bias_from, &l->bias, err);
}

/* Uploads the positions, with the class embedding added to the first. */
static int upload_embeddings(struct vfm_clip_vision *v, struct vfm_err *err)
{
	const size_t dim = (size_t)v->d.dim;
	const size_t bytes = vfm_nbytes(&v->embed);
	float *position = vfm_big_alloc(bytes, "the positions of the vision tower", err), *class;
	int rc;

	if (!position)
		return VFM_EENV;
	class = vfm_malloc(dim * sizeof(*class));
	vfm_weight_to_f32(v->position_from, position);
	vfm_weight_to_f32(v->class_from, class);
	for (size_t i = 0; i < dim; i++)
		position[i] += class[i];
	rc = vfm_dev_upload(v->s, v->embed.data, position, bytes, err);
	vfm_big_free(position, bytes);
	free(class);
	return rc;
}

static int load_tower(struct vfm_clip_vision *v, struct vfm_err *err)
{
	const struct vfm_weight *const patch[VISION_STACK] = {v->patch_from};
	struct vfm_suballoc count = {0}, give;

	place_tower(v, &count);
	v->bytes = count.used;
	v->mem = vfm_dev_alloc(v->s, v->bytes, "the vision tower", err);
	if (!v->mem)
		return VFM_EENV;
	give = (struct vfm_suballoc){.base = v->mem};
	place_tower(v, &give);
	v->pixel_bytes = 3 * (size_t)v->d.image * (size_t)v->d.image * sizeof(float);
	v->pixels = vfm_big_alloc(v->pixel_bytes, "a picture", err);
	v->cut = vfm_big_alloc(v->pixel_bytes, "a picture", err);
	if (!v->pixels || !v->cut)
		return VFM_EENV;
	v->cu[1] = (int32_t)v->d.rows;
	TRY(vfm_dev_upload(v->s, v->dev_cu.data, v->cu, sizeof(v->cu), err));
	TRY(upload_stack(v, patch, &v->patch, err));
	TRY(upload_embeddings(v, err));
	TRY(upload_layer(v, &v->norm, err));
	for (int64_t i = 0; i < v->d.layers - 1; i++)
		for (int k = 0; k < VISION_LAYERS; k++)
			TRY(upload_layer(v, &v->block[i].layer[k], err));
	return 0;
}

void vision_unload(struct vfm_clip_vision *v)
{
	vfm_dev_free(v->s, v->mem, v->bytes);
	vfm_big_free(v->pixels, v->pixel_bytes);
	vfm_big_free(v->cut, v->pixel_bytes);
	v->mem = NULL;
	v->pixels = v->cut = NULL;
}

int vision_load(struct vfm_clip_vision *v, struct vfm_err *err)
{
	int rc = v->mem ? 0 : load_tower(v, err);

	if (rc < 0)
		vision_unload(v);
	return rc;
}
