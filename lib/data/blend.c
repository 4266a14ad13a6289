#include "data/blend.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
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

/* Adds a usable sample.  Those that are held out fill the arrays from the end. */
static void add_blend_sample(struct vfm_blend_set *set, int64_t i, int64_t tokens, bool held)
{
	int64_t at = held ? set->records - ++set->n_held : set->n++;

	set->record[at] = (uint32_t)i;
	set->tokens[at] = (int32_t)tokens;
	*(held ? &set->held_tokens : &set->total_tokens) += tokens;
}

/* held [records]: what is held out; NULL: nothing. */
static int scan_records(
	struct vfm_blend_set *set, const int32_t patch[3], int32_t context, const bool *held, struct vfm_err *err)
{
	for (int64_t i = 0; i < set->records; i++) {
		struct vfm_record r;
		int32_t dims[3], grid[3];
		int64_t tokens;

		TRY(vfm_index_at(set->ix, (uint64_t)i, &r, err));
		TRY(same_width(set, &r, (uint64_t)i, err));
		TRY(check_texts(set, &r, err));
		TRY(check_extras_of(set, &r, (uint64_t)i, err));
		dims[0] = r.t, dims[1] = r.h, dims[2] = r.w;
		tokens = vfm_patch_grid(dims, patch, grid, NULL);
		if (tokens < 0 || grid[0] > INT16_MAX || grid[1] > INT16_MAX || grid[2] > INT16_MAX) {
			set->n_ragged++;
		} else if (tokens > context) {
			set->n_long++;
		} else {
			add_blend_sample(set, i, tokens, held && held[i]);
		}
	}
	return 0;
}

int vfm_blend_scan(
	struct vfm_blend_set *set, const int32_t patch[3], int32_t context, double held_out, struct vfm_err *err)
{
	bool *held = NULL;
	size_t size;
	int rc;

	TRY_OUT(vfm_index_open(&set->ix, set->dir, err));
	set->records = (int64_t)vfm_index_n_records(set->ix);
	if (set->records > (int64_t)UINT32_MAX) {
		rc = vfm_fail(err, VFM_EUSAGE, "set '%s': more than %u samples; split it", set->name, UINT32_MAX);
		goto out;
	}
	TRY_OUT(vfm_index_sha256(set->ix, set->sha256, err));
	size = (size_t)(set->records ? set->records : 1) * 4;
	set->record = vfm_big_alloc(size, "sample numbers", err);
	set->tokens = vfm_big_alloc(size, "sample lengths", err);
	if (!set->record || !set->tokens) {
		rc = VFM_EENV;
		goto out;
	}
	if (held_out > 0) {
		held = vfm_big_alloc(size / 4, "the samples that are held out", err);
		rc = held ? vfm_split_read(set->ix, held_out, held, err) : VFM_EENV;
	}
	if (rc == 0)
		rc = scan_records(set, patch, context, held, err);
	vfm_big_free(held, size / 4);
	if (rc < 0) {
		vfm_err_context(err, "set '%s'", set->name);
		rc = rc == VFM_EINPUT ? VFM_EUSAGE : rc;
		goto out;
	}
	rc = vfm_index_check(set->ix, set->sha256, err);
out:
	return rc;
}

struct vfm_blend_set vfm_blend_held_out(const struct vfm_blend_set *set)
{
	struct vfm_blend_set held = *set;

	held.weight = 0;
	held.n = set->n_held;
	held.total_tokens = set->held_tokens;
	held.record += set->records - set->n_held;
	held.tokens += set->records - set->n_held;
	held.n_held = held.held_tokens = 0;
	held.may_be_empty = true;
	return held;
}

void vfm_blend_set_release(struct vfm_blend_set *set)
{
	size_t size = (size_t)(set->records ? set->records : 1) * 4;

	vfm_index_close(set->ix);
	vfm_big_free(set->record, size);
	vfm_big_free(set->tokens, size);
	*set = (struct vfm_blend_set){0};
}

/* ---- the order ---- */

struct stream { /* samples first .. first + n - 1, again and again, each pass in another order */
	uint32_t first;
	int64_t n, at;
	uint64_t pass;
	uint32_t *order;
	double weight, tokens;
};

