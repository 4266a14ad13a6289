/* dnn_ref.c - cudnn_graph.h on the host: executes a graph operation by operation, without cuDNN.
 *
 * Memory that cuDNN must not read is NaN: rows beyond the length of a sample, and scratch before it is written.  Rows
 * beyond the length are not written with offsets, because they belong to other samples; without offsets they become
 * NaN.
 */
#include "dnn_ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/model/dtype.h"

bool dnn_ref_no_plans;
int dnn_ref_refuse_build, dnn_ref_refuse_run, dnn_ref_ran, dnn_ref_built, dnn_ref_wrong, dnn_ref_used;
int dnn_ref_wrong_plan = -1;
int dnn_ref_plans = 1, dnn_ref_us[DNN_REF_PLANS];
double dnn_ref_now;
enum dnn_ref_error dnn_ref_error;

enum { MOST = 96 };
enum op_kind { PW, INDEX, LOGIC, SELECT, REDUCE, RESHAPE, MATMUL };

struct tensor {
	cudnnDataType_t dt;
	int64_t dim[4], stride[4];
	enum vfm_dnn_kind kind;
	vfm_dnn_t ragged;
	vfm_dnn_t rows; /* lengths of dimension 2 (3 if `turned`), from the products */
	bool turned;
	/* factor of the offsets of a tensor with more heads than the first one with the same offsets */
	int64_t times;
	float *v; /* virtual */
	char *p;  /* bound */
};

struct op {
	enum op_kind kind;
	int mode;
	vfm_dnn_t a, b, t, y;
	struct vfm_dnn_mnk len;
};

struct vfm_dnn_graph {
	struct tensor t[MOST];
	struct op op[MOST];
	int n_t, n_op;
	int plans, plan[DNN_REF_PLANS]; /* numbers of the plans */
	enum dnn_ref_error error;       /* of this run */
	struct vfm_dnn_sdpa sdpa;       /* instead of operations, if q is set */
};

int vfm_dnn_check(cudnnStatus_t st, const char *what, struct vfm_err *err)
{
	return st == CUDNN_STATUS_SUCCESS ? 0 : vfm_fail(err, VFM_EENV, "%s", what);
}

struct vfm_dnn_graph *vfm_dnn_new(const struct vfm_dnn_on *on)
{
	(void)on;
	return vfm_calloc(1, sizeof(struct vfm_dnn_graph));
}

void vfm_dnn_free(struct vfm_dnn_graph *g)
{
	free(g);
}

static struct tensor *tensor(struct vfm_dnn_graph *g, vfm_dnn_t t)
{
	return &g->t[t];
}

vfm_dnn_t vfm_dnn_tensor(struct vfm_dnn_graph *g, cudnnDataType_t dt, const int64_t dim[4], const int64_t stride[4],
	enum vfm_dnn_kind kind, vfm_dnn_t ragged)
{
	struct tensor *t = &g->t[++g->n_t];

	if (g->n_t >= MOST)
		abort();
	*t = (struct tensor){.dt = dt, .kind = kind, .ragged = ragged};
	memcpy(t->dim, dim, sizeof(t->dim));
	memcpy(t->stride, stride, sizeof(t->stride));
	return g->n_t;
}

vfm_dnn_t vfm_dnn_tensor4(
	struct vfm_dnn_graph *g, cudnnDataType_t dt, int64_t a, int64_t b, int64_t c, int64_t d, enum vfm_dnn_kind kind)
{
	return vfm_dnn_tensor(g, dt, (int64_t[4]){a, b, c, d}, (int64_t[4]){b * c * d, c * d, d, 1}, kind, 0);
}

static vfm_dnn_t add(struct vfm_dnn_graph *g, struct op o, const int64_t dim[4], cudnnDataType_t dt)
{
	if (!o.y)
		o.y = vfm_dnn_tensor4(g, dt, dim[0], dim[1], dim[2], dim[3], VFM_DNN_VIRTUAL);
	g->op[g->n_op++] = o;
	return o.y;
}

