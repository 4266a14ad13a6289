/* gops_linear.c - linear layers: the steps of gops_linear.h and their adjoint.  The fp8 part is in gops_fp8.c. */
#include "net/tape/deferred.h"
#include "net/tape/gops_impl.h"
#include "net/tape/region.h"

/* ---- shared by plain, fp8 and grouped layers ---- */

void vfm_product_vars(struct vfm_tape *t, struct vfm_product *p, int64_t width)
{
	struct vfm_tensor like = {.ndim = 2, .shape = {p->x->v.shape[0], width}};

	vfm_read(p->x);
	p->keeps = !p->y;
	if (p->keeps)
		p->y = vfm_var_new(t, vfm_like(&like, p->args.out));
	if (p->args.act != VFM_ACT_NONE)
		p->z = vfm_var_new(t, vfm_like(&p->y->v, p->args.out));
}

void vfm_product_cast(struct vfm_tape *t, struct vfm_product *p)
{
	enum vfm_dtype dtype = p->args.w->v.dtype;
	struct vfm_axpby cast = {.alpha = 1, .x = p->x->v};

	p->saved = p->x;
	if (p->x->v.dtype == dtype)
		return;
	p->saved = vfm_var_new(t, vfm_like(&p->x->v, dtype));
	cast.y = p->saved->v;
	FORWARD(axpby, &cast);
}

/* Returns the variable to keep.  With an activation that is its input, which the backward needs, too. */
static struct vfm_var **kept_of(struct vfm_product *p)
{
	return p->z ? &p->z : &p->y;
}

static enum vfm_keep keep_of(const struct vfm_product *p)
{
	return p->args.keep ? p->args.keep : VFM_KEEP_OTHER;
}

bool vfm_product_kept(struct vfm_tape *t, struct vfm_product *p)
{
	struct vfm_unary again = {.act = p->args.act};

	if (!vfm_kept(t, keep_of(p), kept_of(p), 1))
		return false;
	if (p->z) {
		again.x = p->z->v;
		again.y = p->y->v;
		FORWARD(unary, &again);
	}
	return true;
}

void vfm_product_keep(struct vfm_tape *t, struct vfm_product *p)
{
	vfm_keep(t, keep_of(p), kept_of(p), 1);
}

struct vfm_store *vfm_store_of(const struct vfm_var *x)
{
	while (x->parent)
		x = x->parent;
	return x->vs;
}

/* Returns the variable that holds the value of x for the backward. */
static struct vfm_var *read_later(const struct vfm_product *p, struct vfm_var *x)
{
	return x == p->x && p->again ? p->again : x;
}

bool vfm_product_reads_again(const struct vfm_product *p)
{
	return p->again && ((vfm_wants_grad(p->args.w) && p->saved == p->x) || p->lora_x == p->x);
}

struct vfm_linear_ctx vfm_product_ctx(const struct vfm_product *p)
{
	return (struct vfm_linear_ctx){.x = read_later(p, p->saved),
		.q8 = p->saved == p->x->q8,
		.few = p->args.few,
		.past = p->args.past,
		.lora = p->args.lora,
		.lora_x = p->lora_x ? read_later(p, p->lora_x) : NULL};
}

void vfm_product_save(struct vfm_node *n, const struct vfm_product *p)
{
	if (vfm_wants_grad(p->args.w))
		vfm_save(n, read_later(p, p->saved));
	if (p->lora_x)
		vfm_save(n, read_later(p, p->lora_x));
	if (!p->z)
		return;
	p->y->act = p->args.act;
	p->y->z = p->z->v;
	vfm_save(n, p->z);
}

int vfm_product_dz(struct vfm_tape *t, struct vfm_var *y, enum vfm_dtype dtype, struct vfm_tensor *dz,
	struct vfm_store **cast, struct vfm_err *err)
{
	struct vfm_unary back = {.act = y->act, .x = y->z, .dy = y->g, .y = y->g};
	struct vfm_axpby a = {.alpha = 1, .x = y->g};

	*dz = y->g;
	*cast = NULL;
	if (y->act != VFM_ACT_NONE && !y->g_is_dz)
		TRY(BACKWARD(unary, &back));
	if (y->g.dtype == dtype)
		return 0;
	TRY(vfm_scratch(t, vfm_like(&y->g, dtype), &a.y, cast, err));
	*dz = a.y;
	return BACKWARD(axpby, &a);
}

