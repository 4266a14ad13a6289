/* pack_bins.c - the packing algorithms. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/plan/pack_impl.h"

int vfm_pack_algo(const char *name, enum vfm_pack_algo *out, struct vfm_err *err)
{
	static const char *const names[] = {"none", "ffd", "lpfhp", "mbs"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(name, names[i])) {
			*out = (enum vfm_pack_algo)i;
			return 0;
		}
	return vfm_fail(err, VFM_EUSAGE, "expected mbs|ffd|lpfhp|none, got '%s'", name);
}

int32_t vfm_pack_parts(int32_t tokens, int32_t context)
{
	int32_t parts = 1;

	while ((int64_t)parts * context < tokens)
		parts *= 2;
	return parts;
}

/* Length in the upper half, the complement of the position in the lower: sorted downwards, longest first, and
 * equal lengths in their order. */
static int by_key_down(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x < y) - (x > y);
}

static uint64_t *sorted_keys(const int32_t *tokens, int64_t n)
{
	uint64_t *keys = vfm_calloc((size_t)n, sizeof(*keys));

	for (int64_t i = 0; i < n; i++)
		keys[i] = (uint64_t)(uint32_t)tokens[i] << 32 | (uint32_t) ~(uint32_t)i;
	qsort(keys, (size_t)n, sizeof(*keys), by_key_down);
	return keys;
}

static uint32_t key_item(uint64_t key)
{
	return ~(uint32_t)key;
}

/* bin_of[i] -> lists, in the order of `keys`. */
static void to_lists(struct vfm_bins *b, const uint32_t *bin_of, const uint64_t *keys)
{
	int64_t *at;

	b->first = vfm_calloc((size_t)b->n_bins + 1, sizeof(*b->first));
	b->item = vfm_calloc((size_t)b->n, sizeof(*b->item));
	for (int64_t i = 0; i < b->n; i++)
		b->first[bin_of[i] + 1]++;
	for (int64_t i = 0; i < b->n_bins; i++)
		b->first[i + 1] += b->first[i];
	at = vfm_calloc((size_t)b->n_bins, sizeof(*at));
	memcpy(at, b->first, (size_t)b->n_bins * sizeof(*at));
	for (int64_t i = 0; i < b->n; i++) {
		uint32_t item = key_item(keys[i]);

		b->item[at[bin_of[item]]++] = item;
	}
	free(at);
}

/* ---- first fit decreasing: a tree of the most room in any bin below ----
 *
 * Unopened bins are empty leaves, with room for any item; the first item determines how large the bin is. */

static void ffd(struct vfm_bins *b, const int32_t *tokens, int64_t n, int32_t context, int32_t max_parts)
{
	uint64_t *keys = sorted_keys(tokens, n);
	uint32_t *bin_of = vfm_calloc((size_t)n, sizeof(*bin_of));
	int64_t leaves = 1;
	int32_t *room;

	while (leaves < n)
		leaves *= 2;
	room = vfm_calloc((size_t)leaves * 2, sizeof(*room));
	for (int64_t i = 1; i < leaves * 2; i++)
		room[i] = context * max_parts;
	for (int64_t k = 0; k < n; k++) {
		uint32_t item = key_item(keys[k]);
		int64_t node = 1;

		while (node < leaves)
			node = room[node * 2] >= tokens[item] ? node * 2 : node * 2 + 1;
		bin_of[item] = (uint32_t)(node - leaves);
		if (node - leaves >= b->n_bins) {
			b->n_bins = node - leaves + 1;
			room[node] = context * vfm_pack_parts(tokens[item], context);
		}
		room[node] -= tokens[item];
		for (node /= 2; node >= 1; node /= 2)
			room[node] = room[node * 2] > room[node * 2 + 1] ? room[node * 2] : room[node * 2 + 1];
	}
	to_lists(b, bin_of, keys);
	free(room);
	free(bin_of);
	free(keys);
}

/* ---- longest pack first: best fit decreasing on the histogram ----
 *
 * A group is a number of bins of the same content: that of `parent`, and `rep` items of one length.  Groups of
 * equal room form a list. */

struct bin_group {
	int64_t parent, next; /* -1: none */
	int64_t count;        /* bins that still have this content; those that got more moved to a child */
	int32_t room, len, rep;
};

struct shapes {
	struct bin_group *g;
	size_t n, cap;
	int64_t *head;            /* [longest + 1] first group with that room, plus 1; 0: none */
	struct vfm_numbers rooms; /* that some group has */
};

static void add_group(struct shapes *s, int64_t parent, int64_t count, int32_t room, int32_t len, int32_t rep)
{
	vfm_grow(&s->g, &s->cap, s->n + 1, sizeof(*s->g));
	s->g[s->n] = (struct bin_group){parent, s->head[room] - 1, count, room, len, rep};
	s->head[room] = (int64_t)++s->n;
	vfm_numbers_set(&s->rooms, room, true);
}

