/* cpu_rows.c - ops on rows by index, and other ops that work row by row without samples.  One thread sums all rows with
 * the same index, in ascending order, so results do not depend on the number of threads.
 */
#include "device/cpu/cpu_impl.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/par.h"

enum {
	ELEMS = 32 * 1024, /* a piece, about */
	COLS = 512,        /* columns that a thread sums */
};

/* A view of [n,D] or [n,H,d] as rows. */
struct rows_of {
	char *p;
	int64_t stride; /* bytes */
	int64_t d;
	bool bf;
};

static struct rows_of view_rows(const struct vfm_tensor *t)
{
	int64_t size = t->dtype == VFM_BF16 ? 2 : 4;

	return (struct rows_of){
		t->data, t->stride[0] * size, t->shape[1] * (t->ndim == 3 ? t->shape[2] : 1), t->dtype == VFM_BF16};
}

static char *row_at(const struct rows_of *r, int64_t i)
{
	return r->p + i * r->stride;
}

static int64_t grain(int64_t d)
{
	return d > ELEMS ? 1 : ELEMS / (d + 1) + 1;
}

static int index_ok(
	const char *op, const int32_t *index, int64_t step, int64_t n, int64_t m, int64_t least, struct vfm_err *err)
{
	for (int64_t i = 0; i < n; i++)
		if (index[i * step] >= m || index[i * step] < least)
			return vfm_fail(err, VFM_EUSAGE,
				"%s: index %" PRId64 " is %" PRId32 ", but there are %" PRId64 " rows", op, i,
				index[i * step], m);
	return 0;
}

/* ---- gather -------------------------------------------------------------------------- */

struct gather {
	const struct vfm_cpu_kern *kern;
	struct rows_of x, y;
	const int32_t *index;
	const float *weight;
	bool keep;
	float *dot;
};

static void gather_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct gather *g = ctx;
	size_t bytes = (size_t)g->x.d * (g->y.bf ? 2 : 4);

	for (int64_t i = i0; i < i1; i++) {
		char *y = row_at(&g->y, i);
		float w = g->weight ? g->weight[i] : 1;

		if (g->index[i] < 0 && g->keep)
			continue;
		if (g->index[i] < 0)
			memset(y, 0, bytes);
		else if (g->x.bf == g->y.bf && !g->weight)
			memcpy(y, row_at(&g->x, g->index[i]), bytes);
		else
			g->kern->axpby(w, row_at(&g->x, g->index[i]), g->x.bf, 0, y, g->y.bf, g->x.d);
	}
}

int vfm_cpu_index_select(struct vfm_stream *s, const struct vfm_index_select *a, struct vfm_err *err)
{
	struct gather g = {.kern = vfm_cpu_of(s)->kern,
		.x = view_rows(&a->x),
		.y = view_rows(&a->y),
		.index = a->index.data,
		.weight = vfm_has(&a->weight) ? a->weight.data : NULL,
		.keep = a->keep};

	TRY(index_ok("index_select", g.index, 1, a->index.shape[0], a->x.shape[0], INT32_MIN, err));
	if (g.x.d)
		vfm_par_for(a->index.shape[0], grain(g.x.d), gather_range, &g);
	return 0;
}

static void dot_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct gather *g = ctx;

	for (int64_t i = i0; i < i1; i++)
		g->dot[i] = g->index[i] < 0
			? 0
			: g->kern->dot(row_at(&g->x, i), g->x.bf, row_at(&g->y, g->index[i]), g->y.bf, g->x.d);
}

int vfm_cpu_index_dot(struct vfm_stream *s, const struct vfm_index_dot *a, struct vfm_err *err)
{
	struct gather g = {.kern = vfm_cpu_of(s)->kern,
		.x = view_rows(&a->x),
		.y = view_rows(&a->y),
		.index = a->index.data,
		.dot = a->dot.data};

	TRY(index_ok("index_dot", g.index, 1, a->index.shape[0], a->y.shape[0], INT32_MIN, err));
	vfm_par_for(a->index.shape[0], grain(g.x.d), dot_range, &g);
	return 0;
}