vfm_dnn_t vfm_dnn_pw(struct vfm_dnn_graph *g, cudnnPointwiseMode_t mode, vfm_dnn_t x, vfm_dnn_t b, vfm_dnn_t y)
{
	return add(g, (struct op){.kind = PW, .mode = (int)mode, .a = x, .b = b, .y = y}, tensor(g, x)->dim,
		CUDNN_DATA_FLOAT);
}

vfm_dnn_t vfm_dnn_index(struct vfm_dnn_graph *g, vfm_dnn_t x, int axis)
{
	return add(g, (struct op){.kind = INDEX, .mode = axis, .a = x}, tensor(g, x)->dim, CUDNN_DATA_INT32);
}

vfm_dnn_t vfm_dnn_logic(struct vfm_dnn_graph *g, cudnnPointwiseMode_t mode, vfm_dnn_t a, vfm_dnn_t b)
{
	return add(g, (struct op){.kind = LOGIC, .mode = (int)mode, .a = a, .b = b}, tensor(g, a)->dim,
		CUDNN_DATA_BOOLEAN);
}

vfm_dnn_t vfm_dnn_select(struct vfm_dnn_graph *g, vfm_dnn_t keep, vfm_dnn_t x, vfm_dnn_t b)
{
	return add(g, (struct op){.kind = SELECT, .a = x, .b = b, .t = keep}, tensor(g, x)->dim, CUDNN_DATA_FLOAT);
}

vfm_dnn_t vfm_dnn_reduce(struct vfm_dnn_graph *g, cudnnReduceTensorOp_t mode, vfm_dnn_t x, vfm_dnn_t y)
{
	const int64_t *n = tensor(g, x)->dim;

	return add(g, (struct op){.kind = REDUCE, .mode = (int)mode, .a = x, .y = y}, (int64_t[4]){n[0], n[1], n[2], 1},
		CUDNN_DATA_FLOAT);
}

vfm_dnn_t vfm_dnn_reshape(struct vfm_dnn_graph *g, vfm_dnn_t x, vfm_dnn_t y)
{
	return add(g, (struct op){.kind = RESHAPE, .a = x, .y = y}, tensor(g, x)->dim, CUDNN_DATA_FLOAT);
}

vfm_dnn_t vfm_dnn_matmul(struct vfm_dnn_graph *g, vfm_dnn_t a, vfm_dnn_t b, struct vfm_dnn_mnk len, vfm_dnn_t y)
{
	const int64_t *m = tensor(g, a)->dim, *n = tensor(g, b)->dim;

	return add(g, (struct op){.kind = MATMUL, .a = a, .b = b, .y = y, .len = len},
		(int64_t[4]){m[0], m[1], m[2], n[3]}, CUDNN_DATA_FLOAT);
}

void vfm_dnn_sdpa(struct vfm_dnn_graph *g, const struct vfm_dnn_sdpa *x)
{
	g->sdpa = *x;
}

/* The form of attention: has the graph offsets, and is a tensor of one f32 a query in device memory in rows? */
static int form_of(const struct vfm_dnn_graph *g)
{
	bool ragged = false, in_rows = false;

	for (int i = 1; i <= g->n_t; i++) {
		const struct tensor *t = &g->t[i];

		ragged = ragged || t->ragged;
		in_rows = in_rows ||
			(t->kind == VFM_DNN_DEVICE && t->dt == CUDNN_DATA_FLOAT && t->dim[3] == 1 && t->dim[2] > 1 &&
				t->stride[1] == 1 && t->stride[2] != 1);
	}
	return g->sdpa.q ? DNN_REF_UNIFIED
		: ragged ? (in_rows ? DNN_REF_PACKED : DNN_REF_PACKED_APART)
			 : (in_rows ? DNN_REF_PLAIN : DNN_REF_APART);
}

static void rows(struct vfm_dnn_graph *g, vfm_dnn_t t, vfm_dnn_t len, bool turned)
{
	if (t && len && !tensor(g, t)->rows) {
		tensor(g, t)->rows = len;
		tensor(g, t)->turned = turned;
	}
}

