/* Adapters of other programs as those of a run: the matrices of their layers, put together for our fused layers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/adapters.h"
#include "ckpt/adapters_impl.h"
#include "io/names.h"
#include "spec/model/linears.h"

struct trainable {
	struct ckpt_attaching *x;
	struct vfm_ckpt_tensor *t;
	int n;
	int64_t rank; /* 0: not known yet */
	double scale;
	struct vfm_names layers; /* "blocks.0.fc1.weight" */
	int *blocks;             /* of each: blocks of outputs (spec/model/linears.h) */
	size_t blocks_cap;
	struct ckpt_faults kinds, ranks, scales, parts, types;
};

static int place_cmp(const void *a, const void *b)
{
	const struct ckpt_addition *x = a, *y = b;
	int order = ckpt_addition_cmp(a, b);

	return order ? order : (x->at > y->at) - (x->at < y->at);
}

/* Returns what prevents the training of a term; NULL: it is a pair of LoRA. */
static const char *untrainable(const struct ckpt_addition *x)
{
	static const char *const products[] = {"", " (LoHa)", " (LoKr)"};
	const struct ckpt_term *d = x->term;

	if (d->magnitude)
		return " (DoRA)";
	if (d->product != CKPT_SINGLE)
		return products[d->product];
	return d->f[0].b ? NULL : " (a difference)";
}

/* Checks the terms of the additions v [n] of one of our weights. */
static bool check_terms(struct trainable *j, const struct ckpt_addition *v, size_t n)
{
	const struct ckpt_factor *first = v->term->f;
	bool ok = true;

	for (size_t i = 0; i < n; i++) {
		const struct ckpt_factor *f = v[i].term->f;
		const char *why = untrainable(&v[i]);
		char more[64];

		if (!j->rank && !why) {
			j->rank = f->rank;
			j->scale = v[i].term->scale;
		}
		if (why) {
			ckpt_fault_add(&j->kinds, f->a->name, why);
		} else if (f->rank != j->rank) {
			snprintf(more, sizeof(more), " (%lld, others %lld)", (long long)f->rank, (long long)j->rank);
			ckpt_fault_add(&j->ranks, f->a->name, more);
		} else if (v[i].term->scale != j->scale) {
			snprintf(more, sizeof(more), " (%g, others %g)", v[i].term->scale, j->scale);
			ckpt_fault_add(&j->scales, f->a->name, more);
		} else if (f->a->dtype != first->a->dtype || f->b->dtype != first->b->dtype) {
			ckpt_fault_add(&j->types, f->a->name, "");
		} else {
			continue;
		}
		ok = false;
	}
	return ok;
}

static struct vfm_ckpt_piece *new_pieces(struct trainable *j, size_t n)
{
	return vfm_arena_alloc(&j->x->from->priv->arena, n * sizeof(struct vfm_ckpt_piece));
}

/* Elements [at, at + n) of a tensor are those from `from` on of src. */
static struct vfm_ckpt_piece piece_of_range(const struct vfm_ckpt_tensor *src, int64_t from, int64_t at, int64_t n)
{
	return (struct vfm_ckpt_piece){.file = src->piece->file,
		.tensor = src->piece->tensor,
		.is_range = true,
		.a = at,
		.b = at + n,
		.numel = n,
		.from = from};
}

static void add_matrix(struct trainable *j, const struct ckpt_addition *of, const char *suffix, enum vfm_dtype dtype,
	int64_t rows, int64_t cols, struct vfm_ckpt_piece *piece, int n_pieces)
{
	char *name = vfm_strfmt("%.*s%s", (int)(strlen(of->tensor) - strlen(".weight")), of->tensor, suffix);

	j->t[j->n++] = (struct vfm_ckpt_tensor){.name = vfm_arena_strdup(&j->x->from->priv->arena, name),
		.dtype = dtype,
		.ndim = 2,
		.shape = {rows, cols},
		.numel = rows * cols,
		.bytes = rows * cols * (int64_t)vfm_dtype_size(dtype),
		.piece = piece,
		.n_pieces = n_pieces};
	free(name);
}

