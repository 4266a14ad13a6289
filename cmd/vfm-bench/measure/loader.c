/* vfm-bench loader - times the loader alone: reads packs from shards without training. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/par.h"
#include "io/opt.h"
#include "bench.h"
#include "data/dataset/shard_cache.h"
#include "data/loader/loader.h"

static struct {
	int64_t threads, steps, repeat;
	struct vfm_table_opts table;
	struct vfm_shard_cache_opts cache;
} o = {.threads = 2, .repeat = 5};

static const struct vfm_opt opts[] = {
	{VFM_OPT_INT, 0, "threads", "N", "reading threads (2)", &o.threads, 1, 1024},
	{VFM_OPT_INT, 0, "steps", "N", "only the first N steps", &o.steps},
	{VFM_OPT_INT, 'r', "repeat", "N", "runs; the median counts (5)", &o.repeat, 1, 256},
	VFM_SHARD_CACHE_OPTS(&o.cache),
	VFM_TABLE_OPTS(&o.table),
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench loader",
	.synopsis = "[OPTION ...] PLAN",
	.summary = "read the packs of a plan as training would",
	.opts = opts,
};

struct loader_run {
	struct vfm_loader_stats s;
	double seconds, first_s;
};

static int run_once(
	struct vfm_plan *m, struct vfm_shard_cache *cache, bool skip_hash, struct loader_run *r, struct vfm_err *err)
{
	const struct vfm_plan_header *h = vfm_plan_header(m);
	struct vfm_loader_opts lo = {.threads = (int32_t)o.threads,
		.cond = h->cond_channels > 0,
		.image = h->image_dim > 0,
		.text2_dim = h->text2_dim,
		.cache = cache,
		.skip_hash = skip_hash};
	double start = vfm_now();
	struct vfm_loader *l = vfm_loader_open(m, &lo, err);
	struct vfm_pack *p;
	int rc;

	if (!l)
		return err->code;
	while ((rc = vfm_loader_next(l, &p, err)) == 1) {
		if (vfm_loader_stats(l).packs == 1)
			r->first_s = vfm_now() - start;
		if (o.steps > 0 && p->step >= o.steps) {
			vfm_loader_release(l, p);
			rc = 0;
			break;
		}
		r->s = vfm_loader_stats(l);
		vfm_loader_release(l, p);
	}
	r->seconds = vfm_now() - start;
	vfm_loader_close(l);
	return rc;
}

/* In the order of enum vfm_load_cause; one rank has no peers. */
static const char *const wait_keys[VFM_LOAD_CAUSES] = {
	"wait_files_s", "wait_check_s", "wait_arrange_s", "wait_lookup_s", "wait_peers_s"};

static void print_rows(struct vfm_table *t, const struct loader_run *runs, int n)
{
	double s[256], first[256], wait[256], by[256], sec;
	struct vfm_spread seconds;
	const struct vfm_loader_stats *st = &runs[0].s;

	for (int i = 0; i < n; i++) {
		s[i] = runs[i].seconds;
		first[i] = runs[i].first_s;
		wait[i] = runs[i].s.wait_s;
	}
	seconds = vfm_spread_of(s, (size_t)n);
	sec = seconds.median;
	vfm_table_row(t);
	vfm_table_i64(t, "threads", o.threads);
	vfm_table_i64(t, "packs", st->packs);
	vfm_table_f64(t, "samples_s", (double)st->samples / sec);
	vfm_table_f64(t, "tok_s", (double)st->tokens / sec);
	vfm_table_f64(t, "gb_s", (double)st->bytes / sec / 1e9);
	vfm_table_f64(t, "seconds", sec);
	vfm_table_f64(t, "seconds_min", seconds.min);
	vfm_table_f64(t, "seconds_max", seconds.max);
	vfm_table_f64(t, "first_ms", vfm_spread_of(first, (size_t)n).median * 1e3);
	vfm_table_f64(t, "wait_s", vfm_spread_of(wait, (size_t)n).median);
	for (int c = 0; c < VFM_LOAD_CAUSES; c++) {
		for (int i = 0; i < n; i++)
			by[i] = runs[i].s.wait_by_s[c];
		vfm_table_f64(t, wait_keys[c], vfm_spread_of(by, (size_t)n).median);
	}
	vfm_table_str(t, "kind", "measured");
}

static const struct vfm_table_column columns[] = {{"threads", "threads", 0}, {"packs", "packs", 0},
	{"samples_s", "samples/s", 0}, {"tok_s", "token/s", 0}, {"gb_s", "GB/s", 3}, {"seconds", "median s", 3},
	{"seconds_min", "min s", 3, VFM_COLUMN_DETAIL}, {"seconds_max", "max s", 3, VFM_COLUMN_DETAIL},
	{"first_ms", "first pack ms", 1}, {"wait_s", "waited s", 3}, {"wait_files_s", "files s", 3, VFM_COLUMN_DETAIL},
	{"wait_check_s", "check s", 3, VFM_COLUMN_DETAIL}, {"wait_arrange_s", "arrange s", 3, VFM_COLUMN_DETAIL},
	{"wait_lookup_s", "lookup s", 3, VFM_COLUMN_DETAIL}, {"wait_peers_s", "peers s", 3, VFM_COLUMN_DETAIL},
	{"kind", "kind", 0, VFM_COLUMN_DETAIL}, {0}};

static int print_runs(const struct loader_run *runs, int n, struct vfm_err *err)
{
	struct vfm_table *t = vfm_table_new(columns);
	int rc;

	print_rows(t, runs, n);
	vfm_table_note(
		t, "median of %d runs; GB/s counts all arrays as they are delivered; files from the page cache", n);
	bench_note_machine(t, vfm_par_threads(), NULL, NULL);
	rc = vfm_table_print(t, &o.table, stdout, err);
	vfm_table_free(t);
	return rc;
}

int bench_loader(int argc, char **argv, struct vfm_err *err)
{
	struct loader_run runs[256] = {0};
	struct vfm_shard_cache *cache = NULL;
	struct vfm_plan *m;
	int n = 0, rc = 0;

	TRY(rc = vfm_opt_parse(&cmd, argc, argv, &n, err));
	if (rc == VFM_OPT_DONE)
		return rc;
	if (n != 1)
		return vfm_fail(err, VFM_EUSAGE, "expected one plan");
	TRY(vfm_table_check(columns, &o.table, err));
	m = vfm_plan_open(argv[1], err);
	if (!m)
		return err->code;
	rc = vfm_shard_cache_open(&cache, &o.cache, err);
	for (int i = 0; rc >= 0 && i < o.repeat; i++)
		rc = run_once(m, cache, i > 0, &runs[i], err);
	vfm_shard_cache_close(cache);
	vfm_plan_close(m);
	return rc < 0 ? rc : print_runs(runs, (int)o.repeat, err);
}
