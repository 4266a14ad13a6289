/* gops_fp8.c - linear layers whose three products multiply 8-bit floats (Micikevicius et al., arXiv 2209.05433): e4m3
 * for activations and weights, e5m2 for gradients.  There is one scale per tensor, from the largest element of the
 * tensor or of those of previous steps.  The adjoint is that of the layer without rounding.
 *
 * The GEMM requires the summed dimension along the rows of both operands, so an operand of two products is stored in
 * two orders.  x is kept only as 8-bit floats: transposed, or as a norm has quantized it; the backward then transposes
 * it.  Weights are quantized again in the backward, because their address may have changed.
 */
#include "net/tape/deferred.h"
#include "net/tape/gops_impl.h"

enum { SCALARS = 16 }; /* bytes after an operand of the backward for its amax and inv */

static int64_t up16(int64_t n)
{
	return (n + 15) / 16 * 16;
}

static struct vfm_tensor scalar(const struct vfm_tensor *t, int i)
{
	return vfm_t1((char *)t->data + vfm_numel(t) - SCALARS + 4 * i, VFM_F32, 1);
}

/* Returns the operand [rows, cols], which is stored before its scalars. */
static struct vfm_tensor matrix(const struct vfm_tensor *t, int64_t rows, int64_t cols)
{
	return vfm_t2(t->data, t->dtype, rows, cols);
}

static struct vfm_tensor bytes(enum vfm_dtype dt, int64_t n)
{
	return vfm_like(&(struct vfm_tensor){.ndim = 1, .shape = {n + SCALARS}}, dt);
}

/* Sets the source and destination of the scale.  `mem` holds the operand and its scalars. */
static void scaling(
	struct vfm_quant *q, const struct vfm_fp8_past *past, enum vfm_fp8_tensor which, const struct vfm_tensor *mem)
{
	q->amax = scalar(mem, 0);
	q->inv = scalar(mem, 1);
	if (past) {
		q->history = past->history[which];
		q->amax = past->amax[which];
	}
}

struct fp8_wgrad {
	struct vfm_tensor dzt, x;
	bool q8; /* x is not transposed */
	struct vfm_var *w;
};

static int fp8_weights(struct vfm_tape *t, void *ctx, struct vfm_err *err)
{
	struct fp8_wgrad *g = ctx;
	int64_t out = g->w->v.shape[0], in = g->w->v.shape[1], k = (vfm_numel(&g->dzt) - SCALARS) / out;
	struct vfm_gemm a = {.trans_b = true,
		.a = matrix(&g->dzt, out, k),
		.b = matrix(&g->x, in, k),
		.scale_a = scalar(&g->dzt, 1),
		.scale_b = scalar(&g->x, 1)};
	struct vfm_store *mem = NULL;
	int rc;

	if (g->q8) {
		struct vfm_transpose8 transpose = {.x = matrix(&g->x, (vfm_numel(&g->x) - SCALARS) / in, in)};

		TRY(vfm_scratch(t, a.b, &a.b, &mem, err));
		transpose.y = a.b;
		TRY_OUT(BACKWARD(transpose8, &transpose));
	}
	TRY_OUT(vfm_grad_into(t, g->w, &a.c, &a.accumulate, err));
	rc = BACKWARD(gemm, &a);
out:
	vfm_store_unref(mem);
	return rc;
}

/* dx = dz w; d8: dz as 8-bit floats. */
static int fp8_inputs(struct vfm_tape *t, struct vfm_var *x, const struct vfm_var *w, const struct vfm_tensor *d8,
	const struct vfm_tensor *d8_inv, const struct vfm_linear_ctx *c, struct vfm_product_dx *dx, struct vfm_err *err)
{
	int64_t out = w->v.shape[0], in = w->v.shape[1];
	struct vfm_quant q = {.x = w->v};
	struct vfm_gemm a = {.trans_b = true, .a = *d8, .scale_a = *d8_inv};
	struct vfm_store *mem;
	struct vfm_tensor wt;
	int rc;

	TRY(vfm_scratch(t, bytes(VFM_F8E4M3, in * out), &wt, &mem, err));
	q.yt = a.b = matrix(&wt, in, out);
	scaling(&q, c->past, VFM_FP8_W, &wt);
	a.scale_b = q.inv;
	TRY_OUT(BACKWARD(quant, &q));
	TRY_OUT(vfm_product_dx(t, x, c->lora.a != NULL, dx, err));
	a.c = dx->c, a.accumulate = dx->accumulate, a.dact = dx->dact, a.aux = dx->aux;
	TRY_OUT(BACKWARD(gemm, &a));
out:
	vfm_store_unref(mem);
	return rc;
}

