/* The weights of a text encoder on the device: in place, resident, or streamed block by block. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "base/suballoc.h"
#include "device/dev/upload.h"
#include "encoder/text/t5_impl.h"

/* ---- conversion ---- */

enum { CONVERT_GRAIN = 1 << 16 };

struct convert_job {
	const struct vfm_weight *w;
	char *dst;
	enum vfm_dtype dtype;
};

static void convert_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct convert_job *j = ctx;
	const char *src = j->w->data;

	vfm_dtype_convert(j->dtype, j->dst + (size_t)i0 * vfm_dtype_size(j->dtype), j->w->dtype,
		src + (size_t)i0 * vfm_dtype_size(j->w->dtype), (size_t)(i1 - i0));
}

static void convert_weight(const struct vfm_weight *w, enum vfm_dtype dtype, char *dst)
{
	struct convert_job j = {w, dst, dtype};

	vfm_par_for(w->numel, CONVERT_GRAIN, convert_range, &j);
}

/* ---- small tensors: norms and biases by distance ---- */

/* The bucket of a distance (equation in Raffel et al., section 2.1): half of the buckets for keys behind the query, the
 * first half of each for single distances, the others for logarithmic ranges up to max_distance.  f32 as in PyTorch. */
static int64_t bucket_of(const struct t5_dims *d, int64_t distance)
{
	int64_t half = d->buckets / 2, exact = half / 2, a = distance < 0 ? -distance : distance,
		first = distance > 0 ? half : 0, far;

	if (a < exact)
		return first + a;
	far = exact +
		(int64_t)(logf((float)a / (float)exact) / (float)log((double)d->max_distance / (double)exact) *
			(float)(half - exact));
	return first + (far < half - 1 ? far : half - 1);
}

static void place_small(struct vfm_t5 *t, struct vfm_suballoc *a)
{
	t->norm_w = vfm_sub_t1(a, VFM_F32, t->d.dim);
	for (int64_t i = 0; i < t->d.layers; i++) {
		struct t5_block *b = &t->block[i];

		b->norm_w[0] = vfm_sub_t1(a, VFM_F32, t->d.dim);
		b->norm_w[1] = vfm_sub_t1(a, VFM_F32, t->d.dim);
		b->table = b->bias ? vfm_sub_t2(a, VFM_F32, t->d.heads, 2 * t->max_len - 1) : t->block[0].table;
	}
}

static int upload_f32(
	struct vfm_t5 *t, const struct vfm_tensor *dst, const struct vfm_weight *w, float *tmp, struct vfm_err *err)
{
	vfm_weight_to_f32(w, tmp);
	return vfm_dev_upload(t->s, dst->data, tmp, vfm_nbytes(dst), err);
}

static int upload_table(struct vfm_t5 *t, const struct t5_block *b, float *tmp, struct vfm_err *err)
{
	const int64_t width = 2 * t->max_len - 1, heads = t->d.heads;
	float *by_bucket = vfm_malloc((size_t)b->bias->numel * sizeof(*by_bucket));
	int rc;

	vfm_weight_to_f32(b->bias, by_bucket);
	for (int64_t j = 0; j < width; j++) {
		const float *row = by_bucket + bucket_of(&t->d, j - (t->max_len - 1)) * heads;

		for (int64_t h = 0; h < heads; h++)
			tmp[h * width + j] = row[h];
	}
	rc = vfm_dev_upload(t->s, b->table.data, tmp, vfm_nbytes(&b->table), err);
	free(by_bucket);
	return rc;
}

