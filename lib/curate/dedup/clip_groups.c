/* clip_groups.c - sorts keys in passes that fit the memory, compares clips with equal keys, and forms groups. */
#include "curate/dedup/clip_groups.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/par.h"
#include "curate/dedup/clip_keys.h"
#include "io/file.h"
#include "media/match/clip_compare.h"
#include "media/match/clip_signs.h"

#define TABLES    VFM_IMAGE_TABLES
#define KEYS      VFM_CLIP_KEYS
#define PARTS     256                   /* of a pass, by key; a thread works on one */
#define CHUNK     4096                  /* clips */
#define PASS      (INT64_C(1) << 25)    /* keys of a pass, about */
#define COMPARED  VFM_CLIP_RESEMBLE_MAX /* representatives under a key with which a clip is compared */
#define MEMO_MIN  (1 << 20)             /* pairs of the memo */
#define MEMO_MAX  (1 << 26)
#define MEMO      16   /* pairs for each clip, about */
#define SLACK     0.15 /* agreement that half a slot may add */
#define SLACK_ONE 0.55 /* agreement that an image may gain when it is fit to another */
#define AHEAD     64   /* keys whose clips are fetched into the cache before they are needed */

struct group_search {
	const struct vfm_clip_set *set;
	const struct vfm_clip_groups_opts *o;
	struct vfm_clip_groups *g;
	int64_t n, n_slots;
	uint32_t *first;              /* [n + 1] slots of the ranks */
	struct vfm_clip_signs *signs; /* [n_slots] */
	FILE *key_file;               /* [n_chunks, TABLES, CHUNK, KEYS] by clip */
	int passes;
	/* of a pass */
	int table, pass;
	int64_t n_chunks;
	uint8_t *tables; /* [n_chunks] that the clips of a chunk have keys in */
	int64_t *at;     /* [n_chunks, PARTS] how many keys, then where they go */
	uint64_t *keys;  /* key << 32 | rank, in parts */
	int64_t part_at[PARTS + 1];
	/* a lossy memo of pairs that were compared in vain, member << 32 | of: pairs of clips before one background
	 * meet in all tables */
	_Atomic(uint64_t) *vain; /* [memo], a power of two */
	uint64_t memo;
	struct group_scratch *scratch; /* of groups.h */
	struct matches *idle;          /* a list */
	pthread_mutex_t lock;
	struct vfm_duplicate *found;
	size_t n_found, cap_found;
	struct vfm_err err; /* the first of the threads */
};

/* ---- ranks ---- */

struct ranked_clip {
	const struct vfm_clip_set *s;
	uint64_t name; /* 8 bytes of it, after those that all have in common */
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

/* Sets the clip of each rank and the rank of each clip.  VFM_EENV: not enough memory, 64 bytes a clip. */
static int rank_clips(uint32_t *clip, uint32_t *rank, const struct vfm_clip_set *s, int64_t fixed, struct vfm_err *err)
{
	const int64_t others = s->n - fixed;
	const struct vfm_names *names = &s->names;
	const size_t prefix = common_prefix(names, fixed, s->n);
	const size_t bytes = (size_t)others * sizeof(struct ranked_clip) + 1;
	struct ranked_clip *r = vfm_big_alloc(bytes, "the order of clips", err);

	if (!r)
		return err->code;
	for (int64_t i = 0; i < others; i++)
		r[i] = (struct ranked_clip){s, order_of(vfm_names_at(names, fixed + i) + prefix),
			s->entries[fixed + i].quality, (uint32_t)(fixed + i)};
	qsort(r, (size_t)others, sizeof(*r), compare_ranked_members);
	for (int64_t i = 0; i < s->n; i++) {
		clip[i] = i < fixed ? (uint32_t)i : r[i - fixed].clip;
		rank[clip[i]] = (uint32_t)i;
	}
	vfm_big_free(r, bytes);
	return 0;
}

/* ---- comparison ---- */

struct held_clips {   /* a clip that a thread holds for comparisons */
	int64_t rank; /* -1: none */
	bool is_read; /* rows.x is set, too */
	struct vfm_clip_rows rows;
	uint8_t pad[104]; /* so that the first lines of many of these do not all have one place in the cache */
};

struct group_scratch {
	struct vfm_clip_hash hash;
	struct vfm_clip_rows half; /* of the clip half_of, a rank; -1: none */
	int64_t half_of;
	int64_t compared;
	struct held_clips of, member; /* for compare_for_groups */
};

static struct group_scratch *new_scratch(void)
{
	struct group_scratch *w = vfm_malloc(sizeof(*w));

