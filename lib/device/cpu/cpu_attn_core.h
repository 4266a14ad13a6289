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

/* Returns the queries of the block, of at most `most`, that begins with query i of an item. */
static inline int block_queries(const struct attn_item *it, int64_t i, int most)
{
	return (int)(it->q_n - i < most ? it->q_n - i : most);
}

/* Prefetches rows, numbered as in row_ptrs, of d elements.  Their strides are too long for the prefetchers of a CPU. */
static void prefetch_rows(const struct attn_view *v, int d, int64_t t0, int64_t nt, int64_t head0, int64_t first, int n)
{
	const int bytes = d * (v->bf16 ? 2 : 4);
	char *rows[ATTN_BQ];

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
				x[i] = v_load(src + (c + i) * ATTN_LD + r) * m;
			v_transpose(x);
			for (int i = 0; i < VW && r + i < n; i++)
				v_write(rows[r + i] + (bf16 ? 2 : 4) * c, bf16, d - c, x[i]);
		}
	}
}

/* ---- forward -------------------------------------------------------------- */

struct fwd_block {
	float qt[SPLIT ? ATTN_FQ / 32 * PANEL : ATTN_D * ATTN_LD]; /* Q^T [words of d][LD] */
	float ot[ATTN_D * ATTN_LD];                                /* O^T [d][LD] of a run, not yet divided by l */
	float m[ATTN_FQ];                                          /* running max of scale log2(e) s */
	float l[ATTN_FQ];                                          /* sum of 2^(scale log2(e) s - m) over a run */
	/* the same for the earlier runs */
	float all_ot[ATTN_D * ATTN_LD], all_m[ATTN_FQ], all_l[ATTN_FQ];
	int n;
} ALIGNED;
struct fwd_scratch {
	float k[A_WORDS];
	float v[A_WORDS];
	float s[ATTN_BK * ATTN_LD];
	float p[SPLIT ? ATTN_FQ / 32 * PANEL : PAIR ? ATTN_BK / 2 * ATTN_LD : LINE];
	struct fwd_block b[ATTN_NQB];
} ALIGNED;

/* Scales S^T of nq queries and n keys by scale2 and adds the bias in base 2.  at: the bias of the first key and the
 * first query. */
static void add_bias(struct fwd_scratch *x, const float *at, int n, int nq, float scale2)
{
	float by[ATTN_BK + ATTN_FQ + VW] ALIGNED; /* by descending distance, so that lanes ascend */
	const int nv = vecs(nq), all = n - 1 + nv * VW;

	for (int i = 0; i < n - 1 + nq; i++)
		by[i] = at[n - 1 - i] * (float)LOG2E;
	for (int i = n - 1 + nq; i < all; i++)
		by[i] = 0;
	for (int j = 0; j < n; j++)
		for (int v = 0; v < nv; v++) {
			float *s = x->s + j * ATTN_LD + v * VW;

			v_store(s, v_fma(v_load(s), v_set(scale2), v_load(by + n - 1 - j + v * VW)));
		}
}

/* Returns 2^(old - new) for a running maximum: exactly 1 if it is unchanged, which bounds the errors of repeated
 * calls. */
static inline vf rescale(vf old, vf new)
{
	return v_min(v_set(1), v_exp2(old - new));
}

