/* dry_run_packs.c - assigns packs to ranks as the loader does, and groups dp ranks of equal work. */
#include "train/predict/dry_run_packs.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "io/hash.h"
#include "spec/model/linears.h"
#include "train/predict/bench.h"
#include "train/step/synthetic.h"

struct vfm_pack_sums vfm_dry_pack_sums(const struct vfm_config *c, const struct vfm_plan_pack *p, int64_t text)
{
	struct vfm_pack_sums sums = {0};

	for (int32_t i = 0; i < p->n_samples; i++) {
		int32_t grid[3];

		vfm_bench_grid(&c->model, p->samples[i].tokens, grid, NULL); /* make_shapes reports the error */
		vfm_synthetic_add_sums(&sums, grid, text, (uint64_t)i + 1, &c->model);
	}
	return sums;
}

/* ---- the division of a step ---- */

/* A step, as the loader divides it. */
struct divided {
	const struct vfm_plan_step *s;
	int64_t dp, cp;
	int64_t parts; /* into which ranks along cp divide what belongs to a dp rank; 1: they have the same packs */
	int64_t each;  /* packs of a rank */
	int plan_cp;   /* of the header; 0: all cp ranks compute every pack */
	int64_t text;  /* rows of each sample */
	bool by_size;
};

static struct divided divide_step(const struct vfm_parallel *p, const struct vfm_plan_step *s, int cp)
{
	struct divided d = {.s = s, .dp = p->dp, .cp = p->cp, .parts = cp ? p->cp : 1, .plan_cp = cp};

	d.each = s->n_packs / (d.dp * d.parts);
	return d;
}

/* The pack number `at` of a rank. */
struct rank_pack {
	const struct vfm_plan_pack *pack;
	int64_t first; /* its first part, from this dp rank's first; negative: this rank gets none of its samples */
	int cp;        /* ranks that compute it; 0: all */
};

static struct rank_pack pack_of_rank(const struct divided *d, int64_t dp, int64_t cp, int64_t at)
{
	int64_t block = (dp + at * d->dp) * d->parts, part = block + (d->parts > 1 ? cp : 0);
	struct rank_pack x = {.pack = &d->s->packs[part]};

	if (d->plan_cp) {
		x.pack = vfm_plan_pack_of(d->s, part);
		x.cp = x.pack->cp < d->parts ? x.pack->cp : (int)d->parts;
	}
	x.first = x.pack->pack - block;
	return x;
}

static double cost_of_rank_pack(const struct rank_pack *x)
{
	return x->first < 0 ? 0 : x->pack->cost / (x->cp ? x->cp : 1);
}

/* Returns the tokens of a cp rank. */
static double size_of_rank_pack(const struct rank_pack *x)
{
	return x->first < 0 ? 0 : (double)x->pack->tokens / (x->cp ? x->cp : 1);
}

/* Returns the largest cost of the ranks along cp. */
static double cost_of_dp_rank(const struct divided *d, int64_t dp)
{
	double most = 0;

	for (int64_t cp = 0; cp < d->parts; cp++) {
		double cost = 0;

		for (int64_t at = 0; at < d->each; at++) {
			struct rank_pack x = pack_of_rank(d, dp, cp, at);

			cost = d->by_size ? fmax(cost, size_of_rank_pack(&x)) : cost + cost_of_rank_pack(&x);
		}
		most = cost > most ? cost : most;
	}
	return most;
}

double vfm_dry_packs_cost(const struct vfm_parallel *p, const struct vfm_plan_step *s, int cp)
{
	struct divided d = divide_step(p, s, cp);
	double most = 0;

	for (int64_t r = 0; r < d.dp; r++) {
		double cost = cost_of_dp_rank(&d, r);

		most = cost > most ? cost : most;
	}
	return most;
}

/* Returns equal numbers for ranks with packs of equal shapes.  Of a pack that several of the ranks along cp share, the
 * place counts too: ranks of one number are in the same groups. */
