/* vfm-bench calibrate - measures the rates of a machine and writes them as a file (vfm-machine(5)): those of GPUs as
 * calibrate_gpu.h says, those of a CPU here.
 *
 * All ranks measure the same op at the same time, since they share the memory bandwidth in a job, too.  Operands are
 * evicted from the caches before each run: between two uses of a weight or of an activation, a step moves more bytes
 * than caches hold. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/par.h"
#include "io/file.h"
#include "io/host_memory.h"
#include "io/json.h"
#include "io/opt.h"
#include "bench.h"
#include "device/cpu/cpu.h"
#include "device/ops/cases.h"
#include "device/sim/estimate.h"
#include "predict/calibrate_gpu.h"
#include "train/job/context.h"

static struct {
	int64_t repeat;
	bool tiny;
	const char *path, *like;
} o = {.repeat = 3};
static struct vfm_context_opts rank_opts = VFM_CONTEXT_OPTS_INIT;

static const struct vfm_opt opts[] = {
	{VFM_OPT_STR, 0, "device", "cpu|cuda", "the device to measure (cpu)", &rank_opts.device},
	{VFM_OPT_STR, 0, "like", "NAME|FILE", "with cuda: the machine whose other figures stay (h200)", &o.like},
	{VFM_OPT_INT, 'n', "ranks", "N", "ranks that compute at the same time (1)", &rank_opts.ranks},
	{VFM_OPT_INT, 0, "threads", "N", "computing threads of a rank (its share of the CPUs)", &rank_opts.threads},
	{VFM_OPT_INT, 'r', "repeat", "N", "runs of each size; their median counts (3)", &o.repeat, 1, BENCH_REPEAT_MAX},
	{VFM_OPT_FLAG, 0, "tiny", NULL, "only small sizes, which predict badly: for tests", &o.tiny},
	{VFM_OPT_STR, 0, "write", "FILE", "write to FILE instead of stdout", &o.path},
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench calibrate",
	.synopsis = "[OPTION ...]",
	.summary = "measure this machine and write a machine file",
	.opts = opts,
	.no_operands = true,
};

/* Everything is measured in several passes, since another program may disturb one for seconds. */
enum { PASSES = 2 };
struct rates {
	json_t *list;
	struct vfm_comm *world;
	int pass;
	size_t at; /* the next rate of this pass */
	char *evict;
	size_t evict_bytes; /* more than the caches hold */
};

static void evict_caches(const struct rates *r)
{
	enum { LINE = 64 };

	for (size_t i = 0; i < r->evict_bytes; i += LINE)
		((volatile char *)r->evict)[i]++;
}

/* Replaces *x by its mean over the ranks. */
static int mean_of_ranks(const struct rates *r, double *x, struct vfm_err *err)
{
	TRY(vfm_all_reduce(r->world, NULL, vfm_t1(x, VFM_F64, 1), err));
	*x /= r->world->size;
	return 0;
}

static void add_rate(struct rates *r, const struct vfm_sim_cpu_work *w, double rate)
{
	json_t *old = json_array_get(r->list, r->at++);

	if (!old)
		json_array_append_new(r->list,
			json_pack("{s:s,s:s,s:[f,f,f],s:f}", "op", w->op, "dtype", vfm_dtype_name(w->dtype), "size",
				w->size[0], w->size[1], w->size[2], "rate", rate));
	else if (rate > json_number_value(json_object_get(old, "rate")))
		json_object_set_new(old, "rate", json_real(rate));
}

/* Measures the median seconds of a call.  Collective. */
static int time_cold_calls(
	struct vfm_case *c, struct vfm_stream *s, const struct rates *r, double *seconds, struct vfm_err *err)
{
	double x[BENCH_REPEAT_MAX], start;

	TRY(vfm_case_run(c, s, err)); /* first touch, threads */
	for (int i = 0; i < o.repeat; i++) {
		evict_caches(r);
		TRY(vfm_barrier(r->world, NULL, err));
		start = vfm_now();
		TRY(vfm_case_run(c, s, err));
		TRY(s->dev->t->stream_sync(s, err));
		x[i] = vfm_now() - start;
	}
	*seconds = vfm_spread_of(x, (size_t)o.repeat).median;
	return mean_of_ranks(r, seconds, err);
}

