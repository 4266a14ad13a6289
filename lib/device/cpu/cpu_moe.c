/* cpu_moe.c - mixture of experts: routing, sorting by expert, grouped GEMM. */
#include "device/cpu/cpu_impl.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/par.h"

enum { ROWS = 256 }; /* a piece */

/* ---- expert choice -------------------------------------------------------------------------- */

struct expert_job {
	const struct vfm_moe_topk_expert *a;
	const int64_t *at; /* [S]: offset of a sample in a row of index */
};

/* Maps (score, token) to a number that is larger for a higher score and, for equal scores, for a lower token. */
static uint64_t rank_score(float score, uint32_t token)
{
	uint32_t bits;

	score += 0.0f; /* -0 is 0 */
	memcpy(&bits, &score, 4);
	bits = bits >> 31 ? ~bits : bits | 0x80000000u;
	return (uint64_t)bits << 32 | (uint32_t)~token;
}

/* Returns the k-th largest of v[n], 1 <= k <= n (quickselect; reorders v).  All elements are different. */
static uint64_t select_kth(uint64_t *v, int64_t n, int64_t k)
{
	int64_t lo = 0, hi = n - 1;

	while (lo < hi) {
		uint64_t a = v[lo], b = v[lo + (hi - lo) / 2], c = v[hi];
		uint64_t p = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
		int64_t i = lo, j = hi;

		while (i <= j) {
			while (v[i] > p)
				i++;
			while (v[j] < p)
				j--;
			if (i <= j) {
				uint64_t t = v[i];

				v[i++] = v[j];
				v[j--] = t;
			}
		}
		if (k - 1 <= j)
			hi = j;
		else if (k - 1 >= i)
			lo = i;
		else
			return v[k - 1];
	}
	return v[lo];
}

/* Task i is a pair of sample and expert, experts first, so that consecutive tasks read the same rows. */
static void expert_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct expert_job *j = ctx;
	const struct vfm_moe_topk_expert *a = j->a;
	int64_t ne = a->score.shape[1], k_all = a->index.shape[1];
	const float *score = a->score.data;

	for (int64_t i = i0; i < i1; i++) {
		int64_t s = i / ne, e = i % ne, t0 = a->seqs->cu[s], n = a->seqs->cu[s + 1] - t0;
		int64_t k = vfm_moe_expert_capacity(n, ne, a->capacity), at = e * k_all + j->at[s];
		uint64_t *v = vfm_cpu_scratch((size_t)(n + 1) * sizeof(*v)), least;

		if (!k)
			continue;
		for (int64_t t = 0; t < n; t++)
			v[t] = rank_score(score[(t0 + t) * ne + e], (uint32_t)t);
		least = select_kth(v, n, k);
		for (int64_t t = 0; t < n; t++) {
			float x = score[(t0 + t) * ne + e];

			if (rank_score(x, (uint32_t)t) < least)
				continue;
			((int32_t *)a->index.data)[at] = (int32_t)(t0 + t);
			if (vfm_has(&a->weight))
				((float *)a->weight.data)[at] = x;
			at++;
		}
	}
}

int vfm_cpu_moe_topk_expert(struct vfm_stream *s, const struct vfm_moe_topk_expert *a, struct vfm_err *err)
{
	int64_t ne = a->score.shape[1];
	int64_t *at = vfm_cpu_ws(s, VFM_WS_CHUNKS, (size_t)(a->seqs->n + 1) * sizeof(*at), err);
	struct expert_job j = {a, at};

	if (!at)
		return VFM_EENV;
	at[0] = 0;
	for (int i = 0; i < a->seqs->n; i++)
		at[i + 1] =
			at[i] + vfm_moe_expert_capacity((int64_t)a->seqs->cu[i + 1] - a->seqs->cu[i], ne, a->capacity);
	vfm_par_for(a->seqs->n * ne, 1, expert_range, &j);
	return 0;
}

/* ---- token choice -------------------------------------------------------------------------------- */

/* Selects the k largest of score[n], largest first. */
static void best_of(const float *score, int64_t n, int64_t k, int32_t *best)
{
	int64_t have = 0;

	for (int64_t e = 0; e < n; e++) {
		int64_t i = have < k ? have++ : k - 1;

		if (i == k - 1 && have == k && e >= k && !(score[e] > score[best[i]]))
			continue;
		for (; i > 0 && score[e] > score[best[i - 1]]; i--)
			best[i] = best[i - 1];
		best[i] = (int32_t)e;
	}
}