static uint64_t shapes_of_rank(const struct divided *d, int64_t dp, int64_t cp)
{
	struct vfm_buf b = {0};
	uint64_t id;

	for (int64_t at = 0; at < d->each; at++) {
		struct rank_pack x = pack_of_rank(d, dp, cp, at);

		vfm_buf_addf(&b, "%d %lld:", x.cp, x.cp == 1 ? 0LL : (long long)x.first);
		for (int32_t i = 0; i < x.pack->n_samples && x.first >= 0; i++)
			vfm_buf_addf(&b, " %d", x.pack->samples[i].tokens);
		vfm_buf_adds(&b, ";");
	}
	id = b.len ? vfm_fnv64(b.data, b.len) : 0;
	vfm_buf_release(&b);
	return id;
}

/* ---- classes ---- */

struct dp_rank {
	int64_t dp;
	uint64_t shapes;
	double cost;
	int class;
};

static int compare_dp_ranks(const void *a, const void *b)
{
	const struct dp_rank *x = a, *y = b;

	if (x->cost != y->cost)
		return x->cost > y->cost ? -1 : 1;
	if (x->shapes != y->shapes)
		return x->shapes < y->shapes ? -1 : 1;
	return x->dp < y->dp ? -1 : 1;
}

/* Returns the dp ranks, the most expensive first, those of equal packs together. */
static struct dp_rank *sort_dp_ranks(const struct divided *d)
{
	struct dp_rank *v = vfm_calloc((size_t)d->dp, sizeof(*v));
	uint64_t *own = vfm_calloc((size_t)d->parts, sizeof(*own));

	for (int64_t r = 0; r < d->dp; r++) {
		for (int64_t cp = 0; cp < d->parts; cp++)
			own[cp] = shapes_of_rank(d, r, cp);
		v[r] = (struct dp_rank){r, vfm_fnv64(own, (size_t)d->parts * sizeof(*own)), cost_of_dp_rank(d, r), 0};
	}
	free(own);
	qsort(v, (size_t)d->dp, sizeof(*v), compare_dp_ranks);
	return v;
}

/* Numbers the classes of v [dp], of at most `most`, and fills rep [most] with the dp rank that represents each. */
static void classify_dp_ranks(struct vfm_dry_packs *out, struct dp_rank *v, int64_t dp, int most, int64_t *rep)
{
	out->dp_distinct = 0;
	for (int64_t i = 0; i < dp; i++) {
		if (i == 0 || v[i].shapes != v[i - 1].shapes)
			out->dp_distinct++;
		v[i].class = out->dp_distinct - 1;
	}
	out->dp_classes = out->dp_distinct < most ? out->dp_distinct : most;
	for (int64_t i = dp - 1; i >= 0 && out->dp_distinct <= most; i--)
		rep[v[i].class] = v[i].dp;
	if (out->dp_distinct <= most)
		return;
	rep[0] = v[0].dp;
	for (int64_t i = 0; i < dp; i++)
		v[i].class = i == 0 || most == 1 ? 0 : 1 + (int)((i - 1) * (most - 1) / (dp - 1));
	for (int k = 1; k < most; k++) {
		int64_t first = dp, last = 0;

		for (int64_t i = 1; i < dp; i++)
			if (v[i].class == k) {
				first = i < first ? i : first;
				last = i;
			}
		rep[k] = v[(first + last) / 2].dp;
	}
}

/* ---- packs ---- */

static int make_shapes(
	struct vfm_pack *out, const struct vfm_config *c, const struct rank_pack *x, int64_t text, struct vfm_err *err)
{
	int n = x->first < 0 ? 0 : x->pack->n_samples;
	struct vfm_synthetic *s = vfm_calloc((size_t)n + 1, sizeof(*s));
	int rc;

	for (int i = 0; i < n; i++) {
		s[i] = (struct vfm_synthetic){.text_len = (int32_t)text, .id = (uint64_t)i + 1};
		TRY_OUT(vfm_bench_grid(&c->model, x->pack->samples[i].tokens, s[i].grid, err));
	}
	rc = vfm_synthetic_shapes(out, s, n, &c->model, err);
	out->cp = x->cp;
out:
	free(s);
	return rc;
}

/* Returns whether all packs of a rank are alike.  Host memory for one is enough then. */
static bool has_equal_packs(const struct divided *d, int64_t dp, int64_t cp)
{
	struct rank_pack first = pack_of_rank(d, dp, cp, 0);

	for (int64_t at = 1; at < d->each; at++) {
		struct rank_pack x = pack_of_rank(d, dp, cp, at);

		if (x.cp != first.cp || x.first < 0 || first.first < 0 || x.pack->n_samples != first.pack->n_samples)
			return false;
		for (int32_t i = 0; i < x.pack->n_samples; i++)
			if (x.pack->samples[i].tokens != first.pack->samples[i].tokens)
				return false;
	}
	return true;
}

