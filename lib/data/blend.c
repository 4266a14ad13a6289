#include "data/blend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/permute.h"
#include "base/philox.h"
#include "data/patch.h"
#include "data/split.h"

/* ---- the sets ---- */

static int same_width(struct vfm_blend_set *set, const struct vfm_record *r, uint64_t n, struct vfm_err *err)
{
	if (!set->channels)
		set->channels = r->c;
	if (!set->text_dim)
		set->text_dim = r->text_dim;
	if (r->c != set->channels)
		return vfm_fail(err, VFM_EUSAGE, "sample %llu has %d latent channels, others have %d",
			(unsigned long long)n, r->c, set->channels);
	if (r->text_dim && r->text_dim != set->text_dim)
		return vfm_fail(err, VFM_EUSAGE, "sample %llu has texts of width %d, others have %d",
			(unsigned long long)n, r->text_dim, set->text_dim);
	return 0;
}

/* The loader would find a damaged text only in the step that reads it. */
static int check_texts(const struct vfm_blend_set *set, const struct vfm_record *r, struct vfm_err *err)
{
	struct vfm_index_text t;

	for (uint32_t i = 0; i < r->n_texts; i++)
		TRY(vfm_index_text(set->ix, r, i, &t, err));
	return 0;
}

/* All samples have the same extra arrays, or none: a model reads them of every sample. */
static int check_extras_of(struct vfm_blend_set *set, const struct vfm_record *r, uint64_t n, struct vfm_err *err)
{
	struct vfm_index_text cond = {0}, image = {0};

	if (vfm_record_has_extra(r, VFM_EXTRA_COND))
		TRY(vfm_index_extra(set->ix, r, VFM_EXTRA_COND, &cond, err));
	if (vfm_record_has_extra(r, VFM_EXTRA_IMAGE))
		TRY(vfm_index_extra(set->ix, r, VFM_EXTRA_IMAGE, &image, err));
	if (n == 0) {
		set->cond_channels = cond.rows;
		set->image_len = image.rows;
		set->image_dim = image.width;
	}
	if (cond.rows != set->cond_channels)
		return vfm_fail(err, VFM_EUSAGE, "sample %llu has a condition of %d channels, others have %d",
			(unsigned long long)n, cond.rows, set->cond_channels);
	if (image.rows != set->image_len || image.width != set->image_dim)
		return vfm_fail(err, VFM_EUSAGE, "sample %llu has image rows [%d, %d], others have [%d, %d]",
			(unsigned long long)n, image.rows, image.width, set->image_len, set->image_dim);
	return 0;
}

static int scan_record(struct vfm_blend_set *set, const struct vfm_record *r, int64_t i, const int32_t patch[3],
	int32_t context, bool held, struct vfm_err *err)
{
	const int32_t dims[3] = {r->t, r->h, r->w};
	int32_t grid[3];
	int64_t tokens;

	TRY(same_width(set, r, (uint64_t)i, err));
	TRY(check_texts(set, r, err));
	TRY(check_extras_of(set, r, (uint64_t)i, err));
	tokens = vfm_patch_grid(dims, patch, grid, NULL);
	if (tokens < 0 || grid[0] > INT16_MAX || grid[1] > INT16_MAX || grid[2] > INT16_MAX) {
		set->n_ragged++;
		return 0;
	}
	if (tokens > context) {
		set->n_long++;
		return 0;
	}
	*(held ? &set->n_held : &set->n) += 1;
	*(held ? &set->held_tokens : &set->total_tokens) += tokens;
	return vfm_lengths_put(&set->lengths, i, (int32_t)(held ? -tokens : tokens), err);
}

static int check_has_latents(const struct vfm_blend_set *set, const struct vfm_record *r, struct vfm_err *err)
{
	if (!(r->flags & VFM_REC_NO_LATENT))
		return 0;
	return vfm_fail(err, VFM_EUSAGE,
		"'%s' has samples without latents: it is for a join with the latents (vfm-curate index --join)",
		set->dir);
}

/* Reads the records shard by shard.  held [records]: what is held out; NULL: nothing. */
static int scan_records(
	struct vfm_blend_set *set, const int32_t patch[3], int32_t context, const bool *held, struct vfm_err *err)
{
	int64_t at = 0;

