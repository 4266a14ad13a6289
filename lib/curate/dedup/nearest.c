/* nearest.c - scans all vectors in parallel and keeps the k best of each query. */
#include "curate/dedup/nearest.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "curate/dedup/dots.h"

#define BLOCK 16384 /* rows */

struct near_rows { /* the k best so far are among v [n], which has room for 2 k; those before `sorted` are in order */
	struct vfm_near_row *v;
	int64_t n, sorted, k;
};

struct nearest {
	const struct vfm_features *f;
	const float *query; /* of length 1 */
	struct near_rows all;
	pthread_mutex_t lock;
};

static bool is_worse(const struct vfm_near_row *a, const struct vfm_near_row *b)
{
	return a->similarity != b->similarity ? a->similarity < b->similarity : a->row > b->row;
}

static int compare_near(const void *a, const void *b)
{
	return is_worse(a, b) ? 1 : -1;
}

/* Sorts the rows, the best first, and drops those after the k best. */
static void keep_nearest(struct near_rows *b)
{
	qsort(b->v, (size_t)b->n, sizeof(*b->v), compare_near);
	b->n = b->sorted = b->n < b->k ? b->n : b->k;
}

static void add_near_row(struct near_rows *b, struct vfm_near_row r)
{
	if (b->sorted == b->k && is_worse(&r, &b->v[b->k - 1]))
		return;
	b->v[b->n++] = r;
	if (b->n == 2 * b->k)
		keep_nearest(b);
}

static void scan_rows(int64_t i0, int64_t i1, void *ctx)
{
	struct nearest *s = ctx;
	int64_t k = s->all.k < i1 - i0 ? s->all.k : i1 - i0;
	struct near_rows best = {.k = k, .v = vfm_calloc(2 * (size_t)k, sizeof(*best.v))};
	float *x = vfm_malloc((size_t)s->f->dim * sizeof(*x)), xx;

	for (int64_t i = i0; i < i1; i++) {
		float dot;

		vfm_features_read_f32(s->f, i, x);
		dot = vfm_dots_pair(x, s->query, s->f->dim, &xx);
		if (!(xx > 0 && isfinite(xx))) { /* squares that float32 cannot hold */
			if (vfm_dots_normalize(x, s->f->dim) == 0)
				continue;
			dot = vfm_dots_pair(x, s->query, s->f->dim, &xx);
		}
		add_near_row(&best, (struct vfm_near_row){i, fmin(1, fmax(-1, (double)dot / sqrt((double)xx)))});
	}
	pthread_mutex_lock(&s->lock);
	for (int64_t i = 0; i < best.n; i++)
		add_near_row(&s->all, best.v[i]);
	pthread_mutex_unlock(&s->lock);
	free(best.v);
	free(x);
}

int vfm_nearest_find(const struct vfm_features *f, const float *query, int64_t k, struct vfm_near_row *near, int64_t *n,
	struct vfm_err *err)
{
	float *q = vfm_malloc((size_t)f->dim * sizeof(*q) + 1);
	struct nearest s = {.f = f, .query = q, .all = {.k = k}, .lock = PTHREAD_MUTEX_INITIALIZER};

	memcpy(q, query, (size_t)f->dim * sizeof(*q));
	*n = 0;
	if (vfm_dots_normalize(q, f->dim) == 0) {
		free(q);
		return vfm_fail(err, VFM_EINPUT, "the vector of the query is 0: it has no direction");
	}
	s.all.v = vfm_calloc(2 * (size_t)k, sizeof(*near));
	vfm_par_for(f->rows, BLOCK, scan_rows, &s);
	keep_nearest(&s.all);
	*n = s.all.n;
	memcpy(near, s.all.v, (size_t)*n * sizeof(*near));
	free(s.all.v);
	free(q);
	return 0;
}
