/* Packing as properties over many random heaps of lengths; blending; whole plans. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/plan/pack.h"
#include "data/plan/pack_mbs.h"
#include "data/plan/split.h"
#include "data/record/sample_key.h"
#include "io/file.h"

static uint64_t rnd_state;

static int64_t rnd(int64_t n)
{
	rnd_state = rnd_state * 6364136223846793005u + 1442695040888963407u;
	return (int64_t)((rnd_state >> 33) % (uint64_t)n);
}

static void random_lengths(int32_t *len, int64_t n, int32_t context)
{
	int kind = (int)rnd(4);

	for (int64_t i = 0; i < n; i++) {
		if (kind == 0)
			len[i] = 1 + (int32_t)rnd(context);
		else if (kind == 1) /* few different lengths */
			len[i] = (int32_t)(1 + rnd(3)) * (context / 4 > 0 ? context / 4 : 1);
		else if (kind == 2) /* many small ones, few that fill a pack */
			len[i] = rnd(10) ? 1 + (int32_t)rnd(context / 16 + 1) : context;
		else
			len[i] = context / 2 + (int32_t)rnd(context / 2 + 1) + (context == 1);
		if (len[i] > context)
			len[i] = context;
		if (len[i] < 1)
			len[i] = 1;
	}
}

/* Every item in one bin, no bin empty or too full; returns the number of bins. */
static int64_t check_bins(const struct vfm_bins *b, const int32_t *len, int64_t n, int32_t context)
{
	char *seen = vfm_calloc((size_t)n, 1);

	assert_int_equal(b->first[0], 0);
	assert_int_equal(b->first[b->n_bins], n);
	for (int64_t i = 0; i < b->n_bins; i++) {
		int64_t sum = 0;

		assert_true(b->first[i + 1] > b->first[i]);
		for (int64_t k = b->first[i]; k < b->first[i + 1]; k++) {
			assert_true(b->item[k] < n);
			assert_int_equal(seen[b->item[k]]++, 0);
			sum += len[b->item[k]];
		}
		assert_true(sum <= context);
	}
	free(seen);
	return b->n_bins;
}

static struct vfm_bins pack_items(const int32_t *len, int64_t n, int32_t context)
{
	struct vfm_bins b = {0};
	struct vfm_mbs m;

	vfm_mbs_init(&m, context, 1);
	vfm_mbs_pack(&m, &b, len, n, 0, true);
	vfm_mbs_release(&m);
	return b;
}

/* Minimum bin slack opens each bin with the longest item that is left, unless there are enough items for a linear
 * program; equal ones are taken in their order. */
static void check_longest_first(const struct vfm_bins *b, const int32_t *len)
{
	for (int64_t i = 0; i < b->n_bins; i++) {
		assert_true(i == 0 || b->first[b->n_bins] >= 64 ||
			len[b->item[b->first[i]]] <= len[b->item[b->first[i - 1]]]);
		for (int64_t k = b->first[i]; k + 1 < b->first[i + 1]; k++)
			assert_true(len[b->item[k]] > len[b->item[k + 1]] ||
				(len[b->item[k]] == len[b->item[k + 1]] && b->item[k] < b->item[k + 1]));
	}
}

static void bins_are_right(void **state)
{
	(void)state;
	for (int round = 0; round < 600; round++) {
		int64_t n = 1 + rnd(round % 10 ? 60 : 400);
		int32_t context = 1 + (int32_t)rnd(round % 3 ? 50 : 5000), len[400];
		struct vfm_bins b;

		random_lengths(len, n, context);
		b = pack_items(len, n, context);
		check_bins(&b, len, n, context);
		check_longest_first(&b, len);
		vfm_bins_release(&b);
	}
}