/* Measures an op whose tensors have no memory yet, and adds its rate. */
static int measure_rate(struct vfm_case *c, struct vfm_stream *s, struct rates *rates, struct vfm_err *err)
{
	struct vfm_sim_cpu_work w;
	double seconds = 0;
	int rc = vfm_case_alloc(c, s, 1, err);

	if (rc == 0)
		rc = time_cold_calls(c, s, rates, &seconds, err);
	if (rc == 0) {
		w = vfm_sim_cpu_work_of(c->op, &c->args);
		if (w.work > 0)
			add_rate(rates, &w, w.work / seconds / 1e9);
	}
	vfm_case_free(c, s);
	return rc;
}

/* The three products of a linear layer. */
static int measure_linear(struct vfm_stream *s, enum vfm_dtype t, int64_t rows, int64_t in, int64_t out, bool act,
	struct rates *rates, struct vfm_err *err)
{
	struct vfm_gemm fwd = {.a = vfm_t2(NULL, t, rows, in),
		.b = vfm_t2(NULL, t, out, in),
		.c = vfm_t2(NULL, t, rows, out),
		.bias = vfm_t1(NULL, VFM_F32, out),
		.trans_b = true};
	struct vfm_gemm dgrad = {
		.a = vfm_t2(NULL, t, rows, out), .b = vfm_t2(NULL, t, out, in), .c = vfm_t2(NULL, t, rows, in)};
	struct vfm_gemm wgrad = {.a = vfm_t2(NULL, t, rows, out),
		.b = vfm_t2(NULL, t, rows, in),
		.c = vfm_t2(NULL, VFM_F32, out, in),
		.trans_a = true,
		.a_rowsum = vfm_t1(NULL, VFM_F32, out)};
	struct vfm_case c = {.op = VFM_OP_gemm, .flags = VFM_CASE_BENCH};

	if (act) { /* the wide layer of an MLP, and the data gradient of the narrow one after it */
		fwd.act = VFM_ACT_GELU_TANH;
		fwd.aux = fwd.c;
		dgrad = (struct vfm_gemm){.a = vfm_t2(NULL, t, rows, in),
			.b = vfm_t2(NULL, t, in, out),
			.c = vfm_t2(NULL, t, rows, out),
			.aux = vfm_t2(NULL, t, rows, out),
			.dact = VFM_ACT_GELU_TANH};
	}
	c.args.gemm = fwd;
	TRY(measure_rate(&c, s, rates, err));
	c.args.gemm = dgrad;
	TRY(measure_rate(&c, s, rates, err));
	if (act)
		return 0;
	c.args.gemm = wgrad;
	return measure_rate(&c, s, rates, err);
}

static int measure_products(struct vfm_stream *s, enum vfm_dtype t, struct rates *rates, struct vfm_err *err)
{
	static const int64_t rows[] = {1, 77, 256, 1024, 2048},
			     widths[][2] = {{384, 384}, {384, 1536}, {1536, 384}, {768, 768}, {768, 2304}, {768, 3072},
				     {3072, 768}, {1152, 1152}, {1152, 4608}, {4608, 1152}, {2048, 2048}, {64, 768},
				     {768, 64}, {384, 27648}};
	enum { ROWS = sizeof(rows) / sizeof(*rows), WIDTHS = sizeof(widths) / sizeof(*widths) };

	if (o.tiny) {
		TRY(measure_linear(s, t, 32, 64, 64, true, rates, err));
		return measure_linear(s, t, 32, 64, 64, false, rates, err);
	}
	for (int r = 0; r < ROWS; r++)
		for (int k = 0; k < WIDTHS; k++) {
			int64_t in = widths[k][0], out = widths[k][1];

			if ((double)rows[r] * (double)in * (double)out > 6e9)
				continue;
			TRY(measure_linear(s, t, rows[r], in, out, false, rates, err));
			if (rows[r] >= 256 && out == 4 * in)
				TRY(measure_linear(s, t, rows[r], in, out, true, rates, err));
		}
	return 0;
}

/* The products of 16 experts with these rows each, whose weights are larger than caches. */
static int measure_experts(struct vfm_stream *s, enum vfm_dtype t, int rows, struct rates *rates, struct vfm_err *err)
{
	enum { G = 16 };
	int64_t in = o.tiny ? 64 : 2048, out = o.tiny ? 32 : 1024, n = (int64_t)G * rows;
	struct vfm_tensor x = vfm_t2(NULL, t, n, in), y = vfm_t2(NULL, t, n, out), weight = vfm_t3(NULL, t, G, out, in);
	const struct vfm_grouped_gemm of[] = {{.what = VFM_GROUPED_FWD, .a = x, .b = weight, .c = y},
		{.what = VFM_GROUPED_DGRAD, .a = y, .b = weight, .c = x},
		{.what = VFM_GROUPED_WGRAD, .a = y, .b = x, .c = vfm_t3(NULL, VFM_F32, G, out, in)}};
	int32_t cu[G + 1];

	for (int g = 0; g <= G; g++)
		cu[g] = g * rows;
	for (int i = 0; i < 3; i++) {
		struct vfm_case c = {.op = VFM_OP_grouped_gemm, .flags = VFM_CASE_BENCH, .args.grouped_gemm = of[i]};

		vfm_seqs_init(&c.seqs[0], G, cu);
		c.args.grouped_gemm.groups = &c.seqs[0];
		TRY(measure_rate(&c, s, rates, err));
	}
	return 0;
}

