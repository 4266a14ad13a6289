/* vae_attn.c - self-attention over the pixels of a frame, over time, and over the pixels of all frames so far. */
#include "base/mem.h"
#include "encoder/vae/vae_impl.h"

#define SCORES ((int64_t)32 << 20) /* bytes of attention scores at a time */

/* ---- over the pixels of a frame ---- */

/* Rows [first, first + n) of softmax(q k^T) v, the scale being in q; `scores` f32 and `p` in the dtype of the run have
 * room for n rows (p NULL: f32). */
static int attend_rows(struct vae_run *r, const struct vfm_tensor *qkv, int64_t dim, int64_t first, int64_t n,
	void *scores, void *p, const struct vfm_tensor *o, struct vfm_err *err)
{
	const struct vfm_tensor q = vfm_cols(qkv, 0, dim), k = vfm_cols(qkv, dim, dim), v = vfm_cols(qkv, 2 * dim, dim);
	const struct vfm_tensor sc = vfm_t2(scores, VFM_F32, n, qkv->shape[0]);
	const struct vfm_tensor pr = p ? vfm_t2(p, r->dtype, n, qkv->shape[0]) : sc;

	TRY(vfm_op_gemm(
		r->s, &(struct vfm_gemm){.a = vfm_row_slice(&q, first, n), .b = k, .trans_b = true, .c = sc}, err));
	TRY(vfm_op_softmax(r->s, &(struct vfm_softmax){.x = sc, .y = sc}, err));
	if (p)
		TRY(vfm_op_axpby(r->s, &(struct vfm_axpby){.alpha = 1, .x = sc, .y = pr}, err));
	return vfm_op_gemm(r->s, &(struct vfm_gemm){.a = pr, .b = v, .c = vfm_row_slice(o, first, n)}, err);
}

/* o = softmax(q k^T) v over all pixels of a frame, in blocks of rows. */
static int attend_frame(
	struct vae_run *r, const struct vfm_tensor *qkv, int64_t dim, const struct vfm_tensor *o, struct vfm_err *err)
{
	const int64_t n = qkv->shape[0], most = SCORES / (n * (int64_t)sizeof(float));
	const int64_t rows = most < 64 ? 64 : most < n ? most : n;
	const size_t scores = (size_t)(rows * n) * sizeof(float), half = (size_t)(rows * n) * sizeof(uint16_t);
	struct vae_frame *sc = NULL, *p = NULL;
	int rc = vae_frame_bytes(r, scores, &sc, err);

	if (rc >= 0 && r->dtype != VFM_F32)
		rc = vae_frame_bytes(r, half, &p, err);
	for (int64_t i = 0; i < n && rc >= 0; i += rows)
		rc = attend_rows(r, qkv, dim, i, n - i < rows ? n - i : rows, sc->t.data, p ? p->t.data : NULL, o, err);
	vae_frame_drop(r, p);
	vae_frame_drop(r, sc);
	return rc;
}

int vae_layer_attn(
	struct vae_run *r, const struct vae_layer *l, struct vae_frame *x, struct vae_frame **y, struct vfm_err *err)
{
	const int64_t h = x->t.shape[1], w = x->t.shape[2];
	struct vae_frame *a = NULL, *qkv = NULL;
	struct vfm_tensor rows, o;
	int rc;

	TRY_OUT(vae_frame_new(r, h, w, l->in, &a, err));
	TRY_OUT(vae_run_norm(r, &l->norm[0], VFM_ACT_NONE, x, a, err));
	TRY_OUT(vae_run_conv(r, &l->conv[0], NULL, a, NULL, &qkv, err));
	rows = vae_frame_rows(qkv);
	o = vae_frame_rows(a);
	TRY_OUT(attend_frame(r, &rows, l->in, &o, err));
	TRY_OUT(vae_frame_own(r, &x, err));
	TRY_OUT(vae_run_conv(r, &l->conv[1], NULL, a, x, &x, err));
	*y = x;
	x = NULL;
out:
	vae_frame_drop(r, a);
	vae_frame_drop(r, qkv);
	vae_frame_drop(r, x);
	return rc;
}

/* ---- over time ---- */