/* Contents that fill a bin exactly are found, where first fit decreasing leaves room. */
static void slack_is_minimal(void **state)
{
	static const int32_t len[6] = {6, 5, 4, 3, 1, 1}; /* 6 + 3 + 1, 5 + 4 + 1; first fit: 6 4, 5 3 1 1 */
	static const int32_t odd[7] = {44, 24, 24, 22, 21, 17, 8};
	int32_t many[3000];
	struct vfm_bins b;

	(void)state;
	b = pack_items(len, 6, 10);
	assert_int_equal(b.n_bins, 2);
	vfm_bins_release(&b);
	b = pack_items(odd, 7, 61); /* 44 17, 24 21 8, 24 22 */
	assert_int_equal(b.first[1], 2);
	assert_int_equal(odd[b.item[0]] + odd[b.item[1]], 61);
	vfm_bins_release(&b);
	for (int i = 0; i < 3000; i += 3) { /* 1000 bins of 8192 exactly; first fit decreasing needs more */
		many[i] = 2731 + (int32_t)rnd(1000);
		many[i + 1] = 1 + (int32_t)rnd(2000);
		many[i + 2] = 8192 - many[i] - many[i + 1];
	}
	b = pack_items(many, 3000, 8192);
	assert_true(check_bins(&b, many, 3000, 8192) <= 1003);
	vfm_bins_release(&b);
}

/* The linear program: where greedy searches fail. */
static void few_lengths_are_optimal(void **state)
{
	static const int32_t lens[5] = {3100, 2300, 1700, 1100, 450};
	enum { N = 30000 };
	int32_t *len = vfm_calloc(N, sizeof(*len));
	int64_t tokens = 0;
	struct vfm_bins b;

	(void)state;
	for (int i = 0; i < N; i++) {
		len[i] = lens[rnd(5)];
		tokens += len[i];
	}
	b = pack_items(len, N, 8192);
	assert_true(
		(double)tokens > 0.99 * 8192 * (double)check_bins(&b, len, N, 8192)); /* first fit decreasing: 0.97 */
	vfm_bins_release(&b);
	free(len);
}

/* ---- plans ---- */

struct world {
	struct vfm_blend_set sets[3];
	int n_sets;
	int64_t n;
};

static void add_set(struct world *w, int64_t n, double weight, int32_t image, int32_t video, int video_percent)
{
	struct vfm_blend_set *s = &w->sets[w->n_sets++];

	*s = (struct vfm_blend_set){.name = "set", .dir = "dir", .weight = weight, .records = n, .n = n};
	assert_int_equal(vfm_lengths_init(&s->lengths, n, video > image ? video : image, NULL), 0);
	for (int64_t i = 0; i < n; i++) {
		int32_t tokens = rnd(100) < video_percent ? video / 16 * (int32_t)(1 + rnd(16)) : image;

		assert_int_equal(vfm_lengths_put(&s->lengths, i, tokens, NULL), 0);
		s->total_tokens += tokens;
	}
	w->n += n;
}

static void world_release(struct world *w)
{
	for (int i = 0; i < w->n_sets; i++)
		vfm_lengths_release(&w->sets[i].lengths);
}

/* A plan and its packs. */
struct whole {
	struct vfm_packing p;
	struct vfm_packing_pack *packs; /* [n_packs]; samples: not valid */
	int64_t *first;                 /* [n_packs] of a pack's samples */
	struct vfm_blend_sample *samples;
	int64_t n_packs, n_samples;
	size_t cap_packs, cap_first, cap_samples;
};

static int keep_pack(void *ctx, const struct vfm_packing_pack *p, struct vfm_err *err)
{
	struct whole *w = ctx;

	(void)err;
	vfm_grow(&w->packs, &w->cap_packs, (size_t)w->n_packs + 1, sizeof(*w->packs));
	vfm_grow(&w->first, &w->cap_first, (size_t)w->n_packs + 1, sizeof(*w->first));
	vfm_grow(&w->samples, &w->cap_samples, (size_t)(w->n_samples + p->n), sizeof(*w->samples));
	w->packs[w->n_packs] = *p;
	w->first[w->n_packs++] = w->n_samples;
	memcpy(w->samples + w->n_samples, p->samples, (size_t)p->n * sizeof(*w->samples));
	w->n_samples += p->n;
	return 0;
}

static void whole_release(struct whole *w)
{
	vfm_packing_release(&w->p);
	free(w->packs);
	free(w->first);
	free(w->samples);
}

static int make_whole(struct whole *w, struct vfm_blend *b, const struct vfm_packing_opts *o, struct vfm_err *err)
{
	*w = (struct whole){0};
	return vfm_packing_make(&w->p, b, o, keep_pack, w, err);
}

