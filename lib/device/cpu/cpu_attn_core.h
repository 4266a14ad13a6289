/* cpu_attn_core.h - the forward and the backward of one work item of attention, one source for all instruction sets.
 *
 * A file defines these macros, then includes this file:
 *   ATTN_ISA     the name of its table
 *   ATTN_LEVEL   its instruction set
 *   ATTN_PAIR    operands are multiplied as bf16
 *   ATTN_AMX     with AMX tiles
 *   ATTN_SPLIT   f32 in AMX tiles; requires ATTN_AMX
 *
 * Queries are the lanes of all tiles, so softmax needs no sums across lanes, and the number of keys needs no alignment.
 * Lanes past the last query hold zeros.
 *
 * "steps": an operand packed so that consecutive tokens are the k steps of a product.
 */
#include <math.h>
#include <sched.h>

#include "device/cpu/cpu_attn_tile.h"

#define LOG2E 1.4426950408889634
#ifdef ATTN_PAIR
#define EXP2 v_exp2_bf16
#else
#define EXP2 v_exp2
#endif
/* Operands are aligned to cache lines: tiles and vectors that cross a line boundary cost twice the loads. */
enum { LINE = 16 }; /* words of a line; also the size of unused arrays */
#define ALIGNED __attribute__((aligned(64)))

/* Computes the addresses of n rows; row i is index first + i in the numbering of struct attn_call. */
static void row_ptrs(
	const struct attn_view *v, int64_t t0, int64_t nt, int64_t head0, int64_t first, int n, char **rows)
{
	// cppcheck-suppress zerodivcond ; callers never pass an empty sample
	int64_t h, t;

	if (n == 0)
		return;
	h = first / nt;
	t = first % nt;
	for (int i = 0; i < n; i++) {
		rows[i] = v->p + (t0 + t) * v->tok + (head0 + h) * v->head;
		if (++t == nt)
			t = 0, h++;
	}
}

/* Returns the queries of the block that begins with query i of an item. */
static inline int block_queries(const struct attn_item *it, int64_t i)
{
	return (int)(it->q_n - i < ATTN_BQ ? it->q_n - i : ATTN_BQ);
}

/* Prefetches rows, numbered as in row_ptrs, of d elements.  Their strides are too long for the prefetchers of a CPU. */
static void prefetch_rows(const struct attn_view *v, int d, int64_t t0, int64_t nt, int64_t head0, int64_t first, int n)
{
	const int bytes = d * (v->bf16 ? 2 : 4);
	char *rows[ATTN_BK];

	row_ptrs(v, t0, nt, head0, first, n, rows);
	for (int i = 0; i < n; i++)
		for (int b = 0; b < bytes; b += 64)
			__builtin_prefetch(rows[i] + b, 0, 2);
}

#ifdef ATTN_SPLIT
#include "device/cpu/cpu_attn_split.h"
#else
#include "device/cpu/cpu_attn_pack.h"
#endif

/* rows[lane][0, d) = src[c][lane] * mul[lane] */
static void unpack_lanes(char *const *rows, bool bf16, int n, int d, const float *src, const float *mul)
{
	for (int r = 0; r < n; r += VW) {
		vf m = v_load(mul + r);

		for (int c = 0; c < d; c += VW) {
			vf x[VW];

			for (int i = 0; i < VW; i++)
				x[i] = v_load(src + (c + i) * ATTN_QLD + r) * m;
			v_transpose(x);
			for (int i = 0; i < VW && r + i < n; i++)
				v_write(rows[r + i] + (bf16 ? 2 : 4) * c, bf16, d - c, x[i]);
		}
	}
}

/* ---- forward: units of queries times a tile of keys ------------------------- */

#ifdef ATTN_AMX
/* The vector work of a unit overlaps the products of the next one. */
enum { DELAY = 1, UNIT_V = 2, SOFTMAX_V = 2 };
#else
enum { DELAY = 0, UNIT_V = ATTN_BQ / VW, SOFTMAX_V = 1 };
#endif
/* UNIT_V: vectors of queries of a unit; SOFTMAX_V: of a struct softmax */

struct fwd_block {
	float qt[SPLIT ? 2 * PANEL : ATTN_D * ATTN_QLD]; /* Q^T [words of d][QLD] */
	float ot[ATTN_D * ATTN_QLD];                     /* O^T [d][QLD] of a run, not yet divided by l */
	float m[ATTN_BQ];                               /* running max of scale log2(e) s */
	float l[ATTN_BQ];                               /* sum of 2^(scale log2(e) s - m) over a run */
	/* the same for the earlier runs */
	float all_ot[ATTN_D * ATTN_QLD], all_m[ATTN_BQ], all_l[ATTN_BQ];
	int n;
} ALIGNED;
struct fwd_scratch {
	float k[A_WORDS];
	float v[A_WORDS];
	float s[ATTN_BK * ATTN_QLD];
	float p[SPLIT ? 2 * PANEL : PAIR ? ATTN_BK / 2 * ATTN_QLD : LINE];
	struct fwd_block b[ATTN_NQB];
} ALIGNED;

/* Scales S^T of nq queries and n keys by scale2 and adds the bias in base 2.  at: the bias of the first key and the
 * first query. */
