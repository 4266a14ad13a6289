/* Weights over steps, sets with a number of passes, and parts of sets: parsers, arithmetic, and whole plans. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/plan/pack.h"

/* ---- weights ---- */

static struct vfm_mix_weights weights_of(const char *text)
{
	struct vfm_mix_weights w = {0};
	struct vfm_err err = {0};

	assert_int_equal(vfm_weights_parse(text, &w, &err), 0);
	return w;
}

static void weights_are_read(void **state)
{
	static const char *const bad[] = {"", "x", "-1", "nan", "1@", "1@x", "1@-1", "1@2,1@1", "1,2", "1@0,2",
		"1@0,2@0,3@0", "1@0,", "1@1G", "1@1.5", "1@9223372036854775807"};
	struct vfm_mix_weights w = weights_of("0.7@0,0.3@20K,0.3@1M,0.1@1M");

	(void)state;
	assert_int_equal(w.n, 4);
	assert_true(w.v[1].step == 20000 && w.v[3].step == 1000000 && w.v[3].weight == 0.1);
	vfm_weights_release(&w);
	w = weights_of("5");
	assert_true(w.n == 1 && vfm_weights_at(&w, 0) == 5 && vfm_weights_at(&w, 1e9) == 5);
	vfm_weights_release(&w);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct vfm_err err = {0};

		assert_int_equal(vfm_weights_parse(bad[i], &w, &err), VFM_EUSAGE);
		assert_true(err.msg[0]);
		vfm_weights_release(&w);
	}
}

static void shares_follow_the_points(void **state)
{
	struct vfm_mix_weights w[2] = {weights_of("1@100,0@300,2@300"), weights_of("1")};
	double share[2];

	(void)state;
	assert_true(vfm_weights_at(&w[0], 0) == 1 && vfm_weights_at(&w[0], 100) == 1);
	assert_true(vfm_weights_at(&w[0], 200) == 0.5 && vfm_weights_at(&w[0], 250) == 0.25);
	assert_true(vfm_weights_at(&w[0], 300) == 2 && vfm_weights_at(&w[0], 1e6) == 2);
	assert_true(vfm_mix_changes(w, 2) && !vfm_mix_changes(w + 1, 1));
	assert_true(vfm_mix_next_point(w, 2, 0) == 100 && vfm_mix_next_point(w, 2, 100) == 300);
	assert_true(isinf(vfm_mix_next_point(w, 2, 300)));
	vfm_mix_shares(w, 2, 200, share);
	assert_true(fabs(share[0] - 1.0 / 3) < 1e-12 && fabs(share[1] - 2.0 / 3) < 1e-12);
	/* between 100 and 300 the share is x / (1 + x): its mean is 1 - ln 2; then it is 2 / 3 */
	vfm_mix_mean(w, 2, 100, 300, share);
	assert_true(fabs(share[0] - (1 - log(2))) < 1e-4);
	vfm_mix_mean(w, 2, 0, 400, share);
	assert_true(fabs(share[0] - (0.5 + 2 * (1 - log(2)) + 2.0 / 3) / 4) < 1e-4);
	assert_true(fabs(share[0] + share[1] - 1) < 1e-9);
	/* x / (1 + x) falls from 1/2 by 0.01 at x = 0.49 / 0.51 */
	assert_true(fabs(vfm_mix_steady(w, 2, 100, 300, 0.01) - (300 - 200 * 0.49 / 0.51)) < 1e-3);
	assert_true(fabs(vfm_mix_steady(w, 2, 100, 300, 0.5) - 300) < 1e-3); /* the jump is behind the end */
	assert_true(vfm_mix_steady(w, 2, 300, 900, 0) == 900);
	vfm_weights_release(&w[0]);
	vfm_weights_release(&w[1]);
}

/* ---- selections ---- */