/* Computes P^T = 2^(scale2 S^T - m) as steps for the new maximum m, and rescales O^T and l. */
static void softmax_step(struct fwd_scratch *x, struct fwd_block *b, int n, int nv, int d, float scale2, bool start)
{
	const vf sc = v_set(scale2);

	for (int v = 0; v < nv; v++) {
		float *s = x->s + v * VW;
		vf old = v_load(b->m + v * VW), before = v_load(b->l + v * VW), mx = v_load(s), mx1 = mx;
		int j = 0;

		for (; j + 2 <= n; j += 2) {
			mx = v_max(mx, v_load(s + j * ATTN_LD));
			mx1 = v_max(mx1, v_load(s + (j + 1) * ATTN_LD));
		}
		if (j < n)
			mx = v_max(mx, v_load(s + j * ATTN_LD));
		mx = v_max(mx, mx1) * sc;
		if (!start) {
			mx = v_max(mx, old);
			if (v_any_lt(old, mx)) {
				vf alpha = rescale(old, mx);

				before = before * alpha;
				for (int c = 0; c < d; c++)
					v_store(b->ot + c * ATTN_LD + v * VW,
						v_load(b->ot + c * ATTN_LD + v * VW) * alpha);
			}
		}
		v_store(b->m + v * VW, mx);

		vf neg = v_set(0) - mx, l = v_set(0), l1 = v_set(0);
		for (j = 0; j < n; j += 2) {
			vf e0 = EXP2(v_fma(v_load(s + j * ATTN_LD), sc, neg)), e1 = v_set(0);

			if (j + 1 < n)
				e1 = EXP2(v_fma(v_load(s + (j + 1) * ATTN_LD), sc, neg));
			l = l + e0;
			l1 = l1 + e1;
#if defined(ATTN_PAIR) || defined(ATTN_SPLIT)
			put_steps(x->p, j, v, e0, e1);
#else
			v_store(s + j * ATTN_LD, e0);
			if (j + 1 < n)
				v_store(s + (j + 1) * ATTN_LD, e1);
#endif
		}
		v_store(b->l + v * VW, before + (l + l1));
	}
}

/* Adds a run to the earlier ones; `first`: no earlier run. */
static void end_run(struct fwd_block *b, int d, bool first)
{
	for (int v = 0; v < vecs(b->n) * VW; v += VW) {
		vf m = v_load(b->m + v), alpha = v_set(0), l = v_load(b->l + v);

		if (!first) {
			alpha = rescale(v_load(b->all_m + v), m);
			l = v_fma(v_load(b->all_l + v), alpha, l);
		}
		for (int c = 0; c < d; c++) {
			float *all = b->all_ot + c * ATTN_LD + v;
			vf o = v_load(b->ot + c * ATTN_LD + v);

			if (!first)
				o = v_fma(v_load(all), alpha, o);
			v_store(all, o);
		}
		v_store(b->all_m + v, m);
		v_store(b->all_l + v, l);
		v_store(b->l + v, v_set(0));
	}
}