int vfm_product_dx(struct vfm_tape *t, struct vfm_var *x, bool lora, struct vfm_product_dx *dx, struct vfm_err *err)
{
	bool fuse = x->act != VFM_ACT_NONE && x->uses == 1 && !x->g_ready && x->z.dtype == x->v.dtype && !lora;

	*dx = (struct vfm_product_dx){0};
	TRY(vfm_grad_into(t, x, &dx->c, &dx->accumulate, err));
	if (fuse) {
		dx->dact = x->act;
		dx->aux = x->z;
		x->g_is_dz = true;
	}
	return 0;
}

struct linear_wgrad {
	struct vfm_tensor dz;
	struct vfm_var *x, *w, *b;
};

static int linear_weights(struct vfm_tape *t, void *ctx, struct vfm_err *err)
{
	struct linear_wgrad *g = ctx;
	struct vfm_gemm a = {.trans_a = true, .a = g->dz, .b = g->x->v};

	TRY(vfm_arrive(t, g->x, err));
	if (vfm_wants_grad(g->b)) {
		bool accumulate; /* biases are zeroed at the start of a step: always += */

		TRY(vfm_grad_into(t, g->b, &a.a_rowsum, &accumulate, err));
	}
	TRY(vfm_grad_into(t, g->w, &a.c, &a.accumulate, err));
	return BACKWARD(gemm, &a);
}

/* The gradients of weight and bias, or of a bias whose weight is frozen. */
static int linear_params(struct vfm_tape *t, const struct vfm_node *n, struct vfm_tensor dz, struct vfm_store *dz_held,
	struct vfm_err *err)
{
	struct vfm_linear_ctx *c = n->ctx;
	struct vfm_var *w = n->in[1], *b = n->out->bias_done ? NULL : n->in[2];
	struct vfm_add_row_bwd sum = {.dy = dz};
	struct linear_wgrad *g;
	bool accumulate;

	if (vfm_wants_grad(w)) {
		g = vfm_tape_alloc(t, sizeof(*g));
		*g = (struct linear_wgrad){dz, c->x, w, b};
		return vfm_defer(t, linear_weights, g, dz_held, vfm_store_of(c->x), err);
	}
	if (!vfm_wants_grad(b))
		return 0;
	TRY(vfm_grad_into(t, b, &sum.drow, &accumulate, err));
	return BACKWARD(add_row_bwd, &sum);
}

static int linear_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct vfm_linear_ctx *c = n->ctx;
	struct vfm_var *x = n->in[0], *w = n->in[1];
	struct vfm_product_dx dx = {0};
	struct vfm_store *cast = NULL;
	struct vfm_tensor dz;
	int rc;

	TRY_OUT(vfm_product_dz(t, n->out, w->v.dtype, &dz, &cast, err));
	if (vfm_wants_grad(x)) {
		struct vfm_gemm a = {.few = c->few, .a = dz, .b = w->v};

		TRY_OUT(vfm_product_dx(t, x, c->lora.a != NULL, &dx, err));
		a.c = dx.c, a.accumulate = dx.accumulate, a.dact = dx.dact, a.aux = dx.aux;
		TRY_OUT(BACKWARD(gemm, &a));
	}
	TRY_OUT(linear_params(t, n, dz, cast ? cast : n->out->gs, err));
	rc = c->lora.a ? vfm_lora_backward(t, c, dz, cast ? cast : n->out->gs, dx.c, err) : 0;
out:
	vfm_store_unref(cast);
	return rc;
}

/* ---- the steps ---- */

void vfm_product_open(struct vfm_tape *t, struct vfm_product *p)
{
	const struct vfm_linear_args *a = &p->args;

	vfm_product_vars(t, p, a->w->v.shape[0]);
	if (vfm_tape_failed(t))
		return;
	if (p->keeps)
		p->known = vfm_product_kept(t, p);
	p->gemm = (struct vfm_gemm){.trans_b = true, .few = a->few, .b = a->w->v, .c = p->y->v, .act = a->act};
	if (a->b)
		p->gemm.bias = a->b->v;
	if (p->z)
		p->gemm.aux = p->z->v;
	if (p->z && a->lora.a) { /* the adapter comes in front of the activation */
		p->gemm.c = p->z->v;
		p->gemm.act = VFM_ACT_NONE;
		p->gemm.aux = (struct vfm_tensor){0};
	}
	if (a->fp8)
		vfm_fp8_open(t, p);
}