/* What must hold of every plan; fills count[sample]. */
static void check_plan(const struct whole *w, const struct world *d, const struct vfm_blend *b,
	const struct vfm_packing_opts *o, int32_t *count)
{
	const struct vfm_packing *p = &w->p;
	double tokens = 0;
	int64_t part = 0;

	assert_int_equal(p->n_packs, w->n_packs);
	assert_int_equal(p->n_samples, w->n_samples);
	assert_true(p->steps > 0);
	for (int64_t k = 0; k < p->n_packs; k++) {
		const struct vfm_packing_pack *pk = &w->packs[k];
		int64_t sum = 0;
		double cost = o->cost.c;

		assert_int_equal(pk->step, part / o->batch);
		assert_int_equal(pk->pack, part % o->batch);
		assert_int_equal(pk->pack % pk->parts, 0);
		assert_true(pk->parts >= 1 && pk->parts <= (o->cp ? o->cp : 1));
		part += pk->parts;
		assert_true(pk->n > 0);
		for (int32_t i = 0; i < pk->n; i++) {
			struct vfm_blend_sample s = w->samples[w->first[k] + i];
			int64_t record;
			int32_t set = vfm_blend_find(b, s.sample, &record);
			double t = s.tokens;

			assert_true(s.sample < vfm_blend_n(b));
			assert_int_equal(s.tokens, vfm_lengths_get(&d->sets[set].lengths, record));
			count[s.sample]++;
			sum += s.tokens;
			cost += o->cost.a * t + o->cost.b * t * t;
		}
		tokens += (double)sum;
		assert_int_equal(sum, pk->tokens);
		assert_true(sum <= (int64_t)o->context * pk->parts);
		assert_true(fabs(cost - pk->cost) <= 1e-9 * cost);
	}
	assert_int_equal(part, p->steps * o->batch);
	assert_true(fabs(p->fill - tokens / ((double)part * o->context)) < 1e-12);
}

static struct vfm_packing_opts plain_opts(void)
{
	return (struct vfm_packing_opts){
		.context = 1024, .batch = 1, .epochs = 1, .seed = 7, .window = 500, .cost = vfm_pack_cost_default()};
}

static void each_sample_once_an_epoch(void **state)
{
	struct vfm_err err = {0};

	(void)state;
	for (int round = 0; round < 60; round++) {
		struct world w = {0};
		struct vfm_packing_opts o = plain_opts();
		struct whole p;
		struct vfm_blend *b;
		int32_t *count, epochs = 1 + (int32_t)rnd(3);

		add_set(&w, 1 + rnd(3000), 0, 32, 1024, 20);
		if (round % 2)
			add_set(&w, 1 + rnd(500), 0, 64, 512, 50);
		o.epochs = epochs;
		o.balance_cost = round % 5 == 0;
		o.batch = round % 4 ? 1 : 4;
		o.window = 1 + rnd(2000);
		b = vfm_blend_new(w.sets, w.n_sets, o.seed, &err);
		count = vfm_calloc((size_t)w.n, sizeof(*count));
		assert_int_equal(make_whole(&p, b, &o, &err), 0);
		check_plan(&p, &w, b, &o, count);
		assert_true(p.p.filled_packs < o.batch);
		for (int64_t i = 0; i < w.n; i++) {
			assert_true(count[i] >= epochs); /* more only where another pass filled the last step */
			if (!p.p.filled_packs)
				assert_int_equal(count[i], epochs);
		}
		whole_release(&p);
		vfm_blend_free(b);
		free(count);
		world_release(&w);
	}
}

