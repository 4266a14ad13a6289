/* clip_order.c - the order of clips by rank; see clip_order.h. */
#include "curate/dedup/clip_order.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"

struct ranked_clip {
	const struct vfm_clip_set *s;
	uint64_t name; /* 8 bytes of it, behind those that all have in common */
	double quality;
	uint32_t clip;
};

static int compare_ranked_members(const void *a, const void *b)
{
	const struct ranked_clip *p = a, *q = b;

	if (p->quality != q->quality)
		return p->quality > q->quality ? -1 : 1;
	if (p->name != q->name)
		return p->name < q->name ? -1 : 1;
	return strcmp(vfm_names_at(&p->s->names, p->clip), vfm_names_at(&q->s->names, q->clip));
}

/* Returns how many bytes all names from number `from` on begin with. */
static size_t common_prefix(const struct vfm_names *names, int64_t from, int64_t n)
{
	const char *first = from < n ? vfm_names_at(names, from) : "";
	size_t len = strlen(first);

	for (int64_t i = from; i < n; i++) {
		const char *name = vfm_names_at(names, i);
		size_t k = 0;

		while (k < len && name[k] == first[k])
			k++;
		len = k;
	}
	return len;
}

/* Returns the first 8 bytes of a string as a number that has their order. */
static uint64_t order_of(const char *s)
{
	uint64_t x = 0;

	for (int i = 0; i < 8; i++) {
		x = x << 8 | (unsigned char)*s;
		s += *s != 0;
	}
	return x;
}

struct ranking {
	struct ranked_clip *r, *spare; /* [n] */
	int64_t n, part;
};

static void sort_ranked(int64_t i0, int64_t i1, void *ctx)
{
	const struct ranking *k = ctx;

	for (int64_t i = i0; i < i1; i++) {
		int64_t from = i * k->part, to = from + k->part < k->n ? from + k->part : k->n;

		if (from < to)
			qsort(k->r + from, (size_t)(to - from), sizeof(*k->r), compare_ranked_members);
	}
}

/* Merges sorted parts in pairs. */
static void merge_ranked(int64_t i0, int64_t i1, void *ctx)
{
	const struct ranking *k = ctx;

	for (int64_t i = i0; i < i1; i++) {
		int64_t a = 2 * i * k->part, middle = a + k->part < k->n ? a + k->part : k->n, b = middle,
			end = a + 2 * k->part < k->n ? a + 2 * k->part : k->n;

		for (int64_t to = a; to < end; to++)
			k->spare[to] = b == end || (a < middle && compare_ranked_members(&k->r[a], &k->r[b]) < 0)
				? k->r[a++]
				: k->r[b++];
	}
}

/* Sorts r [n] on the compute threads; spare [n] gets the result or not. */
static struct ranked_clip *sort_on_threads(struct ranked_clip *r, struct ranked_clip *spare, int64_t n)
{
	struct ranking k = {r, spare, n, n / vfm_par_threads() + 1};

	vfm_par_for((n + k.part - 1) / k.part, 1, sort_ranked, &k);
	for (; k.part < n; k.part *= 2) {
		struct ranked_clip *to = k.spare;

		vfm_par_for((n + 2 * k.part - 1) / (2 * k.part), 1, merge_ranked, &k);
		k.spare = k.r;
		k.r = to;
	}
	return k.r;
}

int vfm_clip_order_find(
	uint32_t *clip, uint32_t *rank, const struct vfm_clip_set *s, int64_t fixed, struct vfm_err *err)
{
	const int64_t others = s->n - fixed;
	const struct vfm_names *names = &s->names;
	const size_t prefix = common_prefix(names, fixed, s->n);
	size_t bytes = 2 * (size_t)others * sizeof(struct ranked_clip);
	struct ranked_clip *r = vfm_big_alloc(bytes + 1, "the order of clips", err), *sorted;

	if (!r)
		return err->code;
	for (int64_t i = 0; i < others; i++)
		r[i] = (struct ranked_clip){s, order_of(vfm_names_at(names, fixed + i) + prefix),
			s->entries[fixed + i].quality, (uint32_t)(fixed + i)};
	sorted = sort_on_threads(r, r + others, others);
	for (int64_t i = 0; i < s->n; i++) {
		clip[i] = i < fixed ? (uint32_t)i : sorted[i - fixed].clip;
		rank[clip[i]] = (uint32_t)i;
	}
	vfm_big_free(r, bytes + 1);
	return 0;
}