static void subsets_are_read(void **state)
{
	static const char *const bad[] = {"", "1", "1..", "..1", "2..1", "50%..40%", "0%..101%", "-1..2", "1..50%",
		"0%..5", "end..5", "1.5..2", "nan%..5%", "0..1..2"};
	struct vfm_subset s, outer;
	struct vfm_err err = {0};

	(void)state;
	assert_int_equal(vfm_subset_parse("3..end", &s, &err), 0);
	assert_true(s.counted && s.from == 3 && s.to == -1 && s.low == 0 && s.high == 1);
	assert_int_equal(vfm_subset_parse("0%..50%", &outer, &err), 0);
	assert_true(!outer.counted && outer.low == 0 && outer.high == 0.5);
	assert_int_equal(vfm_subset_nest(&s, &outer, &err), 0);
	assert_true(s.counted && s.from == 3 && s.high == 0.5);
	assert_int_equal(vfm_subset_parse("25%..75%", &s, &err), 0);
	assert_int_equal(vfm_subset_nest(&s, &outer, &err), 0);
	assert_true(s.low == 0.25 && s.high == 0.5);
	assert_int_equal(vfm_subset_parse("1..2", &outer, &err), 0);
	assert_int_equal(vfm_subset_nest(&s, &outer, &err), VFM_EUSAGE);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(vfm_subset_parse(bad[i], &s, &err), VFM_EUSAGE);
}

/* Against a list of all records. */
static void selections_are_lists(void **state)
{
	enum { N = 60 };
	uint64_t x = 1;

	(void)state;
	for (int round = 0; round < 500; round++) {
		struct vfm_selection s = {0};
		struct vfm_subset part = VFM_SUBSET_ALL;
		struct vfm_err err = {0};
		bool in[N] = {false};
		int64_t list[N], exclude[N / 7 + 1], n = 0, from, to, at = 0;
		size_t n_exclude = 0;

		for (int block = 0; block < 6; block++) { /* blocks of ten, from the last to the first */
			x = x * 6364136223846793005u + 1442695040888963407u;
			if (x >> 62 == 0)
				continue;
			vfm_selection_add(&s, 10 * (5 - block), 10 * (5 - block) + 10);
			for (int i = 0; i < 10; i++)
				list[n++] = 10 * (5 - block) + i;
		}
		assert_int_equal(s.total, n);
		part.counted = true;
		part.from = n ? (int64_t)(x >> 40) % n : 0;
		part.to = round % 3 ? -1 : n;
		part.low = (double)(x >> 20 & 7) / 16;
		part.high = part.low + 0.5;
		assert_int_equal(vfm_selection_cut(&s, &part, &err), 0);
		from = part.from + (int64_t)((double)(n - part.from) * part.low);
		to = part.from + (int64_t)((double)(n - part.from) * part.high);
		for (int64_t i = from; i < to; i++)
			in[list[i]] = true;
		vfm_selection_seal(&s);
		for (int i = 0; i < N; i += 7) {
			exclude[n_exclude++] = i;
			in[i] = false;
		}
		vfm_selection_exclude(&s, exclude, n_exclude);
		for (int i = 0; i < N; i++)
			if (in[i])
				assert_int_equal(vfm_selection_at(&s, at++), i);
		assert_int_equal(s.total, at);
		part.to = n + 1;
		part.from = 0;
		assert_int_equal(vfm_selection_cut(&s, &part, &err), VFM_EUSAGE);
		vfm_selection_release(&s);
	}
}

/* ---- plans ---- */

enum { SETS = 3 };

struct mix {
	struct vfm_blend_set sets[SETS];
	int32_t n;
};

/* A set of n samples of 64 to `longest` tokens. */
static struct vfm_blend_set *mix_set(struct mix *m, int64_t n, int32_t longest, const char *weights, double passes)
{
	struct vfm_blend_set *s = &m->sets[m->n++];
	uint64_t x = (uint64_t)m->n;

