/* cudnn_attn.c - builds cuDNN's attention graphs, and times their plans. */
#include "device/cuda/cudnn_attn.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/stats.h"
#include "device/cuda/cuda_dev.h"
#include "device/cuda/cuda_stream.h"

/* ---- operands ---- */

static cudnnDataType_t cudnn_type(enum vfm_dtype t)
{
	return t == VFM_F32 ? CUDNN_DATA_FLOAT : CUDNN_DATA_BFLOAT16;
}

static bool has_key_rows(enum vfm_dnn_rows i)
{
	return i == VFM_DNN_K || i == VFM_DNN_V || i == VFM_DNN_DK || i == VFM_DNN_DV;
}

/* Adds a tensor: rows [tokens, heads, d] seen as [b, heads, s, d], or transposed as [b, heads, d, s]. */
static void add_row_tensor(struct vfm_dnn_attn *a, enum vfm_dnn_rows i, bool transposed)
{
	const struct vfm_dnn_attn_key *k = &a->key;
	int64_t s = has_key_rows(i) ? k->sk : k->sq, h = has_key_rows(i) ? k->hkv : k->h;
	cudnnDataType_t t = cudnn_type(i < VFM_DNN_DQ ? VFM_BF16 : i == VFM_DNN_DQ ? k->dq_type : k->dkv_type);

	if (k->ragged)
		a->offset[i] = vfm_dnn_tensor4(a->g, CUDNN_DATA_INT64, k->b + 1, 1, 1, 1, VFM_DNN_DEVICE);
	a->x[i] = transposed ? vfm_dnn_tensor(a->g, t, (int64_t[4]){k->b, h, k->d, s},
				       (int64_t[4]){s * k->row[i], k->d, 1, k->row[i]}, VFM_DNN_DEVICE, a->offset[i])
			     : vfm_dnn_tensor(a->g, t, (int64_t[4]){k->b, h, s, k->d},
				       (int64_t[4]){s * k->row[i], k->d, k->row[i], 1}, VFM_DNN_DEVICE, a->offset[i]);
}

/* Adds a tensor of one value for each query and head, with the layout of lse. */
static vfm_dnn_t add_stats(struct vfm_dnn_attn *a)
{
	const struct vfm_dnn_attn_key *k = &a->key;

	if (k->apart)
		return vfm_dnn_tensor4(a->g, CUDNN_DATA_FLOAT, k->b, k->h, k->sq, 1, VFM_DNN_DEVICE);
	return vfm_dnn_tensor(a->g, CUDNN_DATA_FLOAT, (int64_t[4]){k->b, k->h, k->sq, 1},
		(int64_t[4]){k->sq * k->lse_row, 1, k->lse_row, 1}, VFM_DNN_DEVICE, a->lse_offset);
}

static void add_operands(struct vfm_dnn_attn *a)
{
	const struct vfm_dnn_attn_key *k = &a->key;

	a->scale = vfm_dnn_tensor4(a->g, CUDNN_DATA_FLOAT, 1, 1, 1, 1, VFM_DNN_HOST);
	if (k->ragged) {
		if (!k->unified)
			a->none = vfm_dnn_tensor4(a->g, CUDNN_DATA_FLOAT, 1, 1, 1, 1, VFM_DNN_HOST);
		a->len_q = vfm_dnn_tensor4(a->g, CUDNN_DATA_INT32, k->b, 1, 1, 1, VFM_DNN_DEVICE);
		a->len_k = vfm_dnn_tensor4(a->g, CUDNN_DATA_INT32, k->b, 1, 1, 1, VFM_DNN_DEVICE);
		if (!k->apart)
			a->lse_offset = vfm_dnn_tensor4(a->g, CUDNN_DATA_INT64, k->b + 1, 1, 1, 1, VFM_DNN_DEVICE);
	}
	add_row_tensor(a, VFM_DNN_Q, false);
	add_row_tensor(a, VFM_DNN_K, !k->unified);
	add_row_tensor(a, VFM_DNN_V, k->bwd);
	add_row_tensor(a, VFM_DNN_O, false);
	a->lse = add_stats(a);
}

