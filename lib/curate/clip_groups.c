#include "curate/clip_groups.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "base/philox.h"

#define TABLES    VFM_CLIP_TABLES
#define WEAK_BITS 2 /* that are flipped */
#define PROBES    (1 << WEAK_BITS)
#define BITS_MIN  24
#define BITS_MAX  32
#define LOW_COEFS 40                 /* short keys are of the lowest coefficients, which cropping changes least */
#define PARTS     256                /* of a pass, by key; a thread works on one */
#define CHUNK     4096               /* clips */
#define PASS      (INT64_C(1) << 25) /* keys of a pass, about */
#define COMPARED  64                 /* representatives under a key with which a slot is compared */
#define VAIN      (1 << 24)          /* pairs of the memo */
#define SLACK     0.2                /* a slot may be that much worse than the mean of its clip */

struct table {
	uint64_t bits, odd; /* of the key; those of them that mirroring changes */
	uint64_t first_odd; /* of these */
};

struct search {
	const struct vfm_clip_set *set;
	const struct vfm_clip_groups_opts *o;
	struct vfm_clip_groups *g;
	int64_t n, n_slots;
	uint32_t *first; /* [n + 1] slots of the ranks */
	uint32_t *owner; /* [n_slots] */
	uint64_t *sign, *strong;
	struct table tables[TABLES];
	int bits, passes;
	/* of a pass */
	int table, pass;
	int64_t n_chunks;
	int64_t *at;    /* [n_chunks, PARTS] how many keys, then where they go */
	uint64_t *keys; /* key << 32 | slot, in parts */
	int64_t part_at[PARTS + 1];
	/* a lossy memo of pairs that were compared in vain, member << 32 | of: pairs of clips before one background
	 * meet in all tables */
	_Atomic(uint64_t) *vain;
	pthread_mutex_t lock;
	struct vfm_duplicate *found;
	size_t n_found, cap_found;
	struct vfm_err err; /* the first of the threads */
};

/* ---- ranks ---- */

struct ranked {
	const struct vfm_clip_set *s;
	uint32_t clip;
};

static int compare_ranked_members(const void *a, const void *b)
{
	const struct ranked *p = a, *q = b;
	const struct vfm_clip_entry *x = &p->s->entries[p->clip], *y = &q->s->entries[q->clip];

	if (x->quality != y->quality)
		return x->quality > y->quality ? -1 : 1;
	return strcmp(vfm_names_at(&p->s->names, p->clip), vfm_names_at(&q->s->names, q->clip));
}

static int rank_clips(struct search *s, struct vfm_err *err)
{
	struct vfm_clip_groups *g = s->g;
	size_t bytes = (size_t)s->n * sizeof(struct ranked);
	struct ranked *r = vfm_big_alloc(bytes + 1, "the order of clips", err);

	if (!r)
		return err->code;
	for (int64_t i = 0; i < s->n; i++)
		r[i] = (struct ranked){s->set, (uint32_t)i};
	if (s->n > s->o->fixed)
		qsort(r + s->o->fixed, (size_t)(s->n - s->o->fixed), sizeof(*r), compare_ranked_members);
	g->clip = vfm_calloc((size_t)s->n + 1, sizeof(*g->clip));
	g->rank = vfm_calloc((size_t)s->n + 1, sizeof(*g->rank));
	for (int64_t i = 0; i < s->n; i++) {
		g->clip[i] = r[i].clip;
		g->rank[r[i].clip] = (uint32_t)i;
	}
	vfm_big_free(r, bytes + 1);
	return 0;
}

/* ---- comparison ---- */

struct scratch {
	struct vfm_clip_hash hash;
	struct vfm_clip_rows a, b;
	int64_t of, member; /* the ranks in a and b; -1: none */
	int64_t compared;
};

static int compare_hashes(const struct search *s, struct scratch *w, uint32_t member, uint32_t of,
	struct vfm_duplicate *d, struct vfm_err *err)
{
	struct vfm_clip_match m;

