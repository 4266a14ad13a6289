/* cpu_attn.c - attention, forward and backward, over packed samples of any length: the work and its division.
 *
 * A thread holds only a tile of the score matrix, BK keys by BQ queries (online softmax: Milakov & Gimelshein, arXiv
 * 1805.02867; tiling and backward: Dao, arXiv 2307.08691).  Scratch is fixed per thread.  For samples of more than KS
 * keys, the backward also allocates an f32 copy of their dq on the stream's device.
 *
 * Results have the same bits for any number of threads, and are equal to rounding between instruction sets.  Sums and
 * softmax are f32.  bf16 operands are multiplied as bf16 if the CPU does it faster, and converted to f32 tile by tile
 * otherwise; with AMX, products of f32 are six products of bf16 (cpu_bf16x3.h).  vfm_op_attn has checked the operands.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "device/cpu/cpu_attn_impl.h"
#include "device/cpu/cpu_impl.h"

/* ---- work ------------------------------------------------------------------ */

struct attn_work {
	const struct attn_isa *isa;
	const struct attn_call *call;
	struct attn_item *items;
	int64_t n, cap;
	_Atomic int64_t next;
	_Atomic int64_t *done; /* backward: [n] */
	char *scratch;         /* [slots][isa->scratch] */
};

/* Slot i owns a scratch and processes items until none is left.  Items start in their order, so an item waits only for
 * one that is running or done. */
static void work_slot(int64_t i0, int64_t i1, void *arg)
{
	struct attn_work *w = arg;
	void *scratch = w->scratch + (size_t)i0 * w->isa->scratch;

	(void)i1;
	for (;;) {
		int64_t i = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed);
		const struct attn_item *it = &w->items[i];

		if (i >= w->n)
			return;
		if (w->done)
			w->isa->bwd(w->call, it, scratch, w->done);
		else
			w->isa->fwd(w->call, it, scratch);
	}
}

static int work_run(struct attn_work *w, struct vfm_stream *s, struct vfm_err *err)
{
	int64_t slots = vfm_par_threads();

	if (slots > w->n)
		slots = w->n;
	if (slots == 0)
		return 0;
	w->scratch = vfm_cpu_ws(s, VFM_WS_ATTN, (size_t)slots * w->isa->scratch, err);
	if (!w->scratch)
		return VFM_EENV;
	vfm_par_for(slots, 1, work_slot, w);
	return 0;
}

static struct attn_item *work_add(struct attn_work *w)
{
	if (w->n == w->cap) {
		w->cap = w->cap ? 2 * w->cap : 64;
		w->items = vfm_realloc(w->items, (size_t)w->cap, sizeof *w->items);
	}
	w->items[w->n] = (struct attn_item){.self = w->n, .prev = -1, .last = true};
	return &w->items[w->n++];
}

struct by_cost {
	int64_t cost;
	int32_t sample;
};

static int by_cost_cmp(const void *a, const void *b)
{
	const struct by_cost *x = a, *y = b;

	if (x->cost != y->cost)
		return x->cost > y->cost ? -1 : 1;
	return x->sample < y->sample ? -1 : 1;
}

/* Returns the samples by descending cost, which balances the threads. */
static struct by_cost *samples_by_cost(const struct attn_call *c, int n)
{
	struct by_cost *o = vfm_calloc((size_t)n + 1, sizeof *o);

	for (int i = 0; i < n; i++) {
		o[i].sample = i;
		o[i].cost = attn_nq(c, i) * attn_nk(c, i);
	}
	qsort(o, (size_t)n, sizeof *o, by_cost_cmp);
	return o;
}

static void plan_fwd(struct attn_work *w, const struct attn_call *c, int samples)
{
	struct by_cost *order = samples_by_cost(c, samples);
	int64_t blocks = 0, per_item;

	for (int i = 0; i < samples; i++)
		blocks += c->kv_heads * cpu_ceil_div(attn_nq(c, i) * c->group, ATTN_FQ);
	/* results do not depend on this division: as fine as the threads need */
	per_item = blocks / (4 * (int64_t)vfm_par_threads());
	per_item = per_item < 1 ? 1 : per_item > ATTN_NQB ? ATTN_NQB : per_item;
	for (int i = 0; i < samples; i++) {
		int32_t s = order[i].sample;
		int64_t nq = attn_nq(c, s) * c->group, step = per_item * ATTN_FQ;

		for (int h = 0; h < c->kv_heads; h++)
			for (int64_t first = 0; first < nq; first += step) {
				struct attn_item *it = work_add(w);

				it->sample = s;
				it->kvh = h;
				it->q_first = first;
				it->q_n = nq - first < step ? nq - first : step;
			}
	}
	free(order);
}