static int place_small_tensors(struct vfm_t5 *t, struct vfm_err *err)
{
	struct vfm_suballoc count = {0}, give;
	size_t most = (size_t)(t->d.heads * (2 * t->max_len - 1)), dim = (size_t)t->d.dim;
	float *tmp;
	int rc = 0;

	place_small(t, &count);
	t->small_bytes = count.used;
	t->small = vfm_dev_alloc(t->s, t->small_bytes, "the norms of the text encoder", err);
	if (!t->small)
		return VFM_EENV;
	give = (struct vfm_suballoc){.base = t->small};
	place_small(t, &give);
	tmp = vfm_calloc(most > dim ? most : dim, sizeof(*tmp));
	TRY_OUT(upload_f32(t, &t->norm_w, t->norm, tmp, err));
	for (int64_t i = 0; i < t->d.layers; i++) {
		const struct t5_block *b = &t->block[i];

		TRY_OUT(upload_f32(t, &b->norm_w[0], b->norm[0], tmp, err));
		TRY_OUT(upload_f32(t, &b->norm_w[1], b->norm[1], tmp, err));
		if (b->bias)
			TRY_OUT(upload_table(t, b, tmp, err));
	}
out:
	free(tmp);
	return rc;
}

/* ---- matrices ---- */

static void place_matrices(struct vfm_t5 *t, struct vfm_suballoc *a, struct vfm_tensor w[T5_MATRICES])
{
	for (int k = 0; k < T5_MATRICES; k++)
		w[k] = vfm_sub_t2(a, t->dtype, t->block[0].m[k]->shape[0], t->block[0].m[k]->shape[1]);
}

/* Returns whether ops can read all matrices in the mapping. */
static bool suit_in_place(const struct vfm_t5 *t)
{
	if (!t->s->dev->host_memory)
		return false;
	for (int64_t i = 0; i < t->d.layers; i++)
		for (int k = 0; k < T5_MATRICES; k++) {
			const struct vfm_weight *w = t->block[i].m[k];

			if (w->dtype != t->dtype || (uintptr_t)w->data % vfm_dtype_size(w->dtype))
				return false;
		}
	return true;
}

/* Writes the converted matrices of a block to host memory of block_bytes. */
static void convert_block(struct vfm_t5 *t, const struct t5_block *b, char *host)
{
	struct vfm_suballoc at = {.base = host};
	struct vfm_tensor w[T5_MATRICES];

	place_matrices(t, &at, w);
	for (int k = 0; k < T5_MATRICES; k++) {
		convert_weight(b->m[k], t->dtype, w[k].data);
		vfm_weight_drop_pages(b->m[k]);
	}
}

static int place_resident(struct vfm_t5 *t, struct vfm_err *err)
{
	char *tmp = NULL;
	int rc = 0;

	t->big_bytes = t->block_bytes * (size_t)t->d.layers;
	t->big = vfm_dev_alloc(t->s, t->big_bytes, "the weights of the text encoder", err);
	if (!t->big)
		return VFM_EENV;
	if (!t->s->dev->host_memory) {
		tmp = vfm_big_alloc(t->block_bytes, "a block of the text encoder", err);
		if (!tmp)
			return VFM_EENV;
	}
	for (int64_t i = 0; i < t->d.layers; i++) {
		char *mem = t->big + (size_t)i * t->block_bytes;
		struct vfm_suballoc at = {.base = mem};

		convert_block(t, &t->block[i], tmp ? tmp : mem);
		if (tmp)
			TRY_OUT(vfm_dev_upload(t->s, mem, tmp, t->block_bytes, err));
		place_matrices(t, &at, t->block[i].w);
	}
out:
	vfm_big_free(tmp, t->block_bytes);
	return rc;
}

static int place_slots(struct vfm_t5 *t, struct vfm_err *err)
{
	const struct vfm_dev_table *dt = t->s->dev->t;
	const char *what = "streamed weights of the text encoder";

	if (!t->s->dev->host_memory) {
		t->copy = dt->stream_new(t->s->dev, true, err);
		if (!t->copy)
			return VFM_EENV;
	}
	for (int i = 0; i < 2; i++) {
		struct t5_slot *slot = &t->slot[i];

		slot->mem = vfm_dev_alloc(t->s, t->block_bytes, what, err);
		if (!slot->mem)
			return VFM_EENV;
		if (!t->copy)
			continue;
		slot->host = dt->alloc_host(t->s->dev, t->block_bytes, what, err);
		slot->used = dt->event_new(t->s->dev, err);
		slot->copied = slot->used ? dt->event_new(t->s->dev, err) : NULL;
		if (!slot->host || !slot->copied)
			return VFM_EENV;
		TRY(dt->event_record(slot->used, t->s, err));
	}
	return 0;
}

