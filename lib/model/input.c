#include "model/input.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "nn/layers.h"

/* Hands out 64-byte aligned pieces of one block; the first pass, with base NULL, only counts. */
struct carve {
	char *base;
	size_t used;
};

static void *carve(struct carve *c, int64_t n, enum vfm_dtype dt)
{
	void *p = c->base ? c->base + c->used : NULL;

	c->used += ((size_t)n * vfm_dtype_size(dt) + 63) / 64 * 64;
	return p;
}

static void place(struct vfm_model_in *in, const struct vfm_model_spec *m, const struct vfm_pack *p, enum vfm_dtype dt, struct carve *c)
{
	int64_t f = vfm_model_patch_dim(m), hd = vfm_model_head_dim(m);

	in->x = vfm_t2(carve(c, p->tokens * f, dt), dt, p->tokens, f);
	in->t_cond = vfm_t1(carve(c, p->n, VFM_F32), VFM_F32, p->n);
	in->id = vfm_t1(carve(c, p->n, VFM_I64), VFM_I64, p->n);
	in->idx = vfm_t1(carve(c, p->tokens, VFM_I32), VFM_I32, p->tokens);
	in->seqs.seg = vfm_t1(carve(c, p->tokens, VFM_I32), VFM_I32, p->tokens);
	in->seqs.dev_cu = vfm_t1(carve(c, p->n + 1, VFM_I32), VFM_I32, p->n + 1);
	in->text_seqs.dev_cu = vfm_t1(carve(c, p->n + 1, VFM_I32), VFM_I32, p->n + 1);
	in->text = vfm_t2(carve(c, p->text_tokens * m->text_dim, VFM_F32), VFM_F32, p->text_tokens, m->text_dim);
	if (m->pooled_text)
		in->text_mean = vfm_t2(carve(c, p->n * m->text_dim, VFM_F32), VFM_F32, p->n, m->text_dim);
	if (m->pos != VFM_POS_SINCOS)
		in->rope = vfm_t2(carve(c, p->tokens * hd, VFM_F32), VFM_F32, p->tokens, hd);
	if (m->pos != VFM_POS_ROPE)
		in->pos_embed = vfm_t2(carve(c, p->tokens * m->hidden, VFM_F32), VFM_F32, p->tokens, m->hidden);
}

static void seqs_fill(struct vfm_seqs *q, int n, int32_t *cu)
{
	q->n = n;
	q->cu = cu;
	q->total = cu[n];
	q->max_len = 0;
	for (int i = 0; i < n; i++)
		if (cu[i + 1] - cu[i] > q->max_len)
			q->max_len = cu[i + 1] - cu[i];
}

static int put(struct vfm_model_in *in, const struct vfm_tensor *dst, const void *host, struct vfm_err *err)
{
	return in->stream->dev->t->to_device(in->stream, dst->data, host, vfm_nbytes(dst), err);
}

/* The mean of each sample's text rows; zero for a dropped sample. */
static void pool_text(float *mean, const struct vfm_pack *p, const bool *dropped, int64_t dim)
{
	memset(mean, 0, (size_t)p->n * (size_t)dim * sizeof(float));
	for (int i = 0; i < p->n; i++) {
		int32_t rows = p->cu_text[i + 1] - p->cu_text[i];

		if (rows == 0 || (dropped && dropped[i]))
			continue;
		for (int64_t r = p->cu_text[i]; r < p->cu_text[i + 1]; r++)
			for (int64_t j = 0; j < dim; j++)
				mean[i * dim + j] += p->text[r * dim + j] / (float)rows;
	}
}

static int put_text(struct vfm_model_in *in, const struct vfm_model_spec *m, const struct vfm_pack *p, const bool *dropped, float *host,
	struct vfm_err *err)
{
	const struct vfm_dev_table *t = in->stream->dev->t;

	TRY(put(in, &in->text, p->text, err));
	for (int i = 0; dropped && i < p->n; i++) {
		size_t row = (size_t)m->text_dim * sizeof(float), first = (size_t)p->cu_text[i];

		if (dropped[i])
			TRY(t->zero(in->stream, (char *)in->text.data + first * row, ((size_t)p->cu_text[i + 1] - first) * row, err));
	}
	if (!vfm_has(&in->text_mean))
		return 0;
	pool_text(host, p, dropped, m->text_dim);
	return put(in, &in->text_mean, host, err);
}

static int upload(struct vfm_model_in *in, const struct vfm_model_spec *m, const struct vfm_pack *p, const bool *dropped, float *host,
	struct vfm_err *err)
{
	TRY(put(in, &in->id, p->id, err));
	TRY(put(in, &in->idx, p->idx, err));
	TRY(put(in, &in->seqs.seg, p->seg, err));
	TRY(put(in, &in->seqs.dev_cu, p->cu_seqlens, err));
	TRY(put(in, &in->text_seqs.dev_cu, p->cu_text, err));
	TRY(put_text(in, m, p, dropped, host, err));
	if (vfm_has(&in->rope)) {
		vfm_rope_table(host, p->pos, p->tokens, vfm_model_head_dim(m), m->rope_theta);
		TRY(put(in, &in->rope, host, err));
	}
	if (vfm_has(&in->pos_embed)) {
		TRY(in->stream->dev->t->stream_sync(in->stream, err)); /* host is used again */
		vfm_sincos_table(host, p->pos, p->tokens, m->hidden);
		TRY(put(in, &in->pos_embed, host, err));
	}
	return in->stream->dev->t->stream_sync(in->stream, err);
}

int vfm_model_in_make(struct vfm_model_in *in, struct vfm_stream *s, const struct vfm_model_spec *m, const struct vfm_pack *p,
	const bool *dropped, enum vfm_dtype dtype, struct vfm_err *err)
{
	struct carve c = {0};
	size_t host_n, cu = ((size_t)p->n + 1) * sizeof(int32_t);
	float *host;
	int rc;

	*in = (struct vfm_model_in){.stream = s};
	place(in, m, p, dtype, &c);
	in->bytes = c.used;
	in->mem = vfm_dev_alloc(s, in->bytes, "a pack of samples", err);
	if (!in->mem)
		return VFM_EENV;
	c = (struct carve){.base = in->mem};
	place(in, m, p, dtype, &c);

	in->host_cu = vfm_malloc(cu);
	in->host_cu_text = vfm_malloc(cu);
	memcpy(in->host_cu, p->cu_seqlens, cu);
	memcpy(in->host_cu_text, p->cu_text, cu);
	seqs_fill(&in->seqs, p->n, in->host_cu);
	seqs_fill(&in->text_seqs, p->n, in->host_cu_text);

	host_n = (size_t)(p->tokens * (m->hidden > 128 ? m->hidden : 128) + p->n * m->text_dim);
	host = vfm_big_alloc(host_n * sizeof(float), "position tables", err);
	if (!host) {
		rc = VFM_EENV;
		goto out;
	}
	rc = upload(in, m, p, dropped, host, err);
	vfm_big_free(host, host_n * sizeof(float));
out:
	if (rc < 0)
		vfm_model_in_release(in);
	return rc;
}

void vfm_model_in_release(struct vfm_model_in *in)
{
	if (in->stream)
		vfm_dev_free(in->stream, in->mem, in->bytes);
	free(in->host_cu);
	free(in->host_cu_text);
	*in = (struct vfm_model_in){0};
}
