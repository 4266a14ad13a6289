/* vfm-pack show - the packs of a step. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "data/plan/plan.h"
#include "io/table.h"
#include "pack_cmd.h"

int plan_open(struct vfm_plan **m, const struct vfm_cmd *cmd, int argc, char **argv, struct vfm_err *err)
{
	int n, rc = vfm_opt_parse(cmd, argc, argv, &n, err);

	if (rc)
		return rc;
	if (n == 0)
		return vfm_fail(err, VFM_EUSAGE, "a plan is missing (%s -h)", cmd->name);
	if (n > 1)
		return vfm_fail(err, VFM_EUSAGE, "too many operands: '%s' (%s -h)", argv[2], cmd->name);
	*m = vfm_plan_open(argv[1], err);
	return *m ? 0 : err->code;
}

/* "images 2x256 video 7680": the lengths of the samples by set, equal neighbours together. */
static void add_contents(struct vfm_buf *b, const struct vfm_plan_header *h, const struct vfm_plan_pack *p)
{
	int32_t set = -1;

	vfm_buf_clear(b);
	for (int32_t i = 0, n; i < p->n_samples; i += n) {
		const struct vfm_plan_sample *s = &p->samples[i];

		for (n = 1; i + n < p->n_samples && s[n].set == s->set && s[n].tokens == s->tokens; n++)
			;
		if (s->set != set)
			vfm_buf_addf(b, "%s%s", i ? "  " : "", h->sets[s->set].name);
		set = s->set;
		if (n > 1)
			vfm_buf_addf(b, " %dx%d", n, s->tokens);
		else
			vfm_buf_addf(b, " %d", s->tokens);
	}
}

static void pack_rows(struct vfm_table *t, const struct vfm_plan_header *h, const struct vfm_plan_step *step)
{
	static const struct vfm_table_column place[] = {{"step", "step", 0}, {"pack", "pack", 0}, {0}};
	static const struct vfm_table_column columns[] = {{"samples", "samples", 0}, {"tokens", "tokens", 0},
		{"fill", "fill", 4}, {"cost", "cost", -6}, {"cost_of_mean", "cost/mean", 3},
		{"contents", "tokens of the samples, by set", 0}, {0}};
	double cost = 0;
	struct vfm_buf b = {0};

	vfm_table_columns(t, place);
	if (h->cp)
		vfm_table_col(t, "cp", "cp", 0);
	vfm_table_columns(t, columns);
	for (int32_t i = 0; i < step->n_packs; i++)
		cost += step->packs[i].cost / step->n_packs;
	for (int32_t i = 0; i < step->n_packs; i++) {
		const struct vfm_plan_pack *p = &step->packs[i];

		if (p->cp == 0)
			continue;
		vfm_table_row(t);
		vfm_table_i64(t, "step", p->step);
		vfm_table_i64(t, "pack", p->pack);
		if (h->cp)
			vfm_table_i64(t, "cp", p->cp);
		vfm_table_i64(t, "samples", p->n_samples);
		vfm_table_i64(t, "tokens", p->tokens);
		vfm_table_f64(t, "fill", (double)p->tokens / ((double)p->cp * h->context));
		vfm_table_f64(t, "cost", p->cost);
		vfm_table_f64(t, "cost_of_mean", cost > 0 ? p->cost / p->cp / cost : 1);
		add_contents(&b, h, p);
		vfm_table_str(t, "contents", b.data);
	}
	vfm_buf_release(&b);
}

static void sample_rows(struct vfm_table *t, const struct vfm_plan_header *h, const struct vfm_plan_step *step)
{
	static const struct vfm_table_column columns[] = {{"step", "step", 0}, {"pack", "pack", 0}, {"set", "set", 0},
		{"shard", "shard", 0}, {"sample", "sample", 0}, {"tokens", "tokens", 0}, {0}};

	vfm_table_columns(t, columns);
	for (int32_t i = 0; i < step->n_packs; i++) {
		const struct vfm_plan_pack *p = &step->packs[i];

		for (int32_t k = 0; k < p->n_samples; k++) {
			vfm_table_row(t);
			vfm_table_i64(t, "step", p->step);
			vfm_table_i64(t, "pack", p->pack);
			vfm_table_str(t, "set", h->sets[p->samples[k].set].name);
			vfm_table_i64(t, "shard", p->samples[k].shard);
			vfm_table_i64(t, "sample", p->samples[k].index);
			vfm_table_i64(t, "tokens", p->samples[k].tokens);
		}
	}
}

static int print_step(
	const struct vfm_plan *m, int64_t number, bool samples, const struct vfm_table_opts *table, struct vfm_err *err)
{
	const struct vfm_plan_header *h = vfm_plan_header(m);
	struct vfm_plan_step step = {0};
	struct vfm_table *t = vfm_table_new(NULL);
	int rc = vfm_plan_step(m, number, &step, err);

	if (rc == 0) {
		(samples ? sample_rows : pack_rows)(t, h, &step);
		vfm_table_note(t, "step %lld of %lld: %d %s of at most %d tokens, %lld tokens", (long long)number,
			(long long)h->steps, h->batch, h->cp ? "parts" : "packs", h->context, (long long)step.tokens);
		rc = vfm_table_print(t, table, stdout, err);
	}
	vfm_plan_step_release(&step);
	vfm_table_free(t);
	return rc;
}

int pack_show(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_table_opts table = {0};
	int64_t step = 0;
	bool samples = false;
	struct vfm_opt opts[] = {{VFM_OPT_INT, 0, "step", "N", "the step to show (0)", &step},
		{VFM_OPT_FLAG, 0, "samples", NULL, "a row for each sample: its set, shard and number", &samples},
		VFM_TABLE_OPTS(&table), {0}};
	struct vfm_cmd cmd = {.name = "vfm-pack show",
		.synopsis = "[--samples] [--step N] [--format FORMAT] PLAN",
		.summary = "the packs of a step",
		.opts = opts};
	struct vfm_plan *m = NULL;
	int rc = plan_open(&m, &cmd, argc, argv, err);

	if (rc == 0)
		rc = print_step(m, step, samples, &table, err);
	vfm_plan_close(m);
	return rc;
}