static int place_all(struct vfm_t5 *t, struct vfm_err *err)
{
	struct vfm_suballoc count = {0};
	struct vfm_tensor w[T5_MATRICES];

	TRY(place_small_tensors(t, err));
	place_matrices(t, &count, w);
	t->block_bytes = count.used;
	t->in_place = suit_in_place(t);
	if (t->in_place) {
		for (int64_t i = 0; i < t->d.layers; i++)
			for (int k = 0; k < T5_MATRICES; k++) {
				const struct vfm_weight *m = t->block[i].m[k];

				t->block[i].w[k] =
					vfm_t2((void *)(uintptr_t)m->data, t->dtype, m->shape[0], m->shape[1]);
			}
		return 0;
	}
	return t->stream ? place_slots(t, err) : place_resident(t, err);
}

int t5_place(struct vfm_t5 *t, struct vfm_err *err)
{
	int rc = t->placed ? 0 : place_all(t, err);

	if (rc < 0)
		t5_release(t);
	t->placed = rc >= 0;
	return rc;
}

void t5_release(struct vfm_t5 *t)
{
	const struct vfm_dev_table *dt = t->s->dev->t;
	struct vfm_err ignored;

	dt->stream_sync(t->s, &ignored);
	if (t->copy)
		dt->stream_sync(t->copy, &ignored);
	for (int i = 0; i < 2; i++) {
		struct t5_slot *slot = &t->slot[i];

		vfm_dev_free(t->s, slot->mem, t->block_bytes);
		if (slot->host)
			dt->free_host(t->s->dev, slot->host, t->block_bytes);
		if (slot->used)
			dt->event_free(slot->used);
		if (slot->copied)
			dt->event_free(slot->copied);
		*slot = (struct t5_slot){0};
	}
	dt->stream_free(t->copy);
	vfm_dev_free(t->s, t->small, t->small_bytes);
	vfm_dev_free(t->s, t->big, t->big_bytes);
	t->copy = NULL;
	t->small = t->big = NULL;
	t->placed = false;
}

/* ---- streaming ---- */

static bool is_streamed(const struct vfm_t5 *t)
{
	return t->stream && !t->in_place;
}

int t5_fetch(struct vfm_t5 *t, int64_t i, struct vfm_err *err)
{
	const struct vfm_dev_table *dt = t->s->dev->t;
	struct t5_slot *slot = &t->slot[i % 2];

	if (!is_streamed(t) || !t->copy || i >= t->d.layers)
		return 0;
	TRY(dt->event_sync(slot->copied, err)); /* the host memory is free again */
	convert_block(t, &t->block[i], slot->host);
	TRY(dt->event_wait(slot->used, t->copy, err));
	TRY(dt->to_device(t->copy, slot->mem, slot->host, t->block_bytes, err));
	return dt->event_record(slot->copied, t->copy, err);
}

int t5_arrive(struct vfm_t5 *t, int64_t i, struct vfm_tensor w[T5_MATRICES], struct vfm_err *err)
{
	struct t5_slot *slot = &t->slot[i % 2];
	struct vfm_suballoc at = {.base = slot->mem};

	if (!is_streamed(t)) {
		memcpy(w, t->block[i].w, sizeof(t->block[i].w));
		return 0;
	}
	place_matrices(t, &at, w);
	if (t->copy)
		return t->s->dev->t->event_wait(slot->copied, t->s, err);
	convert_block(t, &t->block[i], slot->mem);
	return 0;
}

int t5_leave(struct vfm_t5 *t, int64_t i, struct vfm_err *err)
{
	if (t->in_place)
		for (int k = 0; k < T5_MATRICES; k++)
			vfm_weight_drop_pages(t->block[i].m[k]);
	return t->copy ? t->s->dev->t->event_record(t->slot[i % 2].used, t->s, err) : 0;
}