bool vfm_product_by_rows(const struct vfm_product *p)
{
	return !p->known && !p->args.fp8 && p->x->v.dtype == p->args.w->v.dtype;
}

/* x: rows in the dtype of the product; lora_x: the same rows in that of the adapter, if there is one. */
static void multiply_rows(
	struct vfm_tape *t, const struct vfm_product *p, struct vfm_tensor x, struct vfm_tensor lora_x, int64_t first)
{
	struct vfm_unary act = {.act = p->args.act};
	struct vfm_gemm a = p->gemm;
	int64_t n = x.shape[0];

	if (vfm_tape_failed(t) || n == 0)
		return;
	a.a = x;
	a.c = vfm_row_slice(&a.c, first, n);
	if (vfm_has(&a.aux))
		a.aux = vfm_row_slice(&a.aux, first, n);
	FORWARD(gemm, &a);
	if (!p->args.lora.a)
		return;
	vfm_lora_rows(t, &p->args.lora, lora_x, a.c);
	if (!p->z)
		return;
	act.x = a.c;
	act.y = vfm_row_slice(&p->y->v, first, n);
	FORWARD(unary, &act);
}

void vfm_product_early_rows(struct vfm_tape *t, const struct vfm_product *p, struct vfm_tensor x, int64_t first)
{
	multiply_rows(t, p, x, x, first);
}

/* Sets p->lora_x. */
static void lora_input(struct vfm_tape *t, struct vfm_product *p)
{
	struct vfm_axpby cast = {.alpha = 1, .x = p->x->v};
	enum vfm_dtype dtype = p->args.lora.a->v.dtype;

	p->lora_x = p->x;
	if (p->x->v.dtype == dtype)
		return;
	p->lora_x = p->args.fp8 ? vfm_var_new(t, vfm_like(&p->x->v, dtype)) : p->saved;
	cast.y = p->lora_x->v;
	if (p->args.fp8)
		FORWARD(axpby, &cast);
}

void vfm_product_input(struct vfm_tape *t, struct vfm_product *p)
{
	if (vfm_tape_failed(t))
		return;
	if (p->args.fp8) {
		vfm_fp8_input(t, p);
	} else {
		vfm_product_cast(t, p);
		p->gemm.a = p->saved->v;
	}
	if (p->args.lora.a)
		lora_input(t, p);
}

void vfm_product_rows(struct vfm_tape *t, const struct vfm_product *p, int64_t first, int64_t n)
{
	struct vfm_tensor lora_x = {0};

	if (vfm_tape_failed(t) || p->known)
		return;
	if (p->lora_x)
		lora_x = vfm_row_slice(&p->lora_x->v, first, n);
	multiply_rows(t, p, vfm_row_slice(&p->gemm.a, first, n), lora_x, first);
}

struct vfm_var *vfm_product_close(struct vfm_tape *t, struct vfm_product *p)
{
	struct vfm_var *in[] = {p->x, p->args.w, p->args.b, p->args.lora.a, p->args.lora.b};
	struct vfm_linear_ctx ctx = vfm_product_ctx(p);
	struct vfm_node *n;

	if (p->keeps)
		vfm_product_keep(t, p);
	if (!p->z)
		p->y->bias = p->args.b;
	n = vfm_record_ctx(t, p->args.fp8 ? vfm_fp8_backward : linear_backward, p->y, in, 5, &ctx, sizeof(ctx));
	if (n)
		vfm_product_save(n, p);
	return p->y;
}

struct vfm_var *vfm_g_linear(struct vfm_tape *t, struct vfm_var *x, const struct vfm_linear_args *args)
{
	struct vfm_product p = {.args = *args, .x = x};

	if (vfm_tape_failed(t))
		return x;
	vfm_product_open(t, &p);
	vfm_product_input(t, &p);
	vfm_product_rows(t, &p, 0, x->v.shape[0]);
	return vfm_product_close(t, &p);
}