static void add_bias(float *st, const float *at, int n, int nq, float scale2)
{
	float by[ATTN_BK + ATTN_BQ + VW] ALIGNED; /* by descending distance, so that lanes ascend */
	const int nv = vecs(nq), all = n - 1 + nv * VW;

	for (int i = 0; i < n - 1 + nq; i++)
		by[i] = at[n - 1 - i] * (float)LOG2E;
	for (int i = n - 1 + nq; i < all; i++)
		by[i] = 0;
	for (int j = 0; j < n; j++)
		for (int v = 0; v < nv; v++) {
			float *s = st + j * ATTN_QLD + v * VW;

			v_store(s, v_fma(v_load(s), v_set(scale2), v_load(by + n - 1 - j + v * VW)));
		}
}

/* Returns 2^(old - new) for a running maximum: exactly 1 if it is unchanged, which bounds the errors of repeated
 * calls. */
static inline vf rescale(vf old, vf new)
{
	return v_min(v_set(1), v_exp2(old - new));
}

/* Computes P^T = 2^(scale2 S^T - m) as steps for the new maximum m, and rescales O^T and l: some vectors of queries, a
 * tile of keys.  The first pass over the keys finds m.  A part is MAX_KEYS keys of it, or EXP_KEYS of the second. */
struct softmax {
	struct vfm_overlap overlap;
	struct fwd_scratch *x;
	struct fwd_block *b;
	int v, nv; /* vectors [v, v + nv) of the block */
	int n, d;
	float scale2;
	bool start;                                /* the first keys of the sample */
	vf max[SOFTMAX_V][2], sum[SOFTMAX_V][2]; /* of even and odd keys */
};
enum { MAX_KEYS = 16, EXP_KEYS = 2 };

static inline int64_t softmax_maxes(int n)
{
	return (n + MAX_KEYS - 1) / MAX_KEYS;
}

/* Keys [first, end); first is even, as below. */
static void softmax_max(struct softmax *m, int first, int end)
{
	for (int i = 0; i < m->nv; i++) {
		const float *s = m->x->s + (m->v + i) * VW;
		vf even = m->max[i][0], odd = m->max[i][1];
		int j = first;

		for (; j + 2 <= end; j += 2) {
			even = v_max(even, v_load(s + j * ATTN_QLD));
			odd = v_max(odd, v_load(s + (j + 1) * ATTN_QLD));
		}
		if (j < end)
			even = v_max(even, v_load(s + j * ATTN_QLD));
		m->max[i][0] = even;
		m->max[i][1] = odd;
	}
}

static void softmax_rescale(struct softmax *m)
{
	struct fwd_block *b = m->b;

	for (int i = 0; i < m->nv; i++) {
		const int at = (m->v + i) * VW;
		vf old = v_load(b->m + at), new = v_max(m->max[i][0], m->max[i][1]) * v_set(m->scale2);

		if (!m->start) {
			new = v_max(new, old);
			if (v_any_lt(old, new)) {
				vf alpha = rescale(old, new);

				v_store(b->l + at, v_load(b->l + at) * alpha);
				for (int c = at; c < m->d * ATTN_QLD; c += ATTN_QLD)
					v_store(b->ot + c, v_load(b->ot + c) * alpha);
			}
		}
		v_store(b->m + at, new);
		m->sum[i][0] = m->sum[i][1] = v_set(0);
	}
}

static void softmax_exp(struct softmax *m, int first, int end)
{
	const vf sc = v_set(m->scale2);

	for (int i = 0; i < m->nv; i++) {
		const int v = m->v + i;
		float *s = m->x->s + v * VW, *p = m->x->p;
		vf neg = v_set(0) - v_load(m->b->m + v * VW), l = m->sum[i][0], l1 = m->sum[i][1];

		for (int j = first; j < end; j += 2) {
			vf e0 = EXP2(v_fma(v_load(s + j * ATTN_QLD), sc, neg)), e1 = v_set(0);

			if (j + 1 < end)
				e1 = EXP2(v_fma(v_load(s + (j + 1) * ATTN_QLD), sc, neg));
			l = l + e0;
			l1 = l1 + e1;
#if defined(ATTN_PAIR) || defined(ATTN_SPLIT)
			put_steps(p, j, v, e0, e1);
#else
			(void)p;
			v_store(s + j * ATTN_QLD, e0);
			if (j + 1 < end)
				v_store(s + (j + 1) * ATTN_QLD, e1);
#endif
		}
		m->sum[i][0] = l;
		m->sum[i][1] = l1;
	}
}

static void softmax_run(void *arg, int64_t first, int64_t end)
{
	struct softmax *m = arg;
	const int64_t maxes = softmax_maxes(m->n);

	if (first < maxes) {
		softmax_max(m, (int)first * MAX_KEYS, end < maxes ? (int)end * MAX_KEYS : m->n);
		if (end < maxes)
			return;
		softmax_rescale(m);
		first = maxes;
	}
	if (end < m->overlap.parts) {
		softmax_exp(m, (int)(first - maxes) * EXP_KEYS, (int)(end - maxes) * EXP_KEYS);
		return;
	}
	softmax_exp(m, (int)(first - maxes) * EXP_KEYS, m->n);
	for (int i = 0; i < m->nv; i++) {
		float *l = m->b->l + (m->v + i) * VW;

		v_store(l, v_load(l) + (m->sum[i][0] + m->sum[i][1]));
	}
}