	w->half_of = w->of.rank = w->member.rank = -1;
	w->compared = 0;
	return w;
}

/* Holds the signs of a clip. */
static void hold_clip(const struct group_search *s, struct held_clips *h, uint32_t rank)
{
	h->rank = rank;
	h->is_read = false;
	vfm_clip_rows_signs(&h->rows, s->signs + s->first[rank], (int)(s->first[rank + 1] - s->first[rank]));
}

/* Reads the rows of a clip that is held. */
static int read_held(const struct group_search *s, struct held_clips *h, struct group_scratch *w, struct vfm_err *err)
{
	if (h->is_read)
		return 0;
	TRY(vfm_clip_set_read(s->set, s->g->clip[h->rank], &w->hash, err));
	vfm_clip_rows_fill(&h->rows, &w->hash);
	h->is_read = true;
	return 0;
}

static int compare_held(const struct group_search *s, struct group_scratch *w, struct held_clips *member,
	struct held_clips *of, struct vfm_duplicate *d, struct vfm_err *err)
{
	struct vfm_clip_match m;

	TRY(read_held(s, of, w, err));
	TRY(read_held(s, member, w, err));
	if (w->half_of != member->rank)
		vfm_clip_half_of(&w->half, &member->rows);
	w->half_of = member->rank;
	vfm_clip_compare(&of->rows, &member->rows, &w->half, s->o->threshold, &m);
	w->compared++;
	if (m.distance >= s->o->threshold)
		return 0;
	*d = (struct vfm_duplicate){
		(uint32_t)member->rank, (uint32_t)of->rank, (float)m.distance, (float)m.offset_s, m.mirrored};
	return 1;
}

static int compare_for_groups(void *ctx, uint32_t member, uint32_t of, struct vfm_duplicate *d, struct vfm_err *err)
{
	struct group_search *s = ctx;
	struct group_scratch *w = s->scratch;

	if (w->member.rank != member)
		hold_clip(s, &w->member, member);
	if (w->of.rank != of)
		hold_clip(s, &w->of, of);
	return compare_held(s, w, &w->member, &w->of, d, err);
}

/* ---- signs and keys ---- */

static void keep_error(struct group_search *s, const struct vfm_err *err)
{
	pthread_mutex_lock(&s->lock);
	if (!s->err.code)
		s->err = *err;
	pthread_mutex_unlock(&s->lock);
}

static off_t key_offset(int64_t chunk, int table)
{
	return (off_t)((chunk * TABLES + table) * CHUNK * KEYS) * (off_t)sizeof(uint32_t);
}

/* Keys grow with the set, so that they seldom agree by chance. */
static int groups_of_key(int64_t clips)
{
	return clips < 1 << 14 ? 5 : clips < 1 << 18 ? 6 : clips < 1 << 21 ? 7 : VFM_CLIP_GROUPS;
}

/* Writes those of the tables of the chunk; of the others the file has a hole. */
static int write_keys(const struct group_search *s, int64_t chunk, const uint32_t *keys, struct vfm_err *err)
{
	const char *p = (const char *)keys;
	size_t left = (size_t)s->tables[chunk] * CHUNK * KEYS * sizeof(*keys);
	off_t off = key_offset(chunk, 0);

	while (left) {
		ssize_t n = pwrite(fileno(s->key_file), p, left, off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return vfm_fail_errno(err, VFM_EENV, "cannot write the temporary file of keys (TMPDIR)");
		p += n;
		off += n;
		left -= (size_t)n;
	}
	return 0;
}

/* Reads the clips of a chunk, in the order of the set; stores their signs, and their keys in the file. */
static int load_chunk(
	struct group_search *s, int64_t chunk, struct group_scratch *w, uint32_t *keys, struct vfm_err *err)
{
	const int64_t i0 = chunk * CHUNK, i1 = i0 + CHUNK < s->n ? i0 + CHUNK : s->n;
	const int groups = groups_of_key(s->n);
	struct vfm_clip_rows *r = &w->member.rows;
	uint32_t own[TABLES][KEYS];
	int64_t flat = 0;

	memset(keys, 0, (size_t)TABLES * CHUNK * KEYS * sizeof(*keys));
	for (int64_t i = i0; i < i1; i++) {
		struct vfm_clip_signs *to = s->signs + s->first[s->g->rank[i]];
		uint64_t any = 0;
		int tables;

		TRY(vfm_clip_set_read(s->set, i, &w->hash, err));
		vfm_clip_rows_of(r, &w->hash);
		for (int k = 0; k < r->slots; k++) {
			to[k] = vfm_clip_signs_of(r, k);
			any |= r->strong[k];
		}
		flat += !any;
		tables = vfm_clip_keys_of(own, r, groups);
		if (tables > s->tables[chunk])
			s->tables[chunk] = (uint8_t)tables;
		for (int t = 0; t < tables; t++)
			memcpy(keys + ((int64_t)t * CHUNK + i - i0) * KEYS, own[t], sizeof(own[t]));
	}
	pthread_mutex_lock(&s->lock);
	s->g->stats.flat += flat;
	pthread_mutex_unlock(&s->lock);
	return write_keys(s, chunk, keys, err);
}

static void load_chunks(int64_t i0, int64_t i1, void *ctx)
{
	struct group_search *s = ctx;
	struct group_scratch *w = new_scratch();
	uint32_t *keys = vfm_malloc((size_t)TABLES * CHUNK * KEYS * sizeof(*keys));
	struct vfm_err err = {0};

	for (int64_t i = i0; i < i1; i++)
		if (load_chunk(s, i, w, keys, &err) < 0) {
			keep_error(s, &err);
			break;
		}
	free(keys);
	free(w);
}

static int load_clips(struct group_search *s, struct vfm_err *err)
{
	s->first = vfm_calloc((size_t)s->n + 1, sizeof(*s->first));
	for (int64_t i = 0; i < s->n; i++) {
		s->n_slots += s->set->entries[s->g->clip[i]].slots;
		if (s->n_slots > UINT32_MAX)
			return vfm_fail(err, VFM_EUSAGE, "too many clips: over 2^32 slots of half a second");
		s->first[i + 1] = (uint32_t)s->n_slots;
	}
	s->signs = vfm_big_alloc((size_t)s->n_slots * sizeof(*s->signs) + 1, "the slots of clips", err);
	if (!s->signs)
		return err->code;
	TRY(vfm_unlinked_temp(&s->key_file, err));
	s->n_chunks = (s->n + CHUNK - 1) / CHUNK;
	s->tables = vfm_calloc((size_t)s->n_chunks + 1, sizeof(*s->tables));
	vfm_par_for(s->n_chunks, 1, load_chunks, s);
	if (s->err.code)
		*err = s->err;
	return s->err.code;
}

/* ---- keys of a pass ---- */

/* Counts the keys of a pass in a chunk, or places them. */
static void take_keys(struct group_search *s, int64_t chunk, bool place)
{
	const int64_t i0 = chunk * CHUNK, i1 = i0 + CHUNK < s->n ? i0 + CHUNK : s->n;
	uint32_t *keys;
	int64_t *at = s->at + chunk * PARTS;
	struct vfm_err err = {0};

	if (s->table >= s->tables[chunk])
		return;
	keys = vfm_malloc((size_t)CHUNK * KEYS * sizeof(*keys));
	if (vfm_full_pread(fileno(s->key_file), keys, (size_t)CHUNK * KEYS * sizeof(*keys),
		    (uint64_t)key_offset(chunk, s->table), "the temporary file of keys", &err) < 0) {
		keep_error(s, &err);
		free(keys);
		return;
	}
	for (int64_t i = i0; i < i1; i++) {
		uint32_t rank = s->g->rank[i], *k = keys + (i - i0) * KEYS;

		if (vfm_groups_is_member(&s->g->groups, rank))
			continue;
		for (int j = 0; j < KEYS && k[j]; j++) {
			uint32_t key = k[j];

			if ((int)((uint64_t)key * (uint64_t)s->passes >> 32) != s->pass)
				continue;
			key *= (uint32_t)s->passes; /* spreads the rest of the key over 32 bits */
			if (place)
				s->keys[at[key >> 24]++] = (uint64_t)key << 32 | rank;
			else
				at[key >> 24]++;
		}
	}
	free(keys);
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

struct matches { /* of a thread that works on a part */
	struct matches *next_idle;
	struct group_search *s;
	struct group_scratch *w;
	struct vfm_duplicate *found;
	size_t n, cap;
	/* The representatives under a key that a clip is compared with: number i is at i % COMPARED.  The one that
	 * `next` points to is at hand. */
	struct held_clips *held, *kept[COMPARED], *next;
	const struct vfm_clip_rows *rows[COMPARED]; /* of kept */
	int64_t cut_off;
	struct vfm_err err;
};

/* Returns the place of a pair in the memo. */
static uint64_t memo_place(const struct group_search *s, uint64_t pair)
{
	return (pair * UINT64_C(0x9E3779B97F4A7C15) >> 32) & (s->memo - 1);
}

static int compare_once(struct matches *m, struct held_clips *member, struct held_clips *of, struct vfm_duplicate *d)
{
	const uint64_t pair = (uint64_t)member->rank << 32 | (uint64_t)of->rank;
	_Atomic(uint64_t) *vain = &m->s->vain[memo_place(m->s, pair)];
	int rc;

	if (atomic_load_explicit(vain, memory_order_relaxed) == pair)
		return 0;
	rc = compare_held(m->s, m->w, member, of, d, &m->err);
	if (rc == 0)
		atomic_store_explicit(vain, pair, memory_order_relaxed);
	return rc;
}

/* Compares the clip at hand with the representatives that resemble it, the last of n first.  Returns 1 if it is a
 * duplicate. */
static int match_clip(struct matches *m, size_t n)
{
	struct held_clips *member = m->next;
	const int newest = (int)((n + COMPARED - 1) % COMPARED);
	const double slack = member->rows.slots == 1 ? SLACK_ONE : SLACK;
	uint64_t which = vfm_clip_signs_resemble(
		m->rows, n < COMPARED ? (int)n : COMPARED, &member->rows, m->s->o->threshold + slack);
	int rc = 0;

	for (uint64_t left = which; left; left &= left - 1)
		__builtin_prefetch((const void *)memo_place(
			m->s, (uint64_t)member->rank << 32 | (uint64_t)m->kept[__builtin_ctzll(left)]->rank));
	/* The newest becomes bit 63, and the others follow it by age. */
	for (which = which << (63 - newest) | (newest < 63 ? which >> (newest + 1) : 0); which && rc == 0;) {
		int age = __builtin_clzll(which), i = (newest - age + COMPARED) % COMPARED;
		struct vfm_duplicate d;

		which &= ~(UINT64_C(1) << (63 - age));
		rc = compare_once(m, member, m->kept[i], &d);
		TRY(rc);
		if (rc == 1) {
			vfm_grow(&m->found, &m->cap, m->n + 1, sizeof(*m->found));
			m->found[m->n++] = d;
		}
	}
	return rc;
}

/* The clip at hand becomes a representative, in the place of the one COMPARED before it. */
static void keep_clip(struct matches *m, size_t n_kept)
{
	struct held_clips *old = m->kept[n_kept % COMPARED];

	m->kept[n_kept % COMPARED] = m->next;
	m->rows[n_kept % COMPARED] = &m->next->rows;
	m->next = old;
}

/* Clips [n], ascending by rank, have one key. */
static int match_clips(struct matches *m, const uint64_t *keys, size_t n)
{
	struct group_search *s = m->s;
	size_t n_kept = 0;

	for (size_t j = 0; j < n; j++) {
		uint32_t member = (uint32_t)keys[j];
		int rc = 0;

		hold_clip(s, m->next, member);
		if (member >= s->o->fixed && n_kept)
			rc = match_clip(m, n_kept);
		TRY(rc);
		m->cut_off += rc == 0 && n_kept > COMPARED && member >= s->o->fixed;
		if (rc == 0)
			keep_clip(m, n_kept++);
	}
	return 0;
}

static int compare_keys(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Most runs of one key are short. */
static void sort_run(uint64_t *v, size_t n)
{
	if (n > 32) {
		qsort(v, n, sizeof(*v), compare_keys);
		return;
	}
	for (size_t i = 1; i < n; i++) {
		uint64_t x = v[i];
		size_t at = i;

		for (; at > 0 && v[at - 1] > x; at--)
			v[at] = v[at - 1];
		v[at] = x;
	}
}

/* Clips [n] have one key.  A key of many, as of a title card or a fixed camera, says little: that of their motion
 * divides them. */
static int match_key(struct matches *m, uint64_t *keys, size_t n)
{
	int rc = 0;

	for (size_t i = 0; i < n && n > COMPARED; i++) {
		uint32_t rank = (uint32_t)keys[i];

		hold_clip(m->s, m->next, rank);
		TRY(read_held(m->s, m->next, m->w, &m->err));
		keys[i] = (uint64_t)vfm_clip_motion_key_of(&m->next->rows, m->s->table) << 32 | rank;
	}
	sort_run(keys, n);
	for (size_t i = 0, j; i < n && rc >= 0; i = j) {
		for (j = i + 1; j < n && keys[j] >> 32 == keys[i] >> 32;)
			j++;
		if (j > i + 1)
			rc = match_clips(m, keys + i, j - i);
	}
	return rc;
}

/* Sorts by key, the upper 24 of its bits, which differ within a part.  spare [n] */
static void sort_keys(uint64_t *v, uint64_t *spare, size_t n)
{
	enum { BITS = 12 };
	uint32_t *at = vfm_malloc(sizeof(*at) << BITS);

	for (int shift = 32; shift < 32 + 2 * BITS; shift += BITS) {
		uint64_t *from = shift == 32 ? v : spare, *to = shift == 32 ? spare : v;
		uint32_t sum = 0;

		memset(at, 0, sizeof(*at) << BITS);
		for (size_t i = 0; i < n; i++)
			at[from[i] >> shift & ((1 << BITS) - 1)]++;
		for (int i = 0; i < 1 << BITS; i++) {
			uint32_t k = at[i];

			at[i] = sum;
			sum += k;
		}
		for (size_t i = 0; i < n; i++)
			to[at[from[i] >> shift & ((1 << BITS) - 1)]++] = from[i];
	}
	free(at);
}

/* Fetches the clip of key i if another has its key, in two steps: where its signs are, then its signs. */
static void fetch_clips(const struct group_search *s, const uint64_t *v, size_t i, size_t n)
{
	if (i + AHEAD < n)
		__builtin_prefetch(&s->first[(uint32_t)v[i + AHEAD]]);
	if (i + 1 < n && v[i] >> 32 == v[i + 1] >> 32) {
		const struct vfm_clip_signs *a = s->signs + s->first[(uint32_t)v[i]],
					    *b = s->signs + s->first[(uint32_t)v[i + 1]];

		__builtin_prefetch(a);
		__builtin_prefetch((const char *)a + 64);
		__builtin_prefetch(b);
		__builtin_prefetch((const char *)b + 64);
	}
}

static int match_sorted(struct matches *m, uint64_t *v, size_t n)
{
	size_t fetched = 0;
	int rc = 0;

	for (size_t i = 0, j; i < n && rc >= 0; i = j) {
		for (j = i + 1; j < n && v[j] >> 32 == v[i] >> 32;)
			j++;
		for (; fetched < n && fetched < j + AHEAD; fetched++)
			fetch_clips(m->s, v, fetched, n);
		if (j > i + 1)
			rc = match_key(m, v + i, j - i);
	}
	return rc;
}

static struct matches *take_matches(struct group_search *s)
{
	struct matches *m;

	pthread_mutex_lock(&s->lock);
	m = s->idle;
	if (m)
		s->idle = m->next_idle;
	pthread_mutex_unlock(&s->lock);
	if (m)
		return m;
	m = vfm_calloc(1, sizeof(*m));
	m->s = s;
	m->w = new_scratch();
	m->held = vfm_malloc((COMPARED + 1) * sizeof(*m->held));
	for (int i = 0; i < COMPARED; i++)
		m->kept[i] = &m->held[i];
	m->next = &m->held[COMPARED];
	return m;
}

/* Adds the matches to those of the pass. */
static void give_matches(struct group_search *s, struct matches *m)
{
	pthread_mutex_lock(&s->lock);
	vfm_grow(&s->found, &s->cap_found, s->n_found + m->n, sizeof(*s->found));
	if (m->n)
		memcpy(s->found + s->n_found, m->found, m->n * sizeof(*m->found));
	s->n_found += m->n;
	s->g->stats.compared += m->w->compared;
	s->g->stats.cut_off += m->cut_off;
	m->n = 0;
	m->w->compared = m->cut_off = 0;
	m->next_idle = s->idle;
	s->idle = m;
	pthread_mutex_unlock(&s->lock);
}

static void free_matches(struct matches *m)
{
	for (struct matches *next; m; m = next) {
		next = m->next_idle;
		free(m->found);
		free(m->held);
		free(m->w);
		free(m);
	}
}

static void match_part(struct group_search *s, int part)
{
	struct matches *m = take_matches(s);
	uint64_t *v = s->keys + s->part_at[part], *spare;
	size_t n = (size_t)(s->part_at[part + 1] - s->part_at[part]);

	spare = vfm_malloc((n + 1) * sizeof(*spare));
	sort_keys(v, spare, n);
	free(spare);
	if (match_sorted(m, v, n) < 0)
		keep_error(s, &m->err);
	give_matches(s, m);
}

static void match_parts(int64_t i0, int64_t i1, void *ctx)
{
	for (int64_t i = i0; i < i1; i++)
		match_part(ctx, (int)i);
}

/* ---- a pass ---- */

/* Turns the counts into places: parts in order, within a part the chunks in order.  Returns the number of keys. */
static int64_t place_parts(struct group_search *s)
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

static int run_pass(struct group_search *s, struct vfm_err *err)
{
	size_t bytes;
	int rc;

	memset(s->at, 0, (size_t)s->n_chunks * PARTS * sizeof(*s->at));
	vfm_par_for(s->n_chunks, 1, count_table_keys, s);
	if (s->err.code) {
		*err = s->err;
		return s->err.code;
	}
	bytes = ((size_t)place_parts(s) + 1) * sizeof(*s->keys);
	s->keys = vfm_big_alloc(bytes, "keys of clips", err);
	if (!s->keys)
		return err->code;
	vfm_par_for(s->n_chunks, 1, place_table_keys, s);
	s->n_found = 0;
	if (!s->err.code)
		vfm_par_for(PARTS, 1, match_parts, s);
	vfm_big_free(s->keys, bytes);
	if (s->err.code) {
		*err = s->err;
		return s->err.code;
	}
	rc = vfm_groups_add(&s->g->groups, s->found, s->n_found, compare_for_groups, s, err);
	return rc;
}

static int search_tables(struct group_search *s, struct vfm_err *err)
{
	int tables = 0;

	s->passes = (int)(s->n * KEYS / PASS) + 1;
	s->at = vfm_calloc((size_t)s->n_chunks * PARTS + 1, sizeof(*s->at));
	for (s->memo = MEMO_MIN; s->memo < MEMO_MAX && s->memo < MEMO * (uint64_t)s->n;)
		s->memo *= 2;
	s->vain = vfm_calloc(s->memo, sizeof(*s->vain));
	s->scratch = new_scratch();
	for (int64_t i = 0; i < s->n_chunks; i++)
		tables = s->tables[i] > tables ? s->tables[i] : tables;
	for (s->table = 0; s->table < tables; s->table++)
		for (s->pass = 0; s->pass < s->passes; s->pass++)
			TRY(run_pass(s, err));
	TRY(vfm_groups_finish(&s->g->groups, compare_for_groups, s, err));
	s->g->stats.compared += s->scratch->compared;
	return 0;
}

int vfm_clip_groups_find(struct vfm_clip_groups *g, const struct vfm_clip_set *set,
	const struct vfm_clip_groups_opts *o, struct vfm_err *err)
{
	struct group_search s = {.set = set, .o = o, .g = g, .n = set->n, .lock = PTHREAD_MUTEX_INITIALIZER};
	int rc;

	*g = (struct vfm_clip_groups){0};
	vfm_groups_init(&g->groups, set->n, o->fixed);
	g->clip = vfm_calloc((size_t)s.n + 1, sizeof(*g->clip));
	g->rank = vfm_calloc((size_t)s.n + 1, sizeof(*g->rank));
	TRY_OUT(rank_clips(g->clip, g->rank, set, o->fixed, err));
	TRY_OUT(load_clips(&s, err));
	TRY_OUT(search_tables(&s, err));
out:
	vfm_big_free(s.signs, (size_t)s.n_slots * sizeof(*s.signs) + 1);
	if (s.key_file)
		fclose(s.key_file);
	free(s.first);
	free(s.at);
	free(s.tables);
	free((void *)s.vain);
	free(s.scratch);
	free_matches(s.idle);
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