static int make_class(struct vfm_dry_packs *out, const struct vfm_config *c, const struct divided *d, int64_t dp,
	int64_t cp, struct vfm_err *err)
{
	struct vfm_dry_class *k = &out->class[out->n++];
	int64_t n = has_equal_packs(d, dp, cp) ? 1 : d->each;

	k->packs = d->each;
	k->v = vfm_calloc((size_t)n, sizeof(*k->v));
	for (int64_t at = 0; at < n; at++) {
		struct rank_pack x = pack_of_rank(d, dp, cp, at);

		k->n++;
		TRY(make_shapes(&k->v[at], c, &x, d->text, err));
		k->v[at].step_tokens = d->s->tokens;
	}
	return 0;
}

/* Makes the classes along cp of a dp rank, and writes those of its cp ranks to of [cp]. */
static int make_classes_of(struct vfm_dry_packs *out, const struct vfm_config *c, const struct divided *d, int64_t dp,
	int *of, struct vfm_err *err)
{
	uint64_t *shapes = vfm_calloc((size_t)d->cp, sizeof(*shapes));
	int rc = 0;

	for (int64_t cp = 0; cp < d->cp && rc >= 0; cp++) {
		shapes[cp] = shapes_of_rank(d, dp, cp);
		of[cp] = out->n;
		for (int64_t i = 0; i < cp; i++)
			of[cp] = shapes[i] == shapes[cp] ? of[i] : of[cp];
		if (of[cp] == out->n)
			rc = make_class(out, c, d, dp, cp, err);
	}
	free(shapes);
	return rc;
}

static void count_step(
	struct vfm_dry_packs *out, const struct vfm_config *c, const struct vfm_plan_step *s, int64_t text)
{
	for (int32_t i = 0; i < s->n_packs; i++) {
		struct vfm_pack_sums sums = vfm_dry_pack_sums(c, &s->packs[i], text);

		out->flops += vfm_model_train_flops(&c->model, &c->tuning, &sums);
	}
	out->tokens = (double)s->tokens;
}

int vfm_dry_packs_make(struct vfm_dry_packs *out, const struct vfm_config *c, const struct vfm_parallel *p,
	const struct vfm_plan_step *s, const struct vfm_dry_packs_opts *o, struct vfm_err *err)
{
	struct divided d = divide_step(p, s, o->cp);
	int64_t *rep = vfm_calloc((size_t)(o->most < d.dp ? d.dp : o->most), sizeof(*rep));
	struct dp_rank *v;
	int rc = 0, *of;

	*out = (struct vfm_dry_packs){.class_of = vfm_calloc((size_t)(d.dp * d.cp), sizeof(*out->class_of))};
	d.by_size = o->by_size;
	d.text = o->text;
	v = sort_dp_ranks(&d);
	classify_dp_ranks(out, v, d.dp, o->most, rep);
	out->class = vfm_calloc((size_t)(out->dp_classes * d.cp), sizeof(*out->class));
	of = vfm_calloc((size_t)(out->dp_classes * d.cp), sizeof(*of));
	for (int k = 0; k < out->dp_classes && rc >= 0; k++)
		rc = make_classes_of(out, c, &d, rep[k], of + k * d.cp, err);
	for (int64_t i = 0; i < d.dp; i++)
		for (int64_t k = 0; k < d.cp; k++)
			out->class_of[v[i].dp * d.cp + k] = of[v[i].class * d.cp + k];
	count_step(out, c, s, o->text);
	free(of);
	free(v);
	free(rep);
	return rc;
}

void vfm_dry_packs_release(struct vfm_dry_packs *p)
{
	for (int k = 0; k < p->n; k++) {
		for (int64_t i = 0; i < p->class[k].n; i++)
			vfm_pack_release(&p->class[k].v[i]);
		free(p->class[k].v);
	}
	free(p->class);
	free(p->class_of);
	*p = (struct vfm_dry_packs){0};
}
