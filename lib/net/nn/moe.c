/* moe.c - routing by token or expert choice, dispatch over ep, grouped products and combine.
 *
 * The host reads back only the tokens per expert; with expert choice it reads nothing if the rank holds whole packs and
 * all experts.
 */
#include "net/nn/moe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/coll/comm.h"
#include "device/dev/upload.h"
#include "io/hash.h"
#include "net/tape/node.h"
#include "spec/layout/tokens.h"

void vfm_moe_declare(
	struct vfm_moe *e, struct vfm_params *ps, int unit, const struct vfm_model_spec *m, const char *prefix)
{
	struct vfm_linear_desc router = {.unit = unit, .in = m->hidden, .out = m->experts, .no_bias = true};
	struct vfm_pdesc fc1 = {.ndim = 3, .shape = {m->experts, m->expert_ffn, m->hidden}};
	struct vfm_pdesc fc2 = {.ndim = 3, .shape = {m->experts, m->hidden, m->expert_ffn}};
	float std = (float)sqrt(2.0 / (double)(m->hidden + m->expert_ffn));

	*e = (struct vfm_moe){.experts = m->experts,
		.capacity = m->moe_capacity,
		.kind = m->moe_router,
		.id = vfm_fnv64(prefix, strlen(prefix))};
	fc1.cut[VFM_AX_EP] = fc2.cut[VFM_AX_EP] = (struct vfm_axis_cut){.groups = 1};
	vfm_linear_declare(&e->router, ps, &router, "%s.router", prefix);
	e->fc1 = vfm_param_add(ps, unit, &fc1, VFM_INIT_NORMAL, std, "%s.fc1.weight", prefix);
	e->fc2 = vfm_param_add(ps, unit, &fc2, VFM_INIT_NORMAL, std, "%s.fc2.weight", prefix);
	vfm_param_base(e->fc1);
	vfm_param_base(e->fc2);
}

/* ---- a pack ---- */

static void place_moe_in(struct vfm_moe_in *in, const struct vfm_model_spec *m, const struct vfm_tokens *tok, bool aux,
	struct vfm_suballoc *a)
{
	if (m->moe_router == VFM_MOE_TOKEN_CHOICE) {
		if (aux)
			in->coef = vfm_sub_t1(a, VFM_F32, tok->n);
		return;
	}
	in->all.dev_cu = vfm_sub_t1(a, VFM_I32, tok->n + 1);
	if (tok->cp > 1)
		in->order = vfm_sub_t1(a, VFM_I32, tok->total);
	if (tok->cp * tok->tp > 1)
		in->own = vfm_sub_t1(a, VFM_I32, tok->total);
}

static int put_moe_in(struct vfm_moe_in *in, const struct vfm_tensor *dst, const void *host, struct vfm_err *err)
{
	return vfm_dev_upload(in->stream, dst->data, host, vfm_nbytes(dst), err);
}

static int put_all(struct vfm_moe_in *in, const struct vfm_tokens *tok, const int32_t *cu, struct vfm_err *err)
{
	int32_t *order = vfm_calloc((size_t)tok->total + 1, sizeof(*order));
	int rc;

	TRY_OUT(put_moe_in(in, &in->all.dev_cu, cu, err));
	if (vfm_has(&in->order)) {
		vfm_tokens_pack_order(tok, order);
		TRY_OUT(put_moe_in(in, &in->order, order, err));
	}
	if (vfm_has(&in->own)) {
		memset(order, -1, (size_t)tok->total * sizeof(*order));
		for (int64_t i = 0; i < tok->rows; i++)
			order[tok->pack_row[tok->first + i]] = (int32_t)i;
		rc = put_moe_in(in, &in->own, order, err);
	}
out:
	free(order);
	return rc;
}

/* w alpha E / (n^2 k) with w = n / step_tokens */
static int fill_balance_coef(struct vfm_moe_in *in, const struct vfm_model_spec *m, const int32_t *cu,
	double step_tokens, struct vfm_err *err)
{
	int64_t n = in->coef.shape[0];
	float *coef = vfm_calloc((size_t)n + 1, sizeof(*coef));
	int rc;

	for (int64_t i = 0; i < n; i++)
		if (cu[i + 1] > cu[i])
			coef[i] = (float)(m->moe_aux * (double)m->experts /
				((double)(cu[i + 1] - cu[i]) * m->moe_capacity * step_tokens));
	rc = put_moe_in(in, &in->coef, coef, err);
	free(coef);
	return rc;
}

