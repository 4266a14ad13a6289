/* Adapters of other programs as those of a run: the matrices of their layers, put together for our fused layers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/adapters.h"
#include "ckpt/adapters_impl.h"

struct trainable {
	struct ckpt_attaching *x;
	struct vfm_ckpt_tensor *t;
	int n;
	int64_t rank; /* 0: not known yet */
	double scale;
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

/* Returns the number of additions from v [n] on that are of one term and adjoin, and the number of their elements. */
static size_t count_adjoining(const struct ckpt_addition *v, size_t n, int64_t *size)
{
	size_t k = 0;

	*size = 0;
	while (k < n && v[k].term == v->term && v[k].at == v->at + *size)
		*size += v[k++].n;
	return k;
}

/* Checks that each term is one of the equal blocks of outputs of a weight.  *block: its elements. */
static bool check_term_blocks(
	struct trainable *j, const struct ckpt_addition *v, size_t n, int64_t numel, int64_t *block)
{
	int64_t size;
	bool ok = true;

	count_adjoining(v, n, block);
	for (size_t i = 0, k; i < n && ok; i += k) {
		k = count_adjoining(v + i, n - i, &size);
		ok = size == *block && numel % size == 0 && v[i].at % size == 0;
	}
	if (!ok)
		ckpt_fault_add(&j->parts, v->tensor, "");
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

/* Adds A [blocks * rank, in], where each layer of the file is a block, and B [rows, rank].  The blocks that the file
 * lacks have no pieces. */
static void add_layer(struct trainable *j, const struct ckpt_addition *v, size_t n, int64_t numel, int64_t block)
{
	struct vfm_ckpt_piece *a = new_pieces(j, n), *b = new_pieces(j, n);
	const struct ckpt_factor *f = v->term->f;
	const int64_t in = f->cols, r = f->rank;
	int64_t size;
	int n_a = 0;

	for (size_t i = 0; i < n; i += count_adjoining(v + i, n - i, &size)) {
		f = v[i].term->f;
		a[n_a++] = piece_of_range(f->a, f->a_row * in, v[i].at / block * r * in, r * in);
	}
	for (size_t i = 0; i < n; i++)
		b[i] = piece_of_range(v[i].term->f->b, v[i].from / in * r, v[i].at / in * r, v[i].n / in * r);
	add_matrix(j, v, ".lora_A.weight", f->a->dtype, numel / block * r, in, a, n_a);
	add_matrix(j, v, ".lora_B.weight", f->b->dtype, numel / in, r, b, (int)n);
}

static int list_trainable(struct trainable *j, struct vfm_err *err)
{
	struct ckpt_faults *const faults[] = {&j->kinds, &j->ranks, &j->scales, &j->parts, &j->types};
	static const char *const what[] = {"that no adapter of a run can be", "of another rank", "of another scale",
		"whose outputs the file divides otherwise", "of another type"};
	struct ckpt_adapters *s = j->x->s;
	struct vfm_buf b = {0};
	int64_t block;
	int rc = 0;

	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), place_cmp);
	j->t = vfm_calloc(2 * s->n + 1, sizeof(*j->t));
	for (size_t i = 0, end; i < s->n; i = end) {
		const struct vfm_ckpt_tensor *w = vfm_ckpt_find_in(j->x->c, "model", s->v[i].tensor);

		for (end = i; end < s->n && !ckpt_addition_cmp(&s->v[end], &s->v[i]);)
			end++;
		if (check_terms(j, s->v + i, end - i) && check_term_blocks(j, s->v + i, end - i, w->numel, &block))
			add_layer(j, s->v + i, end - i, w->numel, block);
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
	ckpt_adapters_free(x.s);
	return rc;
}
