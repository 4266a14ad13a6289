/* Sums of weights and the differences of adapters. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/par.h"
#include "ckpt/adapters_impl.h"

enum { NORM_BLOCK = 1 << 20 }; /* elements of the base model that are read together for norms */

int ckpt_addition_cmp(const void *a, const void *b)
{
	return strcmp(((const struct ckpt_addition *)a)->tensor, ((const struct ckpt_addition *)b)->tensor);
}

int ckpt_addition_order(const void *a, const void *b)
{
	const struct ckpt_addition *x = a, *y = b;
	int order = ckpt_addition_cmp(a, b);

	return order ? order : (x->order > y->order) - (x->order < y->order);
}

/* ---- the matrices of a term ---- */

static int load_matrix(
	struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, int64_t from, int64_t n, float **out, struct vfm_err *err)
{
	struct vfm_slice slice = {.a = from, .b = from + n};

	*out = vfm_malloc((size_t)n * sizeof(float) + 1);
	return vfm_ckpt_read_tensor(c, t, &slice, VFM_F32, *out, err);
}

static int load_term(struct ckpt_adapters *s, const struct ckpt_term *d, struct vfm_err *err)
{
	const int n = d->product == CKPT_SINGLE ? 1 : 2;

	if (s->loaded == d)
		return 0;
	s->loaded = NULL;
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < 2; k++) {
			free(s->m[i][k]);
			s->m[i][k] = NULL;
		}
	for (int i = 0; i < n; i++) {
		const struct ckpt_factor *f = &d->f[i];

		TRY(load_matrix(
			d->c, f->a, f->a_row * f->cols, (f->b ? f->rank : f->rows) * f->cols, &s->m[i][0], err));
		if (f->b)
			TRY(load_matrix(d->c, f->b, 0, f->rows * f->rank, &s->m[i][1], err));
	}
	s->loaded = d;
	return 0;
}

/* Sets out to elements [col, col + n) of a row of factor i. */
static void factor_row(const struct ckpt_adapters *s, int i, int64_t row, int64_t col, int64_t n, float *out)
{
	const struct ckpt_factor *f = &s->loaded->f[i];
	const float *a = s->m[i][0] + col, *b = s->m[i][1];

	if (!b) {
		memcpy(out, a + row * f->cols, (size_t)n * sizeof(*out));
		return;
	}
	memset(out, 0, (size_t)n * sizeof(*out));
	for (int64_t k = 0; k < f->rank; k++, a += f->cols) {
		const float x = b[row * f->rank + k];

		for (int64_t c = 0; c < n; c++)
			out[c] += x * a[c];
	}
}

/* Sets out to elements [col, col + n) of a row of the Kronecker product.  tmp [columns of both factors] */
static void kronecker_row(const struct ckpt_adapters *s, int64_t row, int64_t col, int64_t n, float *out, float *tmp)
{
	const struct ckpt_factor *f = s->loaded->f;
	float *x = tmp, *y = tmp + f[0].cols;

	factor_row(s, 0, row / f[1].rows, 0, f[0].cols, x);
	factor_row(s, 1, row % f[1].rows, 0, f[1].cols, y);
	for (int64_t c = 0, m; c < n; c += m) {
		const int64_t j = (col + c) % f[1].cols;
		const float v = x[(col + c) / f[1].cols];

		m = f[1].cols - j < n - c ? f[1].cols - j : n - c;
		for (int64_t k = 0; k < m; k++)
			out[c + k] = v * y[j + k];
	}
}

/* Returns the elements of tmp that product_row needs. */
static int64_t product_tmp(const struct ckpt_term *d)
{
	return d->product == CKPT_SINGLE ? 0 : d->product == CKPT_HADAMARD ? d->cols : d->f[0].cols + d->f[1].cols;
}

/* Sets out to elements [col, col + n) of a row of the product. */
static void product_row(const struct ckpt_adapters *s, int64_t row, int64_t col, int64_t n, float *out, float *tmp)
{
	if (s->loaded->product == CKPT_KRONECKER) {
		kronecker_row(s, row, col, n, out, tmp);
		return;
	}
	factor_row(s, 0, row, col, n, out);
	if (s->loaded->product == CKPT_SINGLE)
		return;
	factor_row(s, 1, row, col, n, tmp);
	for (int64_t c = 0; c < n; c++)
		out[c] *= tmp[c];
}