int vfm_moe_in_make(struct vfm_moe_in *in, struct vfm_stream *s, const struct vfm_mesh *mesh,
	const struct vfm_model_spec *m, const struct vfm_tokens *tok, const struct vfm_seqs *seqs, const int32_t *cu,
	double step_tokens, struct vfm_err *err)
{
	bool aux = m->moe_aux > 0 && step_tokens > 0;
	struct vfm_suballoc count = {0};

	*in = (struct vfm_moe_in){.mesh = mesh, .seqs = seqs, .stream = s};
	vfm_seqs_init(&in->all, tok->n, cu);
	place_moe_in(in, m, tok, aux, &count);
	in->bytes = count.used;
	in->mem = vfm_dev_alloc(s, in->bytes, "the routing of a pack", err);
	if (!in->mem)
		return VFM_EENV;
	place_moe_in(in, m, tok, aux, &(struct vfm_suballoc){.base = in->mem});
	if (m->moe_router == VFM_MOE_TOKEN_CHOICE)
		return vfm_has(&in->coef) ? fill_balance_coef(in, m, cu, step_tokens, err) : 0;
	in->rows = vfm_calloc((size_t)tok->cp * (size_t)tok->tp, sizeof(*in->rows));
	for (int i = 0; i < tok->cp * tok->tp; i++)
		in->rows[i] = vfm_tokens_rows(tok, i / tok->tp, i % tok->tp);
	return put_all(in, tok, cu, err);
}

void vfm_moe_in_release(struct vfm_moe_in *in)
{
	if (in->stream)
		vfm_dev_free(in->stream, in->mem, in->bytes);
	free(in->rows);
	*in = (struct vfm_moe_in){0};
}

/* ---- routing ---- */

/* The dispatch of this rank's tokens: (expert, row) pairs sorted by expert, then by row. */
struct dispatch {
	int64_t n;
	struct vfm_var *lists;   /* holds row and place */
	struct vfm_tensor row;   /* [n] i32 */
	struct vfm_tensor place; /* [n] i32: index of the pair in weights */
	int64_t *count;          /* [E], on the host; of the tape */
	struct vfm_var *weights; /* [all weights, 1] f32 */
};

static int new_indices(struct vfm_tape *t, int64_t n, struct vfm_var **x, struct vfm_err *err)
{
	*x = vfm_var_new(t, vfm_t1(NULL, VFM_I32, n));
	return vfm_tape_status(t, err);
}

static struct vfm_tensor ints_of(const struct vfm_var *x, int64_t first, int64_t n)
{
	return vfm_t1((int32_t *)x->v.data + first, VFM_I32, n);
}

/* Copies x to the host.  The host waits for the device, which it does nowhere else in a step. */
static int copy_to_host(struct vfm_tape *t, struct vfm_tensor x, int32_t *host, struct vfm_err *err)
{
	struct vfm_stream *s = vfm_tape_stream(t);

	TRY(s->dev->t->to_host(s, host, x.data, vfm_nbytes(&x), err));
	return s->dev->t->stream_sync(s, err);
}

/* Reads back the number of rows that this rank dispatches to each expert. */
static int read_counts(struct vfm_tape *t, struct vfm_tensor count, struct dispatch *v, struct vfm_err *err)
{
	int64_t E = vfm_numel(&count);
	int32_t *host = vfm_calloc((size_t)E + 1, sizeof(*host));
	int rc = copy_to_host(t, count, host, err);

	for (int64_t e = 0; e < E; e++) {
		v->count[e] = host[e];
		v->n += host[e];
	}
	free(host);
	return rc;
}

/* Gathers the scores of all rows of the pack, in the order of the pack.  They have no gradient: they only select
 * tokens. */
static int gather_scores(struct vfm_tape *t, struct vfm_tensor score, const struct vfm_moe_in *in,
	struct vfm_tensor *all, struct vfm_err *err)
{
	struct vfm_comm *seq = in->mesh->seq;
	int64_t E = score.shape[1], *count;
	struct vfm_index_select sort = {.index = in->order};
	struct vfm_var *y;

