/* vfm-bench comm - times the collectives of several ranks, reports their bandwidths and verifies their results.
 *
 * Definitions of nccl-tests: the size S is that of the vector of all_reduce, the output of all_gather, the input of
 * reduce_scatter and all_to_all.  The algorithm bandwidth is S / t.  The bus bandwidth is that times 2 (n-1)/n for
 * all_reduce, 1 for broadcast and exchange, (n-1)/n for the others. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/par.h"
#include "io/opt.h"
#include "bench.h"
#include "train/job/context.h"

static const char *ops = "all_reduce,all_gather,reduce_scatter,all_to_all", *sizes = "64K,1M,16M,64M";
static struct vfm_table_opts table_opts;
static int bf16;
static int64_t repeat = 10;
static struct vfm_context_opts rank_opts = VFM_CONTEXT_OPTS_INIT;
static bool registered;
static double seconds = 0.02;

enum { MAX_REPEAT = 256 };

static const struct vfm_opt opts[] = {
	{VFM_OPT_STR, 0, "ops", "LIST",
		"all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, exchange, barrier (the first four)",
		&ops},
	{VFM_OPT_STR, 0, "sizes", "LIST", "total bytes S of an operation (64K,1M,16M,64M)", &sizes},
	{VFM_OPT_NAME, 0, "dtype", "f32|bf16", "element type (f32)", &bf16},
	{VFM_OPT_FLAG, 0, "register", NULL, "register the operands with the communication library, if it supports that",
		&registered},
	{VFM_OPT_INT, 'r', "repeat", "N", "measurements of each; the table shows their median and the shortest (10)",
		&repeat, 1, MAX_REPEAT},
	{VFM_OPT_NUM, 0, "seconds", "S", "approximate duration of a measurement (0.02)", &seconds},
	VFM_CONTEXT_OPTS(&rank_opts),
	VFM_TABLE_OPTS(&table_opts),
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench comm",
	.synopsis = "[OPTION ...]",
	.summary = "measure the collectives of several ranks",
	.opts = opts,
	.no_operands = true,
};

struct comm_work {
	struct vfm_comm *c;   /* device communicator */
	struct vfm_stream *s; /* compute stream */
	enum vfm_dtype dt;
	int64_t n;   /* elements of the vector, a multiple of the ranks */
	char *a, *b; /* [n] each, device */
	char *host;  /* [n] */
};

/* Returns element i of the operand of rank r.  The want_* functions return element i of the correct result.  Values are
 * small integers, so that sums are exact. */
static int64_t value(int r, int64_t i)
{
	return (r * 5 + i * 3 + i / 7) % 13 - 6;
}

static int64_t sum(const struct comm_work *w, int64_t i)
{
	int64_t s = 0;

	for (int r = 0; r < w->c->size; r++)
		s += value(r, i);
	return s;
}

static int64_t want_reduce(const struct comm_work *w, int64_t i)
{
	return sum(w, i);
}

static int64_t want_gather(const struct comm_work *w, int64_t i)
{
	int64_t each = w->n / w->c->size;

	return value((int)(i / each), i % each);
}

static int64_t want_scatter(const struct comm_work *w, int64_t i)
{
	return sum(w, w->n / w->c->size * w->c->rank + i);
}

static int64_t want_a2a(const struct comm_work *w, int64_t i)
{
	int64_t each = w->n / w->c->size;

	return value((int)(i / each), each * w->c->rank + i % each);
}

static int64_t want_root(const struct comm_work *w, int64_t i)
{
	(void)w;
	return value(0, i);
}

static int64_t want_prev(const struct comm_work *w, int64_t i)
{
	return value((w->c->rank + w->c->size - 1) % w->c->size, i);
}

static const struct op {
	enum bench_collective what;
	int64_t (*want)(const struct comm_work *w, int64_t i);
	bool in_a, shares;    /* the result is in a; has n / ranks elements */
	double bus, per_rank; /* bus bandwidth: factor; 1: times (n-1)/n */
} table[] = {
	{BENCH_ALL_REDUCE, want_reduce, true, false, 2, 1},
	{BENCH_ALL_GATHER, want_gather, false, false, 1, 1},
	{BENCH_REDUCE_SCATTER, want_scatter, false, true, 1, 1},
	{BENCH_ALL_TO_ALL, want_a2a, false, false, 1, 1},
	{BENCH_BROADCAST, want_root, true, false, 1, 0},
	{BENCH_EXCHANGE, want_prev, false, false, 1, 0},
	{BENCH_BARRIER, NULL, false, false, 0, 0},
};

static int call_op(const struct comm_work *w, const struct op *op, struct vfm_err *err)
{
	return bench_call_collective(op->what, w->c, w->s, w->dt, w->a, w->b, w->n, err);
}

static int fill_input(const struct comm_work *w, struct vfm_err *err)
{
	size_t es = vfm_dtype_size(w->dt);

	for (int64_t i = 0; i < w->n; i++) {
		int64_t v = value(w->c->rank, i);

		vfm_dtype_convert(w->dt, w->host + (size_t)i * es, VFM_I64, &v, 1);
	}
	return w->s->dev->t->to_device(w->s, w->a, w->host, (size_t)w->n * es, err);
}