/* Attention of n samples of lq queries and lk keys. */
static int measure_attention(struct vfm_stream *s, enum vfm_dtype t, int n, int lq, int lk, int64_t h, int64_t d,
	struct rates *rates, struct vfm_err *err)
{
	enum { SAMPLES = 512 };
	int len[2][SAMPLES], rc = 0;
	struct vfm_cases l = {0};

	for (int i = 0; i < n; i++) {
		len[0][i] = lq;
		len[1][i] = lk;
	}
	vfm_case_attn(&l, VFM_CASE_BENCH, "calibrate", t, t, n, len[0], len[1], h, h, d);
	for (size_t i = 0; i < l.n && rc == 0; i++)
		rc = measure_rate(l.v[i], s, rates, err);
	vfm_cases_release(&l);
	return rc;
}

static int measure_attentions(struct vfm_stream *s, enum vfm_dtype t, struct rates *rates, struct vfm_err *err)
{
	static const int dims[] = {64, 72},
			 len[][2] = {{4, 4}, {16, 16}, {64, 64}, {256, 256}, {1024, 1024}, {2048, 2048}, {64, 77},
				 {256, 77}, {1024, 77}};

	if (o.tiny)
		return measure_attention(s, t, 1, 32, 32, 2, 32, rates, err);
	for (int d = 0; d < 2; d++)
		for (size_t i = 0; i < sizeof(len) / sizeof(*len); i++)
			TRY(measure_attention(s, t, len[i][0] < 1024 ? 1024 / len[i][0] : 1, len[i][0], len[i][1], 8,
				dims[d], rates, err));
	return 0;
}

/* The cases of the memory-bound ops of training. */
static int measure_memory_ops(struct vfm_stream *s, struct rates *rates, struct vfm_err *err)
{
	struct vfm_cases l;
	int rc = 0;

	vfm_cases_init(&l);
	for (size_t i = 0; i < l.n && rc == 0; i++) {
		struct vfm_case *c = l.v[i];
		enum vfm_sim_class class = vfm_sim_class_of(c->op);

		if (!(c->flags & VFM_CASE_BENCH) || class == VFM_SIM_GEMM || class == VFM_SIM_ATTENTION ||
			c->op == VFM_OP_block8 || c->op == VFM_OP_channel_norm || c->op == VFM_OP_upsample ||
			(o.tiny && c->op != VFM_OP_norm))
			continue;
		rc = measure_rate(c, s, rates, err);
	}
	vfm_cases_release(&l);
	return rc;
}

/* ---- collectives ---- */

/* Only sums depend on the dtype. */
static const struct coll_case {
	enum bench_collective what;
	enum vfm_dtype dtype;
} coll_cases[] = {{BENCH_ALL_REDUCE, VFM_F32}, {BENCH_ALL_REDUCE, VFM_BF16}, {BENCH_REDUCE_SCATTER, VFM_F32},
	{BENCH_REDUCE_SCATTER, VFM_BF16}, {BENCH_ALL_GATHER, VFM_BF16}, {BENCH_ALL_TO_ALL, VFM_BF16},
	{BENCH_BROADCAST, VFM_BF16}, {BENCH_EXCHANGE, VFM_BF16}, {BENCH_SEND, VFM_BF16}};
enum { COLL_CASES = sizeof(coll_cases) / sizeof(*coll_cases) };

/* Measures the seconds of a call: of large operands each call alone, which are not in caches; of small ones several. */
static int time_collective(struct vfm_comm *c, struct vfm_stream *s, const struct coll_case *k, char *a, char *b,
	int64_t bytes, const struct rates *r, double *seconds, struct vfm_err *err)
{
	enum { LARGE = 64 << 10, CALLS = 50 };
	int64_t n = bytes / (int64_t)vfm_dtype_size(k->dtype) / c->size * c->size;
	int calls = bytes < LARGE ? CALLS : 1;
	double x[BENCH_REPEAT_MAX], start;

	TRY(bench_call_collective(k->what, c, s, k->dtype, a, b, n, err));
	for (int i = 0; i < o.repeat; i++) {
		if (calls == 1)
			evict_caches(r);
		TRY(vfm_barrier(r->world, NULL, err));
		start = vfm_now();
		for (int j = 0; j < calls; j++)
			TRY(bench_call_collective(k->what, c, s, k->dtype, a, b, n, err));
		TRY(s->dev->t->stream_sync(s, err));
		x[i] = (vfm_now() - start) / calls;
	}
	*seconds = vfm_spread_of(x, (size_t)o.repeat).median;
	return mean_of_ranks(r, seconds, err);
}

