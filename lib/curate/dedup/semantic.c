/* semantic.c - spherical k-means on a sample, then comparison of vectors within each cluster in tiles. */
#include "curate/dedup/semantic.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/philox.h"
#include "curate/dedup/dots.h"

#define TILE        192  /* rows that are compared at once */
#define STRIP       2048 /* representatives that they are compared with at once; a multiple of VFM_DOTS_PANEL */
#define SAMPLE      128  /* rows of the sample for each cluster */
#define ITERATIONS  10   /* of k-means */
#define SAMPLE_MOST (INT64_C(1) << 28) /* elements of the sample */
#define NOWHERE     UINT32_MAX         /* the cluster of a vector that is 0 */

struct clustering {
	const struct vfm_features *f;
	const struct vfm_semantic_opts *o;
	struct vfm_semantic *g;
	int64_t n, dim, k, probe;
	float *centroids, *packed; /* [k, dim], and packed for products */
	/* k-means */
	int64_t n_sample;
	float *sample;    /* [n_sample, dim] */
	uint32_t *labels; /* [n_sample] */
	/* the assignment */
	uint32_t *cluster; /* [n, probe] by row, nearest first */
	float *nearness;   /* [n] cosine of a row and its nearest centroid */
	uint32_t *members; /* ranks, ascending in each cluster */
	int64_t *start;    /* [k + 1] in members */
	pthread_mutex_t lock;
	struct vfm_duplicate *found;
	size_t n_found, cap_found;
};

/* Reads a row and scales it to length 1; returns false, with zeros, if it is 0. */
static bool read_unit(const struct clustering *c, int64_t row, float *x)
{
	vfm_features_read_f32(c->f, row, x);
	if (vfm_dots_normalize(x, c->dim) > 0)
		return true;
	memset(x, 0, (size_t)c->dim * sizeof(*x));
	return false;
}

/* ---- k-means ---- */

/* Stores the `probe` nearest centroids of x [n, dim] in out [n, probe], nearest first, and the first cosine in near;
 * NULL: none. */
static void assign_rows(
	const struct clustering *c, const float *x, int64_t n, int64_t probe, uint32_t *out, float *near)
{
	int64_t ld = (c->k + VFM_DOTS_PANEL - 1) / VFM_DOTS_PANEL * VFM_DOTS_PANEL;
	float *dots = vfm_malloc((size_t)(n * ld) * sizeof(*dots));

	vfm_dots(x, n, c->packed, c->k, c->dim, dots, ld);
	for (int64_t i = 0; i < n; i++) {
		float best[VFM_SEMANTIC_PROBE_MAX], *d = dots + i * ld;
		uint32_t *o = out + i * probe;
		int64_t have = 0;

		for (int64_t j = 0; j < c->k; j++) {
			int64_t at;

			if (have == probe && d[j] <= best[probe - 1])
				continue;
			at = have < probe ? have++ : probe - 1;
			for (; at > 0 && best[at - 1] < d[j]; at--) {
				best[at] = best[at - 1];
				o[at] = o[at - 1];
			}
			best[at] = d[j];
			o[at] = (uint32_t)j;
		}
		if (near)
			near[i] = best[0];
	}
	free(dots);
}

static void assign_sample(int64_t i0, int64_t i1, void *ctx)
{
	struct clustering *c = ctx;

	assign_rows(c, c->sample + i0 * c->dim, i1 - i0, 1, c->labels + i0, NULL);
}

static void read_sample(int64_t i0, int64_t i1, void *ctx)
{
	struct clustering *c = ctx;
	const struct vfm_rng r = vfm_rng_stream((uint64_t)c->o->seed, 0, 0, VFM_RNG_DATA);

	for (int64_t i = i0; i < i1; i++) { /* one of each of n_sample ranges of rows */
		int64_t a = i * c->n / c->n_sample, b = (i + 1) * c->n / c->n_sample;

		read_unit(c, a + (int64_t)vfm_rng_below(&r, (uint64_t)i, (uint64_t)(b - a)), c->sample + i * c->dim);
	}
}

static void pack_centroids(struct clustering *c)
{
	memset(c->packed, 0, vfm_dots_packed(c->k, c->dim) * sizeof(*c->packed));
	for (int64_t j = 0; j < c->k; j++)
		vfm_dots_pack(c->packed, j, c->dim, c->centroids + j * c->dim);
}