	*s = (struct vfm_blend_set){.name = "set", .dir = "dir", .records = n, .n = n, .passes = passes};
	if (weights)
		s->weights = weights_of(weights);
	assert_int_equal(vfm_lengths_init(&s->lengths, n, longest, NULL), 0);
	for (int64_t i = 0; i < n; i++) {
		int32_t tokens;

		x = x * 6364136223846793005u + 1442695040888963407u;
		tokens = 64 * (1 + (int32_t)((x >> 33) % (uint64_t)(longest / 64)));
		assert_int_equal(vfm_lengths_put(&s->lengths, i, tokens, NULL), 0);
		s->total_tokens += tokens;
	}
	return s;
}

static void mix_release(struct mix *m)
{
	for (int32_t i = 0; i < m->n; i++) {
		vfm_lengths_release(&m->sets[i].lengths);
		vfm_weights_release(&m->sets[i].weights);
		vfm_selection_release(&m->sets[i].selection);
	}
}

/* What a plan has: of each set the samples [records], and the tokens by steps [steps]. */
struct outcome {
	struct vfm_packing p;
	const struct vfm_blend *b;
	int32_t *count[SETS];
	double *tokens[SETS];
	int64_t first[SETS], last[SETS]; /* steps with samples of the set */
};

static int add_pack(void *ctx, const struct vfm_packing_pack *p, struct vfm_err *err)
{
	struct outcome *c = ctx;

	(void)err;
	for (int32_t i = 0; i < p->n; i++) {
		int64_t record;
		int32_t set = vfm_blend_find(c->b, p->samples[i].sample, &record);

		c->count[set][record]++;
		c->tokens[set][p->step] += p->samples[i].tokens;
		c->first[set] = c->first[set] < 0 ? p->step : c->first[set];
		c->last[set] = p->step;
	}
	return 0;
}

static int run_mix(struct outcome *c, const struct mix *m, const struct vfm_packing_opts *o, struct vfm_err *err)
{
	struct vfm_blend *b = vfm_blend_new(m->sets, m->n, o->seed, err);
	int rc;

	*c = (struct outcome){.b = b};
	assert_non_null(b);
	for (int32_t i = 0; i < m->n; i++) {
		c->count[i] = vfm_calloc((size_t)m->sets[i].records, sizeof(*c->count[i]));
		c->tokens[i] = vfm_calloc(100000, sizeof(*c->tokens[i]));
		c->first[i] = -1;
	}
	rc = vfm_packing_make(&c->p, b, o, add_pack, c, err);
	vfm_blend_free(b);
	return rc;
}

static void outcome_release(struct outcome *c)
{
	vfm_packing_release(&c->p);
	for (int32_t i = 0; i < SETS; i++) {
		free(c->count[i]);
		free(c->tokens[i]);
	}
}

static double share_of(const struct outcome *c, int32_t set, int64_t from, int64_t end)
{
	double sum = 0, all = 0;

	for (int64_t k = from; k < end; k++)
		for (int32_t i = 0; i < SETS; i++)
			if (c->tokens[i]) {
				sum += i == set ? c->tokens[i][k] : 0;
				all += c->tokens[i][k];
			}
	return sum / all;
}

static struct vfm_packing_opts steps_of(int64_t steps, int32_t batch)
{
	return (struct vfm_packing_opts){
		.context = 2048, .batch = batch, .steps = steps, .seed = 5, .cost = vfm_pack_cost_default()};
}