/* Adds a run of vectors [v, v + nv) to the earlier ones; `first`: no earlier run. */
static void end_run(struct fwd_block *b, int v, int nv, int d, bool first)
{
	for (int at = v * VW; at < (v + nv) * VW; at += VW) {
		vf m = v_load(b->m + at), alpha = v_set(0), l = v_load(b->l + at);

		if (!first) {
			alpha = rescale(v_load(b->all_m + at), m);
			l = v_fma(v_load(b->all_l + at), alpha, l);
		}
		for (int c = at; c < d * ATTN_QLD; c += ATTN_QLD) {
			vf o = v_load(b->ot + c);

			if (!first)
				o = v_fma(v_load(b->all_ot + c), alpha, o);
			v_store(b->all_ot + c, o);
		}
		v_store(b->all_m + at, m);
		v_store(b->all_l + at, l);
		v_store(b->l + at, v_set(0));
	}
}

static void fwd_finish(const struct attn_call *c, struct fwd_block *b, char *const *o_rows, float *const *lse)
{
	float inv[ATTN_BQ];

	for (int i = 0; c->lse && i < b->n; i++)
		*lse[i] = (b->m[i] + log2f(b->all_l[i])) * (float)(1 / LOG2E);
	for (int i = 0; i < vecs(b->n) * VW; i++)
		inv[i] = 1 / b->all_l[i];
	unpack_lanes(o_rows, c->o.bf16, b->n, c->d, b->all_ot, inv);
}

static void fwd_no_keys(const struct attn_call *c, const struct attn_item *it)
{
	const int64_t q0 = c->cu_q[it->sample], nq = attn_nq(c, it->sample);

	for (int64_t i = it->q_first; i < it->q_first + it->q_n; i++) {
		int64_t h = (int64_t)it->kvh * c->group + i / nq, t = q0 + i % nq;

		memset(c->o.p + t * c->o.tok + h * c->o.head, 0, (size_t)c->d * (c->o.bf16 ? 2 : 4));
		c->lse[t * c->lse_tok + h] = -INFINITY;
	}
}

/* A tile of keys. */
struct fwd_keys {
	struct fwd_scratch *x;
	int n, d;
	float scale2;
	const float *bias; /* of the first key and the first query of the item; may be NULL */
	bool start;        /* the first keys of the sample */
	bool run_first, run_last, first_run;
};

/* Vectors [v, v + nv) of a block. */
struct fwd_unit {
	struct fwd_block *b;
	int v, nv;
};

static struct fwd_unit fwd_unit_at(struct fwd_scratch *x, int u)
{
	enum { BLOCK = ATTN_BQ / VW / UNIT_V };
	struct fwd_unit unit = {.b = &x->b[u / BLOCK], .v = u % BLOCK * UNIT_V};
	int nv = vecs(unit.b->n) - unit.v;

	unit.nv = nv < UNIT_V ? nv : UNIT_V;
	return unit;
}

static void fwd_scores(const struct fwd_keys *k, int u, struct vfm_overlap *overlap)
{
	const struct fwd_unit q = fwd_unit_at(k->x, u);
	float *s = k->x->s + q.v * VW;
	int nq = q.b->n - q.v * VW;

	multiply_tile(&(struct attn_product){BY_ROW, k->n, q.nv, words(k->d), k->x->k, b_lanes(q.b->qt, q.v), ATTN_QLD, s,
		ATTN_QLD, false, overlap});
	if (k->bias)
		add_bias(s, k->bias - u * UNIT_V * VW, k->n, nq < UNIT_V * VW ? nq : UNIT_V * VW, k->scale2);
}

/* Starts the softmax of a unit, in steps of SOFTMAX_V vectors; the last one is still to be run. */
static void fwd_softmax(const struct fwd_keys *k, int u, struct softmax *m)
{
	const struct fwd_unit q = fwd_unit_at(k->x, u);
	const int64_t parts = softmax_maxes(k->n) + (k->n + EXP_KEYS - 1) / EXP_KEYS;
	const int steps = count_steps(k->n, q.nv, words(k->d)) + count_steps(k->d, q.nv, words(k->n));

	if (PAIR)
		pad_steps(k->x->p, words(k->n), q.v, q.nv);
	for (int v = q.v; v < q.v + q.nv; v += SOFTMAX_V) {
		vfm_overlap_finish(&m->overlap);
		m->overlap = (struct vfm_overlap){softmax_run, m, 0, parts, (parts + steps - 1) / steps};
		m->b = q.b;
		m->v = v;
		m->nv = q.v + q.nv - v < SOFTMAX_V ? q.v + q.nv - v : SOFTMAX_V;
		m->n = k->n;
		m->scale2 = k->bias ? 1 : k->scale2;
		m->start = k->start;
		for (int i = 0; i < m->nv; i++)
			m->max[i][0] = m->max[i][1] = v_load(k->x->s + (v + i) * VW);
	}
}

