/* gops_norm.c - norms, gated residuals, and both as one op.
 *
 * A residual sum and the norm after it record a node each.  The norm is the first reader of the sum, so its backward
 * has the gradients of all other readers.  It completes the gradient of the sum, and the same op computes those of the
 * branch and the gate.  The node of the sum then only passes the gradient on.
 */
#include "net/tape/gops_impl.h"
#include "net/tape/region.h"

/* ---- the sum ---- */

struct sum_ctx {
	struct vfm_tensor h, gate; /* gate absent: 1; h: only if the gate wants a gradient */
	const struct vfm_seqs *seqs;
	bool done; /* the backward of a norm has computed the gradients of h and gate */
};

/* Where a backward stores the gradients of a branch. */
struct branch_grads {
	struct vfm_grad_tmp h, gate;
	struct vfm_tensor bias; /* absent: the linear layer that made h computes it */
};

static int begin_branch(
	struct vfm_tape *t, struct vfm_var *h, struct vfm_var *gate, struct branch_grads *g, struct vfm_err *err)
{
	bool accumulate; /* biases are zeroed at the start of a step: always += (node.h) */

	*g = (struct branch_grads){0};
	h->bias_done = vfm_wants_grad(h->bias) && h->uses == 1 && !h->g_ready && !h->views;
	if (h->bias_done)
		TRY(vfm_grad_into(t, h->bias, &g->bias, &accumulate, err));
	TRY(vfm_grad_begin(t, h, &g->h, err));
	return vfm_wants_grad(gate) ? vfm_grad_begin(t, gate, &g->gate, err) : 0;
}

static int end_branch(
	struct vfm_tape *t, struct vfm_var *h, struct vfm_var *gate, struct branch_grads *g, struct vfm_err *err)
{
	TRY(vfm_grad_end(t, h, &g->h, err));
	return vfm_wants_grad(gate) ? vfm_grad_end(t, gate, &g->gate, err) : 0;
}

static int gate_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	const struct sum_ctx *c = n->ctx;
	struct vfm_gate_bwd a = {.dy = n->out->g, .h = c->h, .gate = c->gate, .seqs = c->seqs};
	struct branch_grads g;

	TRY(begin_branch(t, n->in[1], n->in[2], &g, err));
	a.dh = g.h.g;
	a.dgate = g.gate.g;
	a.dh_sum = g.bias;
	TRY(BACKWARD(gate_bwd, &a));
	return end_branch(t, n->in[1], n->in[2], &g, err);
}

static int sum_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	const struct sum_ctx *c = n->ctx;

	/* The branch first: passing to x may hand over the memory of the gradient itself. */
	if (!c->done && n->in[2] && (vfm_wants_grad(n->in[1]) || vfm_wants_grad(n->in[2])))
		TRY(gate_backward(t, n, err));
	else if (!c->done && !n->in[2] && vfm_wants_grad(n->in[1]))
		TRY(vfm_grad_copy(t, n->out->g, n->in[1], err));
	return vfm_wants_grad(n->in[0]) ? vfm_grad_pass(t, n->out, n->in[0], err) : 0;
}

/* Returns the node of y = x + gate h, or NULL. */
static struct vfm_node *record_sum(struct vfm_tape *t, struct vfm_var *y, struct vfm_var *x, struct vfm_var *h,
	struct vfm_var *gate, const struct vfm_seqs *seqs)
{
	struct vfm_var *in[] = {x, h, gate};
	struct sum_ctx ctx = {.seqs = seqs};
	struct vfm_node *n;

	if (gate)
		ctx.gate = gate->v;
	if (vfm_wants_grad(gate))
		ctx.h = h->v;
	n = vfm_record_ctx(t, sum_backward, y, in, 3, &ctx, sizeof(ctx));
	vfm_save(n, gate);
	if (vfm_wants_grad(gate))
		vfm_save(n, h);
	return n;
}

struct vfm_var *vfm_g_gate(
	struct vfm_tape *t, struct vfm_var *x, struct vfm_var *h, struct vfm_var *gate, const struct vfm_seqs *seqs)
{
	struct vfm_var *y = vfm_result_new(t, vfm_like(&x->v, x->v.dtype));
	struct vfm_gate a = {.x = vfm_read(x), .y = y->v, .h = vfm_read(h), .seqs = gate ? seqs : NULL};

	if (gate)
		a.gate = vfm_read(gate);
	if (y->v.data)
		FORWARD(gate, &a);
	record_sum(t, y, x, h, gate, seqs);
	return y;
}

/* ---- norm ---- */

struct norm_ctx {
	struct vfm_norm_bwd a;
	struct vfm_node *sum; /* of the residual sum that is the norm's input; NULL: none */
};

/* Adds the branch of the sum to the op.  Returns 0 if the node of the sum does the branch: it has no gradient, or it
 * adds to an existing one, which costs less without a temporary. */
static int begin_sum(struct vfm_tape *t, const struct vfm_node *sum, struct vfm_norm_bwd *a, struct branch_grads *g,
	struct vfm_err *err)
{
	struct vfm_var *h = sum->in[1], *gate = sum->in[2];
	struct sum_ctx *c = sum->ctx;

	if (gate ? !vfm_wants_grad(h) && !vfm_wants_grad(gate) : !vfm_wants_grad(h) || h->g_ready || h->parent)
		return 0;
	TRY(begin_branch(t, h, gate, g, err));
	a->h = c->h;
	a->gate = c->gate;
	a->seqs = c->seqs;
	a->dh = g->h.g;
	a->dgate = g->gate.g;
	a->dh_sum = g->bias;
	c->done = true;
	return 1;
}