/* The same with packs of several parts, of samples of up to 4 (cp 4) or 2 contexts. */
static void parts_follow_the_lengths(void **state)
{
	struct vfm_err err = {0};

	(void)state;
	for (int round = 0; round < 80; round++) {
		struct world w = {0};
		struct vfm_packing_opts o = plain_opts();
		int64_t needless = 0;
		struct vfm_blend *b;
		struct whole p;
		int32_t *count;

		add_set(&w, 1 + rnd(3000), 0, 32, 1024, (int)rnd(100));
		if (round % 2)
			add_set(&w, 1 + rnd(500), 0, 64, 512, 50);
		o.cp = 4 << round % 3;
		o.context = 1024 / (round % 4 ? o.cp : 4);
		o.epochs = 1 + (double)rnd(2);
		o.one_each = round % 4 == 0;
		o.balance_cost = round % 5 < 2;
		o.batch = o.cp * (int32_t)(1 + rnd(3));
		o.window = 1 + rnd(2000);
		b = vfm_blend_new(w.sets, w.n_sets, o.seed, &err);
		count = vfm_calloc((size_t)w.n, sizeof(*count));
		assert_int_equal(make_whole(&p, b, &o, &err), 0);
		check_plan(&p, &w, b, &o, count);
		for (int64_t i = 0; i < w.n; i++) {
			assert_true(count[i] >= (int32_t)o.epochs);
			if (!p.p.filled_packs)
				assert_int_equal(count[i], (int32_t)o.epochs);
		}
		for (int64_t k = 0; k < p.n_packs; k++) { /* a pack has more parts than it needs only at the end */
			int32_t longest = 0;

			for (int32_t i = 0; i < p.packs[k].n; i++) {
				struct vfm_blend_sample s = p.samples[p.first[k] + i];

				longest = s.tokens > longest ? s.tokens : longest;
			}
			needless += p.packs[k].parts - vfm_bin_parts(longest, o.context);
		}
		assert_true(needless < o.cp);
		whole_release(&p);
		vfm_blend_free(b);
		free(count);
		world_release(&w);
	}
}

/* Packs that share a group are of similar cost, and so are those of a step. */
static void parts_are_balanced(void **state)
{
	struct world w = {0};
	struct vfm_packing_opts o = plain_opts();
	struct vfm_err err = {0};
	struct whole by_cost, by_tokens;
	struct vfm_blend *b;

	(void)state;
	add_set(&w, 20000, 0, 256, 16384, 30);
	o.context = 4096;
	o.cp = 4;
	o.batch = 32;
	o.window = 0;
	b = vfm_blend_new(w.sets, 1, o.seed, &err);
	assert_int_equal(make_whole(&by_tokens, b, &o, &err), 0);
	vfm_blend_free(b);
	o.balance_cost = true;
	b = vfm_blend_new(w.sets, 1, o.seed, &err);
	assert_int_equal(make_whole(&by_cost, b, &o, &err), 0);
	vfm_blend_free(b);
	assert_true(by_tokens.p.fill > 0.99 && by_cost.p.fill > 0.99);
	assert_true(by_tokens.p.imbalance_cost > 1.2);
	assert_true(by_cost.p.imbalance_cost < 1.03);
	whole_release(&by_cost);
	whole_release(&by_tokens);
	world_release(&w);
}

/* Within a pass too: with one set and batch 1, the first n samples of the plan are a permutation. */
static void passes_do_not_mix(void **state)
{
	struct world w = {0};
	struct vfm_packing_opts o = plain_opts();
	struct vfm_err err = {0};
	struct whole p;
	struct vfm_blend *b;
	int32_t *count;
	int64_t k = 0;

	(void)state;
	add_set(&w, 1777, 0, 32, 1024, 20);
	o.epochs = 3;
	b = vfm_blend_new(w.sets, 1, o.seed, &err);
	assert_int_equal(make_whole(&p, b, &o, &err), 0);
	count = vfm_calloc((size_t)w.n, sizeof(*count));
	for (int pass = 1; pass <= 3; pass++) {
		for (int64_t seen = 0; seen < w.n; k++) {
			for (int32_t i = 0; i < p.packs[k].n; i++)
				assert_int_equal(++count[p.samples[p.first[k] + i].sample], pass);
			seen += p.packs[k].n;
			assert_true(seen <= w.n);
		}
	}
	assert_int_equal(k, p.p.n_packs);
	whole_release(&p);
	vfm_blend_free(b);
	free(count);
	world_release(&w);
}

static bool same_plan(const struct whole *a, const struct whole *b)
{
	return a->n_packs == b->n_packs && a->n_samples == b->n_samples &&
		!memcmp(a->first, b->first, (size_t)a->n_packs * sizeof(*a->first)) &&
		!memcmp(a->samples, b->samples, (size_t)a->n_samples * sizeof(*a->samples));
}