/* Plans the backward of a sample with few keys and many queries: items of `step` queries each. */
static int64_t plan_by_queries(
	struct attn_work *w, const struct attn_call *c, int32_t s, int64_t nq, int64_t nk, float *mem)
{
	int64_t parts = cpu_ceil_div(nq, ATTN_QS), step = cpu_ceil_div(cpu_ceil_div(nq, parts), ATTN_BQ) * ATTN_BQ;
	int64_t size = 2 * nk * attn_ldd(c->d);

	parts = cpu_ceil_div(nq, step);
	for (int h = 0; h < c->kv_heads; h++) {
		int64_t counter = w->n;

		for (int64_t p = 0; p < parts; p++) {
			struct attn_item *it = work_add(w);

			it->sample = s;
			it->kvh = h;
			it->q_first = p * step;
			it->q_n = nq - it->q_first < step ? nq - it->q_first : step;
			it->k_n = nk;
			it->part = mem ? mem + h * parts * size : NULL;
			it->part_i = (int32_t)p;
			it->parts = (int32_t)parts;
			it->counter = counter;
		}
	}
	return c->kv_heads * parts * size;
}

/* Plans the backward of any other sample: items of `step` keys each.  Blocks of keys are added to dq in their order, so
 * the result does not depend on step. */
static int64_t plan_by_keys(
	struct attn_work *w, const struct attn_call *c, int32_t s, int64_t nq, int64_t nk, int64_t step, float *mem)
{
	int64_t size = cpu_ceil_div(nq, ATTN_BQ) * ATTN_LD * c->d;

	/* the inner loop is over heads, so that neighbours rarely wait for each other */
	for (int64_t first = 0; first == 0 || first < nk; first += step)
		for (int h = 0; h < c->kv_heads; h++) {
			struct attn_item *it = work_add(w);

			it->sample = s;
			it->kvh = h;
			it->q_n = nq;
			it->k_first = first;
			it->k_n = nk - first < step ? nk - first : step;
			it->last = first + it->k_n == nk;
			it->prev = first ? it->self - c->kv_heads : -1;
			it->dq = mem && nk > step ? mem + h * size : NULL;
		}
	return nk > step ? c->kv_heads * size : 0;
}

/* Plans all items.  mem holds the partial sums; NULL: only count.  Returns the number of floats. */
static int64_t plan_bwd(struct attn_work *w, const struct attn_call *c, int samples, int64_t blocks, float *mem)
{
	struct by_cost *order = samples_by_cost(c, samples);
	int64_t used = 0;

	w->n = 0;
	for (int i = 0; i < samples; i++) {
		int32_t s = order[i].sample;
		int64_t nq = attn_nq(c, s) * c->group, nk = attn_nk(c, s);
		float *at = mem ? mem + used : NULL;

		if (nk > 0 && nk <= ATTN_KS && nq >= 2 * ATTN_QS)
			used += plan_by_queries(w, c, s, nq, nk, at);
		else if (nq || nk)
			used += plan_by_keys(w, c, s, nq, nk, blocks * attn_key_block(nk), at);
	}
	free(order);
	return used;
}

/* ---- the ops ----------------------------------------------------------------- */

static struct attn_view view(const struct vfm_tensor *t)
{
	bool bf16 = t->dtype == VFM_BF16;
	int64_t size = bf16 ? 2 : 4;

	return (struct attn_view){t->data, t->stride[0] * size, t->stride[1] * size, bf16};
}

static int run_fwd(
	const struct attn_isa *isa, struct vfm_stream *s, const struct attn_call *c, int samples, struct vfm_err *err)
{
	struct attn_work w = {.isa = isa, .call = c};
	int rc;

	plan_fwd(&w, c, samples);
	rc = work_run(&w, s, err);
	free(w.items);
	return rc;
}

/* The members that all ops set alike. */
static struct attn_call begin_attn_call(const struct vfm_tensor *q, const struct vfm_tensor *k,
	const struct vfm_tensor *v, const struct vfm_tensor *o, float scale)
{
	return (struct attn_call){
		.q = view(q),
		.k = view(k),
		.v = view(v),
		.o = view(o),
		.d = (int)q->shape[2],
		.kv_heads = (int)k->shape[1],
		.group = k->shape[1] ? (int)(q->shape[1] / k->shape[1]) : 1,
		.scale = scale,
	};
}