/* Propagates the lengths of rows: products state them, elementwise operations pass them on. */
int vfm_dnn_build(struct vfm_dnn_graph *g, bool deterministic, int most, struct vfm_err *err)
{
	(void)deterministic;
	dnn_ref_built++;
	g->plans = most < dnn_ref_plans ? most : dnn_ref_plans;
	for (int i = 0; i < g->plans; i++)
		g->plan[i] = i;
	if (dnn_ref_no_plans)
		return vfm_fail(err, VFM_EENV, "no engine takes it");
	if (dnn_ref_refuse_build & form_of(g))
		return vfm_fail(err, VFM_EENV, "no engine for form %d", form_of(g));
	if (g->sdpa.q) {
		rows(g, g->sdpa.q, g->sdpa.len_q, false);
		rows(g, g->sdpa.o, g->sdpa.len_q, false);
		rows(g, g->sdpa.lse, g->sdpa.len_q, false);
		rows(g, g->sdpa.k, g->sdpa.len_k, false);
		rows(g, g->sdpa.v, g->sdpa.len_k, false);
	}
	for (int again = 0; again < g->n_op; again++)
		for (int i = 0; i < g->n_op; i++) {
			const struct op *o = &g->op[i];

			if (o->kind == MATMUL) {
				rows(g, o->a, o->len.m, false);
				rows(g, o->y, o->len.m, false);
				rows(g, o->b, o->len.k, false);
				rows(g, o->b, o->len.n, true);
			} else if (o->kind == REDUCE || o->kind == PW || o->kind == SELECT) {
				vfm_dnn_t len = tensor(g, o->a)->rows ? tensor(g, o->a)->rows : tensor(g, o->y)->rows;

				rows(g, o->a, len, false);
				rows(g, o->y, len, false);
				if (o->b && tensor(g, o->b)->dim[2] > 1)
					rows(g, o->b, len, false);
			}
		}
	for (int i = 1; i <= g->n_t; i++) {
		int k = 1;

		while (g->t[k].ragged != g->t[i].ragged)
			k++;
		g->t[i].times = g->t[i].dim[1] / g->t[k].dim[1];
	}
	for (int i = 1; i <= g->n_t; i++)
		if (g->t[i].ragged && !g->t[i].rows)
			return vfm_fail(err, VFM_EENV, "tensor %d has offsets, but no known lengths", i);
	return 0;
}

struct vfm_dnn_facts vfm_dnn_facts(const struct vfm_dnn_graph *g)
{
	return (struct vfm_dnn_facts){.workspace = 1000 * g->plans, .plans = g->plans, .ops = g->n_op};
}

void vfm_dnn_use(struct vfm_dnn_graph *g, int i)
{
	g->plan[0] = g->plan[i];
	g->plans = 1;
}

/* ---- elements ---- */

static int64_t number(const struct vfm_dnn_graph *g, vfm_dnn_t t, int64_t i)
{
	const struct tensor *x = &g->t[t];

	return x->dt == CUDNN_DATA_INT64 ? ((const int64_t *)(void *)x->p)[i] : ((const int32_t *)(void *)x->p)[i];
}

static bool inside(const struct vfm_dnn_graph *g, const struct tensor *x, const int64_t i[4])
{
	return !x->rows || i[x->turned ? 3 : 2] < number(g, x->rows, i[0]);
}

static int64_t place(const struct vfm_dnn_graph *g, const struct tensor *x, const int64_t i[4])
{
	int64_t at = x->ragged ? number(g, x->ragged, i[0]) * x->times : i[0] * x->stride[0];

	return at + i[1] * x->stride[1] + i[2] * x->stride[2] + i[3] * x->stride[3];
}

static int64_t flat(const struct tensor *x, const int64_t i[4])
{
	return ((i[0] * x->dim[1] + i[1]) * x->dim[2] + i[2]) * x->dim[3] + i[3];
}