static void make(struct whole *p, const struct world *w, const struct vfm_packing_opts *o)
{
	struct vfm_err err = {0};
	struct vfm_blend *b = vfm_blend_new(w->sets, w->n_sets, o->seed, &err);

	assert_non_null(b);
	assert_int_equal(make_whole(p, b, o, &err), 0);
	vfm_blend_free(b);
}

static void seed_decides(void **state)
{
	struct world w = {0};
	struct vfm_packing_opts o = plain_opts();
	struct whole a, b, c;

	(void)state;
	add_set(&w, 3000, 0.5, 32, 1024, 20);
	add_set(&w, 300, 0.5, 64, 512, 50);
	o.batch = 4;
	make(&a, &w, &o);
	make(&b, &w, &o);
	o.seed++;
	make(&c, &w, &o);
	assert_true(same_plan(&a, &b));
	assert_false(same_plan(&a, &c));
	whole_release(&a);
	whole_release(&b);
	whole_release(&c);
	world_release(&w);
}

static void shares_are_reached(void **state)
{
	static const double weight[3] = {0.7, 0.2, 0.1};
	struct vfm_err err = {0};

	(void)state;
	for (int round = 0; round < 4; round++) {
		struct world w = {0};
		struct vfm_packing_opts o = plain_opts();
		struct whole p;
		struct vfm_blend *b;
		double tokens[3] = {0}, all = 0;

		add_set(&w, 500, weight[0], 32, 1024, 10); /* must be repeated */
		add_set(&w, 20000, weight[1], 64, 512, 50);
		add_set(&w, 4000, weight[2], 16, 1024, 90);
		o.batch = 8;
		o.window = 2000;
		o.balance_cost = round % 2;
		o.steps = round / 2 ? 200 : 0;
		b = vfm_blend_new(w.sets, w.n_sets, o.seed, &err);
		assert_int_equal(make_whole(&p, b, &o, &err), 0);
		for (int64_t k = 0; k < p.p.n_packs; k++)
			for (int32_t i = 0; i < p.packs[k].n; i++) {
				struct vfm_blend_sample x = p.samples[p.first[k] + i];
				int64_t at;

				tokens[vfm_blend_find(b, x.sample, &at)] += x.tokens;
				all += x.tokens;
			}
		for (int i = 0; i < 3; i++)
			assert_true(fabs(tokens[i] / all - weight[i]) < 0.01);
		for (int i = 0; i < 3; i++)
			assert_true((double)p.p.set_tokens[i] == tokens[i]);
		whole_release(&p);
		vfm_blend_free(b);
		world_release(&w);
	}
}

/* A set with few passes ends; the others keep their shares of what is left. */
static void passes_are_limited(void **state)
{
	struct world w = {0};
	struct vfm_err err = {0};
	struct vfm_blend *b;
	int64_t count[600] = {0}, n = 0, at;
	double tokens[3] = {0};
	bool ends;

	(void)state;
	add_set(&w, 500, 0.8, 32, 1024, 10);
	add_set(&w, 20000, 0.15, 64, 512, 50);
	add_set(&w, 4000, 0.05, 16, 1024, 90);
	w.sets[0].max_passes = 2.5;
	b = vfm_blend_new(w.sets, w.n_sets, 7, &err);
	assert_non_null(b);
	for (int i = 0; i < 20000; i++) {
		struct vfm_blend_sample x = vfm_blend_next(b, &ends);
		int32_t set = vfm_blend_find(b, x.sample, &at);

		n += set == 0;
		if (set == 0)
			count[at]++;
		tokens[set] += x.tokens;
	}
	assert_int_equal(n, 1250);
	for (int i = 0; i < 500; i++)
		assert_true(count[i] == 2 || count[i] == 3);
	assert_true(fabs(tokens[1] / (tokens[1] + tokens[2]) - 0.75) < 0.01);
	vfm_blend_free(b);
	for (int i = 0; i < 3; i++)
		w.sets[i].max_passes = 1;
	assert_null(vfm_blend_new(w.sets, w.n_sets, 7, &err));
	assert_int_equal(err.code, VFM_EUSAGE);
	world_release(&w);
}