int vfm_attn_fwd_isa(const struct attn_isa *isa, struct vfm_stream *s, const struct vfm_attn *a, struct vfm_err *err)
{
	struct attn_call c = begin_attn_call(&a->q, &a->k, &a->v, &a->o, a->scale);

	c.lse = a->lse.data;
	c.lse_tok = a->lse.stride[0];
	c.cu_q = a->seqs_q->cu;
	c.cu_k = a->seqs_k->cu;
	return run_fwd(isa, s, &c, a->seqs_q->n, err);
}

int vfm_attn_bwd_isa(
	const struct attn_isa *isa, struct vfm_stream *s, const struct vfm_attn_bwd *a, struct vfm_err *err)
{
	struct attn_call c = begin_attn_call(&a->q, &a->k, &a->v, &a->o, a->scale);
	struct attn_work w = {.isa = isa, .call = &c};
	int64_t blocks = ATTN_KS / ATTN_BK;
	float *mem = NULL;
	size_t bytes;
	int rc = 0;

	c.dout = view(&a->dout);
	c.dq = view(&a->dq);
	c.dk = view(&a->dk);
	c.dv = view(&a->dv);
	c.lse = a->lse.data;
	c.lse_tok = a->lse.stride[0];
	c.cu_q = a->seqs_q->cu;
	c.cu_k = a->seqs_k->cu;
	/* as many keys an item as leave items for all threads */
	while (plan_bwd(&w, &c, a->seqs_q->n, blocks, NULL), w.n < 2 * (int64_t)vfm_par_threads() && blocks > 1)
		blocks /= 2;
	bytes = (size_t)plan_bwd(&w, &c, a->seqs_q->n, blocks, NULL) * sizeof(float);
	if (bytes) {
		mem = vfm_dev_alloc(s, bytes, "the partial sums of attention", err);
		if (!mem) {
			rc = VFM_EENV;
			goto out;
		}
		plan_bwd(&w, &c, a->seqs_q->n, blocks, mem);
	}
	w.done = vfm_calloc((size_t)w.n + 1, sizeof *w.done);
	rc = work_run(&w, s, err);
	vfm_dev_free(s, mem, bytes);
out:
	free((void *)w.done);
	free(w.items);
	return rc;
}

/* bf16: all operands of the products are bf16. */
static const struct attn_isa *pick(const struct vfm_stream *s, bool bf16)
{
	enum vfm_isa isa = vfm_cpu_of(s)->isa;

	if (isa >= VFM_ISA_AMX)
		return bf16 ? &vfm_attn_amx : &vfm_attn_amx_f32;
	if (bf16 && vfm_cpu_of(s)->pairs)
		return &vfm_attn_avx512bf16;
	return isa >= VFM_ISA_AVX512 ? &vfm_attn_avx512 : isa >= VFM_ISA_AVX2 ? &vfm_attn_avx2 : &vfm_attn_base;
}

static bool is_bf16(const struct vfm_tensor *t)
{
	return t->dtype == VFM_BF16;
}

int vfm_cpu_attn(struct vfm_stream *s, const struct vfm_attn *a, struct vfm_err *err)
{
	bool bf16 = is_bf16(&a->q) && is_bf16(&a->k) && is_bf16(&a->v);

	return vfm_attn_fwd_isa(pick(s, bf16), s, a, err);
}

int vfm_cpu_attn_bias(struct vfm_stream *s, const struct vfm_attn_bias *a, struct vfm_err *err)
{
	struct attn_call c = begin_attn_call(&a->q, &a->k, &a->v, &a->o, a->scale);

	c.bias = (const float *)a->bias.data + a->bias.shape[1] / 2;
	c.bias_ld = a->bias.stride[0];
	c.cu_q = a->seqs->cu;
	c.cu_k = a->seqs->cu;
	return run_fwd(pick(s, is_bf16(&a->q)), s, &c, a->seqs->n, err);
}

int vfm_cpu_attn_bwd(struct vfm_stream *s, const struct vfm_attn_bwd *a, struct vfm_err *err)
{
	bool bf16 = is_bf16(&a->q) && is_bf16(&a->k) && is_bf16(&a->v) && is_bf16(&a->dout);

	return vfm_attn_bwd_isa(pick(s, bf16), s, a, err);
}