/* Broadcasts dimensions of 1, and fewer heads. */
static float get(const struct vfm_dnn_graph *g, vfm_dnn_t t, const int64_t at[4], int64_t heads)
{
	const struct tensor *x = &g->t[t];
	int64_t i[4], k;

	for (int d = 0; d < 4; d++)
		i[d] = x->dim[d] == 1 ? 0 : at[d];
	if (x->dim[1] > 1 && x->dim[1] < heads)
		i[1] = at[1] / (heads / x->dim[1]);
	if (x->kind == VFM_DNN_VIRTUAL)
		return x->v[flat(x, i)];
	if (!inside(g, x, i))
		return NAN;
	k = place(g, x, i);
	if (x->dt == CUDNN_DATA_FLOAT)
		return ((const float *)(void *)x->p)[k];
	if (x->dt == CUDNN_DATA_BFLOAT16)
		return vfm_bf16_to_f32(((const uint16_t *)(void *)x->p)[k]);
	return (float)number(g, t, k);
}

/* Whether the forward writes lse here. */
static bool is_lse(const struct tensor *x)
{
	return x->kind == VFM_DNN_DEVICE && x->dt == CUDNN_DATA_FLOAT && x->dim[3] == 1 && x->dim[2] > 1;
}

/* Whether an element belongs to the last row of a sample. */
static bool is_last(const struct vfm_dnn_graph *g, const struct tensor *x, const int64_t i[4])
{
	return x->kind == VFM_DNN_DEVICE && x->dim[3] > 1 &&
		i[2] == (x->rows ? number(g, x->rows, i[0]) : x->dim[2]) - 1;
}

/* The place of lse of a query that is stored behind that of the query before. */
static int64_t swapped_place(const struct vfm_dnn_graph *g, const struct tensor *x, const int64_t i[4])
{
	int64_t n = x->rows ? number(g, x->rows, i[0]) : x->dim[2];

	return place(g, x, (int64_t[4]){i[0], 0, 0, 0}) + i[1] * n + i[2];
}

static void put(const struct vfm_dnn_graph *g, vfm_dnn_t t, const int64_t i[4], float v)
{
	const struct tensor *x = &g->t[t];

	if (g->error == DNN_REF_BASE2 && is_lse(x))
		v *= 1.442695f;
	if (g->error == DNN_REF_LAST_ROW && is_last(g, x, i))
		v = 0;
	if (g->error == DNN_REF_SWAPPED && is_lse(x) && inside(g, x, i)) {
		((float *)(void *)x->p)[swapped_place(g, x, i)] = v;
		return;
	}
	if (x->kind != VFM_DNN_VIRTUAL && !inside(g, x, i))
		v = NAN;
	if (x->dt == CUDNN_DATA_BFLOAT16 && x->kind == VFM_DNN_VIRTUAL)
		v = vfm_bf16_to_f32(vfm_f32_to_bf16(v));
	if (x->kind == VFM_DNN_VIRTUAL)
		x->v[flat(x, i)] = v;
	else if (!inside(g, x, i) && x->ragged)
		return;
	else if (x->dt == CUDNN_DATA_FLOAT)
		((float *)(void *)x->p)[place(g, x, i)] = v;
	else
		((uint16_t *)(void *)x->p)[place(g, x, i)] = vfm_f32_to_bf16(v);
}

/* ---- operations ---- */

static float by_element(int mode, float a, float b)
{
	switch (mode) {
	case CUDNN_POINTWISE_MUL:
		return a * b;
	case CUDNN_POINTWISE_SUB:
		return a - b;
	case CUDNN_POINTWISE_ADD:
		return a + b;
	case CUDNN_POINTWISE_DIV:
		return a / b;
	case CUDNN_POINTWISE_EXP:
		return expf(a);
	case CUDNN_POINTWISE_LOG:
		return logf(a);
	case CUDNN_POINTWISE_CMP_LT:
		return a < b;
	case CUDNN_POINTWISE_LOGICAL_AND:
		return a != 0 && b != 0;
	case CUDNN_POINTWISE_IDENTITY:
		return a;
	default:
		abort();
	}
}

