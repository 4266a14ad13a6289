/* unigram.c - the Viterbi search over pieces in a sorted array, narrowed byte by byte. */
#include "encoder/text/unigram.h"

#include <stdlib.h>
#include <string.h>

#define UNKNOWN_PENALTY 10.0

struct vfm_unigram_piece {
	const char *text;
	uint32_t len;
	int32_t id;
	double score;
};
struct vfm_unigram_node { /* the best path that ends here */
	double score;
	int32_t start; /* of its last piece; -1: none */
	int32_t id;
};

void vfm_unigram_add(struct vfm_unigram *u, const char *text, size_t len, double score)
{
	char *copy = vfm_arena_alloc(&u->arena, len + 1);

	if (len)
		memcpy(copy, text, len);
	vfm_grow(&u->piece, &u->cap, u->n + 1, sizeof(*u->piece));
	u->piece[u->n] = (struct vfm_unigram_piece){copy, (uint32_t)len, (int32_t)u->n, score};
	if (!u->n || score < u->min_score)
		u->min_score = score;
	u->n++;
	u->ids++;
}

static int compare_pieces(const void *a, const void *b)
{
	const struct vfm_unigram_piece *x = a, *y = b;
	int c = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);

	if (!c)
		c = (x->len > y->len) - (x->len < y->len);
	return c ? c : (x->id > y->id) - (x->id < y->id);
}

/* The first two bytes of a text; 0 for a byte that is absent. */
static uint32_t two_bytes(const char *s, size_t len)
{
	return (len > 0 ? (uint32_t)(uint8_t)s[0] << 8 : 0) | (len > 1 ? (uint8_t)s[1] : 0);
}

int vfm_unigram_finish(struct vfm_unigram *u, const char *what, struct vfm_err *err)
{
	size_t kept = 0;
	uint32_t key = 0;

	if (u->unk_id < 0 || (size_t)u->unk_id >= u->n)
		return vfm_fail(err, VFM_EUSAGE, "%s: unk_id %d is none of the %zu pieces", what, u->unk_id, u->n);
	qsort(u->piece, u->n, sizeof(*u->piece), compare_pieces);
	for (size_t i = 0; i < u->n; i++) {
		const struct vfm_unigram_piece *p = &u->piece[i], *next = p + 1;

		if (!p->len || (i + 1 < u->n && p->len == next->len && !memcmp(p->text, next->text, p->len)))
			continue;
		u->piece[kept++] = *p;
	}
	u->n = kept;
	u->first = vfm_malloc(65537 * sizeof(*u->first));
	for (size_t i = 0; i < u->n; i++)
		for (uint32_t k = two_bytes(u->piece[i].text, u->piece[i].len); key <= k; key++)
			u->first[key] = (uint32_t)i;
	for (; key <= 65536; key++)
		u->first[key] = (uint32_t)u->n;
	for (int i = 0; i < 256; i++) {
		char *name = vfm_strfmt("<0x%02X>", (unsigned)i);

		u->byte_id[i] = vfm_unigram_find(u, name, strlen(name));
		free(name);
	}
	return 0;
}

void vfm_unigram_release(struct vfm_unigram *u)
{
	free(u->piece);
	free(u->first);
	vfm_arena_release(&u->arena);
	*u = (struct vfm_unigram){0};
}

/* Pieces [lo, hi) that begin with the same `depth` bytes. */
struct piece_range {
	size_t lo, hi;
	uint32_t depth;
};

/* Narrows a range to the pieces that have byte c next. */
static void narrow_range(const struct vfm_unigram *u, struct piece_range *r, uint8_t c)
{
	size_t lo = r->lo, hi = r->hi, end = r->hi;

	while (lo < hi) { /* the first piece with a byte >= c */
		size_t mid = (lo + hi) / 2;
		const struct vfm_unigram_piece *p = &u->piece[mid];

		if (p->len <= r->depth || (uint8_t)p->text[r->depth] < c)
			lo = mid + 1;
		else
			hi = mid;
	}
	r->lo = lo;
	for (hi = end; lo < hi;) { /* the first piece with a byte > c */
		size_t mid = (lo + hi) / 2;

		if ((uint8_t)u->piece[mid].text[r->depth] <= c)
			lo = mid + 1;
		else
			hi = mid;
	}
	r->hi = lo;
	r->depth++;
}