static void fwd_output(const struct fwd_keys *k, int u, struct vfm_overlap *overlap)
{
	const struct fwd_unit q = fwd_unit_at(k->x, u);
	const float *p = PAIR ? k->x->p : k->x->s;

	multiply_tile(&(struct attn_product){BY_COL, k->d, q.nv, words(k->n), k->x->v, b_lanes(p, q.v), ATTN_QLD,
		q.b->ot + q.v * VW, ATTN_QLD, !k->run_first, overlap});
	if (k->run_last)
		end_run(q.b, q.v, q.nv, k->d, k->first_run);
}

static void attn_fwd(const struct attn_call *c, const struct attn_item *it, void *scratch)
{
	struct fwd_scratch *x = scratch;
	const struct attn_view lse = {(char *)c->lse, c->lse_tok * 4, 4, false};
	const int64_t q0 = c->cu_q[it->sample], nq = attn_nq(c, it->sample);
	const int64_t k0 = c->cu_k[it->sample], nk = attn_nk(c, it->sample), h0 = (int64_t)it->kvh * c->group;
	const int nb = (int)((it->q_n + ATTN_BQ - 1) / ATTN_BQ), bk = (int)attn_key_block(nk, ATTN_BK), d = c->d;
	const int units = vecs((int)it->q_n) / UNIT_V + (vecs((int)it->q_n) % UNIT_V > 0);
	const float *bias = c->bias ? c->bias + h0 * c->bias_ld : NULL;
	struct softmax softmax = {.x = x, .d = d};
	char *rows[ATTN_BK];

	if (nk == 0) {
		fwd_no_keys(c, it);
		return;
	}
	product_begin();
	for (int i = 0; i < nb; i++) {
		struct fwd_block *b = &x->b[i];

		b->n = block_queries(it, (int64_t)i * ATTN_BQ);
		row_ptrs(&c->q, q0, nq, h0, it->q_first + i * ATTN_BQ, b->n, rows);
		pack_lanes(b->qt, rows, c->q.bf16, b->n, d, c->scale < 0);
		for (int j = 0; j < ATTN_BQ; j++)
			b->m[j] = b->l[j] = 0;
	}
	for (int64_t j = 0; j < nk; j += bk) {
		const int64_t run = j % (bk * ATTN_RUN);
		struct fwd_keys keys = {
			.x = x,
			.n = (int)(nk - j < bk ? nk - j : bk),
			.d = d,
			.scale2 = fabsf(c->scale) * (float)LOG2E,
			.bias = bias ? bias + j - it->q_first : NULL,
			.start = j == 0,
			.run_first = run == 0,
			.run_last = run + bk == bk * ATTN_RUN || j + bk >= nk,
			.first_run = j == run,
		};

		row_ptrs(&c->k, k0, nk, it->kvh, j, keys.n, rows);
		pack_rows(x->k, rows, c->k.bf16, keys.n, d);
		row_ptrs(&c->v, k0, nk, it->kvh, j, keys.n, rows);
		pack_cols(x->v, rows, c->v.bf16, keys.n, d);
		for (int u = 0; u < units + DELAY; u++) {
			if (u < units)
				fwd_scores(&keys, u, &softmax.overlap);
			vfm_overlap_finish(&softmax.overlap);
			if (u < units)
				fwd_softmax(&keys, u, &softmax);
			if (!DELAY)
				vfm_overlap_finish(&softmax.overlap);
			if (u >= DELAY)
				fwd_output(&keys, u - DELAY, &softmax.overlap);
		}
	}
	product_end();
	for (int i = 0; i < nb; i++) {
		char *lse_rows[ATTN_BQ];

		row_ptrs(&c->o, q0, nq, h0, it->q_first + i * ATTN_BQ, x->b[i].n, rows);
		if (c->lse)
			row_ptrs(&lse, q0, nq, h0, it->q_first + i * ATTN_BQ, x->b[i].n, lse_rows);
		fwd_finish(c, &x->b[i], rows, (float *const *)lse_rows);
	}
}

/* ---- backward --------------------------------------------------------------- */

enum {
	BWD_BK = DELAY ? 64 : ATTN_BK,                         /* most keys of a tile */
	BWD_TILES = ATTN_KS / BWD_BK,
	KEY_WORDS = SPLIT ? BWD_BK / 32 * PANEL : BWD_BK * ATTN_LD, /* words of an operand A of their rows */
};

/* A block of queries, and what depends on it alone. */
struct bwd_queries {
	float qt[SPLIT ? 2 * PANEL : ATTN_D * ATTN_QLD];  /* Q^T: lanes */
	float dot[SPLIT ? 2 * PANEL : ATTN_D * ATTN_QLD]; /* dO^T: lanes */
	float qs[SPLIT ? 4 * PANEL : ATTN_BQ * ATTN_LD];  /* Q as steps */
	float dos[SPLIT ? 4 * PANEL : ATTN_BQ * ATTN_LD]; /* dO as steps */
	float dqt[ATTN_D * ATTN_QLD];
	float neg_lse2[ATTN_BQ], delta[ATTN_BQ]; /* -lse log2(e); sum over d of dO O */
	int64_t i;                               /* the first one, within the item */
	int n;
} ALIGNED;