static float reduce(const struct vfm_dnn_graph *g, const struct op *o, const int64_t i[4])
{
	const struct tensor *x = &g->t[o->a], *y = &g->t[o->y];
	int64_t share = x->dim[1] / y->dim[1], cols = x->dim[3] / y->dim[3];
	double s = o->mode == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0;

	for (int64_t h = 0; h < share; h++)
		for (int64_t c = 0; c < cols; c++) {
			float v = get(
				g, o->a, (int64_t[4]){i[0], i[1] * share + h, i[2], cols > 1 ? c : i[3]}, x->dim[1]);

			s = o->mode == CUDNN_REDUCE_TENSOR_MAX ? fmax(s, (double)v) : s + (double)v;
		}
	return (float)s;
}

/* The operands of a product, each element read once: a [b, h, m, k], b [b, h, n, k]. */
struct factors {
	float *a, *b;
	int64_t k;
};

static struct factors factors(const struct vfm_dnn_graph *g, const struct op *o)
{
	const int64_t *n = g->t[o->y].dim;
	struct factors f = {.k = g->t[o->a].dim[3]};

	f.a = vfm_malloc((size_t)(n[0] * n[1] * n[2] * f.k) * sizeof(float));
	f.b = vfm_malloc((size_t)(n[0] * n[1] * n[3] * f.k) * sizeof(float));
	for (int64_t r = 0; r < n[0] * n[1]; r++) {
		for (int64_t i = 0; i < n[2] * f.k; i++)
			f.a[r * n[2] * f.k + i] =
				get(g, o->a, (int64_t[4]){r / n[1], r % n[1], i / f.k, i % f.k}, n[1]);
		for (int64_t i = 0; i < n[3] * f.k; i++)
			f.b[r * n[3] * f.k + i] =
				get(g, o->b, (int64_t[4]){r / n[1], r % n[1], i % f.k, i / f.k}, n[1]);
	}
	return f;
}

static float product(const struct vfm_dnn_graph *g, const struct op *o, const struct factors *f, const int64_t i[4])
{
	const int64_t *dim = g->t[o->y].dim;
	const float *a = f->a + ((i[0] * dim[1] + i[1]) * dim[2] + i[2]) * f->k,
		    *b = f->b + ((i[0] * dim[1] + i[1]) * dim[3] + i[3]) * f->k;
	int64_t n = o->len.k ? number(g, o->len.k, i[0]) : f->k;
	double s = 0;

	if ((o->len.m && i[2] >= number(g, o->len.m, i[0])) || (o->len.n && i[3] >= number(g, o->len.n, i[0])))
		return NAN;
	for (int64_t k = 0; k < n; k++)
		s += (double)a[k] * (double)b[k];
	return (float)s;
}

static float value(const struct vfm_dnn_graph *g, const struct op *o, const struct factors *f, const int64_t i[4])
{
	int64_t heads = g->t[o->y].dim[1];

	switch (o->kind) {
	case INDEX:
		return (float)i[o->mode];
	case SELECT:
		return get(g, o->t, i, heads) != 0 ? get(g, o->a, i, heads) : get(g, o->b, i, heads);
	case REDUCE:
		return reduce(g, o, i);
	case RESHAPE:
		return get(g, o->a, (int64_t[4]){i[0], i[1], i[3], i[2]}, heads);
	case MATMUL:
		return product(g, o, f, i);
	default:
		return by_element(o->mode, get(g, o->a, i, heads), o->b ? get(g, o->b, i, heads) : 0);
	}
}

static void run_op(const struct vfm_dnn_graph *g, const struct op *o)
{
	const int64_t *n = g->t[o->y].dim;
	struct factors f = {0};
	bool twice = false; /* a product with a transposed matrix: dk or dv */

	for (int i = 0; i < g->n_op && g->error == DNN_REF_TWICE && o->kind == MATMUL; i++)
		twice = twice || (g->op[i].kind == RESHAPE && g->op[i].y == o->a);
	if (o->kind == MATMUL)
		f = factors(g, o);
	for (int64_t r = 0; r < n[0] * n[1] * n[2]; r++) {
		int64_t i[4] = {r / n[2] / n[1], r / n[2] % n[1], r % n[2], 0};

		for (; i[3] < n[3]; i[3]++)
			put(g, o->y, i, (twice ? 2 : 1) * value(g, o, &f, i));
	}
	free(f.a);
	free(f.b);
}

