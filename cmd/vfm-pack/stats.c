/* vfm-pack stats - the samples, packs, fill and balance of a plan. */
#include <stdio.h>
#include <string.h>

#include "data/plan/plan.h"
#include "data/plan/plan_stats.h"
#include "io/json.h"
#include "io/table.h"
#include "pack_cmd.h"

struct report {
	const struct vfm_plan_header *h;
	struct vfm_plan_stats s;
};

static double set_passes(const struct report *r, int32_t set)
{
	return (double)r->s.sets[set].samples / (double)r->h->sets[set].selected;
}

static double set_share(const struct report *r, int32_t set)
{
	return (double)r->s.sets[set].tokens / (double)r->s.tokens;
}

/* ---- tables ---- */

static struct vfm_table *plan_table(const struct report *r)
{
	static const struct vfm_table_column columns[] = {{"steps", "steps", 0}, {"packs", "packs", 0},
		{"samples", "samples", 0}, {"tokens", "tokens", 0}, {"fill", "fill", 4},
		{"fill_least", "least fill", 4}, {"tokens_mean", "tokens max/mean", 4}, {"tokens_most", "worst", 3},
		{"cost_mean", "cost max/mean", 4}, {"cost_most", "worst", 3}, {0}};
	struct vfm_table *t = vfm_table_new(columns);
	const struct vfm_plan_stats *s = &r->s;

	vfm_table_row(t);
	vfm_table_i64(t, "steps", r->h->steps);
	vfm_table_i64(t, "packs", s->packs);
	vfm_table_i64(t, "samples", s->samples);
	vfm_table_i64(t, "tokens", s->tokens);
	vfm_table_f64(t, "fill", s->fill);
	vfm_table_f64(t, "fill_least", s->fill_least);
	vfm_table_f64(t, "tokens_mean", s->by_tokens.mean);
	vfm_table_f64(t, "tokens_most", s->by_tokens.most);
	vfm_table_f64(t, "cost_mean", s->by_cost.mean);
	vfm_table_f64(t, "cost_most", s->by_cost.most);
	vfm_table_note(t, "max/mean: the largest pack of a step over the mean pack, averaged over the steps");
	return t;
}

static struct vfm_table *sets_table(const struct report *r)
{
	static const struct vfm_table_column columns[] = {{"set", "set", 0}, {"records", "records", 0},
		{"samples", "samples", 0}, {"epochs", "epochs", 3}, {"tokens", "tokens", 0}, {"share", "share", 4},
		{"weight", "asked", 4}, {0}};
	struct vfm_table *t = vfm_table_new(columns);

	for (int32_t i = 0; i < r->h->n_sets; i++) {
		vfm_table_row(t);
		vfm_table_str(t, "set", r->h->sets[i].name);
		vfm_table_i64(t, "records", r->h->sets[i].records);
		vfm_table_i64(t, "samples", r->s.sets[i].samples);
		vfm_table_f64(t, "epochs", set_passes(r, i));
		vfm_table_i64(t, "tokens", r->s.sets[i].tokens);
		vfm_table_f64(t, "share", set_share(r, i));
		vfm_table_f64(t, "weight", r->h->sets[i].weight);
	}
	return t;
}

static double range_share(const struct vfm_plan_range *range, int32_t set)
{
	return range->tokens ? (double)range->set_tokens[set] / (double)range->tokens : 0;
}

/* The shares by steps. */
static struct vfm_table *ranges_table(const struct report *r)
{
	static const struct vfm_table_column columns[] = {{"from", "from step", 0}, {"to", "to", 0}, {"set", "set", 0},
		{"share", "share", 4}, {"requested", "asked", 4}, {0}};
	struct vfm_table *t = vfm_table_new(columns);

	for (int32_t k = 0; k < r->s.n_ranges; k++)
		for (int32_t i = 0; i < r->h->n_sets; i++) {
			const struct vfm_plan_range *range = &r->s.ranges[k];

			vfm_table_row(t);
			vfm_table_i64(t, "from", range->from);
			vfm_table_i64(t, "to", range->end - 1);
			vfm_table_str(t, "set", r->h->sets[i].name);
			vfm_table_f64(t, "share", range_share(range, i));
			vfm_table_f64(t, "requested", range->requested[i]);
		}
	return t;
}

static struct vfm_table *packs_table(const struct report *r)
{
	static const struct vfm_table_column columns[] = {
		{"samples", "samples of a pack", 0}, {"packs", "packs", 0}, {"share", "share", 4}, {0}};
	struct vfm_table *t = vfm_table_new(columns);

	for (int k = 0; k < 32; k++) {
		char range[32];

		if (!r->s.per_pack[k])
			continue;
		if (k == 0)
			snprintf(range, sizeof(range), "1");
		else
			snprintf(range, sizeof(range), "%lld-%lld", 1ll << k, (2ll << k) - 1);
		vfm_table_row(t);
		vfm_table_str(t, "samples", range);
		vfm_table_i64(t, "packs", r->s.per_pack[k]);
		vfm_table_f64(t, "share", (double)r->s.per_pack[k] / (double)r->s.packs);
	}
	return t;
}

static struct vfm_table *cp_table(const struct report *r)
{
	static const struct vfm_table_column columns[] = {
		{"cp", "cp of a pack", 0}, {"packs", "packs", 0}, {"share", "share of the parts", 4}, {0}};
	struct vfm_table *t = vfm_table_new(columns);

