/* blend.c - selects the samples of each set, shuffles them by epoch, and draws from the sets by weight. */
#include "data/plan/blend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/permute.h"
#include "base/philox.h"
#include "data/dataset/index_join.h"
#include "data/plan/split.h"
#include "spec/layout/patch.h"

/* ---- the sets ---- */

static int same_width(struct vfm_blend_set *set, const struct vfm_index_record *r, uint64_t n, struct vfm_err *err)
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
static int check_texts(const struct vfm_blend_set *set, const struct vfm_index_record *r, struct vfm_err *err)
{
	struct vfm_index_text t;

	for (uint32_t i = 0; i < r->n_texts; i++)
		TRY(vfm_index_text(set->ix, r, i, &t, err));
	return 0;
}

/* A sample may lack a second text. */
static int check_text2(struct vfm_blend_set *set, const struct vfm_index_record *r, uint64_t n, struct vfm_err *err)
{
	struct vfm_index_text text2;

	if (!vfm_record_has_extra(r, VFM_EXTRA_TEXT2))
		return 0;
	TRY(vfm_index_extra(set->ix, r, VFM_EXTRA_TEXT2, &text2, err));
	if (!set->text2_dim)
		set->text2_dim = text2.width;
	if (text2.width != set->text2_dim)
		return vfm_fail(err, VFM_EUSAGE, "sample %llu has a second text of width %d, others have %d",
			(unsigned long long)n, text2.width, set->text2_dim);
	return 0;
}