/* The shares of 20 ranges of steps, and the density, for all kinds of plans. */
static void schedules_are_followed(void **state)
{
	struct vfm_err err = {0};

	(void)state;
	for (int round = 0; round < 4; round++) {
		struct mix m = {0};
		struct vfm_packing_opts o = steps_of(2000, 16);
		struct vfm_mix_weights w[2];
		struct outcome c;

		w[0] = mix_set(&m, 3000, 512, "0.7@0,0.3@1K,0.3@2K", 0)->weights;
		w[1] = mix_set(&m, 5000, 2048, "0.3@0,0.7@1K", 0)->weights;
		o.balance_cost = round % 2;
		if (round / 2 == 1) {
			o.context = 512;
			o.cp = 4;
			o.batch = 32;
		}
		assert_int_equal(run_mix(&c, &m, &o, &err), 0);
		assert_int_equal(c.p.steps, 2000);
		for (int k = 0; k < 20; k++) {
			double want[2];

			vfm_mix_mean(w, 2, k * 100, k * 100 + 100, want);
			assert_true(fabs(share_of(&c, 0, k * 100, k * 100 + 100) - want[0]) <
				(o.balance_cost ? 0.035 : 0.012)); /* its steps have similar packs */
		}
		assert_true(fabs(share_of(&c, 0, 0, 2000) - 0.4) < 0.002);
		assert_true(c.p.fill > 0.99);
		if (o.balance_cost)
			assert_true(c.p.imbalance_cost < 1.03);
		outcome_release(&c);
		mix_release(&m);
	}
}

/* A change that is short for the plan. */
static void ramps_may_be_short(void **state)
{
	struct vfm_packing_opts o = steps_of(12800, 16);
	struct vfm_err err = {0};
	struct mix m = {0};
	struct outcome c;

	(void)state;
	mix_set(&m, 3000, 512, "1@1000,0@1100", 0);
	mix_set(&m, 5000, 2048, "0@1000,1@1100", 0);
	assert_int_equal(run_mix(&c, &m, &o, &err), 0);
	for (int k = 0; k < 10; k++)
		assert_true(fabs(share_of(&c, 0, 1000 + 10 * k, 1010 + 10 * k) - (0.95 - 0.1 * k)) < 0.03);
	assert_true(c.last[0] >= 1097 && c.last[0] <= 1100 && c.first[1] >= 999 && c.first[1] <= 1004);
	outcome_release(&c);
	mix_release(&m);
}

/* A set begins and ends at the step of a jump, but for a few packs; with cp, but for a step. */
static void jumps_are_met(void **state)
{
	struct vfm_err err = {0};

	(void)state;
	for (int round = 0; round < 4; round++) {
		struct mix m = {0};
		struct vfm_packing_opts o = steps_of(900, 16);
		struct outcome c;

		mix_set(&m, 3000, 512, "1@300,0@300", 0);
		mix_set(&m, 5000, 2048, "0@300,1@300,1@600,0@600", 0);
		mix_set(&m, 4000, 1024, "0@600,1@600", 0);
		o.balance_cost = round % 2;
		if (round == 2)
			o.one_each = true;
		if (round == 3) {
			o.context = 512;
			o.cp = 4;
		}
		assert_int_equal(run_mix(&c, &m, &o, &err), 0);
		assert_int_equal(c.first[0], 0);
		for (int k = 0; k < 2; k++) {
			int64_t jump = 300 * (k + 1);

			assert_true(c.last[k] >= jump - 2 && c.last[k] <= jump);
			assert_true(c.first[k + 1] >= jump - 1 && c.first[k + 1] <= jump + !!o.cp);
			assert_true(share_of(&c, k, jump - 2, jump - 1) == 1);
			assert_true(o.cp || share_of(&c, k, jump, jump + 1) < 0.35);
		}
		assert_int_equal(c.last[2], 899);
		outcome_release(&c);
		mix_release(&m);
	}
}