/* Centroids become the means of their rows, scaled to length 1; one without rows becomes a row of the sample. */
static void move_centroids(struct clustering *c, int64_t iteration)
{
	const struct vfm_rng r = vfm_rng_stream((uint64_t)c->o->seed, (uint64_t)iteration + 2, 0, VFM_RNG_DATA);

	memset(c->centroids, 0, (size_t)(c->k * c->dim) * sizeof(*c->centroids));
	for (int64_t i = 0; i < c->n_sample; i++) {
		float *to = c->centroids + c->labels[i] * c->dim, *x = c->sample + i * c->dim;

		for (int64_t d = 0; d < c->dim; d++)
			to[d] += x[d];
	}
	for (int64_t j = 0; j < c->k; j++)
		if (vfm_dots_normalize(c->centroids + j * c->dim, c->dim) == 0)
			memcpy(c->centroids + j * c->dim,
				c->sample + (int64_t)vfm_rng_below(&r, (uint64_t)j, (uint64_t)c->n_sample) * c->dim,
				(size_t)c->dim * sizeof(float));
	pack_centroids(c);
}

static int run_kmeans(struct clustering *c, struct vfm_err *err)
{
	const struct vfm_rng r = vfm_rng_stream((uint64_t)c->o->seed, 1, 0, VFM_RNG_DATA);
	int64_t most = SAMPLE_MOST / c->dim;
	size_t bytes;

	c->n_sample = c->k * SAMPLE < c->n ? c->k * SAMPLE : c->n;
	c->n_sample = c->n_sample > most && most >= c->k ? most : c->n_sample;
	bytes = (size_t)(c->n_sample * c->dim) * sizeof(float);
	c->sample = vfm_big_alloc(bytes, "the sample of k-means", err);
	if (!c->sample)
		return err->code;
	c->labels = vfm_calloc((size_t)c->n_sample, sizeof(*c->labels));
	vfm_par_for(c->n_sample, 1024, read_sample, c);
	for (int64_t j = 0; j < c->k; j++) { /* one of each of k ranges of the sample */
		int64_t a = j * c->n_sample / c->k, b = (j + 1) * c->n_sample / c->k;

		memcpy(c->centroids + j * c->dim,
			c->sample + (a + (int64_t)vfm_rng_below(&r, (uint64_t)j, (uint64_t)(b - a))) * c->dim,
			(size_t)c->dim * sizeof(float));
	}
	pack_centroids(c);
	for (int64_t i = 0; i < ITERATIONS; i++) {
		vfm_par_for(c->n_sample, TILE, assign_sample, c);
		move_centroids(c, i);
	}
	vfm_big_free(c->sample, bytes);
	free(c->labels);
	return 0;
}

/* ---- assignment, ranks ---- */

static void assign_all(int64_t i0, int64_t i1, void *ctx)
{
	struct clustering *c = ctx;
	float *x = vfm_malloc((size_t)((i1 - i0) * c->dim) * sizeof(*x));

	for (int64_t i = i0; i < i1; i++)
		read_unit(c, i, x + (i - i0) * c->dim);
	assign_rows(c, x, i1 - i0, c->probe, c->cluster + i0 * c->probe, c->nearness + i0);
	for (int64_t i = i0; i < i1; i++) {
		float xx;

		vfm_dots_pair(x + (i - i0) * c->dim, x + (i - i0) * c->dim, c->dim, &xx);
		for (int64_t p = 0; p < c->probe && !(xx > 0); p++)
			c->cluster[i * c->probe + p] = NOWHERE;
	}
	free(x);
}

struct ranked_row {
	double quality;
	uint32_t row;
};

static int compare_ranked_rows(const void *a, const void *b)
{
	const struct ranked_row *p = a, *q = b;

	if (p->quality != q->quality)
		return p->quality > q->quality ? -1 : 1;
	return p->row < q->row ? -1 : p->row > q->row;
}

static void rank_rows(struct clustering *c, const double *quality)
{
	struct ranked_row *r = vfm_calloc((size_t)c->n + 1, sizeof(*r));
	struct vfm_semantic *g = c->g;

	for (int64_t i = 0; i < c->n; i++) {
		double near = (double)c->nearness[i];

		r[i] = (struct ranked_row){c->o->keep == VFM_SEMANTIC_FAR ? -near
				: c->o->keep == VFM_SEMANTIC_NEAR         ? near
									  : quality[i],
			(uint32_t)i};
	}
	qsort(r, (size_t)c->n, sizeof(*r), compare_ranked_rows);
	g->row = vfm_calloc((size_t)c->n + 1, sizeof(*g->row));
	g->rank = vfm_calloc((size_t)c->n + 1, sizeof(*g->rank));
	for (int64_t i = 0; i < c->n; i++) {
		g->row[i] = r[i].row;
		g->rank[r[i].row] = (uint32_t)i;
	}
	free(r);
}