static void token_range(int64_t t0, int64_t t1, void *ctx)
{
	const struct vfm_moe_topk_token *a = ctx;
	int64_t e = a->score.shape[1], k = a->expert.shape[1];

	for (int64_t t = t0; t < t1; t++) {
		const float *score = (const float *)a->score.data + t * e;
		int32_t *best = (int32_t *)a->expert.data + t * k;
		float *w = (float *)a->weight.data + t * k, sum = 0;

		best_of(score, e, k, best);
		for (int64_t j = 0; j < k; j++)
			sum += score[best[j]];
		for (int64_t j = 0; j < k; j++)
			w[j] = score[best[j]] / sum;
	}
}

int vfm_cpu_moe_topk_token(struct vfm_stream *s, const struct vfm_moe_topk_token *a, struct vfm_err *err)
{
	(void)s, (void)err;
	vfm_par_for(a->score.shape[0], ROWS, token_range, (void *)a);
	return 0;
}

static void token_bwd_range(int64_t t0, int64_t t1, void *ctx)
{
	const struct vfm_moe_topk_token_bwd *a = ctx;
	int64_t e = a->score.shape[1], k = a->expert.shape[1];

	for (int64_t t = t0; t < t1; t++) {
		const float *score = (const float *)a->score.data + t * e, *dw = (const float *)a->dweight.data + t * k;
		const int32_t *best = (const int32_t *)a->expert.data + t * k;
		float *ds = (float *)a->dscore.data + t * e, sum = 0, dot = 0;

		memset(ds, 0, (size_t)e * sizeof(*ds));
		for (int64_t j = 0; j < k; j++)
			sum += score[best[j]];
		for (int64_t j = 0; j < k; j++)
			dot += score[best[j]] / sum * dw[j];
		for (int64_t j = 0; j < k; j++)
			ds[best[j]] = (dw[j] - dot) / sum; /* exactly 0 if k is 1 */
	}
}

static int keys_ok(
	const char *op, const int32_t *key, int64_t n, int64_t m, int32_t least, const char *of, struct vfm_err *err)
{
	for (int64_t i = 0; i < n; i++)
		if (key[i] >= m || key[i] < least)
			return vfm_fail(err, VFM_EUSAGE,
				"%s: element %" PRId64 " is %" PRId32 ", but there are %" PRId64 " %s", op, i, key[i],
				m, of);
	return 0;
}

int vfm_cpu_moe_topk_token_bwd(struct vfm_stream *s, const struct vfm_moe_topk_token_bwd *a, struct vfm_err *err)
{
	(void)s;
	TRY(keys_ok("moe_topk_token_bwd", a->expert.data, vfm_numel(&a->expert), a->score.shape[1], 0, "experts", err));
	vfm_par_for(a->score.shape[0], ROWS, token_bwd_range, (void *)a);
	return 0;
}

/* ---- sorting and counting ------------------------------------------------------------------------ */

int vfm_cpu_moe_own(struct vfm_stream *s, const struct vfm_moe_own *a, struct vfm_err *err)
{
	int64_t ne = a->index.shape[0], k = a->index.shape[1], n = 0;
	const int32_t *index = a->index.data, *own = vfm_has(&a->own) ? a->own.data : NULL;
	int32_t *row = a->row.data, *place = a->place.data, *count = a->count.data;

	(void)s;
	if (own)
		TRY(keys_ok("moe_own", index, ne * k, a->own.shape[0], 0, "tokens", err));
	for (int64_t e = 0; e < ne; e++) {
		int64_t before = n;

		for (int64_t i = e * k; i < (e + 1) * k; i++) {
			int32_t r = own ? own[index[i]] : index[i];

			if (r < 0)
				continue;
			row[n] = r;
			place[n++] = (int32_t)(r * ne + e);
		}
		count[e] = (int32_t)(n - before);
	}
	for (; n < ne * k; n++)
		row[n] = place[n] = -1;
	return 0;
}

int vfm_cpu_moe_sort(struct vfm_stream *s, const struct vfm_moe_sort *a, struct vfm_err *err)
{
	int64_t n = a->key.shape[0], e = a->buckets;
	const int32_t *key = a->key.data;
	int32_t *order = a->order.data, *count = a->count.data, *at;
	int32_t *source = vfm_has(&a->source) ? a->source.data : NULL,
		*inverse = vfm_has(&a->inverse) ? a->inverse.data : NULL;

	TRY(keys_ok("moe_sort", key, n, e, INT32_MIN, "experts", err));
	at = vfm_cpu_ws(s, VFM_WS_CHUNKS, (size_t)(e + 1) * sizeof(*at), err);
	if (!at)
		return VFM_EENV;
	if (e)
		memset(count, 0, (size_t)e * sizeof(*count));
	for (int64_t i = 0; i < n; i++)
		if (key[i] >= 0)
			count[key[i]]++;
	at[0] = 0;
	for (int64_t i = 0; i < e; i++)
		at[i + 1] = at[i] + count[i];
	/* at[e] counts rows without a key */
	for (int64_t i = 0; i < n; i++) {
		int32_t p = at[key[i] < 0 ? e : key[i]]++;

		order[p] = (int32_t)i;
		if (inverse)
			inverse[i] = p;
		if (source)
			source[p] = (int32_t)(i / a->div);
	}
	return 0;
}

