/* Minimum bin slack on the histogram of lengths (Gupta and Ho, 1999; with a fixed first item, MBS' of Fleszar and
 * Hindi, "New heuristics for one-dimensional bin-packing", 2002).
 *
 * Each bin gets the longest item that is left, and the other items that leave the least room.  A depth-first search
 * over the lengths finds them, longest first.  A content is repeated as long as there are items for it.  The search
 * ends with a full bin, or after a number of nodes; a search that needs few leaves more to the later ones.
 *
 * Items of few lengths can need contents that no greedy search finds.  Most bins of one part then get the contents of
 * a linear program (pack_lp.h), and the search packs the rest.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/plan/pack_mbs.h"

enum {
	FULL = 4096,        /* a bin with less room than context / FULL is full */
	NODES_PER_ITEM = 8, /* of the search, on average */
	MIN_NODES = 64,     /* of one search */
	MAX_NODES = 16384,
	ITEMS_PER_LENGTH = 64, /* from so many on, the linear program is worth its time */
	RESOLVE = 4,           /* with all items so far: at calls 1, 4, 16, ... */
};

/* ---- bins ---- */

void vfm_bins_reserve(struct vfm_bins *b, int64_t n)
{
	vfm_grow(&b->first, &b->cap_first, (size_t)n + 1, sizeof(*b->first));
	vfm_grow(&b->item, &b->cap_item, (size_t)n, sizeof(*b->item));
	b->n_bins = 0;
	b->first[0] = 0;
}

void vfm_bins_release(struct vfm_bins *b)
{
	free(b->first);
	free(b->item);
	*b = (struct vfm_bins){0};
}

int32_t vfm_bin_parts(int32_t tokens, int32_t context)
{
	int32_t parts = 1;

	while ((int64_t)parts * context < tokens)
		parts *= 2;
	return parts;
}

/* ---- numbers with neighbours ---- */

static void init_numbers(struct vfm_numbers *s, int32_t max)
{
	s->words = (size_t)max / 64 + 1;
	s->bits = vfm_calloc(s->words, 8);
	s->coarse = vfm_calloc((s->words + 63) / 64, 8);
}

static void release_numbers(struct vfm_numbers *s)
{
	free(s->bits);
	free(s->coarse);
	*s = (struct vfm_numbers){0};
}

static void mark_length(struct vfm_numbers *s, int32_t x, bool on)
{
	size_t w = (size_t)x / 64;

	if (on)
		s->bits[w] |= 1ull << (x % 64);
	else
		s->bits[w] &= ~(1ull << (x % 64));
	if (s->bits[w])
		s->coarse[w / 64] |= 1ull << (w % 64);
	else
		s->coarse[w / 64] &= ~(1ull << (w % 64));
}

/* Returns the smallest member >= at; -1: none. */
static int32_t number_from(const struct vfm_numbers *s, int32_t at)
{
	size_t w = (size_t)at / 64, c;
	uint64_t x = w < s->words ? s->bits[w] & (~0ull << (at % 64)) : 0;

	if (x)
		return (int32_t)(w * 64) + __builtin_ctzll(x);
	if (++w >= s->words)
		return -1;
	c = w / 64;
	x = s->coarse[c] & (~0ull << (w % 64));
	while (!x) {
		if (++c >= (s->words + 63) / 64)
			return -1;
		x = s->coarse[c];
	}
	w = c * 64 + (size_t)__builtin_ctzll(x);
	return (int32_t)(w * 64) + __builtin_ctzll(s->bits[w]);
}

/* Returns the largest member <= at; -1: none. */
static int32_t number_down_from(const struct vfm_numbers *s, int32_t at)
{
	size_t w = (size_t)at / 64, c;
	uint64_t x;

	if (at < 0)
		return -1;
	x = s->bits[w] & (~0ull >> (63 - at % 64));
	if (x)
		return (int32_t)(w * 64) + 63 - __builtin_clzll(x);
	c = w / 64;
	x = s->coarse[c] & ((1ull << (w % 64)) - 1);
	while (!x) {
		if (c-- == 0)
			return -1;
		x = s->coarse[c];
	}
	w = c * 64 + 63 - (size_t)__builtin_clzll(x);
	return (int32_t)(w * 64) + 63 - __builtin_clzll(s->bits[w]);
}

/* ---- the search for one bin ---- */

struct bin_search {
	struct vfm_mbs *m;
	int32_t size;           /* of the bin */
	int32_t shortest, full; /* the shortest length of all items; the room of a full bin */
	int32_t room;           /* of the best content so far */
	int depth;              /* of the best content */
	int64_t nodes;          /* that the search may still visit */
};