int vfm_fp8_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct vfm_linear_ctx *c = n->ctx; /* x: bytes: [in, T'] or with q8 [T, in]; scalars */
	struct vfm_var *x = n->in[0], *w = n->in[1], *b = n->out->bias_done ? NULL : n->in[2];
	struct vfm_product_dx dx = {0};
	struct vfm_store *cast = NULL, *mem = NULL, *mem_t = NULL;
	struct vfm_tensor dz, d8, dzt;
	struct fp8_wgrad *wgrad;
	struct vfm_quant q = {0};
	bool accumulate;
	int64_t rows, out = w->v.shape[0], rows_t;
	int rc;

	TRY_OUT(vfm_product_dz(t, n->out, c->lora.a ? w->v.dtype : n->out->g.dtype, &dz, &cast, err));
	rows = dz.shape[0];
	rows_t = vfm_wants_grad(w) ? up16(rows)
				   : 0; /* columns of the transpose, which only the weight's product reads */
	TRY_OUT(vfm_scratch(t, bytes(VFM_F8E5M2, rows_t * out), &dzt, &mem_t, err));
	q.x = dz;
	if (rows_t)
		q.yt = matrix(&dzt, out, rows_t);
	scaling(&q, c->past, VFM_FP8_DY, &dzt);
	if (vfm_wants_grad(x)) {
		TRY_OUT(vfm_scratch(t, vfm_like(&dz, VFM_F8E5M2), &d8, &mem, err));
		q.y = d8;
	}
	if (vfm_wants_grad(b))
		/* biases are zeroed at the start of a step: always += */
		TRY_OUT(vfm_grad_into(t, b, &q.colsum, &accumulate, err));
	if (rows_t || vfm_has(&q.y) || vfm_has(&q.colsum))
		TRY_OUT(BACKWARD(quant, &q));
	if (vfm_wants_grad(x))
		TRY_OUT(fp8_inputs(t, x, w, &d8, &q.inv, c, &dx, err));
	if (rows_t) {
		wgrad = vfm_tape_alloc(t, sizeof(*wgrad));
		*wgrad = (struct fp8_wgrad){dzt, c->x->v, c->q8, w};
		TRY_OUT(vfm_defer(t, fp8_weights, wgrad, mem_t, vfm_store_of(c->x), err));
	}
	rc = c->lora.a ? vfm_lora_backward(t, c, dz, cast ? cast : n->out->gs, dx.c, err) : 0;
out:
	vfm_store_unref(cast);
	vfm_store_unref(mem);
	vfm_store_unref(mem_t);
	return rc;
}

struct vfm_var *vfm_fp8_norm(
	struct vfm_tape *t, const struct vfm_var *x, const struct vfm_norm_args *args, struct vfm_norm *a)
{
	const struct vfm_fp8_past *past = args->out == VFM_BF16 ? args->fp8.past : NULL;
	struct vfm_tensor like = vfm_like(&x->v, args->out), one = {.ndim = 1, .shape = {1}};
	struct vfm_var *y = past ? vfm_input(t, like) : vfm_var_new(t, like);
	struct vfm_err err = {0};

	a->y = y->v;
	if (past)
		y->q8 = vfm_var_new(t, bytes(VFM_F8E4M3, vfm_numel(&like)));
	else if (args->fp8.amax && args->out == VFM_BF16)
		y->amax = vfm_var_new(t, vfm_like(&one, VFM_F32));
	if (vfm_tape_failed(t))
		return y;
	if (y->q8) {
		a->y = matrix(&y->q8->v, like.shape[0], like.shape[1]);
		a->history = past->history[VFM_FP8_X];
		a->inv = scalar(&y->q8->v, 1);
		a->amax = past->amax[VFM_FP8_X];
	} else if (y->amax) {
		struct vfm_stream *s = vfm_tape_stream(t);

		a->amax = y->amax->v;
		vfm_tape_fail(t, s->dev->t->zero(s, y->amax->v.data, sizeof(float), &err), &err);
	}
	return y;
}

void vfm_fp8_open(struct vfm_tape *t, struct vfm_product *p)
{
	const struct vfm_tensor *x = &p->x->v, *w = &p->args.w->v;
	struct vfm_var *x8 = p->x->q8, *w8;
	struct vfm_quant q = {.x = *w};

	/* A frozen weight needs no transpose of x: only the scalars stay. */
	p->saved = x8
		? x8
		: vfm_var_new(t, bytes(VFM_F8E4M3, vfm_wants_grad(p->args.w) ? up16(x->shape[0]) * x->shape[1] : 0));
	if (p->known)
		return;
	if (!x8)
		x8 = vfm_var_new(t, vfm_t2(NULL, VFM_F8E4M3, x->shape[0], x->shape[1]));
	w8 = vfm_var_new(t, bytes(VFM_F8E4M3, vfm_numel(w)));
	if (vfm_tape_failed(t))
		return;
	q.y = p->gemm.b = matrix(&w8->v, w->shape[0], w->shape[1]);
	scaling(&q, p->args.past, VFM_FP8_W, &w8->v);
	p->gemm.a = matrix(&x8->v, x->shape[0], x->shape[1]);
	p->gemm.scale_b = q.inv;
	FORWARD(quant, &q);
}

void vfm_fp8_input(struct vfm_tape *t, struct vfm_product *p)
{
	const struct vfm_tensor *x = &p->x->v;
	struct vfm_quant q = {.x = *x};

	if (!p->x->q8 && vfm_wants_grad(p->args.w))
		q.yt = matrix(&p->saved->v, x->shape[1], up16(x->shape[0]));
	if (p->x->q8) {
		p->gemm.scale_a = scalar(&p->saved->v, 1);
		return;
	}
	scaling(&q, p->args.past, VFM_FP8_X, &p->saved->v);
	if (p->x->amax && !p->args.past)
		q.history = q.amax = p->x->amax->v;
	if (!p->known)
		q.y = p->gemm.a;
	p->gemm.scale_a = q.inv;
	if (vfm_has(&q.y) || vfm_has(&q.yt))
		FORWARD(quant, &q);
}