	for (uint32_t k = 0; k < set->n_shards; k++) {
		struct vfm_index_shard shard;
		struct vfm_record r;

		TRY(vfm_index_shard(set->ix, k, &shard, err));
		if (shard.first != (uint64_t)at)
			return vfm_fail(err, VFM_EINPUT, "shard %u begins with record %llu, expected %lld", k,
				(unsigned long long)shard.first, (long long)at);
		set->shard_first[k] = (uint32_t)at;
		for (uint32_t i = 0; i < shard.count; i++, at++) {
			TRY(vfm_index_get(set->ix, k, i, &r, err));
			TRY(check_has_latents(set, &r, err));
			TRY(scan_record(set, &r, at, patch, context, held && held[at], err));
		}
	}
	if (at != set->records)
		return vfm_fail(err, VFM_EINPUT, "the shards have %lld records, the index has %lld", (long long)at,
			(long long)set->records);
	set->shard_first[set->n_shards] = (uint32_t)at;
	return 0;
}

/* Fills shard_hint, with about one entry a shard. */
static void index_shards(struct vfm_blend_set *set)
{
	uint32_t k = 0;
	size_t n;

	while ((set->records >> set->hint_shift) > (int64_t)set->n_shards)
		set->hint_shift++;
	n = (size_t)(set->records >> set->hint_shift) + 1;
	set->shard_hint = vfm_calloc(n, sizeof(*set->shard_hint));
	for (size_t i = 0; i < n; i++) {
		while (k + 1 < set->n_shards && set->shard_first[k + 1] <= (uint64_t)i << set->hint_shift)
			k++;
		set->shard_hint[i] = k;
	}
}

uint32_t vfm_blend_shard(const struct vfm_blend_set *set, uint32_t record)
{
	uint32_t k = set->shard_hint[record >> set->hint_shift];

	while (set->shard_first[k + 1] <= record)
		k++;
	return k;
}

static int scan_index(
	struct vfm_blend_set *set, const int32_t patch[3], int32_t context, double held_out, struct vfm_err *err)
{
	size_t size = (size_t)set->records + 1;
	bool *held = NULL;
	int rc = 0;

	TRY(vfm_lengths_init(&set->lengths, set->records, context, err));
	if (held_out > 0) {
		held = vfm_big_alloc(size, "the samples that are held out", err);
		rc = held ? vfm_split_read(set->ix, held_out, held, err) : VFM_EENV;
	}
	if (rc == 0)
		rc = scan_records(set, patch, context, held, err);
	vfm_big_free(held, size);
	vfm_lengths_seal(&set->lengths);
	if (rc == 0)
		index_shards(set);
	return rc;
}

int vfm_blend_scan(
	struct vfm_blend_set *set, const int32_t patch[3], int32_t context, double held_out, struct vfm_err *err)
{
	int rc;

	TRY(vfm_index_open(&set->ix, set->dir, err));
	set->records = (int64_t)vfm_index_n_records(set->ix);
	if (set->records > (int64_t)UINT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "set '%s': more than %u samples; split it", set->name, UINT32_MAX);
	TRY(vfm_index_sha256(set->ix, set->sha256, err));
	set->n_shards = vfm_index_n_shards(set->ix);
	set->shard_first = vfm_calloc((size_t)set->n_shards + 1, sizeof(*set->shard_first));
	rc = scan_index(set, patch, context, held_out, err);
	if (rc < 0) {
		vfm_err_context(err, "set '%s'", set->name);
		return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
	}
	return vfm_index_check(set->ix, set->sha256, err);
}

struct vfm_blend_set vfm_blend_held_out(const struct vfm_blend_set *set)
{
	struct vfm_blend_set held = *set;

	held.weight = 0;
	held.n = set->n_held;
	held.total_tokens = set->held_tokens;
	held.is_held_out = true;
	held.n_held = held.held_tokens = 0;
	held.may_be_empty = true;
	return held;
}

void vfm_blend_set_release(struct vfm_blend_set *set)
{
	vfm_index_close(set->ix);
	vfm_lengths_release(&set->lengths);
	free(set->shard_first);
	free(set->shard_hint);
	*set = (struct vfm_blend_set){0};
}

/* ---- the order ---- */

enum { STREAM_AHEAD = 128 }; /* positions of a permutation that are looked up together */

struct stream { /* samples first .. first + range - 1, again and again, each pass in another order */
	uint32_t first;
	int32_t set;     /* of the samples; -1: of several sets */
	int64_t range;   /* numbers, also of samples that are left out */
	int64_t at;      /* of this pass, in the permutation */
	int64_t n, left; /* usable samples; those that this pass has not returned */
	uint64_t pass, id;
	struct vfm_permutation order;
	struct vfm_blend_sample ahead[STREAM_AHEAD]; /* the next samples */
	int n_ahead, next;
	double weight, tokens, due; /* due: tokens / weight; infinite after the last sample */
	int64_t more;               /* samples until max_passes */
};