/* With DELAY, two tiles of keys are in work; each has a half of s, ds, p_split, ds_split and dss. */
struct bwd_scratch {
	float k[BWD_TILES * KEY_WORDS];                           /* rows, by tiles of keys */
	float v[BWD_TILES * KEY_WORDS];                           /* rows */
	float ks[PAIR ? BWD_TILES * A_WORDS : LINE];              /* k as operand BY_COL */
	float dk[ATTN_KS * ATTN_LD], dv[ATTN_KS * ATTN_LD];         /* of the current run of queries */
	float all_dk[ATTN_KS * ATTN_LD], all_dv[ATTN_KS * ATTN_LD]; /* of the earlier runs */
	float s[ATTN_BK * ATTN_LD];  /* S^T, then P^T [key][BQ]; with pairs P^T rows of bf16 */
	float ds[ATTN_BK * ATTN_LD]; /* dP^T, then dS^T; with pairs rows of bf16 */
	float p_split[SPLIT ? A_WORDS : LINE], ds_split[SPLIT ? A_WORDS : LINE]; /* P^T and dS^T rows in parts */
	float dss[SPLIT ? 2 * PANEL : PAIR ? ATTN_BK / 2 * ATTN_QLD : LINE];      /* dS^T as steps */
	struct bwd_queries q[1 + DELAY];
} ALIGNED;

/* Computes P = 2^(scale2 S - lse2) and dS = P (dP - delta) of a tile, in the forms that the products need.  A part is
 * two keys. */
struct dsoftmax {
	struct vfm_overlap overlap;
	const struct bwd_queries *q;
	float *s, *ds; /* S^T and dP^T, [key][LD] */
	float *p_rows, *ds_rows, *dss;
	int n, nv;
	float scale2;
};

#if defined(ATTN_PAIR) || defined(ATTN_SPLIT)
/* A vector of queries: bwd_queries.neg_lse2 and delta. */
struct query_lanes {
	vf neg_lse2, delta;
};

/* Stores vectors v and v + 1 of key j of P and dS as rows of bf16, which are operands A, and returns dS.  Pairs are
 * stored in place: their rows are half as long, so they overwrite only values already read. */
static inline __attribute__((always_inline)) void dsoftmax_row(
	const struct dsoftmax *m, int j, int v, bool two, const struct query_lanes q[2], vf sc, vf g[2])
{
	const float *s = m->s + j * ATTN_LD + v * VW, *ds = m->ds + j * ATTN_LD + v * VW;
	vf p0 = EXP2(v_fma(v_load(s), sc, q[0].neg_lse2)), p1 = v_set(0);

	g[0] = p0 * (v_load(ds) - q[0].delta);
	if (two) {
		p1 = EXP2(v_fma(v_load(s + VW), sc, q[1].neg_lse2));
		g[1] = p1 * (v_load(ds + VW) - q[1].delta);
	}
	put_row(m->p_rows, j, v, p0, p1);
	put_row(m->ds_rows, j, v, g[0], g[1]);
}

/* Keys [j, j + 2), or the last one, of vectors v and v + 1. */
static inline __attribute__((always_inline)) void dsoftmax_keys(
	const struct dsoftmax *m, int j, int v, bool both, bool two, const struct query_lanes q[2], vf sc)
{
	vf g[2][2] = {{v_set(0), v_set(0)}, {v_set(0), v_set(0)}};

	dsoftmax_row(m, j, v, two, q, sc, g[0]);
	if (both)
		dsoftmax_row(m, j + 1, v, two, q, sc, g[1]);
	put_steps(m->dss, j, v, g[0][0], g[1][0]);
	if (two)
		put_steps(m->dss, j, v + 1, g[0][1], g[1][1]);
}

static void dsoftmax_run(void *arg, int64_t first, int64_t end)
{
	const struct dsoftmax m = *(struct dsoftmax *)arg; /* a copy, which the stores cannot change */
	const vf sc = v_set(m.scale2);
	const int last = 2 * end < m.n ? (int)(2 * end) : m.n;

	for (int v = 0; v < m.nv; v += 2) {
		struct query_lanes q[2];
		int j = (int)(2 * first);

		for (int i = 0; i < 2; i++) {
			q[i].neg_lse2 = v_load(m.q->neg_lse2 + (v + i) * VW);
			q[i].delta = v_load(m.q->delta + (v + i) * VW);
		}
		if (v + 1 < m.nv)
			for (; j + 1 < last; j += 2)
				dsoftmax_keys(&m, j, v, true, true, q, sc);
		for (; j < last; j += 2)
			dsoftmax_keys(&m, j, v, j + 1 < last, v + 1 < m.nv, q, sc);
	}
}
#else
static void dsoftmax_run(void *arg, int64_t first, int64_t end)
{
	const struct dsoftmax m = *(struct dsoftmax *)arg; /* a copy, which the stores cannot change */
	const float *neg_lse2 = m.q->neg_lse2, *delta = m.q->delta;
	const vf sc = v_set(m.scale2);
	const int last = 2 * end < m.n ? (int)(2 * end) : m.n;

	for (int j = (int)(2 * first); j < last; j++)
		for (int v = 0; v < m.nv; v++) {
			float *s = m.s + j * ATTN_LD + v * VW, *ds = m.ds + j * ATTN_LD + v * VW;
			vf p = EXP2(v_fma(v_load(s), sc, v_load(neg_lse2 + v * VW)));

			v_store(s, p);
			v_store(ds, p * (v_load(ds) - v_load(delta + v * VW)));
		}
}
#endif