static int sync(const struct comm_work *w, struct vfm_err *err)
{
	return w->s->dev->t->stream_sync(w->s, err);
}

static int check(struct comm_work *w, const struct op *op, struct vfm_err *err)
{
	int64_t n = op->shares ? w->n / w->c->size : w->n, wrong = 0;
	size_t es = vfm_dtype_size(w->dt);
	const char *p = w->host;

	TRY(fill_input(w, err));
	TRY(call_op(w, op, err));
	TRY(w->s->dev->t->to_host(w->s, w->host, op->in_a ? w->a : w->b, (size_t)n * es, err));
	TRY(sync(w, err));
	for (int64_t i = 0; op->want && i < n; i++) {
		double x;

		vfm_dtype_to_f64(&x, w->dt, p + (size_t)i * es, 1);
		wrong += x != (double)op->want(w, i);
	}
	TRY(vfm_all_reduce(w->c, NULL, vfm_t1(&wrong, VFM_I64, 1), err));
	if (wrong)
		return vfm_fail(err, VFM_EENV, "%s of %lld %s: %lld elements are wrong",
			bench_collective_names[op->what], (long long)w->n, vfm_dtype_name(w->dt), (long long)wrong);
	return 0;
}

/* Measures the seconds per call.  Collective: all ranks make the same number of calls. */
static int measure(struct comm_work *w, const struct op *op, int64_t calls, double *t, struct vfm_err *err)
{
	double start;

	TRY(vfm_barrier(w->c, NULL, err));
	start = vfm_now();
	for (int64_t i = 0; i < calls; i++)
		TRY(call_op(w, op, err));
	TRY(sync(w, err));
	TRY(vfm_barrier(w->c, NULL, err));
	*t = (vfm_now() - start) / (double)calls;
	return 0;
}

static int run_op(struct comm_work *w, const struct op *op, struct vfm_table *t, struct vfm_err *err)
{
	double x[MAX_REPEAT], n = w->c->size, bus = op->bus * (op->per_rank > 0 ? (n - 1) / n : 1),
			      bytes = (double)w->n * (double)vfm_dtype_size(w->dt);
	struct vfm_spread s;
	int64_t calls;

	TRY(check(w, op, err));
	TRY(w->s->dev->t->zero(w->s, w->a, (size_t)bytes, err));
	TRY(sync(w, err));
	TRY(measure(w, op, 2, &x[0], err));
	calls = (int64_t)(seconds / x[0]) + 1;
	calls = calls > 10000 ? 10000 : calls;
	TRY(vfm_broadcast(w->c, NULL, vfm_t1(&calls, VFM_I64, 1), 0, err));
	for (int64_t i = 0; i < repeat; i++)
		TRY(measure(w, op, calls, &x[i], err));
	if (w->c->rank != 0)
		return 0;
	s = vfm_spread_of(x, (size_t)repeat);
	vfm_table_row(t);
	vfm_table_str(t, "op", bench_collective_names[op->what]);
	vfm_table_i64(t, "ranks", w->c->size);
	vfm_table_str(t, "dtype", vfm_dtype_name(w->dt));
	vfm_table_i64(t, "bytes", op->want ? (int64_t)bytes : 0);
	vfm_table_i64(t, "calls", calls * repeat);
	vfm_table_f64(t, "median_us", s.median * 1e6);
	vfm_table_f64(t, "min_us", s.min * 1e6);
	if (op->want) {
		vfm_table_f64(t, "alg_gb_s", bytes / s.median / 1e9);
		vfm_table_f64(t, "bus_gb_s", bus * bytes / s.median / 1e9);
	}
	vfm_table_str(t, "result", op->want ? "right" : NULL);
	vfm_table_str(t, "kind", "measured");
	return 0;
}

static int run_size(struct vfm_context *x, int64_t bytes, const struct op *op, struct vfm_table *t, struct vfm_err *err)
{
	struct comm_work w = {.c = x->world, .s = x->device.stream};
	struct vfm_comm_mem a = {0}, b = {0};
	struct vfm_comm *kind = registered ? w.c : vfm_comm_self();
	size_t es, room;
	int rc = 0;

	w.dt = bf16 ? VFM_BF16 : VFM_F32;
	es = vfm_dtype_size(w.dt);
	w.n = bytes / (int64_t)es / w.c->size * w.c->size;
	room = (size_t)w.n * es;
	w.host = vfm_big_alloc(room + 64, "a copy of the operand", err);
	rc = w.host ? vfm_comm_mem_new(&a, kind, w.s, room + 64, "the operand", err) : VFM_EENV;
	if (rc >= 0)
		rc = vfm_comm_mem_new(&b, kind, w.s, room + 64, "the result", err);
	w.a = a.p;
	w.b = b.p;
	rc = vfm_job_agree(&x->job, rc >= 0 ? w.s->dev->t->zero(w.s, w.b, room, err) : rc, err);
	if (rc >= 0 && registered)
		rc = vfm_comm_mem_register(&a, w.c, err);
	if (rc >= 0 && registered)
		rc = vfm_comm_mem_register(&b, w.c, err);
	if (rc >= 0)
		rc = run_op(&w, op, t, err);
	vfm_job_failed(&x->job, rc, err);
	vfm_big_free(w.host, room + 64);
	vfm_comm_mem_release(&b);
	vfm_comm_mem_release(&a);
	return rc;
}