/* Each sample of a set with passes occurs so often, evenly; with other weights constant and changing. */
static void passes_are_exact(void **state)
{
	static const double passes[] = {1, 2.5, 0.3, 3};
	struct vfm_err err = {0};

	(void)state;
	for (int round = 0; round < 16; round++) {
		struct mix m = {0};
		struct vfm_packing_opts o = steps_of(round % 3 ? 2000 : 1200, round % 3 ? 8 : 16);
		double f = passes[round % 4];
		struct outcome c;
		int64_t n = 0;

		mix_set(&m, 3000, 1024, NULL, f);
		mix_set(&m, 5000, 2048, round % 2 ? "1" : "1@0,0@600", 0);
		mix_set(&m, 300, 512, round % 2 ? "2" : "0@0,1@600", 0);
		o.balance_cost = round & 4;
		if (round & 8) {
			o.context = 512;
			o.cp = 4;
			o.batch *= 4;
		}
		if (round == 5)
			o.one_each = true;
		if (round == 5)
			o.steps = 3000;
		assert_int_equal(run_mix(&c, &m, &o, &err), 0);
		assert_int_equal(c.p.steps, o.steps);
		for (int64_t i = 0; i < 3000; i++) {
			assert_true(c.count[0][i] >= (int32_t)floor(f) && c.count[0][i] <= (int32_t)ceil(f));
			n += c.count[0][i];
		}
		assert_int_equal(n, (int64_t)(f * 3000));
		for (int k = 0; k < 5 && round != 5; k++) {
			double share = share_of(&c, 0, o.steps * k / 5, o.steps * (k + 1) / 5);

			assert_true(fabs(share - share_of(&c, 0, 0, o.steps)) < 0.02);
		}
		outcome_release(&c);
		mix_release(&m);
	}
}

static void short_plans_have_all(void **state)
{
	struct vfm_err err = {0};
	int made = 0;

	(void)state;
	for (int steps = 1; steps < 40; steps++) {
		struct mix m = {0};
		struct vfm_packing_opts o = steps_of(steps, 1 + steps % 3);
		struct outcome c;
		int rc;

		mix_set(&m, 9, 1024, NULL, 1);
		mix_set(&m, 500, 2048, "1@0,0.5@1", 0);
		rc = run_mix(&c, &m, &o, &err);
		for (int i = 0; i < 9 && rc == 0; i++)
			assert_int_equal(c.count[0][i], 1);
		if (rc < 0) {
			assert_int_equal(rc, VFM_EUSAGE);
			assert_true(steps * o.batch < 12); /* there is hardly room */
		}
		made += rc == 0;
		outcome_release(&c);
		mix_release(&m);
	}
	assert_true(made > 30);
}

/* All sets have passes: so many in each pass over all, and fractions add up. */
static void repetitions_add_up(void **state)
{
	struct vfm_err err = {0};

	(void)state;
	for (int epochs = 1; epochs <= 4; epochs++) {
		struct mix m = {0};
		struct vfm_packing_opts o = steps_of(0, 1);
		struct outcome c;

		o.epochs = epochs;
		o.window = 700;
		mix_set(&m, 1000, 1024, NULL, 2.5);
		mix_set(&m, 333, 2048, NULL, 0.5);
		mix_set(&m, 100, 512, NULL, 0.29);
		assert_int_equal(run_mix(&c, &m, &o, &err), 0);
		assert_int_equal(c.p.set_samples[0], 2500 * epochs);
		assert_int_equal(c.p.set_samples[1], 333 * epochs / 2);
		assert_int_equal(c.p.set_samples[2], 29 * epochs);
		for (int i = 0; i < 1000; i++)
			assert_true(c.count[0][i] == (5 * epochs) / 2 || c.count[0][i] == (5 * epochs + 1) / 2);
		for (int i = 0; i < 333; i++)
			assert_true(c.count[1][i] == epochs / 2 || c.count[1][i] == (epochs + 1) / 2);
		outcome_release(&c);
		mix_release(&m);
	}
}