static int32_t min32(int32_t a, int32_t b)
{
	return a < b ? a : b;
}

/* Returns whether items of at most `longest` tokens can leave less of `room` than the best content does. */
static bool may_improve(const struct bin_search *s, int32_t room, int32_t longest)
{
	return room - (int64_t)(room / s->shortest) * longest < s->room;
}

static void keep_best(struct bin_search *s, int depth, int32_t room)
{
	if (room >= s->room)
		return;
	s->room = room;
	s->depth = depth;
	memcpy(s->m->best, s->m->now, (size_t)depth * sizeof(*s->m->now));
}

/* Fills m->best with the content of the next bin, which has at least one item of length `first`.  m->now is the path of
 * the search; each level takes as many items of its length as fit, and one less each time the search returns to it. */
static void search_bin(struct bin_search *s, int32_t first)
{
	struct vfm_mbs *m = s->m;
	int32_t room = s->size, len = first;
	int depth = 0;

	s->room = INT32_MAX;
	for (;;) {
		while (len > 0 && (depth == 0 || may_improve(s, room, len))) { /* deeper */
			int32_t n = min32(m->count[len], room / len);

			s->nodes--;
			m->now[depth++] = (struct vfm_mbs_choice){len, n};
			room -= n * len;
			keep_best(s, depth, room);
			len = room < s->shortest ? -1 : number_down_from(&m->lengths, min32(room, len - 1));
		}
		if (s->room <= s->full || s->nodes <= 0)
			return;
		/* Back to the last level, with one item less.  A single item shorter than that would leave more room,
		 * since no other item fits with it. */
		do {
			struct vfm_mbs_choice *c = &m->now[depth - 1];
			int32_t limit;

			if (depth == 1 && c->n == 1)
				return;
			s->nodes--;
			room += c->len;
			len = c->len - 1;
			limit = room - s->shortest;
			if (--c->n == 0)
				depth--;
			len = limit < s->shortest ? -1 : number_down_from(&m->lengths, min32(limit, len));
		} while (len < 0 && s->nodes > 0);
	}
}

/* ---- all bins ---- */

/* Sorts the items by length, longest first, and equal ones in their order.  Returns the greatest common divisor. */
static int32_t sort_items(struct vfm_mbs *m, const int32_t *tokens, int64_t n)
{
	uint32_t at = 0;
	int32_t gcd = 0;

	for (int64_t i = 0; i < n; i++)
		if (m->count[tokens[i]]++ == 0)
			mark_length(&m->lengths, tokens[i], true);
	for (int32_t len = number_down_from(&m->lengths, m->longest); len >= 0;
		len = number_down_from(&m->lengths, len - 1)) {
		m->next[len] = at;
		at += (uint32_t)m->count[len];
		gcd = vfm_gcd(len, gcd);
	}
	for (int64_t i = 0; i < n; i++)
		m->order[m->next[tokens[i]]++] = (uint32_t)i;
	for (int32_t len = number_down_from(&m->lengths, m->longest); len >= 0;
		len = number_down_from(&m->lengths, len - 1))
		m->next[len] -= (uint32_t)m->count[len];
	return gcd > 0 ? gcd : 1;
}

/* Makes as many bins of the best content as there are items for, at most `bins`. */
static void repeat_content(struct vfm_mbs *m, struct vfm_bins *b, int depth, int32_t bins)
{
	int64_t at = b->first[b->n_bins];

	for (int i = 0; i < depth; i++)
		bins = min32(bins, m->count[m->best[i].len] / m->best[i].n);
	for (int32_t k = 0; k < bins; k++) {
		for (int i = 0; i < depth; i++)
			for (int32_t j = 0; j < m->best[i].n; j++)
				b->item[at++] = m->order[m->next[m->best[i].len]++];
		b->first[++b->n_bins] = at;
	}
	for (int i = 0; i < depth; i++) {
		m->count[m->best[i].len] -= bins * m->best[i].n;
		if (m->count[m->best[i].len] == 0)
			mark_length(&m->lengths, m->best[i].len, false);
	}
}

/* Finds the contents for the items of this call if that is fast or `exact` requires it.  Otherwise uses the items of
 * all calls so far, in calls whose number is a power of RESOLVE. */