/* Rows [N, C] as [N, 1, C], one head. */
static struct vfm_tensor one_head(const struct vfm_tensor *rows)
{
	struct vfm_tensor t = vfm_t3(rows->data, rows->dtype, rows->shape[0], 1, rows->shape[1]);

	t.stride[0] = rows->stride[0];
	return t;
}

/* o [N, C] f32 = the sum over the frames i so far of softmax_i(q k_i) v_i, the scale being in q: frame after frame, as
 * attention over one key each, merged.  lse, score: [N] f32. */
static int attend_frames(struct vae_run *r, const struct vae_layer_state *st, const struct vfm_tensor *q, float *lse,
	float *score, const struct vfm_tensor *o, struct vfm_err *err)
{
	const int64_t n = q->shape[0], dim = q->shape[1];

	for (size_t i = 0; i < st->n_kv; i++) {
		const struct vfm_tensor kv = vae_frame_rows(st->kv[i]);
		const struct vfm_tensor k = vfm_cols(&kv, 0, dim), v = vfm_cols(&kv, dim, dim);

		TRY(vfm_op_row_dot(r->s,
			&(struct vfm_row_dot){.x = one_head(q), .y = one_head(&k), .out = vfm_t1(score, VFM_F32, n)},
			err));
		TRY(vfm_op_attn_merge(r->s,
			&(struct vfm_attn_merge){.o = one_head(o),
				.lse = vfm_t2(lse, VFM_F32, n, 1),
				.o_b = one_head(&v),
				.lse_b = vfm_t2(score, VFM_F32, n, 1),
				.first = i == 0},
			err));
	}
	return 0;
}

/* The same to y in the dtype of the run. */
static int attend_time(struct vae_run *r, const struct vae_layer_state *st, const struct vae_frame *q,
	const struct vae_frame *y, struct vfm_err *err)
{
	const struct vfm_tensor rows = vae_frame_rows(q), to = vae_frame_rows(y);
	const int64_t n = rows.shape[0], dim = rows.shape[1];
	const size_t sums = r->dtype == VFM_F32 ? 0 : (size_t)(n * dim), bytes = (sums + 2 * (size_t)n) * sizeof(float);
	struct vae_frame *mem;
	struct vfm_tensor o = to;
	float *f;
	int rc;

	TRY(vae_frame_bytes(r, bytes, &mem, err));
	f = mem->t.data;
	if (sums)
		o = vfm_t2(f + 2 * n, VFM_F32, n, dim);
	rc = attend_frames(r, st, &rows, f, f + n, &o, err);
	if (rc >= 0 && sums)
		rc = vfm_op_axpby(r->s, &(struct vfm_axpby){.alpha = 1, .x = o, .y = to}, err);
	vae_frame_drop(r, mem);
	return rc;
}

/* ---- over the pixels of all frames so far ---- */

/* Room for the scores of `rows` queries: f32, and in the dtype of the run if that is another; sums in f32 likewise. */
struct past_scores {
	struct vae_frame *mem;
	struct vfm_tensor scores, p, sums; /* [rows, n n_kv], the same, [rows, dim] */
};

static int begin_past_scores(
	struct vae_run *r, struct past_scores *s, int64_t rows, int64_t keys, int64_t dim, struct vfm_err *err)
{
	const bool half = r->dtype != VFM_F32;
	const size_t of_scores = (size_t)(rows * keys) * sizeof(float), of_p = half ? of_scores / 2 : 0,
		     of_sums = half ? (size_t)(rows * dim) * sizeof(float) : 0;
	char *at;

	TRY(vae_frame_bytes(r, of_scores + of_sums + of_p, &s->mem, err));
	at = s->mem->t.data;
	s->scores = vfm_t2(at, VFM_F32, rows, keys);
	s->sums = vfm_t2(at + of_scores, VFM_F32, rows, dim);
	s->p = half ? vfm_t2(at + of_scores + of_sums, r->dtype, rows, keys) : s->scores;
	return 0;
}