/* ---- sums of rows by index --------------------------------------------------------------- */

struct scatter {
	const struct vfm_cpu_kern *kern;
	struct rows_of x, y;
	const float *weight;
	int32_t *first; /* [M+1]: row m receives list[first[m] … first[m + 1]) */
	int32_t *list;
	int64_t blocks; /* of columns */
	bool accumulate;
};

/* Counting sort, stable, so that each list ascends. */
static int group_rows(struct vfm_stream *s, struct scatter *g, const int32_t *index, int64_t step, int64_t n, int64_t m,
	struct vfm_err *err)
{
	int32_t *at;

	if (n >= INT32_MAX || m >= INT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "index_add: %" PRId64 " rows exceed the limit of 2^31", n > m ? n : m);
	g->first = vfm_cpu_ws(s, VFM_WS_CHUNKS, (size_t)(2 * m + n + 2) * sizeof(*g->first), err);
	if (!g->first)
		return VFM_EENV;
	g->list = g->first + m + 1;
	at = g->list + n;
	memset(g->first, 0, (size_t)(m + 1) * sizeof(*g->first));
	for (int64_t i = 0; i < n; i++)
		if (index[i * step] >= 0)
			g->first[index[i * step] + 1]++;
	for (int64_t i = 0; i < m; i++) {
		g->first[i + 1] += g->first[i];
		at[i] = g->first[i];
	}
	for (int64_t i = 0; i < n; i++)
		if (index[i * step] >= 0)
			g->list[at[index[i * step]]++] = (int32_t)i;
	return 0;
}

/* Sums columns [k, k + n) of row m. */
static void sum_row(const struct scatter *g, int64_t m, int64_t k, int64_t n, float *mem)
{
	char *y = row_at(&g->y, m) + k * (g->y.bf ? 2 : 4);
	int32_t end = g->first[m + 1];
	struct vfm_cpu_sum sum;

	if (g->first[m] == end && g->accumulate)
		return;
	vfm_cpu_sum_begin(&sum, g->kern, mem, n);
	for (int32_t i = g->first[m]; i < end; i++) {
		g->kern->axpby(g->weight ? g->weight[g->list[i]] : 1, row_at(&g->x, g->list[i]) + k * (g->x.bf ? 2 : 4),
			g->x.bf, 1, sum.level[0], false, n);
		vfm_cpu_sum_next(&sum);
	}
	g->kern->axpby(1, vfm_cpu_sum_end(&sum), false, g->accumulate ? 1 : 0, y, g->y.bf, n);
}

static void scatter_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct scatter *g = ctx;
	float *mem = vfm_cpu_scratch(VFM_CPU_SUM_LEVELS * COLS * sizeof(float));

	for (int64_t i = i0; i < i1; i++) {
		int64_t k = i % g->blocks * COLS;

		sum_row(g, i / g->blocks, k, g->y.d - k < COLS ? g->y.d - k : COLS, mem);
	}
}

static void scatter_rows(struct scatter *g, int64_t m)
{
	int64_t width = g->y.d < COLS ? g->y.d : COLS;

	g->blocks = (g->y.d + COLS - 1) / COLS;
	vfm_par_for(m * g->blocks, grain(width) / 2 + 1, scatter_range, g);
}

int vfm_cpu_index_add(struct vfm_stream *s, const struct vfm_index_add *a, struct vfm_err *err)
{
	struct scatter g = {.kern = vfm_cpu_of(s)->kern,
		.x = view_rows(&a->x),
		.y = view_rows(&a->y),
		.weight = vfm_has(&a->weight) ? a->weight.data : NULL,
		.accumulate = a->accumulate};
	int64_t n = a->index.shape[0], m = a->y.shape[0];

	TRY(index_ok("index_add", a->index.data, 1, n, m, INT32_MIN, err));
	TRY(group_rows(s, &g, a->index.data, 1, n, m, err));
	scatter_rows(&g, m);
	return 0;
}

/* ---- merged attention ----------------------------------------------------------------------- */

