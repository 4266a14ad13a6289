/* attn_pack.c - sorts samples into classes of length, and rounds them so that few cuDNN plans are built. */
#include "device/cuda/attn_pack.h"

#include <stdlib.h>

#include "base/mem.h"

int64_t vfm_attn_round_len(int64_t n)
{
	int64_t step = 128;

	while (n > 8 * step)
		step *= 2;
	return n < 1 ? step : (n + step - 1) / step * step;
}

int64_t vfm_attn_round_batch(int64_t n)
{
	int64_t b = 1;

	while (b < n)
		b *= 2;
	return b;
}

void vfm_attn_left_out(const struct vfm_seqs *q, const struct vfm_seqs *k, bool *queries, bool *keys)
{
	*queries = *keys = false;
	for (int i = 0; i < q->n; i++) {
		int64_t nq = vfm_seqs_len(q, i), nk = vfm_seqs_len(k, i);

		*queries = *queries || (nq > 0 && nk == 0);
		*keys = *keys || (nq == 0 && nk > 0);
	}
}

/* ---- classes of samples ---- */

struct class
{
	int32_t lo, hi;
	int64_t n, rows, keys, max_q, max_k;
};

/* Collects statistics of the samples that have keys and more than lo, at most hi queries. */
static struct class survey(const struct vfm_seqs *q, const struct vfm_seqs *k, int32_t lo, int32_t hi)
{
	struct class c = {.lo = lo, .hi = hi};

	for (int i = 0; i < q->n; i++) {
		int64_t nq = vfm_seqs_len(q, i), nk = vfm_seqs_len(k, i);

		if (nq <= lo || nq > hi || nk == 0)
			continue;
		c.n++;
		c.rows += nq;
		c.keys += nk;
		if (nq > c.max_q)
			c.max_q = nq;
		if (nk > c.max_k)
			c.max_k = nk;
	}
	return c;
}

/* Returns whether b is one of four steps an octave, so that few plans are built for samples of equal length. */
static bool is_step(int64_t b)
{
	int64_t step = 1;

	while (b >= 8 * step)
		step *= 2;
	return b % step == 0;
}

/* Returns whether all samples are one piece without offsets and mask: their lengths are equal, and nothing has to be
 * rounded.
 */
static bool is_fixed(const struct vfm_seqs *q, const struct vfm_attn_limits *lim, const struct class *all)
{
	int64_t b = q->n, sq = all->max_q, sk = all->max_k;

	if (lim->only_packed || b > VFM_ATTN_MOST_SAMPLES || all->n != b || all->rows != b * sq || all->keys != b * sk)
		return false;
	if (lim->pairs && (b > 1 || lim->hkv > 1) && b * lim->hkv * lim->group > lim->pairs / sq / sk)
		return false;
	return is_step(b) && vfm_attn_round_len(sq) == sq && vfm_attn_round_len(sk) == sk;
}

struct piece_list {
	struct vfm_attn_piece *v;
	size_t cap;
	int n;
};

/* Rounds a length of a class.  Classes of an octave round to whole octaves, because more shapes would need more plans.
 */
static int64_t round_class_len(const struct class *c, int64_t n)
{
	int64_t r = 128;

	if (c->lo == 0 && c->hi == INT32_MAX)
		return vfm_attn_round_len(n);
	while (r < n)
		r *= 2;
	return r;
}

/* Appends the pieces of a class, each with as many samples, then as many heads, as the limits allow. */
static void cut(struct piece_list *l, const struct class *c, const struct vfm_attn_limits *lim)
{
	int64_t sq = round_class_len(c, c->max_q), sk = round_class_len(c, c->max_k), b = vfm_attn_round_batch(c->n),
		heads = lim->hkv;

	if (b > VFM_ATTN_MOST_SAMPLES)
		b = VFM_ATTN_MOST_SAMPLES;
	while (lim->rows && b > 1 && b * sq > lim->rows)
		b /= 2;
	while (lim->pairs && b > 1 && b * heads * lim->group > lim->pairs / sq / sk)
		b /= 2;
	while (lim->pairs && heads > 1 && b * heads * lim->group > lim->pairs / sq / sk)
		heads = (heads + 1) / 2;
	for (int64_t first = 0; first < c->n; first += b)
		for (int64_t head = 0; head < lim->hkv; head += heads) {
			vfm_grow(&l->v, &l->cap, (size_t)l->n + 1, sizeof(*l->v));
			l->v[l->n++] = (struct vfm_attn_piece){.lo = c->lo,
				.hi = c->hi,
				.first = (int32_t)first,
				.n = (int32_t)(c->n - first < b ? c->n - first : b),
				.b = b,
				.sq = sq,
				.sk = sk,
				.head = head,
				.heads = lim->hkv - head < heads ? lim->hkv - head : heads};
		}
}

int vfm_attn_pieces(const struct vfm_seqs *q, const struct vfm_seqs *k, const struct vfm_attn_limits *lim,
	struct vfm_attn_piece **v)
{
	struct class all = survey(q, k, 0, INT32_MAX);
	int64_t shape = vfm_attn_round_batch(all.n) * vfm_attn_round_len(all.max_q);
	struct piece_list l = {0};

	*v = NULL;
	if (all.n == 0)
		return 0;
	if (is_fixed(q, lim, &all)) {
		vfm_grow(&l.v, &l.cap, 1, sizeof(*l.v));
		l.v[l.n++] = (struct vfm_attn_piece){.kind = VFM_ATTN_FIXED,
			.hi = INT32_MAX,
			.n = q->n,
			.b = q->n,
			.sq = all.max_q,
			.sk = all.max_k,
			.heads = lim->hkv};
	} else if (all.n == 1 || shape <= 4 * all.rows + 4096) {
		cut(&l, &all, lim);
	} else {
		for (int64_t lo = 0, hi = 128; lo < all.max_q; lo = hi, hi *= 2) {
			struct class c = survey(q, k, (int32_t)lo, hi > INT32_MAX ? INT32_MAX : (int32_t)hi);

			if (c.n)
				cut(&l, &c, lim);
		}
	}
	*v = l.v;
	return l.n;
}