static void steps_and_last(void **state)
{
	struct world w = {0};
	struct vfm_packing_opts o = plain_opts();
	struct vfm_err err = {0};
	struct whole p;
	struct vfm_blend *b;

	(void)state;
	add_set(&w, 90, 0, 32, 1024, 30);
	o.batch = 7;
	o.steps = 100; /* many passes */
	make(&p, &w, &o);
	assert_int_equal(p.p.steps, 100);
	whole_release(&p);
	o.steps = 0;
	o.batch = 5;
	o.drop_last = true;
	make(&p, &w, &o);
	assert_true(p.p.dropped_packs > 0 && p.p.dropped_packs < 5);
	assert_int_equal(p.p.n_samples + p.p.dropped_samples, 90);
	whole_release(&p);
	o.batch = 1000;
	b = vfm_blend_new(w.sets, 1, o.seed, &err);
	assert_int_equal(make_whole(&p, b, &o, &err), VFM_EUSAGE);
	whole_release(&p);
	vfm_blend_free(b);
	o.drop_last = false;
	make(&p, &w, &o);
	assert_int_equal(p.p.n_packs, 1000);
	assert_true(p.p.filled_packs > 900);
	whole_release(&p);
	world_release(&w);
}

/* 80 % images of 256 tokens, 20 % videos of up to 8192: dense, and no step much costlier in its largest pack. */
static void mixed_lengths_fill(void **state)
{
	struct world w = {0};
	struct vfm_packing_opts o = plain_opts();
	struct whole p, q;

	(void)state;
	add_set(&w, 20000, 0, 256, 8192, 20);
	o.context = 8192;
	o.batch = 16;
	o.window = 4096;
	make(&p, &w, &o);
	assert_true(p.p.fill > 0.95);
	o.balance_cost = true;
	make(&q, &w, &o);
	assert_true(q.p.fill > 0.95);
	assert_true(q.p.imbalance_cost < p.p.imbalance_cost);
	assert_true(q.p.imbalance_cost < 1.05);
	o.one_each = true;
	whole_release(&q);
	make(&q, &w, &o);
	assert_int_equal(q.p.n_packs - q.p.filled_packs, 20000);
	whole_release(&p);
	whole_release(&q);
	world_release(&w);
}

/* Images and videos of 74256 tokens: packs of both kinds in one step cost ten times as much as each other.  Steps of
 * similar cost do not lose or repeat a sample, and rare packs are not left to the end. */
static void costs_are_balanced(void **state)
{
	struct world w = {0};
	struct vfm_packing_opts o = plain_opts();
	struct vfm_err err = {0};
	struct whole tokens, cost;
	struct vfm_blend *b;
	int32_t *count;
	int64_t early = 0, all = 0;

	(void)state;
	add_set(&w, 300000, 0, 256, 74256, 0);
	add_set(&w, 3000, 0, 74256, 74256, 0);
	o.context = 75600;
	o.batch = 8;
	o.window = 0;
	make(&tokens, &w, &o);
	o.balance_cost = true;
	b = vfm_blend_new(w.sets, w.n_sets, o.seed, &err);
	assert_int_equal(make_whole(&cost, b, &o, &err), 0);
	assert_true(tokens.p.imbalance_cost > 1.2);
	assert_true(cost.p.imbalance_cost < 1.02);
	assert_true(cost.p.fill == tokens.p.fill);
	count = vfm_calloc((size_t)w.n, sizeof(*count));
	check_plan(&cost, &w, b, &o, count);
	for (int64_t i = 0; i < w.n; i++)
		assert_true(count[i] == 1 || (count[i] == 2 && cost.p.filled_packs));
	for (int64_t k = 0; k < cost.n_packs; k++) { /* packs of images */
		all += cost.packs[k].n > 100;
		early += cost.packs[k].n > 100 && k < cost.n_packs / 2;
	}
	assert_true(early > all / 4 && early < all - all / 4);
	whole_release(&tokens);
	whole_release(&cost);
	vfm_blend_free(b);
	free(count);
	world_release(&w);
}