static void learn_contents(struct vfm_mbs *m, int64_t n, int32_t gcd, bool exact)
{
	enum vfm_contents_time time;
	int64_t call = ++m->calls;
	int32_t lengths = 0;

	for (int32_t len = number_down_from(&m->lengths, m->context); len >= 0;
		len = number_down_from(&m->lengths, len - 1))
		lengths++;
	time = vfm_contents_time(lengths, m->context, gcd);
	while (call % RESOLVE == 0)
		call /= RESOLVE;
	exact = exact || time == VFM_CONTENTS_FAST;
	if (!exact && call != 1)
		return;
	vfm_contents_release(&m->contents);
	if (time == VFM_CONTENTS_TOO_SLOW || n < (int64_t)ITEMS_PER_LENGTH * lengths)
		return;
	vfm_grow(&m->len, &m->cap_len, (size_t)lengths, sizeof(*m->len));
	vfm_grow(&m->items, &m->cap_items, (size_t)lengths, sizeof(*m->items));
	lengths = 0;
	for (int32_t len = number_down_from(&m->lengths, m->context); len >= 0;
		len = number_down_from(&m->lengths, len - 1)) {
		m->len[lengths] = len;
		m->items[lengths++] = (double)(exact ? m->count[len] : m->seen[len]);
	}
	vfm_contents_find(&m->contents, m->len, m->items, lengths, m->context);
}

/* Makes bins of the contents, of each as many as its share of n items. */
static void fill_contents(struct vfm_mbs *m, struct vfm_bins *b, int64_t n)
{
	const struct vfm_contents *c = &m->contents;

	for (int32_t p = 0; p < c->n; p++) {
		int32_t bins = (int32_t)(c->rate[p] * (double)n);
		int depth = 0;

		for (int32_t i = 0; i < c->n; i++)
			if (c->times[p * c->n + i])
				m->best[depth++] = (struct vfm_mbs_choice){c->len[i], c->times[p * c->n + i]};
		if (bins > 0)
			repeat_content(m, b, depth, bins);
	}
}

/* Searches for one bin after another, as long as an item of more than `least` tokens is left. */
static void search_bins(struct vfm_mbs *m, struct vfm_bins *b, int32_t gcd, int32_t least)
{
	struct bin_search s = {.m = m};
	int64_t nodes = 0, done = b->first[b->n_bins];
	int32_t len;

	while ((len = number_down_from(&m->lengths, m->longest)) > least) {
		int64_t limit = MIN_NODES + nodes < MAX_NODES ? MIN_NODES + nodes : MAX_NODES;

		s.size = m->context * vfm_bin_parts(len, m->context);
		s.full = s.size % gcd > s.size / FULL ? s.size % gcd : s.size / FULL;
		s.nodes = limit;
		s.shortest = number_from(&m->lengths, 1);
		search_bin(&s, len);
		nodes -= limit - s.nodes;
		repeat_content(m, b, s.depth, INT32_MAX);
		nodes += NODES_PER_ITEM * (b->first[b->n_bins] - done);
		nodes = nodes > 0 ? nodes : 0;
		done = b->first[b->n_bins];
	}
}

void vfm_mbs_pack(struct vfm_mbs *m, struct vfm_bins *b, const int32_t *tokens, int64_t n, int64_t n_known, bool exact)
{
	int64_t left;
	int32_t gcd;

	vfm_bins_reserve(b, n);
	vfm_grow(&m->order, &m->cap_order, (size_t)n, sizeof(*m->order));
	gcd = sort_items(m, tokens, n);
	for (int64_t i = n_known; i < n; i++)
		m->seen[tokens[i]]++;
	search_bins(m, b, gcd, m->context); /* bins of more than one part */
	left = n - b->first[b->n_bins];
	if (left > 0)
		learn_contents(m, left, gcd, exact);
	fill_contents(m, b, left);
	search_bins(m, b, gcd, 0);
}

void vfm_mbs_init(struct vfm_mbs *m, int32_t context, int32_t max_parts)
{
	size_t lengths = (size_t)context * (size_t)max_parts + 1;

	*m = (struct vfm_mbs){.context = context, .longest = context * max_parts, .max_depth = 2};
	while ((int64_t)m->max_depth * (m->max_depth - 1) / 2 <= m->longest) /* different lengths in one bin */
		m->max_depth++;
	m->count = vfm_calloc(lengths, sizeof(*m->count));
	m->next = vfm_calloc(lengths, sizeof(*m->next));
	m->seen = vfm_calloc(lengths, sizeof(*m->seen));
	m->now = vfm_calloc((size_t)m->max_depth, sizeof(*m->now));
	m->best = vfm_calloc((size_t)m->max_depth, sizeof(*m->best));
	init_numbers(&m->lengths, m->longest);
}

void vfm_mbs_release(struct vfm_mbs *m)
{
	free(m->count);
	free(m->next);
	free(m->seen);
	free(m->len);
	free(m->items);
	free(m->now);
	free(m->best);
	free(m->order);
	release_numbers(&m->lengths);
	vfm_contents_release(&m->contents);
	*m = (struct vfm_mbs){0};
}