/* One row of queries of the single operation. */
static void attend_row(const struct vfm_dnn_graph *g, const int64_t i[4], double scale)
{
	const struct vfm_dnn_sdpa *x = &g->sdpa;
	int64_t heads = g->t[x->q].dim[1], d = g->t[x->q].dim[3],
		n = x->len_k ? number(g, x->len_k, i[0]) : g->t[x->k].dim[2];
	double *p = vfm_calloc((size_t)n + 1, sizeof(*p)), max = -INFINITY, sum = 0;

	for (int64_t k = 0; k < n; k++) {
		for (int64_t c = 0; c < d; c++)
			p[k] += scale * (double)get(g, x->q, (int64_t[4]){i[0], i[1], i[2], c}, heads) *
				(double)get(g, x->k, (int64_t[4]){i[0], i[1], k, c}, heads);
		max = p[k] > max ? p[k] : max;
	}
	for (int64_t k = 0; k < n; k++)
		sum += p[k] = exp(p[k] - max);
	for (int64_t c = 0; c < d; c++) {
		double o = 0;

		for (int64_t k = 0; k < n; k++)
			o += p[k] / sum * (double)get(g, x->v, (int64_t[4]){i[0], i[1], k, c}, heads);
		put(g, x->o, (int64_t[4]){i[0], i[1], i[2], c}, (float)o);
	}
	put(g, x->lse, i, (float)(max + log(sum)));
	free(p);
}

static void run_sdpa(const struct vfm_dnn_graph *g)
{
	const int64_t *n = g->t[g->sdpa.q].dim;
	double scale = (double)*(const float *)(void *)g->t[g->sdpa.scale].p;

	for (int64_t r = 0; r < n[0] * n[1] * n[2]; r++)
		attend_row(g, (int64_t[4]){r / n[2] / n[1], r / n[2] % n[1], r % n[2], 0}, scale);
}

int vfm_dnn_run(struct vfm_dnn_graph *g, int plan, cudaStream_t s, const struct vfm_dnn_bind *b, int n, void *workspace,
	struct vfm_err *err)
{
	int us = dnn_ref_us[g->plan[plan]];

	(void)s;
	if (!workspace)
		return vfm_fail(err, VFM_EENV, "no workspace");
	if (dnn_ref_refuse_run & form_of(g))
		return vfm_fail(err, VFM_EENV, "no run of form %d", form_of(g));
	if (us < 0)
		return vfm_fail(err, VFM_EENV, "no run of plan %d", g->plan[plan]);
	dnn_ref_ran |= form_of(g);
	dnn_ref_used = g->plan[plan];
	g->error = dnn_ref_wrong & form_of(g) && (dnn_ref_wrong_plan < 0 || dnn_ref_wrong_plan == g->plan[plan])
		? dnn_ref_error
		: (enum dnn_ref_error)0;
	dnn_ref_now += 1e-6 * (us + 1);
	memset(workspace, 0x5a, (size_t)vfm_dnn_facts(g).workspace);
	for (int i = 0; i < n; i++)
		if (b[i].t)
			g->t[b[i].t].p = b[i].p;
	for (int i = 1; i <= g->n_t; i++) {
		struct tensor *t = &g->t[i];

		if (t->kind != VFM_DNN_VIRTUAL && !t->p && !(t->kind == VFM_DNN_HOST))
			return vfm_fail(err, VFM_EENV, "tensor %d is not bound", i);
		if (t->kind == VFM_DNN_VIRTUAL)
			t->v = vfm_malloc((size_t)(t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]) * sizeof(*t->v));
	}
	for (int i = 0; i < g->n_op; i++)
		run_op(g, &g->op[i]);
	if (g->sdpa.q)
		run_sdpa(g);
	for (int i = 1; i <= g->n_t; i++) {
		free(g->t[i].v);
		g->t[i].v = NULL;
	}
	return 0;
}