/* Samples that are left out are never drawn, and the held-out ones only from their set. */
static void left_out_stay_out(void **state)
{
	struct vfm_blend_set s = {.name = "set", .dir = "dir", .records = 1000}, held;
	struct vfm_err err = {0};

	(void)state;
	assert_int_equal(vfm_lengths_init(&s.lengths, 1000, 9, &err), 0);
	for (int i = 0; i < 1000; i++) { /* 1 of 3 left out, 1 of 3 held out */
		assert_int_equal(vfm_lengths_put(&s.lengths, i, i % 3 == 0 ? 0 : i % 3 == 1 ? -5 : 7, &err), 0);
		s.n += i % 3 == 2;
		s.n_held += i % 3 == 1;
	}
	held = vfm_blend_held_out(&s);
	for (int side = 0; side < 2; side++) {
		struct vfm_blend *b = vfm_blend_new(side ? &held : &s, 1, 3, &err);
		int64_t drawn = 0;
		bool ends = false;

		assert_non_null(b);
		for (; !ends; drawn++) {
			struct vfm_blend_sample x = vfm_blend_next(b, &ends);

			assert_int_equal(x.sample % 3, side ? 1 : 2);
			assert_int_equal(x.tokens, side ? 5 : 7);
		}
		assert_int_equal(drawn, side ? s.n_held : s.n);
		vfm_blend_free(b);
	}
	vfm_lengths_release(&s.lengths);
}

static void weights_all_or_none(void **state)
{
	struct world w = {0};
	struct vfm_err err = {0};

	(void)state;
	add_set(&w, 10, 0.5, 32, 1024, 20);
	add_set(&w, 10, 0, 32, 1024, 20);
	assert_null(vfm_blend_new(w.sets, 2, 1, &err));
	assert_int_equal(err.code, VFM_EUSAGE);
	w.sets[0].n = 0;
	assert_null(vfm_blend_new(w.sets, 1, 1, &err));
	assert_non_null(strstr(err.msg, "no usable samples"));
	world_release(&w);
}

/* About the fraction is held out, a larger fraction holds out more, and the source decides. */
static void fractions_are_held_out(void **state)
{
	enum { KEYS = 20000 };
	int n[3] = {0};
	char key[32];

	(void)state;
	for (int i = 0; i < KEYS; i++) {
		uint64_t id, source;

		snprintf(key, sizeof(key), "clip-%d", i);
		id = vfm_sample_id(key);
		source = vfm_split_source(id, NULL);
		assert_true(source == id);
		assert_true(vfm_split_source(id, "video") == vfm_sample_id("video"));
		assert_false(vfm_split_is_held_out(source, 0));
		assert_true(vfm_split_is_held_out(source, 1));
		n[0] += vfm_split_is_held_out(source, 0.02);
		n[1] += vfm_split_is_held_out(source, 0.5);
		n[2] += vfm_split_is_held_out(source, 0.02) && !vfm_split_is_held_out(source, 0.5);
	}
	assert_true(abs(n[0] - KEYS / 50) < 5 * 20 && abs(n[1] - KEYS / 2) < 5 * 71); /* five standard deviations */
	assert_int_equal(n[2], 0);
}

static void disjoint_plans(void **state)
{
	static const struct {
		enum vfm_plan_side side[2];
		double fraction[2];
		bool same;
		const char *why; /* NULL: disjoint */
	} cases[] = {
		{{VFM_SIDE_TRAIN, VFM_SIDE_HELD_OUT}, {0.1, 0.1}, true, NULL},
		{{VFM_SIDE_TRAIN, VFM_SIDE_HELD_OUT}, {0.1, 0.05}, true, NULL},
		{{VFM_SIDE_TRAIN, VFM_SIDE_HELD_OUT}, {0.05, 0.1}, true, "samples of the training are in it"},
		{{VFM_SIDE_ALL, VFM_SIDE_HELD_OUT}, {0, 0.1}, true, "the former was not packed as training data"},
		{{VFM_SIDE_TRAIN, VFM_SIDE_ALL}, {0.1, 0}, true, "the latter was not packed as held-out data"},
		{{VFM_SIDE_TRAIN, VFM_SIDE_TRAIN}, {0.1, 0.1}, true, "the latter was not packed as held-out data"},
		{{VFM_SIDE_ALL, VFM_SIDE_ALL}, {0, 0}, false, NULL},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct vfm_plan_set sets[2] = {
			{.name = "a", .index_sha256 = "11"}, {.name = "b", .index_sha256 = "22"}};
		struct vfm_plan_header h[2];
		struct vfm_err err = {0};

		for (int k = 0; k < 2; k++)
			h[k] = (struct vfm_plan_header){.n_sets = 1,
				.sets = &sets[cases[i].same ? 0 : k],
				.side = cases[i].side[k],
				.held_out = cases[i].fraction[k]};
		assert_int_equal(
			vfm_split_check_disjoint(&h[0], "train", &h[1], "held", &err), cases[i].why ? VFM_EUSAGE : 0);
		if (cases[i].why)
			assert_non_null(strstr(err.msg, cases[i].why));
	}
}