/* Only selected samples are drawn, each once a pass, alone and with other sets. */
static void parts_of_sets(void **state)
{
	struct vfm_err err = {0};

	(void)state;
	for (int round = 0; round < 2; round++) {
		struct mix m = {0};
		struct vfm_packing_opts o = steps_of(0, 1);
		struct vfm_blend_set *s = mix_set(&m, 1000, 1024, NULL, 0);
		struct outcome c;

		o.epochs = 2;
		s->is_part = true;
		vfm_selection_add(&s->selection, 900, 950);
		vfm_selection_add(&s->selection, 100, 300);
		vfm_selection_seal(&s->selection);
		s->n = 250;
		if (round)
			mix_set(&m, 77, 512, NULL, 0);
		assert_int_equal(run_mix(&c, &m, &o, &err), 0);
		for (int i = 0; i < 1000; i++)
			assert_int_equal(c.count[0][i], (i >= 100 && i < 300) || (i >= 900 && i < 950) ? 2 : 0);
		for (int i = 0; i < 77 && round; i++)
			assert_int_equal(c.count[1][i], 2);
		outcome_release(&c);
		mix_release(&m);
	}
}

static void refuse(struct mix *m, const char *why)
{
	struct vfm_err err = {0};

	assert_null(vfm_blend_new(m->sets, m->n, 1, &err));
	assert_int_equal(err.code, VFM_EUSAGE);
	assert_non_null(strstr(err.msg, why));
}

/* Estimated tokens do not end with the last sample of a pass: the window before the end takes what is left. */
static void passes_are_whole(void **state)
{
	struct vfm_err err = {0};

	(void)state;
	for (uint64_t seed = 0; seed < 60; seed++) {
		struct vfm_packing_opts o = steps_of(40 + 60 * (int64_t)(seed % 4), 1 + (int32_t)(seed % 3) * 4);
		struct mix m = {0};
		struct outcome c;

		mix_set(&m, 100 + 10 * (int64_t)seed % 70, 2048, NULL, seed % 2 ? 1 : 0.5);
		mix_set(&m, 900, seed % 5 ? 2048 : 512, "1", 0);
		o.seed = seed;
		if (m.sets[0].total_tokens > o.steps * o.batch * 2048 * 3 / 4)
			o.steps *= 4;
		assert_int_equal(run_mix(&c, &m, &o, &err), 0);
		outcome_release(&c);
		mix_release(&m);
	}
}

static void mixes_are_checked(void **state)
{
	struct vfm_packing_opts o = steps_of(0, 1);
	struct vfm_err err = {0};
	struct mix m = {0};
	struct outcome c;

	(void)state;
	o.epochs = 1;
	mix_set(&m, 10, 512, "1@0,0@10", 0);
	mix_set(&m, 10, 512, "0@20,1@30", 0);
	refuse(&m, "after step 10 no set has a weight");
	m.sets[1].weights.v[0].step = 5;
	m.sets[1].max_passes = 1;
	refuse(&m, "after step 10 no set has a weight"); /* set 1 may be used up */
	m.sets[1].max_passes = 0;
	assert_int_equal(run_mix(&c, &m, &o, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "need a number of steps"));
	outcome_release(&c);
	m.sets[0].passes = 1;
	refuse(&m, "has a number of passes: no weight");
	vfm_weights_release(&m.sets[0].weights);
	o.steps = 2;
	m.sets[0].passes = 100;
	m.sets[1].weights.v[0].weight = 0.5;
	assert_int_equal(run_mix(&c, &m, &o, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "2 steps have room for 4096 tokens"));
	outcome_release(&c);
	m.sets[0].passes = 0.05;
	m.n = 1;
	refuse(&m, "no set has usable samples");
	m.n = 2;
	mix_release(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(weights_are_read),
		cmocka_unit_test(shares_follow_the_points),
		cmocka_unit_test(subsets_are_read),
		cmocka_unit_test(selections_are_lists),
		cmocka_unit_test(schedules_are_followed),
		cmocka_unit_test(ramps_may_be_short),
		cmocka_unit_test(jumps_are_met),
		cmocka_unit_test(passes_are_exact),
		cmocka_unit_test(short_plans_have_all),
		cmocka_unit_test(repetitions_add_up),
		cmocka_unit_test(parts_of_sets),
		cmocka_unit_test(passes_are_whole),
		cmocka_unit_test(mixes_are_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