static void fwd_finish(const struct attn_call *c, struct fwd_block *b, char *const *o_rows, float *const *lse)
{
	float inv[ATTN_FQ];

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

static void attn_fwd(const struct attn_call *c, const struct attn_item *it, void *scratch)
{
	struct fwd_scratch *x = scratch;
	const struct attn_view lse = {(char *)c->lse, c->lse_tok * 4, 4, false};
	const int64_t q0 = c->cu_q[it->sample], nq = attn_nq(c, it->sample);
	const int64_t k0 = c->cu_k[it->sample], nk = attn_nk(c, it->sample), h0 = (int64_t)it->kvh * c->group;
	const int nb = (int)((it->q_n + ATTN_FQ - 1) / ATTN_FQ), bk = (int)attn_key_block(nk), d = c->d;
	const float scale2 = fabsf(c->scale) * (float)LOG2E, *bias = c->bias ? c->bias + h0 * c->bias_ld : NULL;
	char *rows[ATTN_BK];

	if (nk == 0) {
		fwd_no_keys(c, it);
		return;
	}
	product_begin();
	for (int i = 0; i < nb; i++) {
		struct fwd_block *b = &x->b[i];

		b->n = block_queries(it, (int64_t)i * ATTN_FQ, ATTN_FQ);
		row_ptrs(&c->q, q0, nq, h0, it->q_first + i * ATTN_FQ, b->n, rows);
		pack_lanes(b->qt, rows, c->q.bf16, b->n, d, c->scale < 0);
		for (int j = 0; j < ATTN_FQ; j++)
			b->m[j] = b->l[j] = 0;
	}
	for (int64_t j = 0; j < nk; j += bk) {
		int n = (int)(nk - j < bk ? nk - j : bk);
		const int64_t run = j % (bk * ATTN_RUN);

		row_ptrs(&c->k, k0, nk, it->kvh, j, n, rows);
		pack_rows(x->k, rows, c->k.bf16, n, d);
		row_ptrs(&c->v, k0, nk, it->kvh, j, n, rows);
		pack_cols(x->v, rows, c->v.bf16, n, d);
		for (int i = 0; i < nb; i++) {
			struct fwd_block *b = &x->b[i];
			int nv = vecs(b->n);

			multiply_tile(
				&(struct attn_product){BY_ROW, n, nv, words(d), x->k, b->qt, x->s, ATTN_LD, false});
			if (bias)
				add_bias(x, bias + j - (it->q_first + i * ATTN_FQ), n, b->n, scale2);
			softmax_step(x, b, n, nv, d, bias ? 1 : scale2, j == 0);
			if (PAIR)
				pad_steps(x->p, words(n), nv);
			multiply_tile(&(struct attn_product){
				BY_COL, d, nv, words(n), x->v, PAIR ? x->p : x->s, b->ot, ATTN_LD, run > 0});
			if (run + bk == bk * ATTN_RUN || j + n == nk)
				end_run(b, d, j == run);
		}
	}
	product_end();
	for (int i = 0; i < nb; i++) {
		char *lse_rows[ATTN_FQ];

		row_ptrs(&c->o, q0, nq, h0, it->q_first + i * ATTN_FQ, x->b[i].n, rows);
		if (c->lse)
			row_ptrs(&lse, q0, nq, h0, it->q_first + i * ATTN_FQ, x->b[i].n, lse_rows);
		fwd_finish(c, &x->b[i], rows, (float *const *)lse_rows);
	}
}

/* ---- backward --------------------------------------------------------------- */

struct bwd_scratch {
	float k[ATTN_KS / ATTN_BK * A_WORDS];                       /* rows, by blocks of keys */
	float v[ATTN_KS / ATTN_BK * A_WORDS];                       /* rows */
	float ks[PAIR ? ATTN_KS / ATTN_BK * A_WORDS : LINE];        /* k as operand BY_COL */
	float dk[ATTN_KS * ATTN_LD], dv[ATTN_KS * ATTN_LD];         /* of the current run of queries */
	float all_dk[ATTN_KS * ATTN_LD], all_dv[ATTN_KS * ATTN_LD]; /* of the earlier runs */
	float s[ATTN_BK * ATTN_LD];  /* S^T, then P^T [key][BQ]; with pairs P^T rows of bf16 */
	float ds[ATTN_BK * ATTN_LD]; /* dP^T, then dS^T; with pairs rows of bf16 */
	float p_split[SPLIT ? A_WORDS : LINE], ds_split[SPLIT ? A_WORDS : LINE];       /* P^T and dS^T rows in parts */
	float dss[SPLIT ? ATTN_BQ / 32 * PANEL : PAIR ? ATTN_BK / 2 * ATTN_LD : LINE]; /* dS^T as steps */
	float qt[SPLIT ? ATTN_BQ / 32 * PANEL : ATTN_D * ATTN_LD];                     /* Q^T: lanes */
	float dot[SPLIT ? ATTN_BQ / 32 * PANEL : ATTN_D * ATTN_LD];                    /* dO^T: lanes */
	float qs[SPLIT ? A_WORDS : ATTN_BQ * ATTN_LD];                                 /* Q as steps */
	float dos[SPLIT ? A_WORDS : ATTN_BQ * ATTN_LD];                                /* dO as steps */
	float dqt[ATTN_D * ATTN_LD];
	float neg_lse2[ATTN_BQ], delta[ATTN_BQ]; /* -lse log2(e); sum over d of dO O */
} ALIGNED;

#if defined(ATTN_PAIR) || defined(ATTN_SPLIT)
/* A vector of queries: bwd_scratch.neg_lse2 and delta. */
struct query_lanes {
	vf neg_lse2, delta;
};

/* Stores vectors v and v + 1 of key j of P and dS as rows of bf16, which are operands A, and returns dS.  Pairs are
 * stored in place: their rows are half as long, so they overwrite only values already read. */
static inline __attribute__((always_inline)) void dsoftmax_row(
	struct bwd_scratch *x, int j, int v, bool two, const struct query_lanes q[2], vf sc, vf g[2])
{
	const float *s = x->s + j * ATTN_LD + v * VW, *ds = x->ds + j * ATTN_LD + v * VW;
	vf p0 = EXP2(v_fma(v_load(s), sc, q[0].neg_lse2)), p1 = v_set(0);

	g[0] = p0 * (v_load(ds) - q[0].delta);
	if (two) {
		p1 = EXP2(v_fma(v_load(s + VW), sc, q[1].neg_lse2));
		g[1] = p1 * (v_load(ds + VW) - q[1].delta);
	}
	put_row(SPLIT ? x->p_split : x->s, j, v, p0, p1);
	put_row(SPLIT ? x->ds_split : x->ds, j, v, g[0], g[1]);
}

/* Keys [j, j + 2), or the last one, of vectors v and v + 1. */
static inline __attribute__((always_inline)) void dsoftmax_keys(
	struct bwd_scratch *x, int j, int v, bool both, bool two, const struct query_lanes q[2], vf sc)
{
	vf g[2][2] = {{v_set(0), v_set(0)}, {v_set(0), v_set(0)}};

	dsoftmax_row(x, j, v, two, q, sc, g[0]);
	if (both)
		dsoftmax_row(x, j + 1, v, two, q, sc, g[1]);
	put_steps(x->dss, j, v, g[0][0], g[1][0]);
	if (two)
		put_steps(x->dss, j, v + 1, g[0][1], g[1][1]);
}

/* Computes P = 2^(scale2 S - lse2) and dS = P (dP - delta) in the forms that the products need.  Not inlined: the loop
 * needs all registers. */
static __attribute__((noinline)) void dsoftmax(struct bwd_scratch *x, int n, int nv, float scale2)
{
	const vf sc = v_set(scale2);

	for (int v = 0; v < nv; v += 2) {
		struct query_lanes q[2];
		int j = 0;

		for (int i = 0; i < 2; i++) {
			q[i].neg_lse2 = v_load(x->neg_lse2 + (v + i) * VW);
			q[i].delta = v_load(x->delta + (v + i) * VW);
		}
		if (v + 1 < nv)
			for (; j + 1 < n; j += 2)
				dsoftmax_keys(x, j, v, true, true, q, sc);
		for (; j < n; j += 2)
			dsoftmax_keys(x, j, v, j + 1 < n, v + 1 < nv, q, sc);
	}
}
#else
static void dsoftmax(struct bwd_scratch *x, int n, int nv, float scale2)
{
	const vf sc = v_set(scale2);

	for (int j = 0; j < n; j++)
		for (int v = 0; v < nv; v++) {
			float *s = x->s + j * ATTN_LD + v * VW, *ds = x->ds + j * ATTN_LD + v * VW;
			vf p = EXP2(v_fma(v_load(s), sc, v_load(x->neg_lse2 + v * VW)));

			v_store(s, p);
			v_store(ds, p * (v_load(ds) - v_load(x->delta + v * VW)));
		}
}
#endif

/* Packs a block of queries and computes all values that do not depend on the keys. */
static void load_queries(
	const struct attn_call *c, const struct attn_item *it, int64_t first, int n, struct bwd_scratch *x)
{
	const struct attn_view lse = {(char *)c->lse, c->lse_tok * 4, 4, false};
	const int64_t q0 = c->cu_q[it->sample], nq = attn_nq(c, it->sample), h0 = (int64_t)it->kvh * c->group;
	const int d = c->d, lanes = vecs(n) * VW;
	char *q[ATTN_BQ], *g[ATTN_BQ], *o[ATTN_BQ], *l[ATTN_BQ];

	row_ptrs(&c->q, q0, nq, h0, first, n, q);
	row_ptrs(&c->dout, q0, nq, h0, first, n, g);
	row_ptrs(&c->o, q0, nq, h0, first, n, o);
	row_ptrs(&lse, q0, nq, h0, first, n, l);
	pack_lanes(x->qt, q, c->q.bf16, n, d, c->scale < 0);
	pack_lanes(x->dot, g, c->dout.bf16, n, d, false);
	pack_queries(x->qs, q, c->q.bf16, n, d);
	pack_queries(x->dos, g, c->dout.bf16, n, d);
	for (int i = 0; i < n; i++) {
		vf sum = v_set(0);

		for (int j = 0; j < d; j += VW)
			sum = v_fma(v_read(g[i] + (c->dout.bf16 ? 2 : 4) * j, c->dout.bf16, d - j),
				v_read(o[i] + (c->o.bf16 ? 2 : 4) * j, c->o.bf16, d - j), sum);
		x->delta[i] = v_sum(sum);
		x->neg_lse2[i] = *(const float *)l[i] * (float)-LOG2E;
	}
	for (int i = n; i < lanes; i++)
		x->delta[i] = x->neg_lse2[i] = 0;
}

/* Prefetches the rows that load_queries reads for n queries from `first` on. */
static void prefetch_queries(const struct attn_call *c, const struct attn_item *it, int64_t first, int n)
{
	const int64_t q0 = c->cu_q[it->sample], nq = attn_nq(c, it->sample), h0 = (int64_t)it->kvh * c->group;

	prefetch_rows(&c->q, c->d, q0, nq, h0, first, n);
	prefetch_rows(&c->dout, c->d, q0, nq, h0, first, n);
	prefetch_rows(&c->o, c->d, q0, nq, h0, first, n);
}

/* Waits until the preceding item has added its part of block b, then loads dq of the block to x->dqt. */
static void get_dq(
	const struct attn_call *c, const struct attn_item *it, int64_t b, struct bwd_scratch *x, _Atomic int64_t *done)
{
	const size_t size = (size_t)c->d * ATTN_LD;

	for (int spin = 0; atomic_load_explicit(&done[it->prev], memory_order_acquire) <= b; spin++)
		if (spin > 100)
			sched_yield();
	memcpy(x->dqt, it->dq + (size_t)b * size, size * sizeof(float));
}

/* Passes the sum to the next item; the last item stores it. */
static void put_dq(const struct attn_call *c, const struct attn_item *it, int64_t b, int n, struct bwd_scratch *x,
	_Atomic int64_t *done)
{
	const int64_t q0 = c->cu_q[it->sample], nq = attn_nq(c, it->sample), h0 = (int64_t)it->kvh * c->group;
	const size_t size = (size_t)c->d * ATTN_LD;
	float mul[ATTN_BQ];
	char *rows[ATTN_BQ];

	if (it->last) {
		for (int i = 0; i < ATTN_BQ; i++)
			mul[i] = c->scale;
		row_ptrs(&c->dq, q0, nq, h0, b * ATTN_BQ, n, rows);
		unpack_lanes(rows, c->dq.bf16, n, c->d, x->dqt, mul);
		return;
	}
	memcpy(it->dq + (size_t)b * size, x->dqt, size * sizeof(float));
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

static void attn_bwd(const struct attn_call *c, const struct attn_item *it, void *scratch, _Atomic int64_t *done)
{
	struct bwd_scratch *x = scratch;
	const int64_t k0 = c->cu_k[it->sample] + it->k_first, nk = it->k_n;
	const int d = c->d, dvec = vecs(d), ldd = attn_ldd(d);
	const int bk = (int)attn_key_block(attn_nk(c, it->sample));
	const size_t size = (size_t)nk * (size_t)ldd;
	char *rows[ATTN_KS] = {0};

	row_ptrs(&c->k, k0, nk, it->kvh, 0, (int)nk, rows);
	for (int j = 0; j < nk; j += bk) {
		int n = (int)(nk - j < bk ? nk - j : bk);

		pack_rows(x->k + j / bk * A_WORDS, rows + j, c->k.bf16, n, d);
		if (PAIR)
			pack_cols(x->ks + j / bk * A_WORDS, rows + j, c->k.bf16, n, d);
	}
	row_ptrs(&c->v, k0, nk, it->kvh, 0, (int)nk, rows);
	for (int j = 0; j < nk; j += bk)
		pack_rows(x->v + j / bk * A_WORDS, rows + j, c->v.bf16, (int)(nk - j < bk ? nk - j : bk), d);
	if (it->q_n == 0) {
		memset(x->dk, 0, sizeof x->dk);
		memset(x->dv, 0, sizeof x->dv);
	}
	if (nk == 0)
		memset(x->dqt, 0, sizeof x->dqt);

	product_begin();
	for (int64_t i = 0; i < it->q_n; i += ATTN_BQ) {
		const int64_t first = it->q_first + i;
		const int nl = block_queries(it, i, ATTN_BQ), nv = vecs(nl);
		const int64_t run = i % (ATTN_BRUN * ATTN_BQ);

		if (run == 0 && i > 0) {
			add_floats(x->all_dk, x->dk, size, i > ATTN_BRUN * ATTN_BQ);
			add_floats(x->all_dv, x->dv, size, i > ATTN_BRUN * ATTN_BQ);
		}
		load_queries(c, it, first, nl, x);
		prefetch_queries(c, it, first + nl, block_queries(it, i + nl, ATTN_BQ));
		for (int j = 0; j < nk; j += bk) {
			int n = (int)(nk - j < bk ? nk - j : bk);
			const float *k = x->k + j / bk * A_WORDS, *v = x->v + j / bk * A_WORDS;
			const float *ks = PAIR ? x->ks + j / bk * A_WORDS : k;

			multiply_tile(&(struct attn_product){BY_ROW, n, nv, words(d), k, x->qt, x->s, ATTN_LD, false});
			multiply_tile(
				&(struct attn_product){BY_ROW, n, nv, words(d), v, x->dot, x->ds, ATTN_LD, false});
			dsoftmax(x, n, nv, fabsf(c->scale) * (float)LOG2E);
			multiply_tile(&(struct attn_product){BY_ROW, n, dvec, words(nv * VW), SPLIT ? x->p_split : x->s,
				x->dos, x->dv + j * ldd, ldd, run > 0});
			multiply_tile(&(struct attn_product){BY_ROW, n, dvec, words(nv * VW),
				SPLIT ? x->ds_split : x->ds, x->qs, x->dk + j * ldd, ldd, run > 0});
			if (PAIR)
				pad_steps(x->dss, words(n), nv);
			if (j == 0 && it->prev >= 0)
				get_dq(c, it, first / ATTN_BQ, x, done);
			multiply_tile(&(struct attn_product){BY_COL, d, nv, words(n), ks, PAIR ? x->dss : x->ds, x->dqt,
				ATTN_LD, j > 0 || it->prev >= 0});
		}
		put_dq(c, it, first / ATTN_BQ, nl, x, done);
	}
	product_end();
	if (it->q_n > ATTN_BRUN * ATTN_BQ) {
		add_floats(x->dk, x->all_dk, size, true);
		add_floats(x->dv, x->all_dv, size, true);
	}
	if (it->parts > 1 && !put_part(it, ldd, x, done))
		return;
	store_rows(&c->dk, k0, it->kvh, nk, d, x->dk, ldd, c->scale);
	store_rows(&c->dv, k0, it->kvh, nk, d, x->dv, ldd, 1);
}

const struct attn_isa ATTN_ISA = {
	.isa = ATTN_LEVEL,
	.bf16 = PAIR && !SPLIT,
	.scratch = sizeof(struct bwd_scratch) > sizeof(struct fwd_scratch) ? sizeof(struct bwd_scratch)
									   : sizeof(struct fwd_scratch),
	.fwd = attn_fwd,
	.bwd = attn_bwd,
};
