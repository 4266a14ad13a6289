/* gops_lora.c - low-rank adapters of linear layers (spec/model/tuning.h): y += s (x A^T) B^T.  The backward recomputes
 * the features u = x A^T [T, blocks * rank], a sixth of the adapter's products, so that no layer keeps a copy of u.
 */
#include "net/tape/deferred.h"
#include "net/tape/gops_impl.h"

static int64_t lora_rank(const struct vfm_lora_args *l)
{
	return l->b->v.shape[1];
}

/* Returns the rows of b, or of its gradient, that belong to block i. */
static struct vfm_tensor lora_block(const struct vfm_lora_args *l, const struct vfm_tensor *b, int i)
{
	int64_t rows = b->shape[0] / l->blocks;

	return vfm_row_slice(b, i * rows, rows);
}

/* Returns the columns of c [n,out], or of u [n, blocks * rank], that belong to block i. */
static struct vfm_tensor lora_columns(const struct vfm_lora_args *l, const struct vfm_tensor *c, int i)
{
	int64_t n = c->shape[1] / l->blocks;

	return vfm_cols(c, i * n, n);
}

static int scale_features(struct vfm_tape *t, const struct vfm_lora_args *l, struct vfm_tensor u, struct vfm_err *err)
{
	struct vfm_axpby a = {.alpha = l->scale, .x = u, .y = u};

	return l->scale == 1 ? 0 : BACKWARD(axpby, &a);
}

/* u = s x A^T in scratch memory. */
static int lora_features(struct vfm_tape *t, const struct vfm_lora_args *l, struct vfm_tensor x, struct vfm_tensor *u,
	struct vfm_store **mem, struct vfm_err *err)
{
	struct vfm_gemm a = {.trans_b = true, .a = x, .b = l->a->v};

	TRY(vfm_scratch(t, vfm_t2(NULL, l->a->v.dtype, x.shape[0], l->a->v.shape[0]), u, mem, err));
	a.c = *u;
	TRY(BACKWARD(gemm, &a));
	return scale_features(t, l, *u, err);
}

/* du = s dz B in scratch memory. */
static int lora_feature_grads(struct vfm_tape *t, const struct vfm_lora_args *l, struct vfm_tensor dz,
	struct vfm_tensor *du, struct vfm_store **mem, struct vfm_err *err)
{
	TRY(vfm_scratch(t, vfm_t2(NULL, l->b->v.dtype, dz.shape[0], l->blocks * lora_rank(l)), du, mem, err));
	for (int i = 0; i < l->blocks; i++) {
		struct vfm_gemm a = {
			.a = lora_columns(l, &dz, i), .b = lora_block(l, &l->b->v, i), .c = lora_columns(l, du, i)};

		TRY(BACKWARD(gemm, &a));
	}
	return scale_features(t, l, *du, err);
}

static int add_lora_rows(struct vfm_tape *t, const struct vfm_lora_args *l, struct vfm_tensor x, struct vfm_tensor c,
	struct vfm_err *err)
{
	struct vfm_store *mem = NULL;
	struct vfm_tensor u;
	int rc;

	TRY_OUT(lora_features(t, l, x, &u, &mem, err));
	for (int i = 0; i < l->blocks; i++) {
		struct vfm_gemm a = {.trans_b = true,
			.accumulate = true,
			.a = lora_columns(l, &u, i),
			.b = lora_block(l, &l->b->v, i),
			.c = lora_columns(l, &c, i)};

		TRY_OUT(BACKWARD(gemm, &a));
	}
	rc = 0;
out:
	vfm_store_unref(mem);
	return rc;
}

void vfm_lora_rows(struct vfm_tape *t, const struct vfm_lora_args *l, struct vfm_tensor x, struct vfm_tensor c)
{
	struct vfm_err err = {0};

	if (!vfm_tape_failed(t))
		vfm_tape_fail(t, add_lora_rows(t, l, x, c, &err), &err);
}

/* ---- backward ---- */

struct lora_wgrad {
	struct vfm_lora_args l;
	struct vfm_tensor dz, u; /* of B: u = s x A^T */
	struct vfm_tensor du, x; /* of A: du = s dz B */
};

/* dB_i += dz_i^T u_i */
static int lora_b_grads(struct vfm_tape *t, void *ctx, struct vfm_err *err)
{
	const struct lora_wgrad *g = ctx;
	struct vfm_tensor db;
	bool accumulate;

	TRY(vfm_grad_into(t, g->l.b, &db, &accumulate, err));
	for (int i = 0; i < g->l.blocks; i++) {
		struct vfm_gemm a = {.trans_a = true,
			.accumulate = accumulate,
			.a = lora_columns(&g->l, &g->dz, i),
			.b = lora_columns(&g->l, &g->u, i),
			.c = lora_block(&g->l, &db, i)};

		TRY(BACKWARD(gemm, &a));
	}
	return 0;
}

/* dA += du^T x */
static int lora_a_grads(struct vfm_tape *t, void *ctx, struct vfm_err *err)
{
	const struct lora_wgrad *g = ctx;
	struct vfm_gemm a = {.trans_a = true, .a = g->du, .b = g->x};

	TRY(vfm_grad_into(t, g->l.a, &a.c, &a.accumulate, err));
	return BACKWARD(gemm, &a);
}

int vfm_lora_backward(struct vfm_tape *t, const struct vfm_linear_ctx *c, struct vfm_tensor dz,
	struct vfm_store *dz_held, struct vfm_tensor dx, struct vfm_err *err)
{
	struct lora_wgrad *g = vfm_tape_alloc(t, sizeof(*g));
	struct vfm_store *u = NULL, *du = NULL;
	struct vfm_gemm a = {.accumulate = true, .b = c->lora.a->v, .c = dx};
	int rc;

	*g = (struct lora_wgrad){.l = c->lora, .dz = dz, .x = c->lora_x->v};
	TRY(vfm_arrive(t, c->lora_x, err));
	TRY_OUT(lora_feature_grads(t, &g->l, dz, &g->du, &du, err));
	a.a = g->du;
	if (vfm_has(&dx))
		TRY_OUT(BACKWARD(gemm, &a));
	/* The deferred products read no weights, which fsdp may have dropped by then. */
	TRY_OUT(lora_features(t, &g->l, g->x, &g->u, &u, err));
	TRY_OUT(vfm_defer(t, lora_b_grads, g, dz_held, u, err));
	rc = vfm_defer(t, lora_a_grads, g, du, vfm_store_of(c->lora_x), err);
out:
	vfm_store_unref(u);
	vfm_store_unref(du);
	return rc;
}