	*all = score;
	if (seq->size == 1)
		return 0;
	count = vfm_tape_alloc(t, (size_t)seq->size * sizeof(*count));
	for (int i = 0; i < seq->size; i++)
		count[i] = in->rows[i] * E;
	y = vfm_var_new(t, vfm_t2(NULL, VFM_F32, in->all.total, E));
	TRY(vfm_tape_status(t, err));
	TRY(vfm_all_gather(seq, vfm_tape_stream(t), score, y->v, count, err));
	*all = y->v;
	if (!vfm_has(&in->order))
		return 0;
	sort.x = y->v;
	y = vfm_var_new(t, vfm_like(&sort.x, VFM_F32));
	TRY(vfm_tape_status(t, err));
	sort.y = *all = y->v;
	return vfm_op_index_select(vfm_tape_stream(t), &sort, err);
}

/* Expert choice.  If this rank holds the whole pack, the counts follow from the lengths of its samples. */
static int choose_tokens(struct vfm_tape *t, const struct vfm_moe *e, struct vfm_var *score,
	const struct vfm_moe_in *in, struct dispatch *v, struct vfm_err *err)
{
	int64_t E = e->experts, K = vfm_moe_pack_capacity(&in->all, E, e->capacity), T = score->v.shape[0];
	struct vfm_moe_topk_expert top = {.capacity = e->capacity, .seqs = &in->all};
	struct vfm_moe_own own = {.own = in->own, .own_rows = T};
	struct vfm_var *x;

	TRY(gather_scores(t, score->v, in, &top.score, err));
	TRY(new_indices(t, E * K, &x, err));
	top.index = own.index = vfm_t2(x->v.data, VFM_I32, E, K);
	TRY(new_indices(t, 2 * E * K + E, &v->lists, err));
	own.row = ints_of(v->lists, 0, E * K);
	own.place = ints_of(v->lists, E * K, E * K);
	own.count = ints_of(v->lists, 2 * E * K, E);
	TRY(vfm_op_moe_topk_expert(vfm_tape_stream(t), &top, err));
	TRY(vfm_op_moe_own(vfm_tape_stream(t), &own, err));
	if (in->mesh->seq->size > 1)
		TRY(read_counts(t, own.count, v, err));
	else
		v->n = E * K;
	for (int64_t i = 0; i < E && in->mesh->seq->size == 1; i++)
		v->count[i] = K;
	v->row = ints_of(v->lists, 0, v->n);
	v->place = ints_of(v->lists, E * K, v->n);
	v->weights = vfm_view(t, score, vfm_t2(score->v.data, VFM_F32, T * E, 1));
	return 0;
}

static int choose_experts(struct vfm_tape *t, const struct vfm_moe *e, struct vfm_var *score, struct vfm_tensor *chosen,
	struct dispatch *v, struct vfm_err *err)
{
	int64_t E = e->experts, k = (int64_t)e->capacity, n = score->v.shape[0] * k;
	struct vfm_var *weight = vfm_g_moe_topk_token(t, score, k, chosen);
	struct vfm_moe_sort sort = {.buckets = E, .div = k};

	TRY(vfm_tape_status(t, err));
	TRY(new_indices(t, 2 * n + E, &v->lists, err));
	sort.key = vfm_t1(chosen->data, VFM_I32, n);
	sort.source = v->row = ints_of(v->lists, 0, n);
	sort.order = v->place = ints_of(v->lists, n, n);
	sort.count = ints_of(v->lists, 2 * n, E);
	vfm_tape_stream(t)->dev->routing = e->id;
	TRY(vfm_op_moe_sort(vfm_tape_stream(t), &sort, err));
	TRY(read_counts(t, sort.count, v, err));
	v->weights = vfm_view(t, weight, vfm_t2(weight->v.data, VFM_F32, n, 1));
	return 0;
}