int vfm_cpu_moe_count(struct vfm_stream *s, const struct vfm_moe_count *a, struct vfm_err *err)
{
	int64_t k = a->expert.shape[1], e = a->count.shape[1];
	const int32_t *expert = a->expert.data;
	float *count = a->count.data;

	(void)s;
	TRY(keys_ok("moe_count", expert, vfm_numel(&a->expert), e, INT32_MIN, "experts", err));
	if (vfm_numel(&a->count))
		memset(count, 0, vfm_nbytes(&a->count));
	for (int64_t i = 0; i < a->seqs->n; i++)
		for (int64_t j = a->seqs->cu[i] * k; j < a->seqs->cu[i + 1] * k; j++)
			if (expert[j] >= 0)
				count[i * e + expert[j]]++;
	return 0;
}

/* ---- balance ------------------------------------------------------------------------------------------ */

struct balance_job {
	const struct vfm_cpu_kern *kern;
	const struct vfm_moe_balance *a;
	const struct vfm_chunk *chunks;
	double *part;
};

static void balance_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct balance_job *j = ctx;
	const struct vfm_moe_balance *a = j->a;
	int64_t e = a->score.shape[1];

	for (int64_t i = i0; i < i1; i++) {
		const struct vfm_chunk *c = &j->chunks[i];
		const float *count = (const float *)a->count.data + c->s * e;
		float coef = ((const float *)a->coef.data)[c->s];

		j->part[i] = 0;
		for (int64_t t = c->t0; t < c->t1; t++) {
			if (vfm_has(&a->loss))
				j->part[i] += (double)j->kern->dot(
					count, false, (const float *)a->score.data + t * e, false, e);
			if (vfm_has(&a->dscore))
				j->kern->axpby(coef, count, false, a->accumulate ? 1 : 0,
					(float *)a->dscore.data + t * e, false, e);
		}
		j->part[i] *= (double)coef;
	}
}

int vfm_cpu_moe_balance(struct vfm_stream *s, const struct vfm_moe_balance *a, struct vfm_err *err)
{
	struct balance_job j = {.kern = vfm_cpu_of(s)->kern, .a = a};
	struct vfm_chunk *chunks;
	int64_t n = vfm_cpu_chunks(s, a->seqs, a->score.shape[0], ROWS, &chunks, err);

	if (n < 0)
		return VFM_EENV;
	j.chunks = chunks;
	j.part = vfm_cpu_ws(s, VFM_WS_PART, (size_t)(n + 1) * sizeof(*j.part), err);
	if (!j.part)
		return VFM_EENV;
	vfm_par_for(n, 1, balance_range, &j);
	for (int64_t i = 0; vfm_has(&a->loss) && i < n; i++)
		*(double *)a->loss.data += j.part[i];
	return 0;
}

/* ---- products in groups ------------------------------------------------------------------------------------ */

/* Returns the view of group g: [G,R,C] -> [R,C], [G,C] -> [C]. */
static struct vfm_tensor view_group(const struct vfm_tensor *t, int64_t g)
{
	struct vfm_tensor r = {.dtype = t->dtype, .ndim = t->ndim - 1};

	if (!vfm_has(t))
		return *t;
	r.data = (char *)t->data + (size_t)(g * t->stride[0]) * vfm_dtype_size(t->dtype);
	for (int i = 0; i < r.ndim; i++) {
		r.shape[i] = t->shape[i + 1];
		r.stride[i] = t->stride[i + 1];
	}
	return r;
}

int vfm_cpu_grouped_gemm(struct vfm_stream *s, const struct vfm_grouped_gemm *a, struct vfm_err *err)
{
	for (int64_t g = 0; g < a->groups->n; g++) {
		int64_t first = a->groups->cu[g], n = a->groups->cu[g + 1] - first;
		struct vfm_gemm one = {.a = vfm_row_slice(&a->a, first, n), .accumulate = a->accumulate};

		if (a->what == VFM_GROUPED_WGRAD) {
			one.trans_a = true;
			one.b = vfm_row_slice(&a->b, first, n);
			one.c = view_group(&a->c, g);
			one.a_rowsum = view_group(&a->a_colsum, g);
		} else {
			one.trans_b = a->what == VFM_GROUPED_FWD;
			one.b = view_group(&a->b, g);
			one.c = vfm_row_slice(&a->c, first, n);
			one.bias = view_group(&a->bias, g);
			one.act = a->act;
			one.dact = a->dact;
			one.aux = vfm_row_slice(&a->aux, first, n);
		}
		TRY(vfm_cpu_gemm(s, &one, err));
	}
	return 0;
}