/* S = scale Q K^T [b, h, sq, sk]; -inf beyond the lengths. */
static vfm_dnn_t score_node(struct vfm_dnn_attn *a)
{
	struct vfm_dnn_graph *g = a->g;
	struct vfm_dnn_mnk len = {.m = a->len_q, .n = a->len_k, .zero_rest = a->key.ragged && !a->key.bwd};
	vfm_dnn_t s = vfm_dnn_matmul(g, a->x[VFM_DNN_Q], a->x[VFM_DNN_K], len, 0), row, col;

	s = vfm_dnn_pw(g, CUDNN_POINTWISE_MUL, s, a->scale, 0);
	if (!a->key.ragged)
		return s;
	row = vfm_dnn_index(g, s, 2);
	col = vfm_dnn_index(g, s, 3);
	row = vfm_dnn_logic(g, CUDNN_POINTWISE_CMP_LT, row, a->len_q);
	col = vfm_dnn_logic(g, CUDNN_POINTWISE_CMP_LT, col, a->len_k);
	return vfm_dnn_select(g, vfm_dnn_logic(g, CUDNN_POINTWISE_LOGICAL_AND, row, col), s, a->none);
}

/* ---- graphs ---- */

/* O = softmax(S) V, lse = max + log(sum of exp(S - max)). */
static void build_forward(struct vfm_dnn_attn *a)
{
	const struct vfm_dnn_attn_key *k = &a->key;
	struct vfm_dnn_graph *g = a->g;
	vfm_dnn_t p = vfm_dnn_tensor4(g, CUDNN_DATA_BFLOAT16, k->b, k->h, k->sq, k->sk, VFM_DNN_VIRTUAL), s, max, e,
		  sum;

	s = score_node(a);
	max = vfm_dnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, 0);
	e = vfm_dnn_pw(g, CUDNN_POINTWISE_EXP, vfm_dnn_pw(g, CUDNN_POINTWISE_SUB, s, max, 0), 0, 0);
	sum = vfm_dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, 0);
	vfm_dnn_pw(g, CUDNN_POINTWISE_ADD, max, vfm_dnn_pw(g, CUDNN_POINTWISE_LOG, sum, 0, 0), a->lse);
	vfm_dnn_pw(g, CUDNN_POINTWISE_DIV, e, sum, p);
	vfm_dnn_matmul(g, p, a->x[VFM_DNN_V], (struct vfm_dnn_mnk){.m = a->len_q, .k = a->len_k}, a->x[VFM_DNN_O]);
}

/* [b, h, sq, sk] f32 -> [b, h, sk, sq] bf16 */
static vfm_dnn_t add_transpose(struct vfm_dnn_attn *a, vfm_dnn_t x)
{
	const struct vfm_dnn_attn_key *k = &a->key;

	return vfm_dnn_reshape(a->g, x,
		vfm_dnn_tensor(a->g, CUDNN_DATA_BFLOAT16, (int64_t[4]){k->b, k->h, k->sk, k->sq},
			(int64_t[4]){k->h * k->sq * k->sk, k->sq * k->sk, 1, k->sk}, VFM_DNN_VIRTUAL, 0));
}

/* out[i] = x^T y: dk or dv.  If query heads share a head of keys, *all first receives the gradient of each. */
static void key_grad(struct vfm_dnn_attn *a, enum vfm_dnn_rows i, vfm_dnn_t x, vfm_dnn_t y, vfm_dnn_t *all)
{
	const struct vfm_dnn_attn_key *k = &a->key;
	struct vfm_dnn_mnk len = {.m = a->len_k, .k = a->len_q};
	int64_t share = k->h / k->hkv, row = k->row[i] * share;

	if (share == 1) {
		vfm_dnn_matmul(a->g, add_transpose(a, x), y, len, a->x[i]);
		return;
	}
	/* cuDNN multiplies the offsets of the sum by `share` for this tensor */
	*all = k->ragged && !k->apart
		? vfm_dnn_tensor(a->g, CUDNN_DATA_BFLOAT16, (int64_t[4]){k->b, k->h, k->sk, k->d},
			  (int64_t[4]){k->sk * row, k->d, row, 1}, VFM_DNN_DEVICE, a->offset[i])
		: vfm_dnn_tensor4(a->g, CUDNN_DATA_BFLOAT16, k->b, k->h, k->sk, k->d, VFM_DNN_VIRTUAL);
	vfm_dnn_matmul(a->g, add_transpose(a, x), y, len, *all);
	vfm_dnn_reduce(a->g, CUDNN_REDUCE_TENSOR_ADD, *all, a->x[i]);
	if (!k->ragged || k->apart)
		*all = 0;
}