/* ---- sums ---- */

/* A sum over elements of a weight, in ranges that lie within rows of the tensor of the model. */
struct adapter_sum {
	const struct ckpt_adapters *s;
	const struct ckpt_addition *x;
	const struct vfm_runs *runs;
	const float *base; /* NULL: w += scale P; else the values W of the base model, in the place of w */
	float *w;
};

/* Adds the difference of elements [from, from + n) of the weight, which lie within a row, to w. */
static void add_in_row(const struct adapter_sum *d, int64_t from, int64_t n, const float *base, float *w, float *tmp)
{
	const struct ckpt_term *t = d->x->term;
	const int64_t row = from / t->cols, col = from % t->cols;
	float *p = tmp + product_tmp(t);

	product_row(d->s, row, col, n, p, tmp);
	if (!base) {
		const float f = (float)(t->share * t->scale);

		for (int64_t i = 0; i < n; i++)
			w[i] += f * p[i];
		return;
	}
	for (int64_t i = 0; i < n; i++) {
		const double g = t->gain[t->inner ? (col + i) / t->inner : row];

		w[i] += (float)(t->share * ((g - 1) * base[i] + g * t->scale * p[i]));
	}
}

static void add_runs(int64_t first, int64_t end, void *ctx)
{
	const struct adapter_sum *d = ctx;
	const struct ckpt_addition *x = d->x;
	const struct ckpt_term *t = x->term;
	int64_t most = 0;
	float *tmp;

	for (int64_t r = first; r < end; r++)
		most = d->runs->v[r].n > most ? d->runs->v[r].n : most;
	tmp = vfm_malloc((size_t)(product_tmp(t) + most) * sizeof(*tmp) + 1);
	for (int64_t r = first; r < end; r++) {
		const struct vfm_run *run = &d->runs->v[r];
		int64_t a = run->from > x->at ? run->from : x->at,
			b = run->from + run->n < x->at + x->n ? run->from + run->n : x->at + x->n;

		for (int64_t n; a < b; a += n) {
			const int64_t from = x->from + (a - x->at), left = t->cols - from % t->cols,
				      to = run->to + (a - run->from);

			n = b - a < left ? b - a : left;
			add_in_row(d, from, n, d->base ? d->base + to : NULL, d->w + to, tmp);
		}
	}
	free(tmp);
}

/* Lists the runs of a slice in shorter ones, for the threads. */
static void split_runs(const struct vfm_runs *runs, int64_t row, struct vfm_runs *rows)
{
	for (size_t i = 0; i < runs->n; i++)
		for (int64_t at = 0; at < runs->v[i].n; at += row) {
			int64_t n = runs->v[i].n - at < row ? runs->v[i].n - at : row;

			vfm_grow(&rows->v, &rows->cap, rows->n + 1, sizeof(*rows->v));
			rows->v[rows->n++] =
				(struct vfm_run){.from = runs->v[i].from + at, .to = runs->v[i].to + at, .n = n};
		}
}

static int64_t row_elements(const struct vfm_ckpt_tensor *t)
{
	return t->ndim > 1 && t->shape[0] > 0 ? t->numel / t->shape[0] : t->numel > 1 ? t->numel : 1;
}

/* ---- norms ---- */

/* Adds the squares of elements [a, b) of base + scale P to those of their rows or inputs.  w [b - a] is scratch. */
static int add_norm_squares(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *base, const struct ckpt_addition *x,
	int64_t a, int64_t b, float *w, double *squares, struct vfm_err *err)
{
	const struct ckpt_term *d = x->term;
	struct ckpt_term plain = *d;
	struct ckpt_addition part = *x;
	struct vfm_slice slice = {.a = a, .b = b};
	struct vfm_runs run = {0}, rows = {0};
	struct adapter_sum sum = {c->priv->adapters, &part, &rows, NULL, w};

	TRY(ckpt_read_stored(c, base, &slice, VFM_F32, w, err));
	plain.share = 1;
	part.term = &plain;
	vfm_runs_add_range(&run, a, b, 0);
	split_runs(&run, row_elements(base), &rows);
	vfm_par_for((int64_t)rows.n, 16, add_runs, &sum);
	vfm_runs_release(&run);
	vfm_runs_release(&rows);
	for (int64_t i = 0; i < b - a; i++) {
		const int64_t at = x->from + (a - x->at) + i;

		squares[d->inner ? at % d->cols / d->inner : at / d->cols] += (double)w[i] * w[i];
	}
	return 0;
}

