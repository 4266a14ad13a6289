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

struct heap { /* the root is the worst */
	struct vfm_near_row *v;
	int64_t n, k;
};

struct nearest {
	const struct vfm_features *f;
	const float *query; /* of length 1 */
	struct heap all;
	pthread_mutex_t lock;
};

static bool is_worse(const struct vfm_near_row *a, const struct vfm_near_row *b)
{
	return a->similarity != b->similarity ? a->similarity < b->similarity : a->row > b->row;
}

static void sift_down(struct heap *h)
{
	int64_t i = 0, child;

	while ((child = 2 * i + 1) < h->n) {
		struct vfm_near_row t = h->v[i];

		if (child + 1 < h->n && is_worse(&h->v[child + 1], &h->v[child]))
			child++;
		if (!is_worse(&h->v[child], &t))
			return;
		h->v[i] = h->v[child];
		h->v[child] = t;
		i = child;
	}
}

static void heap_add(struct heap *h, struct vfm_near_row r)
{
	int64_t i = h->n;

	if (h->n == h->k) {
		if (is_worse(&h->v[0], &r)) {
			h->v[0] = r;
			sift_down(h);
		}
		return;
	}
	h->n++;
	for (; i > 0 && is_worse(&r, &h->v[(i - 1) / 2]); i = (i - 1) / 2)
		h->v[i] = h->v[(i - 1) / 2];
	h->v[i] = r;
}

static void scan_rows(int64_t i0, int64_t i1, void *ctx)
{
	struct nearest *s = ctx;
	int64_t k = s->all.k < i1 - i0 ? s->all.k : i1 - i0;
	struct heap h = {.k = k, .v = vfm_calloc((size_t)k, sizeof(*h.v))};
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
		heap_add(&h, (struct vfm_near_row){i, fmin(1, fmax(-1, (double)dot / sqrt((double)xx)))});
	}
	pthread_mutex_lock(&s->lock);
	for (int64_t i = 0; i < h.n; i++)
		heap_add(&s->all, h.v[i]);
	pthread_mutex_unlock(&s->lock);
	free(h.v);
	free(x);
}

static int compare_near(const void *a, const void *b)
{
	return is_worse(a, b) ? 1 : -1;
}

int vfm_nearest_find(const struct vfm_features *f, const float *query, int64_t k, struct vfm_near_row *near, int64_t *n,
	struct vfm_err *err)
{
	float *q = vfm_malloc((size_t)f->dim * sizeof(*q) + 1);
	struct nearest s = {.f = f, .query = q, .all = {.v = near, .k = k}, .lock = PTHREAD_MUTEX_INITIALIZER};

	memcpy(q, query, (size_t)f->dim * sizeof(*q));
	*n = 0;
	if (vfm_dots_normalize(q, f->dim) == 0) {
		free(q);
		return vfm_fail(err, VFM_EINPUT, "the vector of the query is 0: it has no direction");
	}
	vfm_par_for(f->rows, BLOCK, scan_rows, &s);
	qsort(near, (size_t)s.all.n, sizeof(*near), compare_near);
	*n = s.all.n;
	free(q);
	return 0;
}
