/* heap.c - holes in a treap by size and address, ranges in a hash table by offset. */
#include "device/dev/heap.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/mem.h"

/* All ranges and holes below top stand in one chain, in the order of addresses; no two holes are neighbours and the
 * last is a range.  Holes are in a treap as well, ordered by size and then by address, whose priorities are a hash of
 * the node's number: nothing here depends on chance.  Ranges are found again by their offset through a hash table. */

enum { NIL = 0 };

struct node {
	uint64_t at, size;
	uint32_t prev, next;  /* the chain */
	uint32_t left, right; /* of a hole: the treap.  left: the list of unused nodes */
	uint32_t tag;
	bool hole;
};

struct vfm_heap {
	uint64_t limit, grain, top, end, used;
	struct node *node; /* [cap], [0] is the anchor of the chain */
	uint32_t n, cap, unused, root;
	uint32_t *table; /* [slots]: node of a range by its offset, linear probing; NIL: empty */
	uint32_t slots;  /* a power of 2, at most half full */
	size_t ranges, holes;
};

static uint32_t mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	return (uint32_t)(x >> 32);
}

/* ---- the treap of holes ---- */

static bool before(const struct vfm_heap *h, uint32_t a, uint32_t b)
{
	const struct node *x = &h->node[a], *y = &h->node[b];

	return x->size != y->size ? x->size < y->size : x->at < y->at;
}

/* Splits `t` into the nodes before and after `key`. */
static void split(struct vfm_heap *h, uint32_t t, uint32_t key, uint32_t *lo, uint32_t *hi)
{
	while (t != NIL) {
		if (before(h, t, key)) {
			*lo = t;
			lo = &h->node[t].right;
			t = *lo;
		} else {
			*hi = t;
			hi = &h->node[t].left;
			t = *hi;
		}
	}
	*lo = *hi = NIL;
}

static void hole_in(struct vfm_heap *h, uint32_t k)
{
	uint32_t *at = &h->root, lo = NIL, hi = NIL;

	while (*at != NIL && mix(*at) >= mix(k))
		at = before(h, *at, k) ? &h->node[*at].right : &h->node[*at].left;
	split(h, *at, k, &lo, &hi);
	h->node[k].left = lo;
	h->node[k].right = hi;
	h->node[k].hole = true;
	*at = k;
	h->holes++;
}

static void hole_out(struct vfm_heap *h, uint32_t k)
{
	uint32_t *at = &h->root, a, b;

	while (*at != k)
		at = before(h, *at, k) ? &h->node[*at].right : &h->node[*at].left;
	a = h->node[k].left;
	b = h->node[k].right;
	while (a != NIL && b != NIL) {
		if (mix(a) >= mix(b)) {
			*at = a;
			at = &h->node[a].right;
			a = *at;
		} else {
			*at = b;
			at = &h->node[b].left;
			b = *at;
		}
	}
	*at = a != NIL ? a : b;
	h->node[k].hole = false;
	h->holes--;
}

static uint32_t best_fit(const struct vfm_heap *h, uint64_t size)
{
	uint32_t best = NIL;

	for (uint32_t t = h->root; t != NIL;) {
		if (h->node[t].size >= size) {
			best = t;
			t = h->node[t].left;
		} else {
			t = h->node[t].right;
		}
	}
	return best;
}

/* ---- ranges by their offset ---- */

static uint32_t range_slot(const struct vfm_heap *h, uint64_t at)
{
	uint32_t i = mix(at / h->grain) & (h->slots - 1);

	while (h->table[i] != NIL && h->node[h->table[i]].at != at)
		i = (i + 1) & (h->slots - 1);
	return i;
}

static void grow_ranges(struct vfm_heap *h)
{
	uint32_t *old = h->table, n = h->slots;

	h->slots = n ? 2 * n : 1024;
	h->table = vfm_calloc(h->slots, sizeof(*h->table));
	for (uint32_t i = 0; i < n; i++)
		if (old[i] != NIL)
			h->table[range_slot(h, h->node[old[i]].at)] = old[i];
	free(old);
}

static void table_remove(struct vfm_heap *h, uint32_t i)
{
	uint32_t mask = h->slots - 1;

	/* Later entries move up unless they are at or before their home slot. */
	for (uint32_t j = (i + 1) & mask; h->table[j] != NIL; j = (j + 1) & mask) {
		uint32_t home = mix(h->node[h->table[j]].at / h->grain) & mask;

		if (((j - home) & mask) >= ((j - i) & mask)) {
			h->table[i] = h->table[j];
			i = j;
		}
	}
	h->table[i] = NIL;
}

/* ---- nodes and the chain ---- */

static uint32_t node_new(struct vfm_heap *h, uint32_t prev, uint64_t at, uint64_t size)
{
	uint32_t k = h->unused;

	if (k != NIL) {
		h->unused = h->node[k].left;
	} else {
		if (h->n == h->cap) {
			h->cap *= 2;
			h->node = vfm_realloc(h->node, h->cap, sizeof(*h->node));
		}
		k = h->n++;
	}
	h->node[k] = (struct node){.at = at, .size = size, .prev = prev, .next = h->node[prev].next};
	h->node[h->node[k].next].prev = k;
	h->node[prev].next = k;
	return k;
}

static void node_free(struct vfm_heap *h, uint32_t k)
{
	h->node[h->node[k].prev].next = h->node[k].next;
	h->node[h->node[k].next].prev = h->node[k].prev;
	h->node[k].left = h->unused;
	h->unused = k;
}