/* The collectives of groups of c->size ranks; all groups call at the same time. */
static int measure_group(struct vfm_comm *c, struct vfm_stream *s, struct rates *r, struct vfm_err *err)
{
	const int64_t most = o.tiny ? 16 << 10 : 64 << 20;
	char *a = vfm_dev_alloc(s, 2 * (size_t)most, "the operands of collectives", err);
	int rc = a ? s->dev->t->zero(s, a, 2 * (size_t)most, err) : VFM_EENV;

	for (int k = 0; k < COLL_CASES; k++)
		for (int64_t bytes = VFM_SIM_COLL_LEAST * c->size; rc >= 0 && bytes <= most; bytes *= 4) {
			struct vfm_sim_cpu_work w = vfm_sim_cpu_coll_of(bench_collective_names[coll_cases[k].what],
				coll_cases[k].dtype, (double)bytes, c->size);
			double seconds = 0;

			rc = time_collective(c, s, &coll_cases[k], a, a + most, bytes, r, &seconds, err);
			if (rc >= 0)
				add_rate(r, &w, w.work / seconds / 1e9);
		}
	if (a)
		vfm_dev_free(s, a, 2 * (size_t)most);
	return rc;
}

/* The sizes of groups divide the number of ranks. */
static int measure_collectives(struct vfm_comm *world, struct vfm_stream *s, struct rates *r, struct vfm_err *err)
{
	for (int size = 2; size <= world->size; size++) {
		struct vfm_comm *c;
		int rc;

		if (world->size % size)
			continue;
		TRY(vfm_comm_split(world, world->rank / size, world->rank, "calibrate", &c, err));
		rc = measure_group(c, s, r, err);
		vfm_comm_free(c);
		TRY(rc);
	}
	return 0;
}

static json_t *sourced(json_t *value, const char *source)
{
	return json_pack("{s:o,s:s}", "value", value, "source", source);
}

static int measure_rates(struct vfm_comm *world, struct vfm_stream *s, struct rates *rates, struct vfm_err *err)
{
	for (; rates->pass < PASSES; rates->pass++) {
		if (world->rank == 0)
			vfm_info("pass %d of %d", rates->pass + 1, PASSES);
		rates->at = 0;
		for (int t = 0; t < 2; t++) {
			TRY(measure_products(s, t ? VFM_BF16 : VFM_F32, rates, err));
			for (int rows = 16; rows <= 64; rows *= 2)
				TRY(measure_experts(s, t ? VFM_BF16 : VFM_F32, rows, rates, err));
			TRY(measure_attentions(s, t ? VFM_BF16 : VFM_F32, rates, err));
		}
		TRY(measure_memory_ops(s, rates, err));
		TRY(measure_collectives(world, s, rates, err));
	}
	return 0;
}

static json_t *describe_copies(const struct vfm_dev *d, enum vfm_dtype t)
{
	struct vfm_cpu_copies c = vfm_cpu_copies_of(d, t);

	return sourced(json_pack("[i,i,i,i,i]", c.few, c.rows, c.columns, c.depth, c.bytes), d->descr);
}

static void describe_machine(json_t *m, const struct vfm_context *x)
{
	char name[64];

	bench_cpu_name(name, sizeof(name));
	json_object_set_new(m, "v", json_integer(1));
	json_object_set_new(m, "kind", json_string("cpu"));
	json_object_set_new(m, "name", json_string(name));
	json_object_set_new(m, "capacity_bytes",
		sourced(json_integer((json_int_t)vfm_host_memory()), "measured: memory of this host, or its limit"));
	json_object_set_new(
		m, "ranks", sourced(json_integer(x->job.world->size), "measured: the ranks of this measurement"));
	json_object_set_new(
		m, "threads", sourced(json_integer(vfm_par_threads()), "measured: the threads of each of them"));
	json_object_set_new(m, "copies_f32", describe_copies(x->device.dev, VFM_F32));
	json_object_set_new(m, "copies_bf16", describe_copies(x->device.dev, VFM_BF16));
}