static int norm_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	const struct norm_ctx *c = n->ctx;
	struct vfm_norm_bwd a = c->a;
	struct vfm_var *x = n->in[0], *weight = n->in[1], *bias = n->in[2], *shift = n->in[3], *scale = n->in[4];
	struct vfm_grad_tmp tshift = {0}, tscale = {0};
	struct branch_grads branch;
	struct vfm_store *unwanted = NULL; /* of the gradient of an input that has none */
	bool accumulate;                   /* vectors are zeroed at the start of a step: always += (node.h) */
	int fused = 0, rc;

	/* The address of sharded weights may have changed since the forward. */
	if (weight)
		a.weight = weight->v;
	a.dy = n->out->g;
	if (vfm_wants_grad(weight))
		TRY(vfm_grad_into(t, weight, &a.dweight, &accumulate, err));
	if (vfm_wants_grad(bias))
		TRY(vfm_grad_into(t, bias, &a.dbias, &accumulate, err));
	if (vfm_wants_grad(shift)) {
		TRY(vfm_grad_begin(t, shift, &tshift, err));
		TRY(vfm_grad_begin(t, scale, &tscale, err));
		a.dshift = tshift.g;
		a.dscale = tscale.g;
	}
	if (c->sum) {
		fused = begin_sum(t, c->sum, &a, &branch, err);
		TRY(fused);
	}
	if (vfm_wants_grad(x))
		TRY(vfm_grad_into(t, x, &a.dx, &a.dx_accumulate, err));
	else
		TRY(vfm_scratch(t, vfm_like(&x->v, VFM_F32), &a.dx, &unwanted, err));
	rc = BACKWARD(norm_bwd, &a);
	vfm_store_unref(unwanted);
	TRY(rc);
	if (fused)
		TRY(end_branch(t, c->sum->in[1], c->sum->in[2], &branch, err));
	if (vfm_wants_grad(shift)) {
		TRY(vfm_grad_end(t, shift, &tshift, err));
		TRY(vfm_grad_end(t, scale, &tscale, err));
	}
	return 0;
}

static struct vfm_norm norm_operands(const struct vfm_norm_args *args)
{
	struct vfm_norm a = {.kind = args->kind, .eps = args->eps, .seqs = args->seqs};

	if (args->weight)
		a.weight = args->weight->v;
	if (args->bias)
		a.bias = args->bias->v;
	if (args->shift) {
		a.shift = vfm_read(args->shift);
		a.scale = vfm_read(args->scale);
	}
	return a;
}

static void record_norm(struct vfm_tape *t, const struct vfm_norm *a, const struct vfm_norm_args *args,
	struct vfm_var *x, struct vfm_var *y, struct vfm_var *stat[2], struct vfm_node *sum)
{
	struct vfm_var *in[] = {x, args->weight, args->bias, args->shift, args->scale};
	struct norm_ctx ctx = {.sum = sum,
		.a = {.kind = a->kind,
			.x = x->v,
			.scale = a->scale,
			.seqs = a->seqs,
			.mean = a->mean,
			.rstd = a->rstd}};
	struct vfm_node *n = vfm_record_ctx(t, norm_backward, y, in, 5, &ctx, sizeof(ctx));

	vfm_save(n, x);
	vfm_save(n, stat[0]);
	vfm_save(n, stat[1]);
	vfm_save(n, args->scale);
}

/* h NULL: the norm of x.  Else also *sum = x + gate h. */
static struct vfm_var *norm(struct vfm_tape *t, struct vfm_var *x, struct vfm_var *h, struct vfm_var *gate,
	const struct vfm_norm_args *args, struct vfm_var **sum)
{
	struct vfm_tensor rows = vfm_t1(NULL, VFM_F32, x->v.shape[0]);
	struct vfm_var *y, *s = x, *stat[2] = {NULL, NULL}; /* rstd, mean */
	struct vfm_norm a;

	if (vfm_tape_failed(t))
		return x;
	a = norm_operands(args);
	a.x = vfm_read(x);
	if (h) {
		a.h = vfm_read(h);
		a.gate = gate ? vfm_read(gate) : a.gate;
		s = *sum = vfm_var_new(t, vfm_like(&x->v, x->v.dtype));
		a.sum = vfm_read(s);
	}
	y = vfm_fp8_norm(t, x, args, &a);
	stat[0] = vfm_var_new(t, rows);
	if (args->kind == VFM_NORM_LAYER)
		stat[1] = vfm_var_new(t, rows);
	if (vfm_tape_failed(t))
		return y;
	a.rstd = stat[0]->v;
	if (stat[1])
		a.mean = stat[1]->v;
	FORWARD(norm, &a);
	record_norm(t, &a, args, s, y, stat, h ? record_sum(t, s, x, h, gate, args->seqs) : NULL);
	return y;
}

struct vfm_var *vfm_g_norm(struct vfm_tape *t, struct vfm_var *x, const struct vfm_norm_args *args)
{
	return norm(t, x, NULL, NULL, args, NULL);
}

struct vfm_var *vfm_g_add_norm(struct vfm_tape *t, struct vfm_var *x, struct vfm_var *h, struct vfm_var *gate,
	const struct vfm_norm_args *args, struct vfm_var **sum)
{
	*sum = x;
	return norm(t, x, h, gate, args, sum);
}