struct vfm_blend {
	const struct vfm_blend_set *sets;
	int32_t n_sets, n_streams;
	int64_t *base; /* [n_sets + 1] */
	struct stream *streams;
	int32_t *heap; /* [n_streams] streams; the first is the one whose turn it is */
	uint64_t seed;
	bool weighted;
};

void vfm_shuffle(uint32_t *a, int64_t n, uint64_t seed, uint64_t step, uint64_t id)
{
	struct vfm_rng r = vfm_rng_stream(seed, step, id, VFM_RNG_DATA);

	for (int64_t i = n - 1; i > 0; i--) {
		uint64_t j = vfm_rng_below(&r, (uint64_t)i, (uint64_t)i + 1);
		uint32_t x = a[i];

		a[i] = a[j];
		a[j] = x;
	}
}

static int check_sets(const struct vfm_blend_set *sets, int32_t n_sets, bool *weighted, struct vfm_err *err)
{
	int32_t with = 0, limited = 0;

	for (int32_t i = 0; i < n_sets; i++) {
		limited += sets[i].max_passes > 0;
		if (sets[i].n < 1 && !sets[i].may_be_empty)
			return vfm_fail(err, VFM_EUSAGE, "set '%s' has no usable samples", sets[i].name);
		with += sets[i].weight > 0;
	}
	if (with != 0 && with != n_sets)
		return vfm_fail(err, VFM_EUSAGE, "either all sets have a weight > 0 or none");
	if (limited && (limited == n_sets || !with))
		return vfm_fail(err, VFM_EUSAGE,
			with ? "all sets have a largest number of passes: one must be without"
			     : "a largest number of passes needs sets with weights");
	*weighted = with != 0;
	return 0;
}

/* Returns how many samples of a set max_passes allows, at least one. */
static int64_t last_sample(const struct vfm_blend_set *set)
{
	double n = ceil(set->max_passes * (double)set->n);

	return set->max_passes > 0 && n < (double)INT64_MAX ? (int64_t)n : INT64_MAX;
}

struct vfm_blend *vfm_blend_new(const struct vfm_blend_set *sets, int32_t n_sets, uint64_t seed, struct vfm_err *err)
{
	struct vfm_blend *b = vfm_calloc(1, sizeof(*b));
	int64_t total = 0;
	int rc;

	*b = (struct vfm_blend){.sets = sets, .n_sets = n_sets, .seed = seed};
	b->base = vfm_calloc((size_t)n_sets + 1, sizeof(*b->base));
	TRY_OUT(check_sets(sets, n_sets, &b->weighted, err));
	for (int32_t i = 0; i < n_sets; i++) {
		b->base[i] = total;
		total += sets[i].records;
	}
	b->base[n_sets] = total;
	if (total > (int64_t)UINT32_MAX) {
		rc = vfm_fail(err, VFM_EUSAGE, "more than %u samples; make several manifests", UINT32_MAX);
		goto out;
	}
	b->n_streams = b->weighted ? n_sets : 1;
	b->streams = vfm_calloc((size_t)b->n_streams, sizeof(*b->streams));
	b->heap = vfm_calloc((size_t)b->n_streams, sizeof(*b->heap));
	for (int32_t i = 0; i < b->n_streams; i++) {
		b->heap[i] = i;
		b->streams[i] = (struct stream){.first = (uint32_t)b->base[i],
			.set = b->weighted || n_sets == 1 ? i : -1,
			.range = b->weighted ? sets[i].records : total,
			.n = b->weighted ? sets[i].n : vfm_blend_n(b),
			.id = (uint64_t)i,
			.weight = b->weighted ? sets[i].weight : 1,
			.more = last_sample(&sets[i])};
	}
	if (vfm_blend_n(b) == 0)
		rc = vfm_fail(err, VFM_EUSAGE, "no set has usable samples");
out:
	if (rc < 0) {
		vfm_blend_free(b);
		return NULL;
	}
	return b;
}

void vfm_blend_free(struct vfm_blend *b)
{
	if (!b)
		return;
	free(b->streams);
	free(b->heap);
	free(b->base);
	free(b);
}

static int32_t tokens_of(const struct vfm_blend_set *set, int64_t record)
{
	int32_t tokens = vfm_lengths_get(&set->lengths, record);

	return set->is_held_out ? -tokens : tokens;
}

