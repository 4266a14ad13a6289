/* vfm-bench ops - times each op of the list of cases on a device. */
#include <fnmatch.h>
#include <stdio.h>

#include "base/par.h"
#include "io/opt.h"
#include "bench.h"
#include "device/ops/cases.h"

static struct {
	int64_t repeat, threads;
	bool all, large, list;
	struct vfm_table_opts table;
	const char *device;
} o = {.repeat = 11, .device = "cpu"};

static const struct vfm_opt opts[] = {
	{VFM_OPT_INT, 'r', "repeat", "N", "runs of each case; the median counts (11)", &o.repeat, 1, BENCH_REPEAT_MAX},
	{VFM_OPT_INT, 0, "threads", "N", "computing threads (default: those of the process)", &o.threads, 1, 4096},
	{VFM_OPT_FLAG, 0, "all", NULL, "also the small cases of the tests", &o.all},
	{VFM_OPT_FLAG, 0, "large", NULL, "the cases of training on a GPU instead", &o.large},
	{VFM_OPT_STR, 0, "device", "NAME", "where to compute (cpu)", &o.device},
	{VFM_OPT_FLAG, 0, "list", NULL, "only print the names of the cases", &o.list},
	VFM_TABLE_OPTS(&o.table),
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench ops",
	.synopsis = "[OPTION ...] [PATTERN ...]",
	.summary = "time each operation of the device: GFLOP/s and GB/s",
	.opts = opts,
};

/* A pattern matches a part of a name; * and ? match as in a shell. */
static bool chosen(const struct vfm_case *c, char **patterns, int n)
{
	if (o.large ? !(c->flags & VFM_CASE_LARGE)
		    : !(c->flags & VFM_CASE_BENCH) && !(o.all && c->flags & VFM_CASE_TEST))
		return false;
	for (int i = 0; i < n; i++) {
		char any[256];

		snprintf(any, sizeof(any), "*%s*", patterns[i]);
		if (fnmatch(any, c->name, 0) == 0)
			return true;
	}
	return n == 0;
}

static void add_case_row(struct vfm_table *t, const struct vfm_case *c, struct vfm_spread seconds, double copy,
	const struct vfm_dev *d, const struct bench_fallbacks *before)
{
	struct vfm_cost cost = vfm_case_cost(c);
	double s = seconds.median;

	vfm_table_row(t);
	vfm_table_str(t, "case", c->name);
	vfm_table_f64(t, "ms", s * 1e3);
	vfm_table_f64(t, "ms_min", seconds.min * 1e3);
	vfm_table_f64(t, "ms_max", seconds.max * 1e3);
	if (cost.flops > 0)
		vfm_table_f64(t, "gflop_s", cost.flops / s / 1e9);
	vfm_table_f64(t, "gb_s", cost.bytes / s / 1e9);
	if (cost.flops <= 0)
		vfm_table_f64(t, "of_copy", cost.bytes / s / copy);
	bench_fallback_cells(t, d, before);
	vfm_table_str(t, "kind", "measured");
}

static int time_cases(const struct vfm_cases *l, struct vfm_stream *s, struct vfm_table *t, char **patterns, int n,
	double copy, struct vfm_err *err)
{
	struct vfm_spread seconds;
	int rows = 0;

	for (size_t i = 0; i < l->n; i++) {
		struct vfm_case *c = l->v[i];
		struct bench_fallbacks before = bench_fallbacks_of(s->dev);
		int rc;

		if (!chosen(c, patterns, n))
			continue;
		rc = vfm_case_alloc(c, s, 1, err);
		if (rc == 0)
			rc = bench_time_case(c, s, (int)o.repeat, &seconds, err);
		vfm_case_free(c, s);
		if (rc < 0)
			return vfm_err_context(err, "%s", c->name);
		add_case_row(t, c, seconds, copy, s->dev, &before);
		rows++;
	}
	return rows ? 0 : vfm_fail(err, VFM_EUSAGE, "no case matches (--list prints their names)");
}

static const struct vfm_table_column columns[] = {{"case", "case", 0}, {"ms", "median ms", 3}, {"ms_min", "min ms", 3},
	{"ms_max", "max ms", 3}, {"gflop_s", "GFLOP/s", 1}, {"gb_s", "GB/s", 1}, {"of_copy", "of copy", 2},
	{"slow_attn", "slow attn", 0, VFM_COLUMN_DETAIL}, {"slow_gemm", "slow gemm", 0, VFM_COLUMN_DETAIL},
	{"heuristic_gemm", "heur gemm", 0, VFM_COLUMN_DETAIL}, {"kind", "kind", 0, VFM_COLUMN_DETAIL}, {0}};

struct ops_asked {
	const struct vfm_cases *l;
	char **patterns;
	int n;
};

static int fill_ops(struct vfm_table *t, struct vfm_stream *s, void *ctx, struct vfm_err *err)
{
	const struct ops_asked *a = ctx;
	/* Much larger than any cache, and a small part of the memory. */
	size_t n = s->dev->mem_total > (int64_t)16 << 30 ? (size_t)1 << 30 : (size_t)128 << 20;
	double copy = 0;

	vfm_table_columns(t, columns);
	TRY(bench_copy_speed(s, n, 7, &copy, err));
	TRY(time_cases(a->l, s, t, a->patterns, a->n, copy, err));
	vfm_table_note(t, "a copy within device memory: %.1f GB/s, read and written; of copy: GB/s relative to it",
		copy / 1e9);
	vfm_table_note(t, "FLOP: of matrix products, 2 per multiply-add; bytes: one access per operand element");
	return 0;
}

int bench_ops(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_cases l;
	int n = 0, rc = 0;

	TRY(rc = vfm_opt_parse(&cmd, argc, argv, &n, err));
	if (rc == VFM_OPT_DONE)
		return rc;
	TRY(vfm_table_check(columns, &o.table, err));
	if (o.threads)
		vfm_par_set_threads((int)o.threads);
	vfm_cases_init(&l);
	if (o.list)
		for (size_t i = 0; i < l.n; i++) {
			if (chosen(l.v[i], argv + 1, n))
				puts(l.v[i]->name);
		}
	else
		rc = bench_on_device(
			o.device, (int)o.repeat, &o.table, fill_ops, &(struct ops_asked){&l, argv + 1, n}, err);
	vfm_cases_release(&l);
	return rc;
}