struct vfm_heap *vfm_heap_new(uint64_t limit, uint64_t grain)
{
	struct vfm_heap *h = vfm_calloc(1, sizeof(*h));

	h->grain = grain;
	h->limit = limit & ~(grain - 1);
	if (h->limit > INT64_MAX)
		h->limit = INT64_MAX & ~(grain - 1);
	h->cap = 256;
	h->n = 1;
	h->node = vfm_calloc(h->cap, sizeof(*h->node));
	grow_ranges(h);
	return h;
}

void vfm_heap_free(struct vfm_heap *h)
{
	if (!h)
		return;
	free(h->node);
	free(h->table);
	free(h);
}

/* Rounds up to the grain; 0: too large. */
static uint64_t round_to_grain(const struct vfm_heap *h, uint64_t bytes)
{
	uint64_t size = bytes ? (bytes + h->grain - 1) & ~(h->grain - 1) : h->grain;

	return size < bytes || size > h->limit ? 0 : size;
}

/* Enters the node of a new range into the table. */
static int64_t enter_range(struct vfm_heap *h, uint32_t k, uint32_t tag)
{
	h->node[k].tag = tag;
	h->used += h->node[k].size;
	if (2 * ++h->ranges > h->slots)
		grow_ranges(h);
	h->table[range_slot(h, h->node[k].at)] = k;
	return (int64_t)h->node[k].at;
}

/* Makes the first `size` bytes of the hole k a range; k is not in the treap any more. */
static void cut_hole(struct vfm_heap *h, uint32_t k, uint64_t size)
{
	if (h->node[k].size > size) {
		hole_in(h, node_new(h, k, h->node[k].at + size, h->node[k].size - size));
		h->node[k].size = size;
	}
}

/* Appends a node above all others. */
static uint32_t raise_top(struct vfm_heap *h, uint64_t size)
{
	uint32_t k = node_new(h, h->node[0].prev, h->top, size);

	h->top += size;
	if (h->top > h->end)
		h->end = h->top;
	return k;
}

int64_t vfm_heap_take(struct vfm_heap *h, uint64_t bytes, uint32_t tag)
{
	uint64_t size = round_to_grain(h, bytes);
	uint32_t k;

	if (!size)
		return -1;
	k = best_fit(h, size);
	if (k != NIL) {
		hole_out(h, k);
		cut_hole(h, k, size);
	} else {
		if (h->limit - h->top < size)
			return -1;
		k = raise_top(h, size);
	}
	return enter_range(h, k, tag);
}

static uint32_t hole_around(const struct vfm_heap *h, uint64_t at)
{
	uint32_t k = h->node[0].next;

	while (k != 0 && (!h->node[k].hole || h->node[k].at + h->node[k].size <= at))
		k = h->node[k].next;
	return k != 0 && h->node[k].at <= at ? k : NIL;
}

bool vfm_heap_take_at(struct vfm_heap *h, uint64_t at, uint64_t bytes, uint32_t tag)
{
	uint64_t size = round_to_grain(h, bytes);
	uint32_t k;

	if (!size || at % h->grain || at > h->limit || h->limit - at < size)
		return false;
	if (at >= h->top) {
		if (at > h->top)
			hole_in(h, raise_top(h, at - h->top));
		enter_range(h, raise_top(h, size), tag);
		return true;
	}
	k = hole_around(h, at);
	if (k == NIL || h->node[k].at + h->node[k].size - at < size)
		return false;
	hole_out(h, k);
	if (h->node[k].at < at) {
		uint32_t rest = node_new(h, k, at, h->node[k].at + h->node[k].size - at);

		h->node[k].size = at - h->node[k].at;
		hole_in(h, k);
		k = rest;
	}
	cut_hole(h, k, size);
	enter_range(h, k, tag);
	return true;
}

uint64_t vfm_heap_give(struct vfm_heap *h, uint64_t at, uint32_t *tag)
{
	uint32_t i = range_slot(h, at), k = h->table[i], other;
	uint64_t size;

	if (k == NIL)
		return 0;
	table_remove(h, i);
	size = h->node[k].size;
	if (tag)
		*tag = h->node[k].tag;
	h->used -= size;
	h->ranges--;
	other = h->node[k].prev;
	if (other != 0 && h->node[other].hole) {
		hole_out(h, other);
		h->node[other].size += h->node[k].size;
		node_free(h, k);
		k = other;
	}
	other = h->node[k].next;
	if (other == 0) {
		h->top = h->node[k].at;
		node_free(h, k);
		return size;
	}
	if (h->node[other].hole) {
		hole_out(h, other);
		h->node[k].size += h->node[other].size;
		node_free(h, other);
	}
	hole_in(h, k);
	return size;
}

void vfm_heap_stats(const struct vfm_heap *h, struct vfm_heap_stats *s)
{
	uint32_t t = h->root;

	*s = (struct vfm_heap_stats){
		.used = h->used, .top = h->top, .end = h->end, .ranges = h->ranges, .holes = h->holes};
	for (; t != NIL; t = h->node[t].right)
		s->largest = h->node[t].size;
}

uint32_t vfm_heap_next_hole(const struct vfm_heap *h, uint32_t after, uint64_t *at, uint64_t *size)
{
	uint32_t k = h->node[after].next;

	while (k != 0 && !h->node[k].hole)
		k = h->node[k].next;
	*at = h->node[k].at;
	*size = h->node[k].size;
	return k;
}