/* dQ = dS K */
static void query_grad(struct vfm_dnn_attn *a, vfm_dnn_t ds)
{
	const struct vfm_dnn_attn_key *k = &a->key;
	int64_t row = k->row[VFM_DNN_K];
	struct vfm_dnn_mnk len = {.m = a->len_q, .k = a->len_k};
	vfm_dnn_t keys = vfm_dnn_tensor(a->g, CUDNN_DATA_BFLOAT16, (int64_t[4]){k->b, k->hkv, k->sk, k->d},
		(int64_t[4]){k->sk * row, k->d, row, 1}, VFM_DNN_VIRTUAL, a->offset[VFM_DNN_K]);

	vfm_dnn_reshape(a->g, a->x[VFM_DNN_K], keys);
	if (k->deterministic) { /* several blocks add to no sum in memory */
		vfm_dnn_matmul(a->g, ds, keys, len, a->x[VFM_DNN_DQ]);
		return;
	}
	row = k->row[VFM_DNN_DQ];
	a->dq_sum = k->ragged && !k->apart
		? vfm_dnn_tensor(a->g, CUDNN_DATA_FLOAT, (int64_t[4]){k->b, k->h, k->sq, k->d},
			  (int64_t[4]){k->sq * row, k->d, row, 1}, VFM_DNN_DEVICE, a->offset[VFM_DNN_DQ])
		: vfm_dnn_tensor4(a->g, CUDNN_DATA_FLOAT, k->b, k->h, k->sq, k->d, VFM_DNN_DEVICE);
	vfm_dnn_matmul(a->g, ds, keys, len, a->dq_sum);
	vfm_dnn_pw(a->g, CUDNN_POINTWISE_IDENTITY, a->dq_sum, 0, a->x[VFM_DNN_DQ]);
}

/* P = exp(S - lse), dV = P^T dO, dS = scale P (dO V^T - rowsum(dO O)), dK = dS^T Q, dQ = dS K. */
static void build_backward(struct vfm_dnn_attn *a)
{
	const struct vfm_dnn_attn_key *k = &a->key;
	struct vfm_dnn_graph *g = a->g;
	vfm_dnn_t p, ds;

	add_row_tensor(a, VFM_DNN_DOUT, false);
	for (int i = VFM_DNN_DQ; i <= VFM_DNN_DV; i++)
		add_row_tensor(a, (enum vfm_dnn_rows)i, false);
	a->one = vfm_dnn_tensor4(g, CUDNN_DATA_FLOAT, 1, 1, 1, 1, VFM_DNN_HOST);
	a->dsum = k->ragged ? add_stats(a) : vfm_dnn_tensor4(g, CUDNN_DATA_FLOAT, k->b, k->h, k->sq, 1, VFM_DNN_DEVICE);
	ds = vfm_dnn_pw(g, CUDNN_POINTWISE_MUL, a->x[VFM_DNN_DOUT], a->x[VFM_DNN_O], 0);
	vfm_dnn_pw(g, CUDNN_POINTWISE_MUL, vfm_dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, ds, 0), a->one, a->dsum);
	p = vfm_dnn_pw(g, CUDNN_POINTWISE_EXP, vfm_dnn_pw(g, CUDNN_POINTWISE_SUB, score_node(a), a->lse, 0), 0, 0);
	key_grad(a, VFM_DNN_DV, p, a->x[VFM_DNN_DOUT], &a->dv_all);
	ds = vfm_dnn_matmul(
		g, a->x[VFM_DNN_DOUT], a->x[VFM_DNN_V], (struct vfm_dnn_mnk){.m = a->len_q, .n = a->len_k}, 0);
	ds = vfm_dnn_pw(g, CUDNN_POINTWISE_MUL, vfm_dnn_pw(g, CUDNN_POINTWISE_SUB, ds, a->dsum, 0), p, 0);
	ds = vfm_dnn_pw(g, CUDNN_POINTWISE_MUL, ds, a->scale, 0);
	key_grad(a, VFM_DNN_DK, ds, a->x[VFM_DNN_Q], &a->dk_all);
	query_grad(a, ds);
}

struct vfm_dnn_attn *vfm_dnn_attn_new(
	const struct vfm_dnn_on *on, const struct vfm_dnn_attn_key *key, int most, struct vfm_err *err)
{
	struct vfm_dnn_attn *a = vfm_calloc(1, sizeof(*a));

	a->key = *key;
	a->g = vfm_dnn_new(on);
	add_operands(a);
	if (key->bwd)
		build_backward(a);
	else if (key->unified)
		vfm_dnn_sdpa(a->g,
			&(struct vfm_dnn_sdpa){a->x[VFM_DNN_Q], a->x[VFM_DNN_K], a->x[VFM_DNN_V], a->x[VFM_DNN_O],
				a->lse, a->scale, a->len_q, a->len_k});
	else
		build_forward(a);
	if (vfm_dnn_build(a->g, key->bwd && key->deterministic, most, err) < 0) {
		vfm_dnn_attn_free(a);
		return NULL;
	}
	return a;
}