	for (int k = 0; 1 << k <= r->h->cp; k++) {
		vfm_table_row(t);
		vfm_table_i64(t, "cp", 1 << k);
		vfm_table_i64(t, "packs", r->s.by_cp[k]);
		vfm_table_f64(t, "share", (double)(r->s.by_cp[k] << k) / ((double)r->h->steps * (double)r->h->batch));
	}
	return t;
}

static int print_tables(const struct report *r, enum vfm_table_format format, struct vfm_err *err)
{
	struct vfm_table *t[] = {plan_table(r), sets_table(r), r->s.n_ranges ? ranges_table(r) : NULL, packs_table(r),
		r->h->cp ? cp_table(r) : NULL};
	int rc = 0;

	for (int i = 0; i < 5; i++) {
		if (!t[i])
			continue;
		if (rc == 0 && i)
			putchar('\n');
		if (rc == 0)
			rc = vfm_table_print(t[i], &(struct vfm_table_opts){.format = format}, stdout, err);
		vfm_table_free(t[i]);
	}
	return rc;
}

/* ---- JSON ---- */

static json_t *imbalance_json(const struct vfm_plan_imbalance *x)
{
	return json_pack("{s:f,s:f}", "mean", x->mean, "most", x->most);
}

static json_t *ranges_json(const struct report *r)
{
	json_t *ranges = json_array();

	for (int32_t k = 0; k < r->s.n_ranges; k++) {
		const struct vfm_plan_range *range = &r->s.ranges[k];
		json_t *sets = json_array();

		for (int32_t i = 0; i < r->h->n_sets; i++)
			json_array_append_new(sets,
				json_pack("{s:s,s:f,s:f}", "set", r->h->sets[i].name, "share", range_share(range, i),
					"weight", range->requested[i]));
		json_array_append_new(ranges,
			json_pack("{s:I,s:I,s:o}", "from", (json_int_t)range->from, "to", (json_int_t)range->end - 1,
				"sets", sets));
	}
	return ranges;
}

static int print_stats_json(const struct report *r, struct vfm_err *err)
{
	const struct vfm_plan_stats *s = &r->s;
	json_t *sets = json_array(), *packs = json_array(), *cp = json_array(), *o;
	int rc;

	for (int32_t i = 0; i < r->h->n_sets; i++)
		json_array_append_new(sets,
			json_pack("{s:s,s:I,s:I,s:f,s:I,s:f,s:f}", "set", r->h->sets[i].name, "records",
				(json_int_t)r->h->sets[i].records, "samples", (json_int_t)s->sets[i].samples, "epochs",
				set_passes(r, i), "tokens", (json_int_t)s->sets[i].tokens, "share", set_share(r, i),
				"weight", r->h->sets[i].weight));
	for (int k = 0; k < 32; k++)
		if (s->per_pack[k])
			json_array_append_new(packs,
				json_pack("{s:I,s:I,s:I}", "from", (json_int_t)1 << k, "to", ((json_int_t)2 << k) - 1,
					"packs", (json_int_t)s->per_pack[k]));
	o = json_pack("{s:i,s:I,s:i,s:i,s:I,s:I,s:I,s:f,s:f,s:f,s:o,s:o,s:o,s:o}", "v", 1, "steps",
		(json_int_t)r->h->steps, "batch", r->h->batch, "context", r->h->context, "packs", (json_int_t)s->packs,
		"samples", (json_int_t)s->samples, "tokens", (json_int_t)s->tokens, "cost", s->cost, "fill", s->fill,
		"fill_least", s->fill_least, "tokens_imbalance", imbalance_json(&s->by_tokens), "cost_imbalance",
		imbalance_json(&s->by_cost), "sets", sets, "samples_per_pack", packs);
	for (int k = 0; 1 << k <= r->h->cp; k++)
		json_array_append_new(cp, json_pack("{s:i,s:I}", "cp", 1 << k, "packs", (json_int_t)s->by_cp[k]));
	if (r->h->cp)
		json_object_set(o, "packs_by_cp", cp);
	if (s->n_ranges)
		json_object_set_new(o, "ranges", ranges_json(r));
	json_decref(cp);
	rc = vfm_jsonl_write(stdout, o, err);
	json_decref(o);
	return rc;
}

int pack_stats(int argc, char **argv, struct vfm_err *err)
{
	int format = 0;
	struct vfm_opt opts[] = {{VFM_OPT_NAME, 0, "format", "text|md|json", "how to print it", &format}, {0}};
	struct vfm_cmd cmd = {.name = "vfm-pack stats",
		.synopsis = "[--format FORMAT] PLAN",
		.summary = "the mix, fill and balance of a plan",
		.opts = opts};
	struct report r = {0};
	struct vfm_plan *m = NULL;
	int rc = plan_open(&m, &cmd, argc, argv, err);

	if (rc == 0) {
		r.h = vfm_plan_header(m);
		rc = vfm_plan_stats_read(&r.s, m, err);
	}
	if (rc == 0)
		rc = format == 2 ? print_stats_json(&r, err)
				 : print_tables(&r, format ? VFM_TABLE_MD : VFM_TABLE_TEXT, err);
	vfm_plan_stats_release(&r.s);
	vfm_plan_close(m);
	return rc;
}