	if (w->of != of) {
		w->of = -1;
		TRY(vfm_clip_set_read(s->set, s->g->clip[of], &w->hash, err));
		vfm_clip_rows_of(&w->a, &w->hash);
		w->of = of;
	}
	if (w->member != member) {
		w->member = -1;
		TRY(vfm_clip_set_read(s->set, s->g->clip[member], &w->hash, err));
		vfm_clip_rows_of(&w->b, &w->hash);
		w->member = member;
	}
	vfm_clip_compare(&w->a, &w->b, s->o->threshold, &m);
	w->compared++;
	if (m.distance >= s->o->threshold)
		return 0;
	*d = (struct vfm_duplicate){member, of, (float)m.distance, (float)m.offset_s, m.mirrored};
	return 1;
}

static int compare_for_groups(void *ctx, uint32_t member, uint32_t of, struct vfm_duplicate *d, struct vfm_err *err)
{
	struct search *s = ctx;
	struct scratch *w = vfm_malloc(sizeof(*w));
	int rc;

	w->of = w->member = -1;
	w->compared = 0;
	rc = compare_hashes(s, w, member, of, d, err);
	s->g->stats.compared += w->compared;
	free(w);
	return rc;
}

/* ---- slots ---- */

static void load_slots(int64_t i0, int64_t i1, void *ctx)
{
	struct search *s = ctx;
	struct scratch *w = vfm_malloc(sizeof(*w));
	struct vfm_err err;

	for (int64_t i = i0; i < i1; i++) {
		if (vfm_clip_set_read(s->set, s->g->clip[i], &w->hash, &err) < 0) {
			pthread_mutex_lock(&s->lock);
			s->err = err;
			pthread_mutex_unlock(&s->lock);
			break;
		}
		vfm_clip_rows_of(&w->a, &w->hash);
		for (uint32_t k = 0; k < (uint32_t)w->a.slots; k++) {
			s->sign[s->first[i] + k] = w->a.sign[k];
			s->strong[s->first[i] + k] = w->a.strong[k];
			s->owner[s->first[i] + k] = (uint32_t)i;
		}
	}
	free(w);
}

static int make_slots(struct search *s, struct vfm_err *err)
{
	s->first = vfm_calloc((size_t)s->n + 1, sizeof(*s->first));
	for (int64_t i = 0; i < s->n; i++) {
		s->n_slots += s->set->entries[s->g->clip[i]].slots;
		if (s->n_slots > UINT32_MAX)
			return vfm_fail(err, VFM_EUSAGE, "too many clips: over 2^32 slots of half a second");
		s->first[i + 1] = (uint32_t)s->n_slots;
	}
	s->sign = vfm_big_alloc((size_t)s->n_slots * 8 + 8, "the slots of clips", err);
	s->strong = vfm_big_alloc((size_t)s->n_slots * 8 + 8, "the slots of clips", err);
	s->owner = vfm_big_alloc((size_t)s->n_slots * 4 + 4, "the slots of clips", err);
	if (!s->sign || !s->strong || !s->owner)
		return err->code;
	vfm_par_for(s->n, CHUNK, load_slots, s);
	if (s->err.code) {
		*err = s->err;
		return s->err.code;
	}
	for (int64_t i = 0; i < s->n; i++) {
		uint64_t any = 0;

		for (uint32_t k = s->first[i]; k < s->first[i + 1]; k++)
			any |= s->strong[k];
		s->g->stats.flat += !any;
	}
	return 0;
}

/* ---- keys ---- */