/* o = softmax(q k^T) v of some queries over the keys of all frames, the scale being in q. */
static int attend_past_rows(struct vae_run *r, const struct vae_layer_state *st, const struct vfm_tensor *q,
	const struct past_scores *s, const struct vfm_tensor *o, struct vfm_err *err)
{
	const int64_t n = q->shape[0], dim = q->shape[1], pixels = s->scores.shape[1] / (int64_t)st->n_kv;
	const struct vfm_tensor scores = vfm_row_slice(&s->scores, 0, n), p = vfm_row_slice(&s->p, 0, n);
	const bool half = r->dtype != VFM_F32;
	const struct vfm_tensor sums = half ? vfm_row_slice(&s->sums, 0, n) : *o;

	for (size_t i = 0; i < st->n_kv; i++) {
		const struct vfm_tensor kv = vae_frame_rows(st->kv[i]);

		TRY(vfm_op_gemm(r->s,
			&(struct vfm_gemm){.a = *q,
				.b = vfm_cols(&kv, 0, dim),
				.trans_b = true,
				.c = vfm_cols(&scores, (int64_t)i * pixels, pixels)},
			err));
	}
	TRY(vfm_op_softmax(r->s, &(struct vfm_softmax){.x = scores, .y = scores}, err));
	if (half)
		TRY(vfm_op_axpby(r->s, &(struct vfm_axpby){.alpha = 1, .x = scores, .y = p}, err));
	for (size_t i = 0; i < st->n_kv; i++) {
		const struct vfm_tensor kv = vae_frame_rows(st->kv[i]);

		TRY(vfm_op_gemm(r->s,
			&(struct vfm_gemm){.a = vfm_cols(&p, (int64_t)i * pixels, pixels),
				.b = vfm_cols(&kv, dim, dim),
				.c = sums,
				.accumulate = i > 0},
			err));
	}
	return half ? vfm_op_axpby(r->s, &(struct vfm_axpby){.alpha = 1, .x = sums, .y = *o}, err) : 0;
}

/* The same for all pixels of a frame, in blocks of rows. */
static int attend_past(struct vae_run *r, const struct vae_layer_state *st, const struct vae_frame *q,
	const struct vae_frame *y, struct vfm_err *err)
{
	const struct vfm_tensor all = vae_frame_rows(q), to = vae_frame_rows(y);
	const int64_t n = all.shape[0], keys = n * (int64_t)st->n_kv, most = SCORES / (keys * (int64_t)sizeof(float));
	const int64_t rows = most < n ? (most < 64 ? 64 : most) : n;
	struct past_scores s = {0};
	int rc = begin_past_scores(r, &s, rows < n ? rows : n, keys, all.shape[1], err);

	for (int64_t i = 0; i < n && rc >= 0; i += rows) {
		const int64_t here = n - i < rows ? n - i : rows;
		const struct vfm_tensor some = vfm_row_slice(&all, i, here), o = vfm_row_slice(&to, i, here);

		rc = attend_past_rows(r, st, &some, &s, &o, err);
	}
	vae_frame_drop(r, s.mem);
	return rc;
}

int vae_layer_attn_past(struct vae_run *r, const struct vae_layer *l, struct vae_layer_state *st, struct vae_frame *x,
	struct vae_frame **y, struct vfm_err *err)
{
	struct vae_frame *a = NULL, *q = NULL, *kv = NULL;
	int rc;

	TRY_OUT(vae_frame_new(r, x->t.shape[1], x->t.shape[2], l->in, &a, err));
	TRY_OUT(vae_run_norm(r, &l->norm[0], VFM_ACT_NONE, x, a, err));
	TRY_OUT(vae_run_conv(r, &l->conv[0], NULL, a, NULL, &q, err));
	TRY_OUT(vae_frame_lasting(r, x->t.shape[1], x->t.shape[2], 2 * l->in, &kv, err));
	TRY_OUT(vae_run_conv(r, &l->conv[1], NULL, a, NULL, &kv, err));
	vfm_grow(&st->kv, &st->kv_cap, st->n_kv + 1, sizeof(*st->kv));
	st->kv[st->n_kv++] = kv;
	kv = NULL;
	TRY_OUT(l->kind == VAE_LAYER_ATTN_TIME ? attend_time(r, st, q, a, err) : attend_past(r, st, q, a, err));
	TRY_OUT(vae_frame_own(r, &x, err));
	TRY_OUT(vae_run_conv(r, &l->conv[2], NULL, a, x, &x, err));
	*y = x;
	x = NULL;
out:
	vae_frame_drop(r, a);
	vae_frame_drop(r, q);
	vae_frame_drop(r, kv);
	vae_frame_drop(r, x);
	return rc;
}