/* Packs the n queries from query i of the item on, and computes all values that do not depend on the keys. */
static void load_queries(
	const struct attn_call *c, const struct attn_item *it, int64_t i, int n, struct bwd_queries *x)
{
	const struct attn_view lse = {(char *)c->lse, c->lse_tok * 4, 4, false};
	const int64_t q0 = c->cu_q[it->sample], nq = attn_nq(c, it->sample), h0 = (int64_t)it->kvh * c->group;
	const int d = c->d, lanes = vecs(n) * VW;
	char *q[ATTN_BQ] = {0}, *g[ATTN_BQ] = {0}, *o[ATTN_BQ], *l[ATTN_BQ];

	row_ptrs(&c->q, q0, nq, h0, it->q_first + i, n, q);
	row_ptrs(&c->dout, q0, nq, h0, it->q_first + i, n, g);
	row_ptrs(&c->o, q0, nq, h0, it->q_first + i, n, o);
	row_ptrs(&lse, q0, nq, h0, it->q_first + i, n, l);
	pack_lanes(x->qt, q, c->q.bf16, n, d, c->scale < 0);
	pack_lanes(x->dot, g, c->dout.bf16, n, d, false);
	pack_queries(x->qs, q, c->q.bf16, n, d);
	pack_queries(x->dos, g, c->dout.bf16, n, d);
	for (int r = 0; r < n; r++) {
		vf sum = v_set(0);

		for (int j = 0; j < d; j += VW)
			sum = v_fma(v_read(g[r] + (c->dout.bf16 ? 2 : 4) * j, c->dout.bf16, d - j),
				v_read(o[r] + (c->o.bf16 ? 2 : 4) * j, c->o.bf16, d - j), sum);
		x->delta[r] = v_sum(sum);
		x->neg_lse2[r] = *(const float *)l[r] * (float)-LOG2E;
	}
	for (int r = n; r < lanes; r++)
		x->delta[r] = x->neg_lse2[r] = 0;
	x->i = i;
	x->n = n;
}

/* Prefetches the rows that load_queries reads for n queries from `first` on. */
static void prefetch_queries(const struct attn_call *c, const struct attn_item *it, int64_t first, int n)
{
	const int64_t q0 = c->cu_q[it->sample], nq = attn_nq(c, it->sample), h0 = (int64_t)it->kvh * c->group;

	prefetch_rows(&c->q, c->d, q0, nq, h0, first, n);
	prefetch_rows(&c->dout, c->d, q0, nq, h0, first, n);
	prefetch_rows(&c->o, c->d, q0, nq, h0, first, n);
}

/* Waits until the preceding item has added its part of block b, then loads the sum to dqt. */
static void get_dq(
	const struct attn_call *c, const struct attn_item *it, int64_t b, float *dqt, const _Atomic int64_t *done)
{
	const size_t size = (size_t)c->d * ATTN_QLD;

	for (int spin = 0; atomic_load_explicit(&done[it->prev], memory_order_acquire) <= b; spin++)
		if (spin > 100)
			sched_yield();
	memcpy(dqt, it->dq + (size_t)b * size, size * sizeof(float));
}

/* Passes the sum of block b, of n queries, to the next item; the last item stores it. */
static void put_dq(const struct attn_call *c, const struct attn_item *it, int64_t b, int n, const float *dqt,
	_Atomic int64_t *done)
{
	const int64_t q0 = c->cu_q[it->sample], nq = attn_nq(c, it->sample), h0 = (int64_t)it->kvh * c->group;
	const size_t size = (size_t)c->d * ATTN_QLD;
	float mul[ATTN_BQ];
	char *rows[ATTN_BQ];

	if (it->last) {
		for (int i = 0; i < ATTN_BQ; i++)
			mul[i] = c->scale;
		row_ptrs(&c->dq, q0, nq, h0, b * ATTN_BQ, n, rows);
		unpack_lanes(rows, c->dq.bf16, n, c->d, dqt, mul);
		return;
	}
	memcpy(it->dq + (size_t)b * size, dqt, size * sizeof(float));
	atomic_store_explicit(&done[it->self], b + 1, memory_order_release);
}

static void store_rows(
	const struct attn_view *view, int64_t t0, int64_t head, int64_t n, int d, const float *src, int ld, float mul)
{
	for (int64_t i = 0; i < n; i++) {
		char *row = view->p + (t0 + i) * view->tok + head * view->head;

		for (int c = 0; c < d; c += VW)
			v_write(row + (view->bf16 ? 2 : 4) * c, view->bf16, d - c,
				v_load(src + i * ld + c) * v_set(mul));
	}
}

/* dst = (add ? dst : 0) + src */
static void add_floats(float *dst, const float *src, size_t n, bool add)
{
	for (size_t i = 0; i < n; i += VW) {
		vf x = v_load(src + i);

		if (add)
			x += v_load(dst + i);
		v_store(dst + i, x);
	}
}

/* Stores the partial dk and dv of this item.  Returns false while other items are unfinished; the last item returns
 * true with the sums in x. */