static const struct op *op_named(const char *name)
{
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (!strcmp(bench_collective_names[table[i].what], name))
			return &table[i];
	return NULL;
}

enum { LIST_MAX = 64 };

/* The parsed options. */
struct request {
	const struct op *op[LIST_MAX];
	int64_t size[LIST_MAX];
	int n_op, n_size;
};

static int parse_ops(struct request *r, const struct vfm_list *l, struct vfm_err *err)
{
	for (size_t i = 0; i < l->n; i++) {
		r->op[r->n_op] = op_named(l->v[i]);
		if (!r->op[r->n_op++])
			return vfm_fail(err, VFM_EUSAGE, "unknown operation '%s'", l->v[i]);
	}
	return 0;
}

static int parse_sizes(struct request *r, const struct vfm_list *l, struct vfm_err *err)
{
	for (size_t i = 0; i < l->n; i++) {
		int64_t *bytes = &r->size[r->n_size++];

		TRY(vfm_parse_size(l->v[i], bytes, err));
		if (*bytes < 1024 || *bytes > (int64_t)1 << 36)
			return vfm_fail(err, VFM_EUSAGE, "expected 1K to 64G, got '%s'", l->v[i]);
	}
	return 0;
}

/* Parses the list of an option. */
static int parse_comm_list(struct request *r, const char *option, const char *text,
	int (*parse)(struct request *r, const struct vfm_list *l, struct vfm_err *err), struct vfm_err *err)
{
	struct vfm_list l = {0};
	int rc = vfm_list_parse(&l, text, err);

	if (rc == 0 && l.n > LIST_MAX)
		rc = vfm_fail(err, VFM_EUSAGE, "expected 1 to %d values, got '%s'", LIST_MAX, text);
	if (rc == 0)
		rc = parse(r, &l, err);
	vfm_list_release(&l);
	return rc < 0 ? vfm_err_context(err, "%s", option) : 0;
}

static const struct vfm_table_column columns[] = {{"op", "op", 0}, {"ranks", "ranks", 0, VFM_COLUMN_GROUP},
	{"dtype", "dtype", 0, VFM_COLUMN_GROUP}, {"bytes", "bytes", 0}, {"calls", "calls", 0, VFM_COLUMN_DETAIL},
	{"median_us", "median us", 1}, {"min_us", "min us", 1}, {"alg_gb_s", "algbw GB/s", 2},
	{"bus_gb_s", "busbw GB/s", 2}, {"result", "result", 0}, {"kind", "kind", 0, VFM_COLUMN_DETAIL}, {0}};

static int measure_comm(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	const struct request *r = ctx;
	struct vfm_table *t = vfm_table_new(columns);
	int rc = vfm_context_device(x, false, err);

	for (int i = 0; rc >= 0 && i < r->n_op; i++)
		for (int k = 0; rc >= 0 && k < (r->op[i]->want ? r->n_size : 1); k++)
			rc = run_size(x, r->op[i]->want ? r->size[k] : 1024, r->op[i], t, err);
	if (rc >= 0 && x->job.world->rank == 0) {
		vfm_table_note(t,
			"median of %lld measurements; bandwidths as nccl-tests defines them; %d ranks on %d node%s "
			"over %s",
			(long long)repeat, x->job.world->size, x->job.launch.nodes, x->job.launch.nodes > 1 ? "s" : "",
			vfm_comm_backend(x->world));
		bench_note_machine(t, vfm_par_threads(), x->device.dev->name, x->device.dev->descr);
		rc = vfm_table_print(t, &table_opts, stdout, err);
	}
	vfm_table_free(t);
	return rc;
}

static int parse_comm(struct request *r, int argc, char **argv, struct vfm_err *err)
{
	int n, rc = vfm_opt_parse(&cmd, argc, argv, &n, err);

	if (rc != 0)
		return rc;
	TRY(vfm_table_check(columns, &table_opts, err));
	TRY(parse_comm_list(r, "--ops", ops, parse_ops, err));
	TRY(parse_comm_list(r, "--sizes", sizes, parse_sizes, err));
	return vfm_context_check(&rank_opts, err);
}

int bench_comm(int argc, char **argv, struct vfm_err *err)
{
	struct request r = {.n_op = 0};
	int rc = vfm_job_say_once(parse_comm(&r, argc, argv, err), err);

	return rc != 0 ? rc : vfm_context_run(&rank_opts, measure_comm, &r, err);
}