/* ---- the layers ---- */

static void note_blocks(void *ctx, const struct vfm_linear_shape *l)
{
	struct trainable *j = ctx;
	char name[80];
	int64_t at;

	vfm_linear_name(l, ".weight", name, sizeof(name));
	at = vfm_names_add(&j->layers, name);
	vfm_grow(&j->blocks, &j->blocks_cap, (size_t)at + 1, sizeof(*j->blocks));
	j->blocks[at] = l->blocks;
}

/* Lists the numbers of blocks of outputs of the model's layers. */
static int list_blocks(struct trainable *j, struct vfm_err *err)
{
	struct vfm_model_spec m;

	TRY(ckpt_model_spec(j->x->c, &m, err));
	vfm_model_linears(&m, &(struct vfm_pack_sums){.samples = 1, .text_rows = 1}, 0, m.layers, note_blocks, j);
	return 0;
}

/* The adapter of one of our weights [out, in].  A block of its outputs has the A of one layer of the file, which may have
 * further inputs, in other columns. */
struct own_layer {
	const struct ckpt_addition *v; /* [n] */
	size_t n;
	int64_t in, rows;                   /* rows: of a block */
	const struct ckpt_addition **block; /* [blocks] one of its additions; NULL: the file has none */
	int blocks;
};

static int64_t column_of(const struct ckpt_addition *v)
{
	return v->from % v->term->f->cols;
}

/* Finds the layer of each block; returns false if a block has several, or only a part of one. */
static bool find_blocks(struct own_layer *l)
{
	int64_t *rows = vfm_calloc((size_t)l->blocks, sizeof(*rows));
	bool ok = true;

	for (size_t i = 0; i < l->n && ok; i++) {
		const struct ckpt_addition *v = &l->v[i];
		const int64_t cols = v->term->f->cols, first = v->at / l->in, end = first + v->n / l->in;

		ok = v->at % l->in == 0 && v->n % l->in == 0 && column_of(v) + l->in <= cols &&
			(v->n == l->in || cols == l->in);
		for (int64_t k = first / l->rows; ok && k * l->rows < end; k++) {
			const struct ckpt_addition *other = l->block[k];
			const int64_t a = first > k * l->rows ? first : k * l->rows,
				      b = end < (k + 1) * l->rows ? end : (k + 1) * l->rows;

			ok = !other || (other->term == v->term && column_of(other) == column_of(v));
			l->block[k] = v;
			rows[k] += b - a;
		}
	}
	for (int k = 0; k < l->blocks && ok; k++)
		ok = rows[k] == (l->block[k] ? l->rows : 0);
	free(rows);
	return ok;
}

/* Adds A [blocks * rank, in] and B [out, rank].  The blocks that the file lacks have no pieces. */
static void add_layer(struct trainable *j, const struct own_layer *l)
{
	const int64_t r = j->rank;
	struct vfm_ckpt_piece *a = new_pieces(j, (size_t)(l->blocks * r)), *b = new_pieces(j, l->n);
	int n_a = 0;

	for (int k = 0; k < l->blocks; k++) {
		const struct ckpt_factor *f = l->block[k] ? l->block[k]->term->f : NULL;
		const bool whole = f && f->cols == l->in;

		for (int64_t row = 0; f && row < (whole ? 1 : r); row++)
			a[n_a++] = piece_of_range(f->a, (f->a_row + row) * f->cols + column_of(l->block[k]),
				(k * r + row) * l->in, (whole ? r : 1) * l->in);
	}
	for (size_t i = 0; i < l->n; i++) {
		const struct ckpt_addition *v = &l->v[i];

		b[i] = piece_of_range(
			v->term->f->b, v->from / v->term->f->cols * r, v->at / l->in * r, v->n / l->in * r);
	}
	add_matrix(j, l->v, ".lora_A.weight", l->v->term->f->a->dtype, l->blocks * r, l->in, a, n_a);
	add_matrix(j, l->v, ".lora_B.weight", l->v->term->f->b->dtype, l->blocks * l->rows, r, b, (int)l->n);
}

