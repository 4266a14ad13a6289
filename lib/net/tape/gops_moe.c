/* gops_moe.c - softmax, top-k, balance loss and grouped linear layers, each with its backward. */
#include "net/tape/deferred.h"
#include "net/tape/gops_impl.h"
#include "net/tape/region.h"

/* ---- softmax ---- */

static int softmax_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct vfm_softmax_bwd a = {.y = n->out->v, .dy = n->out->g};
	struct vfm_grad_tmp tmp;

	TRY(vfm_grad_begin(t, n->in[0], &tmp, err));
	a.dx = tmp.g;
	TRY(BACKWARD(softmax_bwd, &a));
	return vfm_grad_end(t, n->in[0], &tmp, err);
}

struct vfm_var *vfm_g_softmax(struct vfm_tape *t, struct vfm_var *x)
{
	struct vfm_softmax a;
	struct vfm_var *y;

	if (vfm_tape_failed(t))
		return x;
	y = vfm_var_new(t, vfm_like(&x->v, VFM_F32));
	a = (struct vfm_softmax){vfm_read(x), y->v};
	FORWARD(softmax, &a);
	vfm_save(vfm_record(t, softmax_backward, y, &x, 1), y);
	return y;
}

/* ---- token choice ---- */

static int topk_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	const struct vfm_moe_topk_token *fwd = n->ctx;
	struct vfm_moe_topk_token_bwd a = {.score = fwd->score, .expert = fwd->expert, .dweight = n->out->g};
	struct vfm_grad_tmp tmp;

	TRY(vfm_grad_begin(t, n->in[0], &tmp, err));
	a.dscore = tmp.g;
	TRY(BACKWARD(moe_topk_token_bwd, &a));
	return vfm_grad_end(t, n->in[0], &tmp, err);
}

struct vfm_var *vfm_g_moe_topk_token(struct vfm_tape *t, struct vfm_var *score, int64_t k, struct vfm_tensor *expert)
{
	struct vfm_moe_topk_token a;
	struct vfm_var *weight, *ids;
	struct vfm_node *n;

	*expert = (struct vfm_tensor){0};
	if (vfm_tape_failed(t))
		return score;
	ids = vfm_var_new(t, vfm_t2(NULL, VFM_I32, score->v.shape[0], k));
	weight = vfm_var_new(t, vfm_t2(NULL, VFM_F32, score->v.shape[0], k));
	a = (struct vfm_moe_topk_token){.score = vfm_read(score), .expert = ids->v, .weight = weight->v};
	FORWARD(moe_topk_token, &a);
	*expert = ids->v;
	n = vfm_record_ctx(t, topk_backward, weight, &score, 1, &a, sizeof(a));
	vfm_save(n, score);
	vfm_save(n, ids);
	return weight;
}

/* ---- balance ---- */

static int balance_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct vfm_moe_balance a = *(struct vfm_moe_balance *)n->ctx;

	a.loss = (struct vfm_tensor){0};
	a.score = n->in[0]->v; /* only its shape matters: the loss is linear in it */
	TRY(vfm_grad_into(t, n->in[0], &a.dscore, &a.accumulate, err));
	a.score.data = a.dscore.data;
	return BACKWARD(moe_balance, &a);
}

int vfm_g_moe_balance(struct vfm_tape *t, struct vfm_var *score, struct vfm_var *count, struct vfm_tensor coef,
	const struct vfm_seqs *seqs, struct vfm_tensor loss)
{
	struct vfm_moe_balance a = {.coef = coef, .seqs = seqs, .loss = loss};
	struct vfm_err err = {0};
	struct vfm_var *end;
	struct vfm_node *n;

	if (vfm_tape_failed(t))
		return vfm_tape_status(t, NULL);
	a.score = vfm_read(score);
	a.count = vfm_read(count);
	if (vfm_has(&loss) && !vfm_tape_recomputing(t))
		FORWARD(moe_balance, &a);
	end = vfm_input(t, (struct vfm_tensor){0});
	n = vfm_record_ctx(t, balance_backward, end, &score, 1, &a, sizeof(a));
	vfm_save(n, count);
	end->g_ready = n != NULL;
	return vfm_tape_status(t, &err);
}