/* All samples have a condition and image rows, or none: a model reads them of every sample. */
static int check_extras_of(struct vfm_blend_set *set, const struct vfm_index_record *r, uint64_t n, struct vfm_err *err)
{
	struct vfm_index_text cond = {0}, image = {0};

	if (vfm_record_has_extra(r, VFM_EXTRA_COND))
		TRY(vfm_index_extra(set->ix, r, VFM_EXTRA_COND, &cond, err));
	if (vfm_record_has_extra(r, VFM_EXTRA_IMAGE))
		TRY(vfm_index_extra(set->ix, r, VFM_EXTRA_IMAGE, &image, err));
	if (!set->is_scanned) {
		set->is_scanned = true;
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

static int scan_record(struct vfm_blend_set *set, const struct vfm_index_record *r, int64_t i, const int32_t patch[3],
	int32_t context, bool held, struct vfm_err *err)
{
	const int32_t dims[3] = {r->t, r->h, r->w};
	int32_t grid[3];
	int64_t tokens;

	TRY(same_width(set, r, (uint64_t)i, err));
	TRY(check_texts(set, r, err));
	TRY(check_extras_of(set, r, (uint64_t)i, err));
	TRY(check_text2(set, r, (uint64_t)i, err));
	tokens = vfm_patch_grid(dims, patch, grid, NULL);
	if (tokens < 0 || grid[0] > INT16_MAX || grid[1] > INT16_MAX || grid[2] > INT16_MAX) {
		set->n_ragged++;
		return 0;
	}
	if (tokens > context) {
		set->n_long++;
		set->longest = tokens > set->longest ? tokens : set->longest;
		return 0;
	}
	*(held ? &set->n_held : &set->n) += 1;
	*(held ? &set->held_tokens : &set->total_tokens) += tokens;
	return vfm_lengths_put(&set->lengths, i, (int32_t)(held ? -tokens : tokens), err);
}

static int check_has_latents(const struct vfm_blend_set *set, const struct vfm_index_record *r, struct vfm_err *err)
{
	if (!(r->flags & VFM_REC_NO_LATENT))
		return 0;
	return vfm_fail(err, VFM_EUSAGE,
		"'%s' has samples without latents: it is for a join with the latents (vfm-curate index --join)",
		set->dir);
}

int64_t vfm_blend_selected(const struct vfm_blend_set *set)
{
	return set->is_part ? set->selection.total : set->records;
}

/* Returns the first selected record from `at` on, or `end` if it is beyond; *range is the range to begin with. */
static int64_t next_selected(const struct vfm_selection *s, size_t *range, int64_t at, int64_t end)
{
	while (*range < s->n && s->v[*range].end <= at)
		++*range;
	if (*range == s->n || s->v[*range].first >= end)
		return end;
	return s->v[*range].first > at ? s->v[*range].first : at;
}

/* Reads the records shard by shard.  held [records]: the held-out records; NULL: none. */
static int scan_records(
	struct vfm_blend_set *set, const int32_t patch[3], int32_t context, const bool *held, struct vfm_err *err)
{
	int64_t at = 0;
	size_t range = 0;

	for (uint32_t k = 0; k < set->n_shards; k++) {
		struct vfm_index_shard shard;
		struct vfm_index_record r;

		TRY(vfm_index_shard(set->ix, k, &shard, err));
		if (shard.first != (uint64_t)at)
			return vfm_fail(err, VFM_EINPUT, "shard %u begins with record %llu, expected %lld", k,
				(unsigned long long)shard.first, (long long)at);
		set->shard_first[k] = (uint32_t)at;
		for (int64_t i = at, end = at + shard.count; i < end; i++) {
			if (set->is_part && (i = next_selected(&set->selection, &range, i, end)) == end)
				break;
			TRY(vfm_index_get(set->ix, k, (uint32_t)(i - at), &r, err));
			TRY(check_has_latents(set, &r, err));
			TRY(scan_record(set, &r, i, patch, context, held && held[i], err));
		}
		at += shard.count;
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

static int select_records(struct vfm_blend_set *set, struct vfm_err *err)
{
	if (!set->subset)
		return 0;
	set->is_part = true;
	vfm_selection_add(&set->selection, 0, set->records);
	TRY(vfm_selection_cut(&set->selection, set->subset, err));
	vfm_selection_seal(&set->selection);
	return 0;
}

int vfm_blend_scan(
	struct vfm_blend_set *set, const int32_t patch[3], int32_t context, double held_out, struct vfm_err *err)
{
	int rc;

	TRY(vfm_index_open(&set->ix, set->dir, err));
	set->records = (int64_t)vfm_index_info(set->ix)->n_records;
	if (set->records > (int64_t)UINT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "set '%s': more than %u samples; split it", set->name, UINT32_MAX);
	strcpy(set->sha256, vfm_index_info(set->ix)->sha256);
	if (vfm_join_check_parts(set->ix, err) < 0)
		return vfm_err_context(err, "set '%s'", set->name);
	set->n_shards = vfm_index_info(set->ix)->n_shards;
	set->shard_first = vfm_calloc((size_t)set->n_shards + 1, sizeof(*set->shard_first));
	rc = select_records(set, err);
	if (rc == 0)
		rc = scan_index(set, patch, context, held_out, err);
	if (rc < 0) {
		vfm_err_context(err, "set '%s'", set->name);
		return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
	}
	return vfm_index_check(set->ix, err);
}

struct vfm_blend_set vfm_blend_held_out(const struct vfm_blend_set *set)
{
	struct vfm_blend_set held = *set;

	held.weight = held.passes = held.max_passes = 0;
	held.weights = (struct vfm_mix_weights){0};
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
	vfm_weights_release(&set->weights);
	vfm_selection_release(&set->selection);
	free(set->shard_first);
	free(set->shard_hint);
	*set = (struct vfm_blend_set){0};
}

/* ---- the order ---- */

enum { STREAM_AHEAD = 128 }; /* positions of a permutation that are looked up together */

struct sample_stream {   /* the samples of a set or of all, again and again, each pass in another order */
	int32_t set;     /* of the samples; -1: of several sets */
	int64_t range;   /* selected records, also of samples that are left out */
	int64_t at;      /* of this pass, in the permutation */
	int64_t n, left; /* usable samples; those that this pass has not returned */
	uint64_t pass, id;
	struct vfm_permutation order;
	struct vfm_blend_sample ahead[STREAM_AHEAD]; /* the next samples */
	int n_ahead, next;
	double weight, tokens, due; /* due: tokens / weight; infinite after the last sample, or without weight */
	int64_t more;               /* samples until max_passes, or the end of its passes */
};

enum blend_mode {
	BLEND_PASSES,   /* without weights */
	BLEND_REPEATED, /* all sets have a number of passes */
	BLEND_WEIGHTED, /* constant weights */
	BLEND_STEERED,
};

struct vfm_blend {
	const struct vfm_blend_set *sets;
	int32_t n_sets, n_streams;
	int64_t *base;   /* [n_sets + 1] records of the sets before */
	int64_t *chosen; /* [n_sets + 1] selected ones of these */
	struct sample_stream *streams;
	int32_t *heap; /* [n_streams] streams; the first is the one whose turn it is */
	uint64_t seed;
	enum blend_mode mode;
	int64_t epoch; /* BLEND_REPEATED: passes over all sets that are complete */
	struct vfm_mix_weights
		*weights; /* [n_sets] BLEND_STEERED; without points of sets with passes; borrowed points */
	struct vfm_weight_point *constant; /* [n_sets] points of constant weights */
	double *share;                     /* [n_sets] scratch */
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

/* Returns whether the weight of a set is above 0 at any step. */
static bool has_weight(const struct vfm_blend_set *set)
{
	bool found = set->weights.n == 0 && set->weight > 0;

	for (int32_t k = 0; k < set->weights.n; k++)
		found |= set->weights.v[k].weight > 0;
	return found;
}

static int check_sets(const struct vfm_blend_set *sets, int32_t n_sets, enum blend_mode *mode, struct vfm_err *err)
{
	int32_t weighted = 0, passes = 0, limited = 0;
	bool changes = false;

	for (int32_t i = 0; i < n_sets; i++) {
		if (sets[i].n < 1 && !sets[i].may_be_empty)
			return vfm_fail(err, VFM_EUSAGE, "set '%s' has no usable samples", sets[i].name);
		if (sets[i].passes > 0 && (has_weight(&sets[i]) || sets[i].max_passes > 0))
			return vfm_fail(err, VFM_EUSAGE,
				"set '%s' has a number of passes: no weight, and no largest number", sets[i].name);
		passes += sets[i].passes > 0;
		limited += sets[i].max_passes > 0;
		weighted += has_weight(&sets[i]);
		changes |= vfm_mix_changes(&sets[i].weights, 1);
	}
	if (weighted + passes != 0 && weighted + passes != n_sets)
		return vfm_fail(err, VFM_EUSAGE, "either all sets have a weight > 0 or none");
	if (limited && (limited == weighted || !weighted))
		return vfm_fail(err, VFM_EUSAGE,
			weighted ? "all sets have a largest number of passes: one must be without"
				 : "a largest number of passes needs sets with weights");
	*mode = !weighted && !passes      ? BLEND_PASSES
		: !weighted               ? BLEND_REPEATED
		: passes == 0 && !changes ? BLEND_WEIGHTED
					  : BLEND_STEERED;
	return 0;
}

/* Returns how many samples so many passes have, rounded down. */
static int64_t samples_of_passes(int64_t n, double passes)
{
	double x = passes * (double)n * (1 + 1e-12); /* 100 x 0.29 is 29 */

	return x < 1e18 ? (int64_t)x : INT64_MAX;
}

/* Returns how many samples of a set max_passes or its passes allow. */
static int64_t last_sample(const struct vfm_blend_set *set)
{
	double n = ceil(set->max_passes * (double)set->n); /* at least one */

	if (set->passes > 0)
		return samples_of_passes(set->n, set->passes);
	return set->max_passes > 0 && n < (double)INT64_MAX ? (int64_t)n : INT64_MAX;
}

/* Fails if all sets with a weight may be used up at some step. */
static int check_weights(const struct vfm_blend *b, struct vfm_err *err)
{
	double from = 0, to, sum;

	do {
		to = vfm_blend_next_point(b, from);
		sum = 0;
		for (int32_t i = 0; i < b->n_sets; i++)
			if (b->sets[i].max_passes == 0)
				sum += vfm_weights_at(&b->weights[i], isinf(to) ? from : (from + to) / 2);
		if (!(sum > 0))
			return vfm_fail(err, VFM_EUSAGE,
				"after step %.0f no set has a weight above 0 and any number of passes", from);
		from = to;
	} while (!isinf(from));
	return 0;
}

static void collect_weights(struct vfm_blend *b)
{
	b->weights = vfm_calloc((size_t)b->n_sets, sizeof(*b->weights));
	b->constant = vfm_calloc((size_t)b->n_sets, sizeof(*b->constant));
	b->share = vfm_calloc((size_t)b->n_sets, sizeof(*b->share));
	for (int32_t i = 0; i < b->n_sets; i++) {
		b->constant[i].weight = b->sets[i].weight;
		if (b->sets[i].weights.n)
			b->weights[i] = b->sets[i].weights;
		else if (b->sets[i].passes == 0)
			b->weights[i] = (struct vfm_mix_weights){&b->constant[i], 1};
	}
}

static void init_streams(struct vfm_blend *b)
{
	bool one = b->mode == BLEND_PASSES;

	b->n_streams = one ? 1 : b->n_sets;
	b->streams = vfm_calloc((size_t)b->n_streams, sizeof(*b->streams));
	b->heap = vfm_calloc((size_t)b->n_streams, sizeof(*b->heap));
	for (int32_t i = 0; i < b->n_streams; i++) {
		const struct vfm_blend_set *set = &b->sets[i];

		b->heap[i] = i;
		b->streams[i] = (struct sample_stream){.set = one && b->n_sets > 1 ? -1 : i,
			.range = one ? b->chosen[b->n_sets] : vfm_blend_selected(set),
			.n = one ? vfm_blend_n(b) : set->n,
			.id = (uint64_t)i,
			.weight = one             ? 1
				: set->passes > 0 ? set->passes * (double)set->total_tokens
						  : set->weight,
			.more = last_sample(set)};
	}
}

static void begin_epoch(struct vfm_blend *b);

struct vfm_blend *vfm_blend_new(const struct vfm_blend_set *sets, int32_t n_sets, uint64_t seed, struct vfm_err *err)
{
	struct vfm_blend *b = vfm_calloc(1, sizeof(*b));
	int64_t repeated = 0;
	int rc;

	*b = (struct vfm_blend){.sets = sets, .n_sets = n_sets, .seed = seed};
	b->base = vfm_calloc((size_t)n_sets + 1, sizeof(*b->base));
	b->chosen = vfm_calloc((size_t)n_sets + 1, sizeof(*b->chosen));
	TRY_OUT(check_sets(sets, n_sets, &b->mode, err));
	for (int32_t i = 0; i < n_sets; i++) {
		b->base[i + 1] = b->base[i] + sets[i].records;
		b->chosen[i + 1] = b->chosen[i] + vfm_blend_selected(&sets[i]);
		repeated += sets[i].passes > 0 ? last_sample(&sets[i]) > 0 : 1;
	}
	if (b->base[n_sets] > (int64_t)UINT32_MAX) {
		rc = vfm_fail(err, VFM_EUSAGE, "more than %u samples; make several plans", UINT32_MAX);
		goto out;
	}
	if (vfm_blend_n(b) == 0 || !repeated) {
		rc = vfm_fail(err, VFM_EUSAGE, "no set has usable samples");
		goto out;
	}
	init_streams(b);
	if (b->mode == BLEND_REPEATED)
		begin_epoch(b);
	if (b->mode == BLEND_STEERED) {
		collect_weights(b);
		TRY_OUT(check_weights(b, err));
	}
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
	free(b->chosen);
	free(b->weights);
	free(b->constant);
	free(b->share);
	free(b);
}

/* Returns the set i with first[i] <= x < first[i + 1]. */
static int32_t find_set(const int64_t *first, int32_t n_sets, int64_t x)
{
	int32_t lo = 0, hi = n_sets;

	while (hi - lo > 1) {
		int32_t mid = lo + (hi - lo) / 2;

		if (first[mid] <= x)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

/* Looks up the next positions of the permutation together: the loads of their lengths overlap. */
static void look_ahead(const struct vfm_blend *b, struct sample_stream *s)
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
		int64_t x = (int64_t)vfm_permuted(&s->order, (uint64_t)(s->at + i));
		int32_t set = s->set;

		if (set < 0) {
			set = find_set(b->chosen, b->n_sets, x);
			x -= b->chosen[set];
		}
		record[i] = b->sets[set].is_part ? vfm_selection_at(&b->sets[set].selection, x) : x;
		sample[i] = (uint32_t)(b->base[set] + record[i]);
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

static struct vfm_blend_sample stream_next(const struct vfm_blend *b, struct sample_stream *s)
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

/* Restores the order of the heap after the stream at heap[at] was delayed. */
static void restore_turns(struct vfm_blend *b, int32_t at)
{
	for (int32_t child; (child = 2 * at + 1) < b->n_streams; at = child) {
		int32_t x = b->heap[at];

		if (child + 1 < b->n_streams && is_before(b, b->heap[child + 1], b->heap[child]))
			child++;
		if (is_before(b, x, b->heap[child]))
			return;
		b->heap[at] = b->heap[child];
		b->heap[child] = x;
	}
}

static void order_turns(struct vfm_blend *b)
{
	for (int32_t at = b->n_streams / 2; at-- > 0;)
		restore_turns(b, at);
}

/* BLEND_REPEATED: gives each set the samples of its passes.  One has some. */
static void begin_epoch(struct vfm_blend *b)
{
	double e = (double)b->epoch;

	for (int32_t i = 0; i < b->n_streams; i++) {
		struct sample_stream *s = &b->streams[i];
		double passes = b->sets[i].passes;

		s->more = samples_of_passes(s->n, passes * (e + 1)) - samples_of_passes(s->n, passes * e);
		s->tokens = 0;
		s->due = s->more ? 0 : INFINITY;
	}
	order_turns(b);
}

/* Returns the next sample of a stream, and postpones its turn; at: its place in the heap. */
static struct vfm_blend_sample take_turn(struct vfm_blend *b, int32_t at)
{
	struct sample_stream *s = &b->streams[b->heap[at]];
	struct vfm_blend_sample x = stream_next(b, s);

	s->tokens += x.tokens;
	s->due = --s->more ? s->tokens / s->weight : INFINITY;
	restore_turns(b, at);
	return x;
}

struct vfm_blend_sample vfm_blend_next(struct vfm_blend *b, bool *ends_pass)
{
	struct vfm_blend_sample x;

	if (b->mode == BLEND_PASSES) {
		x = stream_next(b, &b->streams[0]);
		*ends_pass = b->streams[0].left == 0;
		return x;
	}
	x = take_turn(b, 0);
	*ends_pass = b->mode == BLEND_REPEATED && isinf(b->streams[b->heap[0]].due);
	if (*ends_pass) {
		b->epoch++;
		begin_epoch(b);
	}
	return x;
}

int32_t vfm_blend_find(const struct vfm_blend *b, uint32_t sample, int64_t *record)
{
	int32_t set = find_set(b->base, b->n_sets, sample);

	*record = (int64_t)sample - b->base[set];
	return set;
}

int32_t vfm_blend_n_sets(const struct vfm_blend *b)
{
	return b->n_sets;
}

int64_t vfm_blend_n(const struct vfm_blend *b)
{
	int64_t n = 0;

	for (int32_t i = 0; i < b->n_sets; i++)
		n += b->sets[i].n;
	return n;
}

double vfm_blend_budget(const struct vfm_blend *b, double epochs, bool *in_tokens)
{
	double sum = 0;

	*in_tokens = b->mode == BLEND_WEIGHTED || b->mode == BLEND_STEERED;
	for (int32_t i = 0; i < b->n_sets; i++) {
		const struct vfm_blend_set *set = &b->sets[i];

		if (b->mode == BLEND_REPEATED)
			sum += (double)samples_of_passes(set->n, set->passes * epochs);
		else
			sum += (double)(*in_tokens ? set->total_tokens : set->n);
	}
	if (b->mode == BLEND_REPEATED)
		return sum;
	return *in_tokens ? sum * epochs : nearbyint(sum * epochs);
}

/* ---- steered blends ---- */

#define MOST_PASSES_SHARE 0.999 /* of the sets with passes together: the others always get something */

bool vfm_blend_is_steered(const struct vfm_blend *b)
{
	return b->mode == BLEND_STEERED;
}

/* Returns about how many tokens a set with passes has yet to return. */
static double tokens_to_come(const struct vfm_blend *b, int32_t i)
{
	const struct vfm_blend_set *set = &b->sets[i];

	return set->passes > 0 ? (double)b->streams[i].more * (double)set->total_tokens / (double)set->n : 0;
}

void vfm_blend_steer(struct vfm_blend *b, double step, double tokens_left)
{
	double now = b->streams[b->heap[0]].due, of_passes = 0, scale;

	vfm_mix_shares(b->weights, b->n_sets, step, b->share);
	for (int32_t i = 0; i < b->n_sets; i++)
		of_passes += tokens_to_come(b, i);
	scale = fmax(tokens_left, of_passes / MOST_PASSES_SHARE);
	for (int32_t i = 0; i < b->n_streams; i++) {
		struct sample_stream *s = &b->streams[i];

		if (!isinf(s->due)) /* its tokens in excess of its share, up to one sample */
			s->tokens = (s->due - now) * s->weight;
		s->weight = b->sets[i].passes > 0 ? tokens_to_come(b, i) / scale
						  : b->share[i] * (1 - (scale > 0 ? of_passes / scale : 0));
		s->due = s->more && s->weight > 0 ? s->tokens / s->weight : INFINITY;
	}
	order_turns(b);
}

int64_t vfm_blend_left(const struct vfm_blend *b, double *tokens)
{
	int64_t left = 0;

	*tokens = 0;
	for (int32_t i = 0; i < b->n_sets; i++) {
		left += b->sets[i].passes > 0 ? b->streams[i].more : 0;
		*tokens += tokens_to_come(b, i);
	}
	return left;
}

struct vfm_blend_sample vfm_blend_next_left(struct vfm_blend *b)
{
	int32_t at = 0;

	while (b->sets[b->heap[at]].passes == 0 || b->streams[b->heap[at]].more == 0)
		at++;
	return take_turn(b, at);
}

int vfm_blend_check_passes(const struct vfm_blend *b, const int64_t *got, struct vfm_err *err)
{
	for (int32_t i = 0; i < b->n_sets; i++) {
		const struct vfm_blend_set *set = &b->sets[i];

		if (set->passes > 0 && got[i] < samples_of_passes(set->n, set->passes))
			return vfm_fail(err, VFM_EUSAGE,
				"set '%s': the steps have room for %lld of the %lld samples of %g passes", set->name,
				(long long)got[i], (long long)samples_of_passes(set->n, set->passes), set->passes);
	}
	return 0;
}

double vfm_blend_next_point(const struct vfm_blend *b, double step)
{
	return vfm_mix_next_point(b->weights, b->n_sets, step);
}

double vfm_blend_steady(const struct vfm_blend *b, double step, double to, double change)
{
	return vfm_mix_steady(b->weights, b->n_sets, step, to, change);
}

void vfm_blend_requested(const struct vfm_blend_set *sets, int32_t n, int64_t steps, double tokens, double *share)
{
	struct vfm_mix_weights *w = vfm_calloc((size_t)n, sizeof(*w));
	struct vfm_weight_point *constant = vfm_calloc((size_t)n, sizeof(*constant));
	double of_passes = 0, all = 0;
	bool weighted = false;

	for (int32_t i = 0; i < n; i++) {
		of_passes += sets[i].passes * (double)sets[i].total_tokens;
		all += (double)sets[i].total_tokens;
		weighted |= has_weight(&sets[i]);
		constant[i].weight = sets[i].weight;
		w[i] = sets[i].weights.n ? sets[i].weights : (struct vfm_mix_weights){&constant[i], 1};
	}
	tokens = weighted ? fmax(tokens, of_passes) : of_passes;
	vfm_mix_mean(w, n, 0, steps > 0 ? (double)steps : 1, share);
	for (int32_t i = 0; i < n; i++)
		if (sets[i].passes > 0)
			share[i] = sets[i].passes * (double)sets[i].total_tokens / tokens;
		else if (!weighted)
			share[i] = (double)sets[i].total_tokens / all;
		else if (of_passes > 0)
			share[i] *= 1 - of_passes / tokens;
	for (int32_t i = 0; i < n; i++)
		share[i] = fmin(share[i], 1); /* sums of rounded numbers */
	free(w);
	free(constant);
}