static bool put_part(const struct attn_item *it, int ldd, struct bwd_scratch *x, _Atomic int64_t *done)
{
	const size_t size = (size_t)it->k_n * (size_t)ldd;
	float *part = it->part + (size_t)it->part_i * 2 * size;

	memcpy(part, x->dk, size * sizeof(float));
	memcpy(part + size, x->dv, size * sizeof(float));
	if (atomic_fetch_add_explicit(&done[it->counter], 1, memory_order_acq_rel) + 1 < it->parts)
		return false;
	memcpy(x->dk, it->part, size * sizeof(float));
	memcpy(x->dv, it->part + size, size * sizeof(float));
	for (int p = 1; p < it->parts; p++) {
		const float *dk = it->part + (size_t)p * 2 * size;

		add_floats(x->dk, dk, size, true);
		add_floats(x->dv, dk + size, size, true);
	}
	return true;
}

static void bwd_no_keys(
	const struct attn_call *c, const struct attn_item *it, struct bwd_scratch *x, _Atomic int64_t *done)
{
	memset(x->q->dqt, 0, sizeof(x->q->dqt));
	for (int64_t i = 0; i < it->q_n; i += ATTN_BQ)
		put_dq(c, it, (it->q_first + i) / ATTN_BQ, block_queries(it, i), x->q->dqt, done);
}

/* The work of an item: units of a block of queries and a tile of keys, tile after tile. */
struct bwd_work {
	const struct attn_call *c;
	const struct attn_item *it;
	struct bwd_scratch *x;
	_Atomic int64_t *done;
	int bk, tiles; /* keys of a tile, but the last; tiles */
	int ldd;       /* floats of a row of dk and dv */
	struct dsoftmax softmax;
};

struct bwd_unit {
	struct bwd_queries *q;
	int t, n; /* tile; its keys */
	float *s, *ds, *p_rows, *ds_rows, *dss;
};

static struct bwd_unit bwd_unit_at(const struct bwd_work *w, int64_t u)
{
	struct bwd_scratch *x = w->x;
	const int t = (int)(u % w->tiles), slot = (int)(u % (1 + DELAY)), row = slot * BWD_BK;
	const int64_t left = w->it->k_n - (int64_t)t * w->bk;
	float *s = x->s + row * ATTN_LD, *ds = x->ds + row * ATTN_LD;

	return (struct bwd_unit){
		.q = &x->q[u / w->tiles % (1 + DELAY)],
		.t = t,
		.n = (int)(left < w->bk ? left : w->bk),
		.s = s,
		.ds = ds,
		.p_rows = SPLIT ? x->p_split + slot * KEY_WORDS : s,
		.ds_rows = SPLIT ? x->ds_split + slot * KEY_WORDS : ds,
		.dss = SPLIT ? x->dss + slot * (PANEL / 2) : PAIR ? x->dss + row / 2 * ATTN_QLD : ds,
	};
}

static void bwd_load_keys(const struct bwd_work *w)
{
	const struct attn_call *c = w->c;
	struct bwd_scratch *x = w->x;
	const int64_t k0 = c->cu_k[w->it->sample] + w->it->k_first, nk = w->it->k_n;
	char *rows[ATTN_KS] = {0};

	row_ptrs(&c->k, k0, nk, w->it->kvh, 0, (int)nk, rows);
	for (int t = 0; t < w->tiles; t++) {
		const int j = t * w->bk, n = (int)(nk - j < w->bk ? nk - j : w->bk);

		pack_rows(x->k + t * KEY_WORDS, rows + j, c->k.bf16, n, c->d);
		if (PAIR)
			pack_cols(x->ks + t * A_WORDS, rows + j, c->k.bf16, n, c->d);
	}
	row_ptrs(&c->v, k0, nk, w->it->kvh, 0, (int)nk, rows);
	for (int t = 0; t < w->tiles; t++) {
		const int j = t * w->bk, n = (int)(nk - j < w->bk ? nk - j : w->bk);

		pack_rows(x->v + t * KEY_WORDS, rows + j, c->v.bf16, n, c->d);
	}
}

static void bwd_scores(const struct bwd_work *w, int64_t u, struct vfm_overlap *overlap)
{
	const struct bwd_unit at = bwd_unit_at(w, u);
	const int nv = vecs(at.q->n), wd = words(w->c->d);
	const float *k = w->x->k + at.t * KEY_WORDS, *v = w->x->v + at.t * KEY_WORDS;

	multiply_tile(&(struct attn_product){
		BY_ROW, at.n, nv, wd, k, at.q->qt, ATTN_QLD, at.s, ATTN_LD, false, overlap});
	multiply_tile(&(struct attn_product){
		BY_ROW, at.n, nv, wd, v, at.q->dot, ATTN_QLD, at.ds, ATTN_LD, false, overlap});
}

/* Starts P and dS of a unit, which are still to be run. */
static void bwd_softmax(struct bwd_work *w, int64_t u)
{
	const struct bwd_unit at = bwd_unit_at(w, u);
	const int nv = vecs(at.q->n), d = w->c->d, parts = (at.n + 1) / 2;
	const int steps = 2 * count_steps(at.n, nv, words(d)) + 2 * count_steps(at.n, vecs(d), words(nv * VW)) +
			  count_steps(d, nv, words(at.n));

	if (PAIR)
		pad_steps(at.dss, words(at.n), 0, nv);
	w->softmax = (struct dsoftmax){
		.overlap = {dsoftmax_run, &w->softmax, 0, parts, (parts + steps - 1) / steps},
		.q = at.q,
		.s = at.s,
		.ds = at.ds,
		.p_rows = at.p_rows,
		.ds_rows = at.ds_rows,
		.dss = at.dss,
		.n = at.n,
		.nv = nv,
		.scale2 = fabsf(w->c->scale) * (float)LOG2E,
	};
}