/* ---- linear layers in groups ---- */

struct grouped_ctx {
	struct vfm_linear_ctx base; /* x in the dtype of w */
	const struct vfm_seqs *groups;
};

struct grouped_wgrad {
	struct vfm_tensor dz, x;
	struct vfm_var *w, *b;
	const struct vfm_seqs *groups;
};

static int grouped_weights(struct vfm_tape *t, void *ctx, struct vfm_err *err)
{
	struct grouped_wgrad *g = ctx;
	struct vfm_grouped_gemm a = {.what = VFM_GROUPED_WGRAD, .groups = g->groups, .a = g->dz, .b = g->x};

	if (vfm_wants_grad(g->b))
		TRY(vfm_grad_add(t, g->b, &a.a_colsum, err));
	TRY(vfm_grad_into(t, g->w, &a.c, &a.accumulate, err));
	return BACKWARD(grouped_gemm, &a);
}

static int grouped_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct grouped_ctx *c = n->ctx;
	struct vfm_var *x = n->in[0], *w = n->in[1];
	struct grouped_wgrad *wgrad;
	struct vfm_store *cast = NULL;
	struct vfm_tensor dz;
	int rc;

	TRY_OUT(vfm_product_dz(t, n->out, w->v.dtype, &dz, &cast, err));
	if (vfm_wants_grad(x)) {
		struct vfm_grouped_gemm a = {.what = VFM_GROUPED_DGRAD, .groups = c->groups, .a = dz, .b = w->v};
		struct vfm_product_dx dx;

		TRY_OUT(vfm_product_dx(t, x, false, &dx, err));
		a.c = dx.c, a.accumulate = dx.accumulate, a.dact = dx.dact, a.aux = dx.aux;
		TRY_OUT(BACKWARD(grouped_gemm, &a));
	}
	rc = 0;
	if (!vfm_wants_grad(w))
		goto out;
	wgrad = vfm_tape_alloc(t, sizeof(*wgrad));
	*wgrad = (struct grouped_wgrad){dz, c->base.x->v, w, n->in[2], c->groups};
	rc = vfm_defer(t, grouped_weights, wgrad, cast ? cast : n->out->gs, vfm_store_of(c->base.x), err);
out:
	vfm_store_unref(cast);
	return rc;
}

struct vfm_var *vfm_g_grouped_linear(
	struct vfm_tape *t, struct vfm_var *x, const struct vfm_linear_args *args, const struct vfm_seqs *groups)
{
	struct vfm_var *w = args->w, *b = args->b;
	struct vfm_grouped_gemm a = {.what = VFM_GROUPED_FWD, .groups = groups, .b = w->v, .act = args->act};
	struct vfm_product p = {.args = *args, .x = x};
	struct vfm_var *in[] = {x, w, b};
	struct grouped_ctx ctx;
	struct vfm_node *n;

	if (vfm_tape_failed(t))
		return x;
	vfm_product_vars(t, &p, w->v.shape[1]);
	vfm_product_cast(t, &p);
	if (vfm_tape_failed(t))
		return p.y;
	a.a = p.saved->v;
	a.c = p.y->v;
	if (b)
		a.bias = b->v;
	if (p.z)
		a.aux = p.z->v;
	if (!vfm_product_kept(t, &p)) {
		FORWARD(grouped_gemm, &a);
		vfm_product_keep(t, &p);
	}
	ctx = (struct grouped_ctx){vfm_product_ctx(&p), groups};
	n = vfm_record_ctx(t, grouped_backward, p.y, in, 3, &ctx, sizeof(ctx));
	if (n)
		vfm_product_save(n, &p);
	return p.y;
}