static int balance(struct vfm_tape *t, const struct vfm_moe *e, struct vfm_var *score, struct vfm_tensor chosen,
	const struct vfm_moe_in *in, struct vfm_err *err)
{
	struct vfm_var *count = vfm_var_new(t, vfm_t2(NULL, VFM_F32, in->seqs->n, e->experts));
	struct vfm_moe_count a = {.expert = chosen, .seqs = in->seqs};

	TRY(vfm_tape_status(t, err));
	a.count = count->v;
	TRY(vfm_op_moe_count(vfm_tape_stream(t), &a, err));
	TRY(vfm_all_reduce(in->mesh->seq, vfm_tape_stream(t), vfm_t1(a.count.data, VFM_F32, vfm_numel(&a.count)), err));
	return vfm_g_moe_balance(t, score, count, in->coef, in->seqs, in->loss);
}

/* ---- dispatch and combine ---- */

/* Keeps index lists on the device until the backward of the ops recorded after this, which read them.  A node without a
 * backward holds them, also if only parameters after x have gradients. */
static void hold_lists(struct vfm_tape *t, struct vfm_var *lists)
{
	struct vfm_var *end = vfm_input(t, (struct vfm_tensor){0});

	end->needs_grad = true; /* but it never gets one, so the backward skips and releases the node */
	vfm_save(vfm_record(t, NULL, end, NULL, 0), lists);
}

/* Exchanges the counts over ep.  got [ep, E / ep]: rows from each rank for each of this rank's experts. */
static int exchange_counts(
	struct vfm_tape *t, struct vfm_comm *ep, const int64_t *count, int64_t E, int32_t *got, struct vfm_err *err)
{
	struct vfm_stream *s = vfm_tape_stream(t);
	struct vfm_var *x;

	TRY(new_indices(t, 2 * E, &x, err));
	for (int64_t i = 0; i < E; i++)
		got[i] = (int32_t)count[i];
	TRY(s->dev->t->to_device(s, x->v.data, got, (size_t)E * 4, err));
	TRY(vfm_all_to_all(ep, s, ints_of(x, 0, E), ints_of(x, E, E), NULL, NULL, err));
	return copy_to_host(t, ints_of(x, E, E), got, err);
}

struct route {
	struct vfm_redist to_experts, to_tokens;
	struct vfm_seqs groups; /* rows of each of this rank's experts; on the host only */
};

/* Sorts received rows from (rank, expert) order to (expert, rank) order. */
static int sort_received(
	struct vfm_tape *t, const int32_t *got, int ep, int64_t local, struct route *r, struct vfm_err *err)
{
	int64_t n = r->to_experts.n_recv, first = 0, to = 0;
	struct vfm_stream *s = vfm_tape_stream(t);
	int32_t *place = vfm_calloc(2 * (size_t)n + 1, sizeof(*place)), *inverse = place + n;
	int64_t *at = vfm_calloc((size_t)ep, sizeof(*at));
	struct vfm_var *lists;
	int rc;

	TRY_OUT(new_indices(t, 2 * n, &lists, err));
	for (int i = 0; i < ep; i++) {
		at[i] = first;
		first += r->to_experts.recv[i];
	}
	for (int64_t e = 0; e < local; e++) {
		for (int i = 0; i < ep; i++) {
			for (int32_t k = 0; k < got[i * local + e]; k++) {
				place[to] = (int32_t)at[i];
				inverse[at[i]++] = (int32_t)to++;
			}
		}
	}
	rc = s->dev->t->to_device(s, lists->v.data, place, 2 * (size_t)n * 4, err);
	r->to_experts.place = r->to_tokens.gather_inv = ints_of(lists, 0, n);
	r->to_experts.place_inv = r->to_tokens.gather = ints_of(lists, n, n);
	hold_lists(t, lists);
out:
	free(at);
	free(place);
	return rc;
}

static int route_make(struct vfm_tape *t, struct vfm_comm *ep, const struct dispatch *v, int64_t E, struct route *r,
	struct vfm_err *err)
{
	int64_t local = E / ep->size, *send = vfm_tape_alloc(t, 2 * (size_t)ep->size * sizeof(*send)),
		*recv = send + ep->size;
	int32_t *cu = vfm_tape_alloc(t, (size_t)(local + 1) * sizeof(*cu)), *got = NULL;
	int rc = 0;