static void merge_head(const struct vfm_cpu_kern *kern, const struct vfm_attn_merge *a, float *o, float *lse,
	const void *o_b, float lse_b)
{
	int64_t d = a->o.shape[2];
	bool bf = a->o_b.dtype == VFM_BF16;
	float most, wa, wb;

	if (a->first || *lse == -INFINITY) {
		kern->axpby(1, o_b, bf, 0, o, false, d);
		*lse = lse_b;
		return;
	}
	if (lse_b == -INFINITY)
		return;
	most = fmaxf(*lse, lse_b);
	wa = expf(*lse - most);
	wb = expf(lse_b - most);
	*lse = most + logf(wa + wb);
	kern->axpby(wb / (wa + wb), o_b, bf, wa / (wa + wb), o, false, d);
}

static void merge_range(int64_t t0, int64_t t1, void *ctx)
{
	const struct vfm_cpu_job *j = ctx;
	const struct vfm_attn_merge *a = j->args;
	const struct vfm_tensor *o = &a->o, *b = &a->o_b;
	int64_t nh = o->shape[1];

	for (int64_t t = t0; t < t1; t++)
		for (int64_t h = 0; h < nh; h++)
			merge_head(j->kern, a, (float *)o->data + t * o->stride[0] + h * o->stride[1],
				(float *)a->lse.data + t * nh + h,
				(const char *)b->data +
					(t * b->stride[0] + h * b->stride[1]) * (b->dtype == VFM_BF16 ? 2 : 4),
				((const float *)a->lse_b.data)[t * nh + h]);
}

int vfm_cpu_attn_merge(struct vfm_stream *s, const struct vfm_attn_merge *a, struct vfm_err *err)
{
	struct vfm_cpu_job j = {vfm_cpu_of(s)->kern, a};

	(void)err;
	vfm_par_for(a->o.shape[0], grain(a->o.shape[1] * a->o.shape[2]), merge_range, &j);
	return 0;
}

/* ---- independent rows, embeddings --------------------------------------------------------------- */

#define X(op, operand)                                                                                                 \
	VFM_CPU_RANGE(op)                                                                                              \
	int vfm_cpu_##op(struct vfm_stream *s, const struct vfm_##op *a, struct vfm_err *err)                          \
	{                                                                                                              \
		struct vfm_cpu_job j = {vfm_cpu_of(s)->kern, a};                                                       \
                                                                                                                       \
		(void)err;                                                                                             \
		vfm_par_for(a->operand.shape[0], grain(view_rows(&a->operand).d), op##_range, &j);                     \
		return 0;                                                                                              \
	}
VFM_CPU_ROW_OPS(X)
#undef X

VFM_CPU_RANGE(embed3)

int vfm_cpu_embed3(struct vfm_stream *s, const struct vfm_embed3 *a, struct vfm_err *err)
{
	const struct vfm_tensor *table[] = {&a->table_t, &a->table_h, &a->table_w};
	struct vfm_cpu_job j = {vfm_cpu_of(s)->kern, a};

	for (int i = 0; i < 3; i++)
		TRY(index_ok(
			"embed3", (const int32_t *)a->pos.data + i, 3, a->out.shape[0], table[i]->shape[0], 0, err));
	vfm_par_for(a->out.shape[0], grain(a->out.shape[1]), embed3_range, &j);
	return 0;
}

int vfm_cpu_embed3_bwd(struct vfm_stream *s, const struct vfm_embed3_bwd *a, struct vfm_err *err)
{
	const struct vfm_tensor *table[] = {&a->dtable_t, &a->dtable_h, &a->dtable_w};
	int64_t n = a->dy.shape[0];

	for (int i = 0; i < 3; i++) {
		const int32_t *pos = (const int32_t *)a->pos.data + i;
		struct scatter g = {.kern = vfm_cpu_of(s)->kern, .x = view_rows(&a->dy), .accumulate = true};

		if (!vfm_has(table[i]))
			continue;
		g.y = view_rows(table[i]);
		TRY(index_ok("embed3_bwd", pos, 3, n, table[i]->shape[0], 0, err));
		TRY(group_rows(s, &g, pos, 3, n, table[i]->shape[0], err));
		scatter_rows(&g, table[i]->shape[0]);
	}
	return 0;
}