/* Twice the last cache, within bounds where its size is unknown or that of many cores. */
static size_t choose_evicted_bytes(void)
{
	long last = sysconf(_SC_LEVEL3_CACHE_SIZE);

	return o.tiny ? 1 << 20 : (size_t)fmin(fmax(2.0 * (double)last, 16 << 20), 128 << 20);
}

static int measure_machine(struct vfm_context *x, json_t *m, struct vfm_err *err)
{
	struct rates rates = {.list = json_array(), .world = x->job.world, .evict_bytes = choose_evicted_bytes()};
	char source[256];
	double copy = 0;
	int rc;

	describe_machine(m, x);
	snprintf(source, sizeof(source),
		"measured: faster of %d passes, median of %d runs, operands not in caches, mean of the ranks, %s",
		PASSES, (int)o.repeat, x->device.dev->descr);
	json_object_set_new(m, "rates", sourced(rates.list, source));
	rates.evict = vfm_big_alloc(rates.evict_bytes, "the memory that evicts caches", err);
	rc = vfm_job_agree(&x->job, rates.evict ? 0 : VFM_EENV, err);
	if (rc >= 0)
		rc = bench_copy_speed(x->device.stream, o.tiny ? 1 << 20 : 128 << 20, 5, &copy, err);
	if (rc >= 0)
		rc = mean_of_ranks(&rates, &copy, err);
	json_object_set_new(
		m, "copy_gb_s", sourced(json_real(copy / 1e9), "measured: median of 5 copies, mean of the ranks"));
	if (rc >= 0)
		rc = measure_rates(x->world, x->device.stream, &rates, err);
	vfm_big_free(rates.evict, rates.evict_bytes);
	return rc;
}

/* Writes to the open file, or to stdout. */
static int write_machine(const json_t *m, FILE *to, struct vfm_err *err)
{
	struct vfm_buf b = {0};
	int rc = 0;

	vfm_json_text(&b, m, 1);
	vfm_buf_adds(&b, "\n");
	if (fputs(b.data, to) == EOF || fflush(to) != 0)
		rc = vfm_fail_errno(
			err, errno == EPIPE ? VFM_EPIPE : VFM_EENV, "cannot write %s", o.path ? o.path : "stdout");
	vfm_buf_release(&b);
	return rc;
}

/* Makes the machine on all ranks, which the caller releases. */
static int calibrate_machine(struct vfm_context *x, json_t **m, struct vfm_err *err)
{
	bool cpu = !strcmp(rank_opts.device, "cpu");
	struct gpu_calibration gpu = {o.like ? o.like : "h200", (int)o.repeat, o.tiny};

	*m = cpu ? json_object() : NULL;
	TRY(vfm_context_device(x, false, err));
	return vfm_job_failed(&x->job, cpu ? measure_machine(x, *m, err) : calibrate_gpus(x, &gpu, m, err), err);
}

/* The first rank opens the file before the measurement, which takes minutes. */
static int calibrate_rank(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	bool first = x->job.world->rank == 0, to_file = first && o.path;
	struct vfm_atomic f = {0};
	json_t *m;
	int rc;

	(void)ctx;
	TRY(vfm_job_agree(&x->job, to_file ? vfm_atomic_open(&f, o.path, err) : 0, err));
	rc = calibrate_machine(x, &m, err);
	if (rc >= 0 && first)
		rc = write_machine(m, to_file ? f.f : stdout, err);
	if (to_file && rc >= 0)
		rc = vfm_atomic_commit(&f, err);
	else if (to_file)
		vfm_atomic_abort(&f);
	json_decref(m);
	return rc;
}

static int parse_calibrate(int argc, char **argv, struct vfm_err *err)
{
	int n, rc = vfm_opt_parse(&cmd, argc, argv, &n, err);

	if (rc != 0)
		return rc;
	if (strcmp(rank_opts.device, "cpu") != 0 && strcmp(rank_opts.device, "cuda") != 0)
		return vfm_fail(err, VFM_EUSAGE, "--device: expected cpu or cuda, got '%s'", rank_opts.device);
	if (o.like && strcmp(rank_opts.device, "cuda") != 0)
		return vfm_fail(err, VFM_EUSAGE, "--like: only with --device cuda");
	return vfm_context_check(&rank_opts, err);
}

int bench_calibrate(int argc, char **argv, struct vfm_err *err)
{
	int rc = vfm_job_say_once(parse_calibrate(argc, argv, err), err);

	return rc != 0 ? rc : vfm_context_run(&rank_opts, calibrate_rank, NULL, err);
}