static void make_tables(struct search *s)
{
	const struct vfm_rng r = vfm_rng_stream(1, 0, 0, VFM_RNG_DATA);
	const uint64_t odd = vfm_clip_hash_odd();
	int coefs = s->bits > LOW_COEFS - 12 ? VFM_CLIP_HASH_COEFS : LOW_COEFS;
	uint64_t draw = 0;

	for (int t = 0; t < TABLES; t++) {
		struct table *b = &s->tables[t];

		while (__builtin_popcountll(b->bits) < s->bits || !(b->bits & odd))
			b->bits |= UINT64_C(1) << vfm_rng_below(&r, draw++, (uint64_t)coefs);
		b->odd = b->bits & odd;
		b->first_odd = b->odd & -b->odd;
	}
}

/* The key of sign bits: those of the table, mirrored so that the first of the odd ones is 0, mixed (splitmix64). */
static uint32_t table_key_of(const struct table *t, uint64_t sign)
{
	uint64_t x = sign & t->bits;

	if (x & t->first_odd)
		x ^= t->odd;
	x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
	x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
	return (uint32_t)(x >> 32);
}

/* Returns the keys of a slot. */
static int list_keys(const struct table *t, uint64_t sign, uint64_t strong, uint32_t keys[PROBES])
{
	uint64_t weak = t->bits & ~strong, flip[WEAK_BITS];
	int n = 0;

	if (!strong)
		return 0;
	for (; n < WEAK_BITS && weak; n++) {
		flip[n] = weak & -weak;
		weak ^= flip[n];
	}
	for (int v = 0; v < 1 << n; v++) {
		uint64_t x = sign;

		for (int b = 0; b < n; b++)
			x ^= v >> b & 1 ? flip[b] : 0;
		keys[v] = table_key_of(t, x);
	}
	return 1 << n;
}

/* Calls with the keys of this pass of a chunk: counts them, or places them. */
static void take_keys(struct search *s, int64_t chunk, bool place)
{
	const struct table *t = &s->tables[s->table];
	int64_t *at = s->at + chunk * PARTS, i1 = (chunk + 1) * CHUNK < s->n ? (chunk + 1) * CHUNK : s->n;
	uint32_t keys[2][PROBES];
	int n[2] = {0};

	for (int64_t i = chunk * CHUNK; i < i1; i++) {
		if (vfm_groups_is_member(&s->g->groups, i))
			continue;
		n[0] = n[1] = 0;
		for (uint32_t k = s->first[i]; k < s->first[i + 1]; k++) {
			int now = (int)(k & 1), then = now ^ 1;

			n[now] = list_keys(t, s->sign[k], s->strong[k], keys[now]);
			for (int p = 0; p < n[now]; p++) {
				uint32_t key = keys[now][p];
				bool again = (int)((uint64_t)key * (uint64_t)s->passes >> 32) != s->pass;

				for (int q = 0; q < n[then] && !again; q++) /* still pictures */
					again = keys[then][q] == key;
				if (again)
					continue;
				key *= (uint32_t)s->passes; /* spreads what is left of the key over 32 bits */
				if (place)
					s->keys[at[key >> 24]++] = (uint64_t)key << 32 | k;
				else
					at[key >> 24]++;
			}
		}
	}
}

static void count_table_keys(int64_t i0, int64_t i1, void *ctx)
{
	for (int64_t i = i0; i < i1; i++)
		take_keys(ctx, i, false);
}

static void place_table_keys(int64_t i0, int64_t i1, void *ctx)
{
	for (int64_t i = i0; i < i1; i++)
		take_keys(ctx, i, true);
}

/* ---- equal keys ---- */

struct matches { /* of a part */
	struct search *s;
	struct scratch w;
	struct vfm_duplicate *found;
	size_t n, cap;
	uint32_t *kept; /* slots of representatives under a key */
	size_t cap_kept;
	int64_t cut_off;
	struct vfm_err err;
};

static bool slots_resemble(const struct search *s, uint32_t a, uint32_t b, uint64_t odd)
{
	uint64_t both = s->strong[a] & s->strong[b], x = (s->sign[a] ^ s->sign[b]) & both;
	int all = __builtin_popcountll(both), up = __builtin_popcountll(x),
	    mirrored = __builtin_popcountll((x ^ odd) & both), unequal = up < mirrored ? up : mirrored;

	return 2.0 * unequal < (s->o->threshold + SLACK) * all;
}