/* Returns the range of the first byte of s, or of its first two. */
static struct piece_range range_of(const struct vfm_unigram *u, const char *s, uint32_t depth)
{
	uint32_t k = two_bytes(s, depth), n = depth == 1 ? 256 : 1;

	return (struct piece_range){u->first[k], u->first[k + n], depth};
}

/* Returns the piece that is the common beginning of a range, or NULL. */
static const struct vfm_unigram_piece *range_piece(const struct vfm_unigram *u, const struct piece_range *r)
{
	return r->lo < r->hi && u->piece[r->lo].len == r->depth ? &u->piece[r->lo] : NULL;
}

int32_t vfm_unigram_find(const struct vfm_unigram *u, const char *s, size_t len)
{
	struct piece_range r = {0, u->n, 0};
	const struct vfm_unigram_piece *p;

	for (size_t i = 0; i < len && r.lo < r.hi; i++)
		narrow_range(u, &r, (uint8_t)s[i]);
	p = len ? range_piece(u, &r) : NULL;
	return p ? p->id : -1;
}

static size_t char_bytes(uint8_t c)
{
	return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

static void offer_path(struct vfm_unigram_node *to, double score, size_t start, int32_t id)
{
	if (to->start < 0 || score > to->score)
		*to = (struct vfm_unigram_node){score, (int32_t)start, id};
}

/* Extends the best path to `start` by every piece there. */
static void extend_paths(
	const struct vfm_unigram *u, const char *word, size_t len, size_t start, struct vfm_unigram_node *node)
{
	const char *s = word + start;
	size_t left = len - start, one = char_bytes((uint8_t)s[0]);
	struct piece_range r = range_of(u, s, 1);
	double base = node[start].score;
	bool single = false;

	while (r.lo < r.hi) {
		const struct vfm_unigram_piece *p = range_piece(u, &r);

		if (p) {
			offer_path(&node[start + r.depth], base + p->score, start, p->id);
			single |= r.depth == one;
		}
		if (r.depth == left)
			break;
		if (r.depth == 1)
			r = range_of(u, s, 2);
		else
			narrow_range(u, &r, (uint8_t)s[r.depth]);
	}
	if (one > left)
		one = left;
	if (!single)
		offer_path(&node[start + one], base + u->min_score - UNKNOWN_PENALTY, start, u->unk_id);
}

static void push_id(struct vfm_unigram_scratch *s, int32_t id)
{
	vfm_grow(&s->id, &s->id_cap, s->n + 1, sizeof(*s->id));
	s->id[s->n++] = id;
}

/* Appends the ids of one piece of the path, in reverse. */
static void push_piece(const struct vfm_unigram *u, const char *text, size_t len, struct vfm_unigram_scratch *s)
{
	int32_t id = vfm_unigram_find(u, text, len);
	bool bytes = id < 0 && u->byte_fallback;

	for (size_t i = 0; bytes && i < len; i++)
		bytes = u->byte_id[(uint8_t)text[i]] >= 0;
	if (!bytes) {
		push_id(s, id < 0 ? u->unk_id : id);
		return;
	}
	for (size_t i = len; i--;)
		push_id(s, u->byte_id[(uint8_t)text[i]]);
}

void vfm_unigram_encode(const struct vfm_unigram *u, const char *word, size_t len, struct vfm_unigram_scratch *s)
{
	size_t end = len;

	s->n = 0;
	vfm_grow(&s->node, &s->cap, len + 1, sizeof(*s->node));
	s->node[0] = (struct vfm_unigram_node){0};
	for (size_t i = 1; i <= len; i++)
		s->node[i].start = -1;
	for (size_t i = 0; i < len; i += char_bytes((uint8_t)word[i]))
		extend_paths(u, word, len, i, s->node);
	while (end > 0) {
		size_t start = (size_t)s->node[end].start;

		if (s->node[end].id == u->unk_id)
			while (start > 0 && s->node[start].id == u->unk_id)
				start = (size_t)s->node[start].start;
		push_piece(u, word + start, end - start, s);
		end = start;
	}
	for (size_t i = 0; i < s->n / 2; i++) {
		int32_t id = s->id[i];

		s->id[i] = s->id[s->n - 1 - i];
		s->id[s->n - 1 - i] = id;
	}
}