/* Adds the products of a unit to dv, dk and dq. */
static void bwd_grads(const struct bwd_work *w, int64_t u, struct vfm_overlap *overlap)
{
	const struct bwd_unit at = bwd_unit_at(w, u);
	struct bwd_scratch *x = w->x;
	const int64_t run = at.q->i % (ATTN_RUN * ATTN_BQ), block = (w->it->q_first + at.q->i) / ATTN_BQ;
	const int nv = vecs(at.q->n), d = w->c->d, wq = words(nv * VW);
	const int64_t row = (int64_t)at.t * w->bk * w->ldd;
	const float *ks = PAIR ? x->ks + at.t * A_WORDS : x->k + at.t * KEY_WORDS;

	if (at.t == 0 && run == 0 && at.q->i > 0) {
		const size_t size = (size_t)w->it->k_n * (size_t)w->ldd;

		add_floats(x->all_dk, x->dk, size, at.q->i > ATTN_RUN * ATTN_BQ);
		add_floats(x->all_dv, x->dv, size, at.q->i > ATTN_RUN * ATTN_BQ);
	}
	multiply_tile(&(struct attn_product){
		BY_ROW, at.n, vecs(d), wq, at.p_rows, at.q->dos, ATTN_LD, x->dv + row, w->ldd, run > 0, overlap});
	multiply_tile(&(struct attn_product){
		BY_ROW, at.n, vecs(d), wq, at.ds_rows, at.q->qs, ATTN_LD, x->dk + row, w->ldd, run > 0, overlap});
	if (at.t == 0 && w->it->prev >= 0)
		get_dq(w->c, w->it, block, at.q->dqt, w->done);
	multiply_tile(&(struct attn_product){BY_COL, d, nv, words(at.n), ks, at.dss, PAIR ? ATTN_QLD : ATTN_LD,
		at.q->dqt, ATTN_QLD, at.t > 0 || w->it->prev >= 0, overlap});
	if (at.t == w->tiles - 1)
		put_dq(w->c, w->it, block, at.q->n, at.q->dqt, w->done);
}

static void bwd_units(struct bwd_work *w)
{
	const struct attn_item *it = w->it;
	const int64_t units = (it->q_n + ATTN_BQ - 1) / ATTN_BQ * w->tiles;

	for (int64_t u = 0; u < units + DELAY; u++) {
		if (u < units && u % w->tiles == 0) {
			const int64_t i = u / w->tiles * ATTN_BQ;
			const int n = block_queries(it, i);

			load_queries(w->c, it, i, n, bwd_unit_at(w, u).q);
			prefetch_queries(w->c, it, it->q_first + i + n, block_queries(it, i + n));
		}
		if (u < units)
			bwd_scores(w, u, &w->softmax.overlap);
		vfm_overlap_finish(&w->softmax.overlap);
		if (u < units)
			bwd_softmax(w, u);
		if (!DELAY)
			vfm_overlap_finish(&w->softmax.overlap);
		if (u >= DELAY)
			bwd_grads(w, u - DELAY, &w->softmax.overlap);
	}
}

static void attn_bwd(const struct attn_call *c, const struct attn_item *it, void *scratch, _Atomic int64_t *done)
{
	struct bwd_scratch *x = scratch;
	struct bwd_work w = {.c = c, .it = it, .x = x, .done = done, .ldd = attn_ldd(c->d)};
	const int64_t k0 = c->cu_k[it->sample] + it->k_first, nk = it->k_n;
	const size_t size = (size_t)nk * (size_t)w.ldd;

	if (nk == 0) {
		bwd_no_keys(c, it, x, done);
		return;
	}
	w.bk = (int)attn_key_block(attn_nk(c, it->sample), BWD_BK);
	w.tiles = (int)((nk + w.bk - 1) / w.bk);
	bwd_load_keys(&w);
	if (it->q_n == 0) {
		memset(x->dk, 0, sizeof(x->dk));
		memset(x->dv, 0, sizeof(x->dv));
	}
	product_begin();
	bwd_units(&w);
	product_end();
	if (it->q_n > ATTN_RUN * ATTN_BQ) {
		add_floats(x->dk, x->all_dk, size, true);
		add_floats(x->dv, x->all_dv, size, true);
	}
	if (it->parts > 1 && !put_part(it, w.ldd, x, done))
		return;
	store_rows(&c->dk, k0, it->kvh, nk, c->d, x->dk, w.ldd, c->scale);
	store_rows(&c->dv, k0, it->kvh, nk, c->d, x->dv, w.ldd, 1);
}

const struct attn_isa ATTN_ISA = {
	.isa = ATTN_LEVEL,
	.bf16 = PAIR && !SPLIT,
	.bwd_keys = BWD_BK,
	.scratch = sizeof(struct bwd_scratch) > sizeof(struct fwd_scratch) ? sizeof(struct bwd_scratch)
									   : sizeof(struct fwd_scratch),
	.fwd = attn_fwd,
	.bwd = attn_bwd,
};