static int32_t find_set(const struct vfm_blend *b, int32_t known, uint32_t sample, int64_t *record)
{
	int32_t lo = 0, hi = b->n_sets; /* base[lo] <= sample < base[hi] */

	if (known >= 0) {
		lo = known;
	} else {
		while (hi - lo > 1) {
			int32_t mid = lo + (hi - lo) / 2;

			if (b->base[mid] <= (int64_t)sample)
				lo = mid;
			else
				hi = mid;
		}
	}
	*record = (int64_t)sample - b->base[lo];
	return lo;
}

/* Looks up the next positions of the permutation together: the loads of their lengths overlap. */
static void look_ahead(const struct vfm_blend *b, struct stream *s)
{
	const struct vfm_lengths *lengths[STREAM_AHEAD];
	int64_t n, record[STREAM_AHEAD];
	int32_t sign[STREAM_AHEAD];
	uint32_t sample[STREAM_AHEAD];

	if (s->left == 0 || s->pass == 0) {
		struct vfm_rng r = vfm_rng_stream(b->seed, s->pass++, s->id, VFM_RNG_DATA);

		vfm_permutation_init(&s->order, (uint64_t)s->range, &r);
		s->at = 0;
		s->left = s->n;
	}
	n = s->range - s->at < STREAM_AHEAD ? s->range - s->at : STREAM_AHEAD;
	for (int64_t i = 0; i < n; i++) {
		int32_t set;

		sample[i] = s->first + (uint32_t)vfm_permuted(&s->order, (uint64_t)(s->at + i));
		set = find_set(b, s->set, sample[i], &record[i]);
		lengths[i] = &b->sets[set].lengths;
		sign[i] = b->sets[set].is_held_out ? -1 : 1;
		vfm_lengths_prefetch(lengths[i], record[i]);
	}
	s->at += n;
	s->n_ahead = s->next = 0;
	for (int64_t i = 0; i < n; i++) {
		int32_t tokens = sign[i] * vfm_lengths_get(lengths[i], record[i]);

		s->ahead[s->n_ahead] = (struct vfm_blend_sample){sample[i], tokens};
		s->n_ahead += tokens > 0;
	}
}

static struct vfm_blend_sample stream_next(const struct vfm_blend *b, struct stream *s)
{
	while (s->next == s->n_ahead)
		look_ahead(b, s);
	s->left--;
	return s->ahead[s->next++];
}

static bool is_before(const struct vfm_blend *b, int32_t x, int32_t y)
{
	return b->streams[x].due < b->streams[y].due || (b->streams[x].due == b->streams[y].due && x < y);
}

/* Restores the order of the heap after the first stream got more tokens. */
static void restore_turns(struct vfm_blend *b)
{
	for (int32_t at = 0, child; (child = 2 * at + 1) < b->n_streams; at = child) {
		int32_t x = b->heap[at];

		if (child + 1 < b->n_streams && is_before(b, b->heap[child + 1], b->heap[child]))
			child++;
		if (is_before(b, x, b->heap[child]))
			return;
		b->heap[at] = b->heap[child];
		b->heap[child] = x;
	}
}

struct vfm_blend_sample vfm_blend_next(struct vfm_blend *b, bool *ends_pass)
{
	struct stream *s = &b->streams[b->heap[0]];
	struct vfm_blend_sample x = stream_next(b, s);

	*ends_pass = !b->weighted && s->left == 0;
	if (b->n_streams > 1) {
		s->tokens += x.tokens;
		s->due = --s->more ? s->tokens / s->weight : INFINITY;
		restore_turns(b);
	}
	return x;
}

int32_t vfm_blend_find(const struct vfm_blend *b, uint32_t sample, int64_t *record)
{
	return find_set(b, b->n_sets == 1 ? 0 : -1, sample, record);
}

int32_t vfm_blend_tokens(const struct vfm_blend *b, uint32_t sample)
{
	int64_t i;
	int32_t set = vfm_blend_find(b, sample, &i);

	return tokens_of(&b->sets[set], i);
}

int32_t vfm_blend_n_sets(const struct vfm_blend *b)
{
	return b->n_sets;
}

bool vfm_blend_weighted(const struct vfm_blend *b)
{
	return b->weighted;
}

int64_t vfm_blend_n(const struct vfm_blend *b)
{
	int64_t n = 0;

	for (int32_t i = 0; i < b->n_sets; i++)
		n += b->sets[i].n;
	return n;
}

int64_t vfm_blend_total_tokens(const struct vfm_blend *b)
{
	int64_t sum = 0;

	for (int32_t i = 0; i < b->n_sets; i++)
		sum += b->sets[i].total_tokens;
	return sum;
}