static void list_members(struct clustering *c)
{
	int64_t *at;

	c->start = vfm_calloc((size_t)c->k + 2, sizeof(*c->start));
	for (int64_t i = 0; i < c->n * c->probe; i++)
		if (c->cluster[i] != NOWHERE)
			c->start[c->cluster[i] + 1]++;
	for (int64_t j = 0; j < c->k; j++) {
		if (c->start[j + 1] > c->g->stats.largest)
			c->g->stats.largest = c->start[j + 1];
		c->start[j + 1] += c->start[j];
	}
	at = vfm_calloc((size_t)c->k + 1, sizeof(*at));
	memcpy(at, c->start, (size_t)c->k * sizeof(*at));
	c->members = vfm_calloc((size_t)c->start[c->k] + 1, sizeof(*c->members));
	for (int64_t rank = 0; rank < c->n; rank++)
		for (int64_t p = 0; p < c->probe; p++) {
			uint32_t j = c->cluster[(int64_t)c->g->row[rank] * c->probe + p];

			if (j != NOWHERE)
				c->members[at[j]++] = (uint32_t)rank;
		}
	free(at);
}

/* ---- comparison within a cluster ---- */

struct vector_comparison {
	const struct clustering *c;
	float *x, *packed_tile, *dots; /* [TILE, dim], [dim, TILE], [TILE, STRIP] */
	float best[TILE];              /* cosine with … */
	uint32_t best_of[TILE];        /* … this rank */
	float *kept;                   /* representatives, packed; [cap_kept] */
	uint32_t *kept_rank;           /* [n_kept] */
	int64_t n_kept;
	size_t cap_kept, cap_rank;
	struct vfm_duplicate *found;
	size_t n_found, cap_found;
};

static void compare_with_kept(struct vector_comparison *w, int64_t n)
{
	const int64_t dim = w->c->dim;

	for (int64_t s = 0; s < w->n_kept; s += STRIP) {
		int64_t m = w->n_kept - s < STRIP ? w->n_kept - s : STRIP;

		vfm_dots(w->x, n, w->kept + s * dim, m, dim, w->dots, STRIP);
		for (int64_t i = 0; i < n; i++)
			for (int64_t j = 0; j < m; j++)
				if (w->dots[i * STRIP + j] > w->best[i]) {
					w->best[i] = w->dots[i * STRIP + j];
					w->best_of[i] = w->kept_rank[s + j];
				}
	}
}

static void keep_row(struct vector_comparison *w, const float *x, uint32_t rank)
{
	const int64_t dim = w->c->dim;
	size_t old = w->cap_kept;

	vfm_grow(&w->kept, &w->cap_kept, vfm_dots_packed(w->n_kept + 1, dim), sizeof(*w->kept));
	if (w->cap_kept > old)
		memset(w->kept + old, 0, (w->cap_kept - old) * sizeof(*w->kept));
	vfm_grow(&w->kept_rank, &w->cap_rank, (size_t)w->n_kept + 1, sizeof(*w->kept_rank));
	vfm_dots_pack(w->kept, w->n_kept, dim, x);
	w->kept_rank[w->n_kept++] = rank;
}

/* Compares the members of a tile with representatives before it, and with each other. */
static void compare_tile(struct vector_comparison *w, const uint32_t *ranks, int64_t n)
{
	const struct clustering *c = w->c;
	const float least = (float)(1 - c->o->threshold);
	bool kept[TILE];

	memset(w->packed_tile, 0, vfm_dots_packed(TILE, c->dim) * sizeof(*w->packed_tile));
	for (int64_t i = 0; i < n; i++) {
		read_unit(c, c->g->row[ranks[i]], w->x + i * c->dim);
		vfm_dots_pack(w->packed_tile, i, c->dim, w->x + i * c->dim);
		w->best[i] = -2;
	}
	compare_with_kept(w, n);
	vfm_dots(w->x, n, w->packed_tile, n, c->dim, w->dots, STRIP);
	for (int64_t i = 0; i < n; i++) {
		for (int64_t j = 0; j < i; j++)
			if (kept[j] && w->dots[i * STRIP + j] > w->best[i]) {
				w->best[i] = w->dots[i * STRIP + j];
				w->best_of[i] = ranks[j];
			}
		kept[i] = w->best[i] < least;
		if (kept[i]) {
			keep_row(w, w->x + i * c->dim, ranks[i]);
			continue;
		}
		vfm_grow(&w->found, &w->cap_found, w->n_found + 1, sizeof(*w->found));
		w->found[w->n_found++] =
			(struct vfm_duplicate){.member = ranks[i], .of = w->best_of[i], .distance = 1 - w->best[i]};
	}
}