/* Moves `bins` of the first group of that room to children with `rep` more items each. */
static void extend(struct shapes *s, int32_t room, int64_t bins, int32_t len, int32_t rep)
{
	int64_t at = s->head[room] - 1;

	s->g[at].count -= bins; // NOLINT(clang-analyzer-core.NullDereference): the room has a group
	if (s->g[at].count == 0) {
		s->head[room] = s->g[at].next + 1;
		vfm_numbers_set(&s->rooms, room, s->head[room] > 0);
	}
	add_group(s, at, bins, room - len * rep, len, rep);
}

/* Places `count` items of one length: into the fullest bins with room, as many a bin as go in. */
static void place_items(struct shapes *s, int32_t context, int32_t len, int64_t count)
{
	while (count > 0) {
		int32_t room = vfm_numbers_from(&s->rooms, len), k;
		int64_t bins, have;

		if (room < 0) {
			room = context * vfm_pack_parts(len, context);
			k = room / len;
			bins = count / k;
			if (bins)
				add_group(s, -1, bins, room - len * k, len, k);
			if (count % k)
				add_group(s, -1, 1, room - len * (int32_t)(count % k), len, (int32_t)(count % k));
			return;
		}
		k = room / len;
		have = s->g[s->head[room] - 1].count;
		bins = count / k < have ? count / k : have;
		if (bins) {
			extend(s, room, bins, len, k);
			count -= bins * k;
		} else {
			extend(s, room, 1, len, (int32_t)count);
			count = 0;
		}
	}
}

/* Assigns the items to the bins of every group; next[len] is where the items of a length begin in keys. */
static void deal(struct vfm_bins *b, const struct shapes *s, const uint64_t *keys, int64_t *next)
{
	int64_t at = 0, bin = 0;

	for (size_t i = 0; i < s->n; i++)
		b->n_bins += s->g[i].count;
	b->first = vfm_calloc((size_t)b->n_bins + 1, sizeof(*b->first));
	b->item = vfm_calloc((size_t)b->n, sizeof(*b->item));
	for (size_t i = 0; i < s->n; i++)
		for (int64_t j = 0; j < s->g[i].count; j++) {
			for (int64_t g = (int64_t)i; g >= 0; g = s->g[g].parent)
				for (int32_t r = 0; r < s->g[g].rep; r++)
					b->item[at++] = key_item(keys[next[s->g[g].len]++]);
			b->first[++bin] = at;
		}
}

static void lpfhp(struct vfm_bins *b, const int32_t *tokens, int64_t n, int32_t context, int32_t max_parts)
{
	size_t rooms = (size_t)context * (size_t)max_parts + 1;
	uint64_t *keys = sorted_keys(tokens, n);
	int64_t *next = vfm_calloc(rooms, sizeof(*next));
	struct shapes s = {.head = vfm_calloc(rooms, sizeof(int64_t))};

	vfm_numbers_init(&s.rooms, context * max_parts);
	for (int64_t i = 0, j; i < n; i = j) {
		int32_t len = (int32_t)(keys[i] >> 32);

		for (j = i; j < n && (int32_t)(keys[j] >> 32) == len; j++)
			;
		next[len] = i;
		place_items(&s, context, len, j - i);
	}
	deal(b, &s, keys, next);
	free(s.g);
	free(s.head);
	vfm_numbers_release(&s.rooms);
	free(next);
	free(keys);
}

static void mbs(struct vfm_bins *b, const int32_t *tokens, int64_t n, int32_t context, int32_t max_parts)
{
	struct vfm_mbs m;

	vfm_mbs_init(&m, context, max_parts);
	vfm_mbs_pack(&m, b, tokens, n, 0, true);
	vfm_mbs_release(&m);
}

static void one_each(struct vfm_bins *b, int64_t n)
{
	b->n_bins = n;
	b->first = vfm_calloc((size_t)n + 1, sizeof(*b->first));
	b->item = vfm_calloc((size_t)n, sizeof(*b->item));
	for (int64_t i = 0; i < n; i++) {
		b->item[i] = (uint32_t)i;
		b->first[i + 1] = i + 1;
	}
}

int vfm_bins_pack(struct vfm_bins *b, enum vfm_pack_algo algo, const int32_t *tokens, int64_t n, int32_t context,
	int32_t max_parts, struct vfm_err *err)
{
	*b = (struct vfm_bins){.n = n};
	if (n < 1 || n > INT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "%lld samples to pack", (long long)n);
	for (int64_t i = 0; i < n; i++)
		if (tokens[i] < 1 || tokens[i] > context * max_parts)
			return vfm_fail(err, VFM_EUSAGE, "a sample of %d tokens does not fit a context of %d",
				tokens[i], context * max_parts);
	if (algo == VFM_PACK_FFD)
		ffd(b, tokens, n, context, max_parts);
	else if (algo == VFM_PACK_LPFHP)
		lpfhp(b, tokens, n, context, max_parts);
	else if (algo == VFM_PACK_MBS)
		mbs(b, tokens, n, context, max_parts);
	else
		one_each(b, n);
	return 0;
}

void vfm_bins_release(struct vfm_bins *b)
{
	free(b->first);
	free(b->item);
	*b = (struct vfm_bins){0};
}