/* Sets the gains of a term from the weights of a part of the base model; no-op if they are known. */
static int find_gains(struct vfm_ckpt *c, const char *part, struct ckpt_term *d, struct vfm_err *err)
{
	const struct ckpt_adapters *s = c->priv->adapters;
	const int64_t n = d->inner ? d->cols / d->inner : d->rows;
	double *squares;
	float *w;
	int rc;

	if (!d->magnitude || (d->gain && !strcmp(d->gain_part, part)))
		return 0;
	squares = vfm_calloc((size_t)n + 1, sizeof(*squares));
	w = vfm_malloc(NORM_BLOCK * sizeof(*w));
	free(d->gain);
	d->gain = vfm_malloc((size_t)n * sizeof(*d->gain) + 1);
	d->gain_part = part;
	TRY_OUT(vfm_ckpt_read_tensor(d->c, d->magnitude, NULL, VFM_F32, d->gain, err));
	for (const struct ckpt_addition *x = s->v; x < s->v + s->n; x++)
		for (int64_t a = x->at; x->term == d && a < x->at + x->n; a += NORM_BLOCK) {
			int64_t b = a + NORM_BLOCK < x->at + x->n ? a + NORM_BLOCK : x->at + x->n;

			TRY_OUT(add_norm_squares(c, vfm_ckpt_find_in(c, part, x->tensor), x, a, b, w, squares, err));
		}
	for (int64_t i = 0; i < n; i++)
		d->gain[i] = squares[i] > 0 ? (float)(d->gain[i] / sqrt(squares[i])) : 0;
	rc = 0;
out:
	if (rc < 0) {
		free(d->gain);
		d->gain = NULL;
	}
	free(squares);
	free(w);
	return rc;
}

static bool overlaps(const struct vfm_runs *runs, const struct ckpt_addition *x)
{
	const struct vfm_run *last = runs->n ? &runs->v[runs->n - 1] : NULL;

	return last && runs->v[0].from < x->at + x->n && x->at < last->from + last->n;
}

int ckpt_sum_additions(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_slice *slice,
	const struct ckpt_addition *first, float *w, struct vfm_err *err)
{
	struct ckpt_adapters *s = c->priv->adapters;
	const char *part = vfm_ckpt_name_in(c, "model", t) ? "model" : "ema";
	const struct ckpt_addition *end = first;
	struct vfm_runs runs = {0}, rows = {0};
	size_t n = 0;
	float *base = NULL;
	bool needs_base = false;
	int rc;

	for (; end < s->v + s->n && !ckpt_addition_cmp(end, first); end++)
		needs_base = needs_base || end->term->magnitude;
	TRY_OUT(ckpt_slice_runs(c, t, slice, &runs, err));
	split_runs(&runs, row_elements(t), &rows);
	for (size_t i = 0; i < rows.n; i++)
		n = (size_t)(rows.v[i].to + rows.v[i].n) > n ? (size_t)(rows.v[i].to + rows.v[i].n) : n;
	if (needs_base) {
		base = vfm_malloc(n * sizeof(*base) + 1);
		memcpy(base, w, n * sizeof(*base));
	}
	for (const struct ckpt_addition *x = first; x < end; x++) {
		struct adapter_sum sum = {s, x, &rows, x->term->magnitude ? base : NULL, w};

		if (!overlaps(&runs, x))
			continue;
		TRY_OUT(load_term(s, x->term, err));
		TRY_OUT(find_gains(c, part, x->term, err));
		vfm_par_for((int64_t)rows.n, 16, add_runs, &sum);
	}
	rc = 0;
out:
	free(base);
	vfm_runs_release(&runs);
	vfm_runs_release(&rows);
	return rc;
}