static int compare_once(
	struct search *s, struct scratch *w, uint32_t member, uint32_t of, struct vfm_duplicate *d, struct vfm_err *err)
{
	uint64_t pair = (uint64_t)member << 32 | of, h = pair * UINT64_C(0x9E3779B97F4A7C15) >> 40;
	int rc;

	if (atomic_load_explicit(&s->vain[h % VAIN], memory_order_relaxed) == pair)
		return 0;
	rc = compare_hashes(s, w, member, of, d, err);
	if (rc == 0)
		atomic_store_explicit(&s->vain[h % VAIN], pair, memory_order_relaxed);
	return rc;
}

/* Slots [n], ascending, have one key. */
static int match_slots(struct matches *m, const uint64_t *keys, size_t n, uint64_t odd)
{
	struct search *s = m->s;
	size_t n_kept = 0;
	uint32_t last = UINT32_MAX;

	vfm_grow(&m->kept, &m->cap_kept, n, sizeof(*m->kept));
	for (size_t j = 0; j < n; j++) {
		uint32_t b = (uint32_t)keys[j], member = s->owner[b];
		int compared = 0, rc = 0;

		if (member == last) /* is a member already, by another slot */
			continue;
		for (size_t i = n_kept; i-- > 0 && rc == 0 && member >= s->o->fixed;) {
			uint32_t a = m->kept[i];
			struct vfm_duplicate d;

			if (s->owner[a] == member || !slots_resemble(s, a, b, odd))
				continue;
			if (compared++ == COMPARED) {
				m->cut_off++;
				break;
			}
			rc = compare_once(s, &m->w, member, s->owner[a], &d, &m->err);
			TRY(rc);
			if (rc == 1) {
				vfm_grow(&m->found, &m->cap, m->n + 1, sizeof(*m->found));
				m->found[m->n++] = d;
				last = member;
			}
		}
		if (rc == 0)
			m->kept[n_kept++] = b;
	}
	return 0;
}

/* Sorts by key, the upper 24 of its bits that differ within a part; equal keys keep their order. */
static void sort_keys(uint64_t *v, uint64_t *spare, size_t n)
{
	for (int shift = 32; shift < 56; shift += 8) {
		size_t at[257] = {0};

		for (size_t i = 0; i < n; i++)
			at[(v[i] >> shift & 255) + 1]++;
		for (int i = 0; i < 256; i++)
			at[i + 1] += at[i];
		for (size_t i = 0; i < n; i++)
			spare[at[v[i] >> shift & 255]++] = v[i];
		memcpy(v, spare, n * sizeof(*v));
	}
}

static void match_part(struct search *s, int part)
{
	struct matches *m = vfm_calloc(1, sizeof(*m));
	uint64_t *v = s->keys + s->part_at[part], *spare, odd = vfm_clip_hash_odd();
	size_t n = (size_t)(s->part_at[part + 1] - s->part_at[part]);
	int rc = 0;

	m->s = s;
	m->w.of = m->w.member = -1;
	spare = vfm_malloc((n + 1) * sizeof(*spare));
	sort_keys(v, spare, n);
	free(spare);
	for (size_t i = 0, j; i < n && rc >= 0; i = j) {
		for (j = i + 1; j < n && v[j] >> 32 == v[i] >> 32;)
			j++;
		if (j > i + 1)
			rc = match_slots(m, v + i, j - i, odd);
	}
	pthread_mutex_lock(&s->lock);
	if (rc < 0)
		s->err = m->err;
	vfm_grow(&s->found, &s->cap_found, s->n_found + m->n, sizeof(*s->found));
	if (m->n)
		memcpy(s->found + s->n_found, m->found, m->n * sizeof(*m->found));
	s->n_found += m->n;
	s->g->stats.compared += m->w.compared;
	s->g->stats.cut_off += m->cut_off;
	pthread_mutex_unlock(&s->lock);
	free(m->found);
	free(m->kept);
	free(m);
}