	*r = (struct route){.to_experts = {.send = send, .recv = recv, .n_send = v->n}};
	if (ep->size > 1) {
		got = vfm_calloc((size_t)E, sizeof(*got));
		TRY_OUT(exchange_counts(t, ep, v->count, E, got, err));
	}
	for (int64_t i = 0; i < E; i++) {
		int64_t here = got ? got[i] : v->count[i];

		send[i / local] += v->count[i];
		recv[i / local] += here;
		cu[i % local + 1] += (int32_t)here;
		r->to_experts.n_recv += here;
	}
	for (int64_t i = 0; i < local; i++)
		cu[i + 1] += cu[i];
	vfm_seqs_init(&r->groups, (int)local, cu);
	r->to_tokens = (struct vfm_redist){.send = recv, .recv = send, .n_send = r->to_experts.n_recv, .n_recv = v->n};
	if (got)
		rc = sort_received(t, got, ep->size, local, r, err);
out:
	free(got);
	return rc;
}

/* ---- forward ---- */

static int choose(struct vfm_tape *t, const struct vfm_moe *e, struct vfm_var *x, const struct vfm_moe_in *in,
	struct dispatch *v, struct vfm_err *err)
{
	struct vfm_var *score = vfm_g_softmax(t, vfm_linear(t, &e->router, x, VFM_ACT_NONE, VFM_F32));
	struct vfm_tensor chosen;

	TRY(vfm_tape_status(t, err));
	v->count = vfm_tape_alloc(t, (size_t)e->experts * sizeof(*v->count));
	if (e->kind == VFM_MOE_EXPERT_CHOICE)
		return choose_tokens(t, e, score, in, v, err);
	TRY(choose_experts(t, e, score, &chosen, v, err));
	return vfm_has(&in->coef) ? balance(t, e, score, chosen, in, err) : 0;
}

static struct vfm_var *dispatch_and_combine(struct vfm_tape *t, const struct vfm_moe *e, struct vfm_var *x,
	const struct vfm_moe_in *in, const struct dispatch *v, enum vfm_dtype out, struct vfm_err *err)
{
	struct vfm_comm *ep = in->mesh->group[VFM_AX_EP];
	struct route *r = vfm_tape_alloc(t, sizeof(*r));
	struct vfm_linear_args fc1 = {.w = &e->fc1->var,
				       .act = VFM_ACT_GELU_TANH,
				       .out = x->v.dtype,
				       .keep = VFM_KEEP_FC1},
			       fc2 = {.w = &e->fc2->var, .out = x->v.dtype, .keep = VFM_KEEP_MLP};
	struct vfm_var *y, *w;

	hold_lists(t, v->lists);
	if (route_make(t, ep, v, e->experts, r, err) < 0) {
		vfm_tape_fail(t, err->code, err);
		return x;
	}
	w = vfm_g_index_select(t, v->weights, v->place);
	y = vfm_m_redist(t, in->mesh, VFM_AX_EP, vfm_g_index_select(t, x, v->row), &r->to_experts);
	y = vfm_g_grouped_linear(t, y, &fc1, &r->groups);
	y = vfm_g_grouped_linear(t, y, &fc2, &r->groups);
	y = vfm_m_redist(t, in->mesh, VFM_AX_EP, y, &r->to_tokens);
	return vfm_g_index_add(t, y, v->row, w, x->v.shape[0], out);
}

struct vfm_var *vfm_moe(
	struct vfm_tape *t, const struct vfm_moe *e, struct vfm_var *x, const struct vfm_moe_in *in, enum vfm_dtype out)
{
	struct dispatch v = {0};
	struct vfm_err err = {0};
	struct vfm_var *y = x;

	if (vfm_tape_failed(t))
		return x;
	if (x->v.shape[0] > INT32_MAX / e->experts) { /* indices are 32 bits wide */
		vfm_fail(&err, VFM_EUSAGE, "%lld rows a rank are too many for model.experts %lld",
			(long long)x->v.shape[0], (long long)e->experts);
		vfm_tape_fail(t, err.code, &err);
		return x;
	}
	if (choose(t, e, x, in, &v, &err) < 0)
		vfm_tape_fail(t, err.code, &err);
	else
		y = dispatch_and_combine(t, e, x, in, &v, out, &err);
	return y;
}
