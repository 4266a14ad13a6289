/* tokens.c - cuts each sample into cp chunks and tp slices, and writes the permutations between orders. */
#include "spec/layout/tokens.h"

#include <stdlib.h>

#include "base/mem.h"

void vfm_tokens_chunk(int64_t n_tokens, int sample, int cp, int i, int64_t *a, int64_t *b)
{
	int64_t q = n_tokens / cp, m = n_tokens % cp, at = 0;

	/* Rank j has one token more if it is one of the m ranks from rank sample % cp on. */
	for (int j = 0;; j++) {
		int64_t n = q + ((j - sample % cp + cp) % cp < m);

		if (j == i) {
			*a = at;
			*b = at + n;
			return;
		}
		at += n;
	}
}

static int32_t *cu_row(int32_t *cu, int n, int r)
{
	return cu + (int64_t)r * (n + 1);
}

int64_t vfm_tokens_rows(const struct vfm_tokens *t, int cp_i, int tp_i)
{
	int64_t rows = t->rows_cp[cp_i];

	return rows / t->tp + (tp_i < rows % t->tp);
}

/* The slices of tp, and the sample boundaries in the slice of this rank. */
static void cut_tp(struct vfm_tokens *t)
{
	const int32_t *cu = cu_row(t->cu_cp, t->n, t->cp_i);
	int64_t at = 0;

	for (int i = 0; i < t->tp; i++) {
		t->rows_tp[i] = vfm_tokens_rows(t, t->cp_i, i);
		if (i == t->tp_i)
			t->first = at;
		at += t->rows_tp[i];
	}
	t->rows = t->rows_tp[t->tp_i];
	for (int s = 0; s <= t->n; s++) {
		int64_t x = cu[s] - t->first;

		t->cu[s] = (int32_t)(x < 0 ? 0 : x > t->rows ? t->rows : x);
	}
}

/* Sets [*a, *b) to the rows of sample s of the part that cp rank i holds. */
static void chunk_of_part(
	const int32_t *cu, const struct vfm_tokens_whole *whole, int s, int cp, int i, int64_t *a, int64_t *b)
{
	const int64_t n = cu[s + 1] - cu[s], all = whole->cu[s + 1] - whole->cu[s];
	const int64_t before = whole->last ? all - n : 0;

	vfm_tokens_chunk(all, s, cp, i, a, b);
	*a = *a < before ? 0 : *a - before > n ? n : *a - before;
	*b = *b < before ? 0 : *b - before > n ? n : *b - before;
}

void vfm_tokens_make(struct vfm_tokens *t, int n, const int32_t *cu, int cp, int cp_i, int a2a, int tp, int tp_i)
{
	vfm_tokens_make_part(t, n, cu, &(struct vfm_tokens_whole){.cu = cu}, cp, cp_i, a2a, tp, tp_i);
}

void vfm_tokens_make_part(struct vfm_tokens *t, int n, const int32_t *cu, const struct vfm_tokens_whole *whole, int cp,
	int cp_i, int a2a, int tp, int tp_i)
{
	size_t w = (size_t)n + 1;

	*t = (struct vfm_tokens){.n = n, .total = cu[n], .cp = cp, .cp_i = cp_i, .a2a = a2a, .tp = tp, .tp_i = tp_i};
	t->cu_cp = vfm_calloc(w * (size_t)cp, sizeof(int32_t));
	t->cu_ring = vfm_calloc(w * (size_t)(cp / a2a), sizeof(int32_t));
	t->rows_cp = vfm_calloc((size_t)cp, sizeof(int64_t));
	t->rows_tp = vfm_calloc((size_t)tp, sizeof(int64_t));
	t->cu = vfm_calloc(w, sizeof(int32_t));
	for (int s = 0; s < n; s++) {
		for (int r = 0; r < cp; r++) {
			int32_t *c = cu_row(t->cu_cp, n, r), *ring = cu_row(t->cu_ring, n, r / a2a);
			int64_t a, b;

			chunk_of_part(cu, whole, s, cp, r, &a, &b);
			c[s + 1] = c[s] + (int32_t)(b - a);
			if (r % a2a == 0)
				ring[s + 1] = ring[s];
			ring[s + 1] += (int32_t)(b - a);
		}
	}
	for (int r = 0; r < cp; r++)
		t->rows_cp[r] = cu_row(t->cu_cp, n, r)[n];
	t->pack_row = vfm_calloc((size_t)t->rows_cp[cp_i] + 1, sizeof(int32_t));
	for (int s = 0, at = 0; s < n; s++) {
		int64_t a, b;

		chunk_of_part(cu, whole, s, cp, cp_i, &a, &b);
		for (int64_t i = a; i < b; i++)
			t->pack_row[at++] = cu[s] + (int32_t)i;
	}
	cut_tp(t);
}

void vfm_tokens_release(struct vfm_tokens *t)
{
	free(t->cu_cp);
	free(t->cu_ring);
	free(t->rows_cp);
	free(t->rows_tp);
	free(t->cu);
	free(t->pack_row);
	*t = (struct vfm_tokens){0};
}

/* Writes the permutation from the concatenated rows of cp ranks [first, first + n) to the order of the samples. */
static void order_rows(const struct vfm_tokens *t, int first, int n, int32_t *order)
{
	int64_t at = 0;

	for (int s = 0; s < t->n; s++) {
		int64_t base = 0;

		for (int r = first; r < first + n; r++) {
			const int32_t *c = cu_row(t->cu_cp, t->n, r);

			for (int32_t x = c[s]; x < c[s + 1]; x++)
				order[at++] = (int32_t)(base + x);
			base += c[t->n];
		}
	}
}

void vfm_tokens_ring_order(const struct vfm_tokens *t, int r, int32_t *order)
{
	order_rows(t, r * t->a2a, t->a2a, order);
}

void vfm_tokens_pack_order(const struct vfm_tokens *t, int32_t *order)
{
	order_rows(t, 0, t->cp, order);
}