struct vfm_blend {
	const struct vfm_blend_set *sets;
	int32_t n_sets, n_streams;
	int64_t *base; /* [n_sets + 1] */
	struct stream *streams;
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

static int stream_init(struct stream *s, int64_t first, int64_t n, double weight, struct vfm_err *err)
{
	*s = (struct stream){.first = (uint32_t)first, .n = n, .weight = weight};
	s->order = vfm_big_alloc((size_t)n * 4, "the order of the samples", err);
	return s->order ? 0 : VFM_EENV;
}

static int check_sets(const struct vfm_blend_set *sets, int32_t n_sets, bool *weighted, struct vfm_err *err)
{
	int32_t with = 0;

	for (int32_t i = 0; i < n_sets; i++) {
		if (sets[i].n < 1 && !sets[i].may_be_empty)
			return vfm_fail(err, VFM_EUSAGE, "set '%s' has no usable samples", sets[i].name);
		with += sets[i].weight > 0;
	}
	if (with != 0 && with != n_sets)
		return vfm_fail(err, VFM_EUSAGE, "either all sets have a weight > 0 or none");
	*weighted = with != 0;
	return 0;
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
		total += sets[i].n;
	}
	b->base[n_sets] = total;
	if (total > (int64_t)UINT32_MAX) {
		rc = vfm_fail(err, VFM_EUSAGE, "more than %u samples; make several manifests", UINT32_MAX);
		goto out;
	}
	b->streams = vfm_calloc((size_t)n_sets, sizeof(*b->streams));
	b->n_streams = b->weighted ? n_sets : 1;
	for (int32_t i = 0; i < b->n_streams; i++)
		TRY_OUT(stream_init(&b->streams[i], b->base[i], b->weighted ? sets[i].n : total,
			b->weighted ? sets[i].weight : 1, err));
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
	for (int32_t i = 0; i < b->n_streams; i++)
		vfm_big_free(b->streams[i].order, (size_t)b->streams[i].n * 4);
	free(b->streams);
	free(b->base);
	free(b);
}

static uint32_t stream_next(struct stream *s, uint64_t seed, uint64_t id)
{
	if (s->at == 0) {
		for (int64_t i = 0; i < s->n; i++)
			s->order[i] = s->first + (uint32_t)i;
		vfm_shuffle(s->order, s->n, seed, s->pass++, id);
	}
	uint32_t sample = s->order[s->at++];

	if (s->at == s->n)
		s->at = 0;
	return sample;
}

uint32_t vfm_blend_next(struct vfm_blend *b, bool *ends_pass)
{
	int32_t best = 0;
	uint32_t sample;

	for (int32_t i = 1; i < b->n_streams; i++)
		if (b->streams[i].tokens / b->streams[i].weight < b->streams[best].tokens / b->streams[best].weight)
			best = i;
	sample = stream_next(&b->streams[best], b->seed, (uint64_t)best);
	b->streams[best].tokens += vfm_blend_tokens(b, sample);
	*ends_pass = !b->weighted && b->streams[best].at == 0;
	return sample;
}

int32_t vfm_blend_find(const struct vfm_blend *b, uint32_t sample, int64_t *i)
{
	int32_t lo = 0, hi = b->n_sets; /* base[lo] <= sample < base[hi] */

	while (hi - lo > 1) {
		int32_t mid = lo + (hi - lo) / 2;

		if (b->base[mid] <= (int64_t)sample)
			lo = mid;
		else
			hi = mid;
	}
	*i = (int64_t)sample - b->base[lo];
	return lo;
}

int32_t vfm_blend_tokens(const struct vfm_blend *b, uint32_t sample)
{
	int64_t i;
	int32_t set = vfm_blend_find(b, sample, &i);

	return b->sets[set].tokens[i];
}

bool vfm_blend_weighted(const struct vfm_blend *b)
{
	return b->weighted;
}

int64_t vfm_blend_n(const struct vfm_blend *b)
{
	return b->base[b->n_sets];
}

int64_t vfm_blend_total_tokens(const struct vfm_blend *b)
{
	int64_t sum = 0;

	for (int32_t i = 0; i < b->n_sets; i++)
		sum += b->sets[i].total_tokens;
	return sum;
}