static void compare_clusters(int64_t i0, int64_t i1, void *ctx)
{
	struct clustering *c = ctx;
	struct vector_comparison w = {.c = c};

	w.x = vfm_malloc((size_t)(TILE * c->dim) * sizeof(*w.x));
	w.packed_tile = vfm_malloc(vfm_dots_packed(TILE, c->dim) * sizeof(*w.packed_tile));
	w.dots = vfm_malloc((size_t)TILE * STRIP * sizeof(*w.dots));
	for (int64_t j = i0; j < i1; j++) {
		if (w.kept) /* packing expects zeros */
			memset(w.kept, 0, w.cap_kept * sizeof(*w.kept));
		w.n_kept = 0;
		for (int64_t at = c->start[j]; at < c->start[j + 1]; at += TILE)
			compare_tile(&w, c->members + at, c->start[j + 1] - at < TILE ? c->start[j + 1] - at : TILE);
	}
	pthread_mutex_lock(&c->lock);
	vfm_grow(&c->found, &c->cap_found, c->n_found + w.n_found, sizeof(*c->found));
	if (w.n_found)
		memcpy(c->found + c->n_found, w.found, w.n_found * sizeof(*w.found));
	c->n_found += w.n_found;
	pthread_mutex_unlock(&c->lock);
	free(w.x);
	free(w.packed_tile);
	free(w.dots);
	free(w.kept);
	free(w.kept_rank);
	free(w.found);
}

/* A pair of any two ranks, for groups.h. */
static int compare_ranks(void *ctx, uint32_t member, uint32_t of, struct vfm_duplicate *d, struct vfm_err *err)
{
	const struct clustering *c = ctx;
	float *x = vfm_malloc(2 * (size_t)c->dim * sizeof(*x)), xx, dot;
	bool good;

	(void)err;
	good = read_unit(c, c->g->row[member], x) && read_unit(c, c->g->row[of], x + c->dim);
	dot = vfm_dots_pair(x, x + c->dim, c->dim, &xx);
	free(x);
	if (!good || dot < (float)(1 - c->o->threshold))
		return 0;
	*d = (struct vfm_duplicate){.member = member, .of = of, .distance = 1 - dot};
	return 1;
}

/* ---- the whole ---- */

static int group_vectors(struct clustering *c, const double *quality, struct vfm_err *err)
{
	double t[4] = {vfm_now()};

	TRY(run_kmeans(c, err));
	t[1] = vfm_now();
	vfm_par_for(c->n, TILE, assign_all, c);
	rank_rows(c, quality);
	list_members(c);
	t[2] = vfm_now();
	vfm_par_for(c->k, 1, compare_clusters, c);
	TRY(vfm_groups_add(&c->g->groups, c->found, c->n_found, compare_ranks, c, err));
	TRY(vfm_groups_finish(&c->g->groups, compare_ranks, c, err));
	t[3] = vfm_now();
	for (int i = 0; i < 3; i++)
		c->g->stats.seconds[i] = t[i + 1] - t[i];
	return 0;
}

int vfm_semantic_find(struct vfm_semantic *g, const struct vfm_features *f, const double *quality,
	const struct vfm_semantic_opts *o, struct vfm_err *err)
{
	struct clustering c = {.f = f, .o = o, .g = g, .n = f->rows, .dim = f->dim, .lock = PTHREAD_MUTEX_INITIALIZER};
	int rc = 0;

	*g = (struct vfm_semantic){0};
	vfm_groups_init(&g->groups, f->rows, 0);
	if (f->rows > INT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "too many vectors: at most 2^31");
	if (f->rows == 0)
		return 0;
	c.k = o->clusters ? o->clusters : (int64_t)ceil(sqrt((double)c.n));
	c.k = c.k < c.n ? c.k : c.n;
	c.probe = o->probe ? o->probe : 2;
	c.probe = c.probe < c.k ? c.probe : c.k;
	g->stats.clusters = c.k;
	c.centroids = vfm_calloc((size_t)(c.k * c.dim), sizeof(float));
	c.packed = vfm_calloc(vfm_dots_packed(c.k, c.dim), sizeof(float));
	c.cluster = vfm_calloc((size_t)(c.n * c.probe), sizeof(*c.cluster));
	c.nearness = vfm_calloc((size_t)c.n, sizeof(*c.nearness));
	rc = group_vectors(&c, quality, err);
	free(c.centroids);
	free(c.packed);
	free(c.cluster);
	free(c.nearness);
	free(c.members);
	free(c.start);
	free(c.found);
	return rc;
}

void vfm_semantic_release(struct vfm_semantic *g)
{
	vfm_groups_release(&g->groups);
	free(g->row);
	free(g->rank);
	*g = (struct vfm_semantic){0};
}