void vfm_dnn_attn_free(struct vfm_dnn_attn *a)
{
	if (a)
		vfm_dnn_free(a->g);
	free(a);
}

struct vfm_dnn_attn_scratch vfm_dnn_attn_scratch(const struct vfm_dnn_attn *a, int64_t tq, int64_t tk)
{
	const struct vfm_dnn_attn_key *k = &a->key;
	bool packed = k->ragged && !k->apart;
	size_t rows_q = (size_t)(packed ? tq : k->b * k->sq);

	return (struct vfm_dnn_attn_scratch){
		.dsum = a->dsum ? rows_q * (size_t)(packed ? k->lse_row : k->h) * 4 : 0,
		.dq_sum = a->dq_sum ? rows_q * (size_t)(packed ? k->row[VFM_DNN_DQ] : k->h * k->d) * 4 : 0,
		.dkv_all = a->dk_all ? (size_t)tk *
				(size_t)(k->row[VFM_DNN_DK] > k->row[VFM_DNN_DV] ? k->row[VFM_DNN_DK]
										 : k->row[VFM_DNN_DV]) *
				(size_t)(k->h / k->hkv) * 2
				     : 0,
		.workspace = (size_t)vfm_dnn_facts(a->g).workspace,
	};
}

/* ---- choice among the plans of a graph by time ---- */

/* Runs that are timed, whose median counts; calls in each, so that none waits for the host. */
enum { RUNS = 3, TIMES = 3 };

/* The plans of a graph with the operands of a call. */
struct plan_timing {
	struct vfm_stream *s;
	struct vfm_dnn_graph *g;
	const struct vfm_dnn_bind *b;
	int n;
	void *workspace;
	struct vfm_event *from, *to;
};

/* Calls plan i some times.  *seconds: of one call; infinity if cuDNN refuses it. */
static int time_run(const struct plan_timing *m, int i, double *seconds, struct vfm_err *err)
{
	const struct vfm_dev_table *t = m->s->dev->t;
	struct vfm_err why = {0};

	*seconds = INFINITY;
	TRY(t->event_record(m->from, m->s, err));
	for (int k = 0; k < TIMES; k++)
		if (vfm_dnn_run(m->g, i, vfm_cuda_stream(m->s), m->b, m->n, m->workspace, &why) < 0) {
			vfm_cuda_launched(m->s, "cuDNN", NULL); /* forgets a launch that was refused */
			return t->stream_sync(m->s, err);
		}
	TRY(t->event_record(m->to, m->s, err));
	TRY(t->event_sync(m->to, err));
	TRY(t->event_elapsed(m->from, m->to, seconds, err));
	*seconds /= TIMES;
	return 0;
}

/* Sets *seconds to the median of the runs of plan i; stops early if it takes far more than `best`. */
static int time_plan(const struct plan_timing *m, int i, double best, double *seconds, struct vfm_err *err)
{
	double x[RUNS];
	int n = 0;

	TRY(time_run(m, i, seconds, err)); /* loads the kernels */
	while (n < RUNS && isfinite(*seconds)) {
		TRY(time_run(m, i, &x[n++], err));
		if (x[0] > 1.25 * best)
			break;
	}
	if (n)
		*seconds = vfm_spread_of(x, (size_t)n).median;
	return 0;
}

/* Chooses a plan, with the events at hand. */
static int choose_plan(const struct plan_timing *m, struct vfm_err *err)
{
	int plans = vfm_dnn_facts(m->g).plans, keep = 0;
	double best = INFINITY, seconds;

	TRY(m->s->dev->t->stream_sync(m->s, err));
	(void)vfm_cuda_idle(vfm_cuda_of(m->s), 0.1);
	for (int i = 0; i < plans; i++) {
		TRY(time_plan(m, i, best, &seconds, err));
		if (seconds < 0.97 * best) {
			best = seconds;
			keep = i;
		}
	}
	vfm_dnn_use(m->g, keep);
	return 0;
}

int vfm_dnn_tune(struct vfm_stream *s, struct vfm_dnn_graph *g, const struct vfm_dnn_bind *b, int n, void *workspace,
	struct vfm_err *err)
{
	const struct vfm_dev_table *t = s->dev->t;
	struct plan_timing m = {s, g, b, n, workspace, t->event_new_timed(s->dev, err), NULL};
	int rc;

	m.to = m.from ? t->event_new_timed(s->dev, err) : NULL;
	rc = m.to ? choose_plan(&m, err) : VFM_EENV;
	if (rc < 0)
		t->stream_sync(s, NULL); /* events must have passed before they are freed */
	if (m.from)
		t->event_free(m.from);
	if (m.to)
		t->event_free(m.to);
	return rc;
}