static void match_parts(int64_t i0, int64_t i1, void *ctx)
{
	for (int64_t i = i0; i < i1; i++)
		match_part(ctx, (int)i);
}

/* ---- a pass ---- */

/* Turns the counts into places: parts in order, within a part the chunks in order.  Returns the number of keys. */
static int64_t place_parts(struct search *s)
{
	int64_t at = 0;

	for (int p = 0; p < PARTS; p++) {
		s->part_at[p] = at;
		for (int64_t c = 0; c < s->n_chunks; c++) {
			int64_t n = s->at[c * PARTS + p];

			s->at[c * PARTS + p] = at;
			at += n;
		}
	}
	return s->part_at[PARTS] = at;
}

static int run_pass(struct search *s, struct vfm_err *err)
{
	size_t bytes;
	int rc;

	memset(s->at, 0, (size_t)s->n_chunks * PARTS * sizeof(*s->at));
	vfm_par_for(s->n_chunks, 1, count_table_keys, s);
	bytes = ((size_t)place_parts(s) + 1) * sizeof(*s->keys);
	s->keys = vfm_big_alloc(bytes, "keys of clips", err);
	if (!s->keys)
		return err->code;
	vfm_par_for(s->n_chunks, 1, place_table_keys, s);
	s->n_found = 0;
	vfm_par_for(PARTS, 1, match_parts, s);
	vfm_big_free(s->keys, bytes);
	if (s->err.code) {
		*err = s->err;
		return s->err.code;
	}
	rc = vfm_groups_add(&s->g->groups, s->found, s->n_found, compare_for_groups, s, err);
	return rc;
}

static int search_tables(struct search *s, struct vfm_err *err)
{
	int64_t slots = s->n_slots;

	for (s->bits = BITS_MIN; s->bits < BITS_MAX && slots * PROBES >> s->bits; s->bits++)
		;
	s->g->stats.bits = s->bits;
	s->passes = (int)(slots * PROBES / PASS) + 1;
	s->n_chunks = (s->n + CHUNK - 1) / CHUNK;
	s->at = vfm_calloc((size_t)s->n_chunks * PARTS + 1, sizeof(*s->at));
	s->vain = vfm_calloc(VAIN, sizeof(*s->vain));
	make_tables(s);
	for (s->table = 0; s->table < TABLES; s->table++)
		for (s->pass = 0; s->pass < s->passes; s->pass++)
			TRY(run_pass(s, err));
	return vfm_groups_finish(&s->g->groups, compare_for_groups, s, err);
}

int vfm_clip_groups_find(struct vfm_clip_groups *g, const struct vfm_clip_set *set,
	const struct vfm_clip_groups_opts *o, struct vfm_err *err)
{
	struct search s = {.set = set, .o = o, .g = g, .n = set->n, .lock = PTHREAD_MUTEX_INITIALIZER};
	int rc;

	*g = (struct vfm_clip_groups){0};
	vfm_groups_init(&g->groups, set->n, o->fixed);
	TRY_OUT(rank_clips(&s, err));
	TRY_OUT(make_slots(&s, err));
	TRY_OUT(search_tables(&s, err));
out:
	vfm_big_free(s.sign, (size_t)s.n_slots * 8 + 8);
	vfm_big_free(s.strong, (size_t)s.n_slots * 8 + 8);
	vfm_big_free(s.owner, (size_t)s.n_slots * 4 + 4);
	free(s.first);
	free(s.at);
	free((void *)s.vain);
	free(s.found);
	return rc;
}

void vfm_clip_groups_release(struct vfm_clip_groups *g)
{
	vfm_groups_release(&g->groups);
	free(g->clip);
	free(g->rank);
	*g = (struct vfm_clip_groups){0};
}