/* Adds the adapter of w from the additions v [n]. */
static void add_own_layer(struct trainable *j, const struct vfm_ckpt_tensor *w, const struct ckpt_addition *v, size_t n)
{
	const int64_t at = vfm_names_find(&j->layers, v->tensor);
	struct own_layer l = {.v = v, .n = n, .blocks = at >= 0 ? j->blocks[at] : 0};

	if (l.blocks > 0 && w->ndim == 2 && w->shape[0] % l.blocks == 0) {
		l.in = w->shape[1];
		l.rows = w->shape[0] / l.blocks;
		l.block = vfm_calloc((size_t)l.blocks, sizeof(*l.block));
	}
	if (l.block && find_blocks(&l))
		add_layer(j, &l);
	else
		ckpt_fault_add(&j->parts, v->tensor, "");
	free(l.block);
}

static int list_trainable(struct trainable *j, struct vfm_err *err)
{
	struct ckpt_faults *const faults[] = {&j->kinds, &j->ranks, &j->scales, &j->parts, &j->types};
	static const char *const what[] = {"that no adapter of a run can be", "of another rank", "of another scale",
		"whose outputs the file divides otherwise", "of another type"};
	struct ckpt_adapters *s = j->x->s;
	struct vfm_buf b = {0};
	int rc;

	TRY(list_blocks(j, err));
	rc = 0;
	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), place_cmp);
	j->t = vfm_calloc(2 * s->n + 1, sizeof(*j->t));
	for (size_t i = 0, end; i < s->n; i = end) {
		const struct vfm_ckpt_tensor *w = vfm_ckpt_find_in(j->x->c, "model", s->v[i].tensor);

		for (end = i; end < s->n && !ckpt_addition_cmp(&s->v[end], &s->v[i]);)
			end++;
		if (check_terms(j, s->v + i, end - i))
			add_own_layer(j, w, s->v + i, end - i);
	}
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		ckpt_faults_report(&b, faults[i], what[i]);
	if (b.len)
		rc = vfm_fail(err, VFM_EUSAGE,
			"%s cannot be trained further (vfm-ckpt merge adds it to the base model): %s", j->x->path,
			b.data);
	vfm_buf_release(&b);
	return rc;
}

/* Returns alpha; of several that give the scale, the one with few digits. */
static double alpha_of(double scale, int64_t rank)
{
	const double alpha = scale * (double)rank, near = nearbyint(alpha * 1e6) / 1e6;

	return near / (double)rank == scale ? near : alpha;
}

int vfm_ckpt_open_adapters(struct vfm_ckpt **out, struct vfm_ckpt *base, const struct vfm_attach *o, int64_t *rank,
	double *alpha, struct vfm_err *err)
{
	struct ckpt_attaching x = {.c = base,
		.s = vfm_calloc(1, sizeof(*x.s)),
		.path = o->path,
		.part = o->part,
		.scale = 1,
		.skip_missing = o->skip_missing};
	struct trainable j = {.x = &x};
	int rc;

	*out = NULL;
	TRY_OUT(ckpt_adapters_list(&x, err));
	if (!x.from->plain)
		rc = vfm_fail(
			err, VFM_EUSAGE, "%s is a checkpoint, which names its base model: give it as --init", o->path);
	else
		rc = list_trainable(&j, err);
	if (rc < 0)
		goto out;
	qsort(j.t, (size_t)j.n, sizeof(*j.t), ckpt_tensor_cmp);
	free(x.from->t);
	x.from->t = j.t;
	x.from->n = j.n;
	x.from->layout = x.layout;
	x.s->n_files = 0; /* the caller's now */
	j.t = NULL;
	*out = x.from;
	*rank = j.rank;
	*alpha = alpha_of(j.scale, j.rank);
out:
	free(j.t);
	free(j.blocks);
	vfm_names_release(&j.layers);
	ckpt_adapters_free(x.s);
	return rc;
}