static void cost_files(void **state)
{
	static const char *const bad[] = {"", "[]", "{}", "{\"type\":\"vfm-cost\",\"a\":1}",
		"{\"type\":\"vfm-cost\",\"a\":-1,\"b\":0}", "{\"type\":\"x\",\"a\":1,\"b\":0}",
		"{\"type\":\"vfm-cost\",\"a\":0,\"b\":0}", "{\"type\":\"vfm-cost\",\"a\":1,\"b\":0,\"bb\":2}",
		"{\"type\":\"vfm-cost\",\"table\":[[1,2]]}", "{\"type\":\"vfm-cost\",\"table\":[[1,2],[1,3]]}",
		"{\"type\":\"vfm-cost\",\"table\":[[1,2],[2,1]]}", "{\"type\":\"vfm-cost\",\"table\":[[0,2],[2,3]]}",
		"{\"type\":\"vfm-cost\",\"table\":[[1,2],[2,\"x\"]]}", "{\"type\":\"vfm-cost\",\"table\":[[1,2],3]}",
		"{\"type\":\"vfm-cost\",\"table\":[[1,2],[2,4]],\"a\":1}"};
	char path[] = "/tmp/vfm_cost_XXXXXX";
	struct vfm_err err = {0};
	struct vfm_pack_cost c;
	const char *table = "{\"v\":1,\"type\":\"vfm-cost\",\"table\":[[100,100],[200,400]],\"c\":3}";
	const char *good = "{\"v\":1,\"type\":\"vfm-cost\",\"a\":2,\"b\":0.5}";

	(void)state;
	assert_true(mkstemp(path) >= 0);
	assert_int_equal(vfm_write_file(path, good, strlen(good), &err), 0);
	assert_int_equal(vfm_pack_cost_load(path, &c, &err), 0);
	assert_true(c.a == 2 && c.b == 0.5 && c.c == 0);
	assert_true(vfm_pack_cost_of(&c, 4) == 16);
	assert_int_equal(vfm_write_file(path, table, strlen(table), &err), 0);
	assert_int_equal(vfm_pack_cost_load(path, &c, &err), 0);
	assert_true(c.c == 3);
	assert_true(vfm_pack_cost_of(&c, 50) == 50 && vfm_pack_cost_of(&c, 100) == 100);
	assert_true(vfm_pack_cost_of(&c, 150) == 250 && vfm_pack_cost_of(&c, 200) == 400);
	assert_true(fabs(vfm_pack_cost_of(&c, 1000) - 10000) < 1e-9); /* s^2 / 100 goes through the two points */
	vfm_pack_cost_release(&c);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(vfm_write_file(path, bad[i], strlen(bad[i]), &err), 0);
		assert_true(vfm_pack_cost_load(path, &c, &err) < 0);
		assert_non_null(strstr(err.msg, path));
	}
	remove(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bins_are_right),
		cmocka_unit_test(slack_is_minimal),
		cmocka_unit_test(few_lengths_are_optimal),
		cmocka_unit_test(each_sample_once_an_epoch),
		cmocka_unit_test(parts_follow_the_lengths),
		cmocka_unit_test(parts_are_balanced),
		cmocka_unit_test(passes_do_not_mix),
		cmocka_unit_test(seed_decides),
		cmocka_unit_test(shares_are_reached),
		cmocka_unit_test(passes_are_limited),
		cmocka_unit_test(steps_and_last),
		cmocka_unit_test(mixed_lengths_fill),
		cmocka_unit_test(costs_are_balanced),
		cmocka_unit_test(left_out_stay_out),
		cmocka_unit_test(weights_all_or_none),
		cmocka_unit_test(fractions_are_held_out),
		cmocka_unit_test(disjoint_plans),
		cmocka_unit_test(cost_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
