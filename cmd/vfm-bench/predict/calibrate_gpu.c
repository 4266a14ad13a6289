/* calibrate_gpu.c - times GEMM, attention, copies, launches and collectives of the GPUs and writes their rates. */
#include "predict/calibrate_gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/installed.h"
#include "base/log.h"
#include "bench.h"
#include "device/ops/cases.h"
#include "device/sim/machine.h"
#include "io/document.h"

enum { FILE_MOST = 1 << 20 };

struct gpus {
	struct vfm_context *x;
	struct vfm_stream *s;
	const struct gpu_calibration *c;
	struct vfm_machine like;
	json_t *file; /* of all ranks, equal */
};

/* ---- the file ---- */

/* v: seconds; their mean over the ranks counts.  Collective. */
static int mean_spread(const struct gpus *g, struct vfm_spread *v, struct vfm_err *err)
{
	struct vfm_comm *world = g->x->job.world;
	double x[3] = {v->min, v->median, v->max};

	TRY(vfm_all_reduce(world, NULL, vfm_t1(x, VFM_F64, 3), err));
	*v = (struct vfm_spread){x[0] / world->size, x[1] / world->size, x[2] / world->size};
	return 0;
}

static json_t *rate_value(double low, double mid, double high)
{
	return json_pack("[f,f,f]", low, mid, high);
}

static void set_measured(const struct gpus *g, const char *key, json_t *value, const char *what)
{
	char source[256];

	snprintf(source, sizeof(source), "measured: %s; slowest, median and fastest of %d runs, mean of %d %s", what,
		g->c->repeat, g->x->job.world->size, g->x->device.dev->name);
	json_object_set_new(g->file, key, json_pack("{s:o,s:s}", "value", value, "source", source));
}

/* Returns the rate of the work done in *seconds. */
static void set_rate(
	const struct gpus *g, const char *key, double work, const struct vfm_spread *seconds, const char *what)
{
	set_measured(g, key, rate_value(work / seconds->max, work / seconds->median, work / seconds->min), what);
}

/* Seconds as microseconds, less those of something else, but at least a tenth. */
static void set_micros(
	const struct gpus *g, const char *key, const struct vfm_spread *seconds, double less_us, const char *what)
{
	set_measured(g, key,
		rate_value(fmax(seconds->max * 1e6 - less_us, 0.1), fmax(seconds->median * 1e6 - less_us, 0.1),
			fmax(seconds->min * 1e6 - less_us, 0.1)),
		what);
}

/* ---- ops ---- */

/* Measures an op whose tensors have no memory yet, on all ranks at the same time. */
static int time_op(const struct gpus *g, struct vfm_case *c, struct vfm_spread *seconds, struct vfm_err *err)
{
	int rc = vfm_case_alloc(c, g->s, 1, err);

	if (rc == 0)
		rc = vfm_barrier(g->x->job.world, NULL, err);
	if (rc == 0)
		rc = bench_time_case(c, g->s, g->c->repeat, seconds, err);
	vfm_case_free(c, g->s);
	return rc < 0 ? rc : mean_spread(g, seconds, err);
}

static struct vfm_case square_product(const struct gpus *g, enum vfm_dtype t)
{
	int64_t n = g->c->tiny ? 64 : g->like.gemm_size;
	struct vfm_tensor a = vfm_t2(NULL, t, n, n);

	return (struct vfm_case){
		.op = VFM_OP_gemm, .flags = VFM_CASE_BENCH, .args.gemm = {.a = a, .b = a, .c = a, .trans_b = true}};
}

static int measure_square_products(const struct gpus *g, struct vfm_err *err)
{
	static const struct {
		const char *key;
		enum vfm_dtype t;
	} rate[] = {{"gemm_bf16_tflops", VFM_BF16}, {"gemm_f32_tflops", VFM_F32}};

	for (int i = 0; i < 2; i++) {
		struct vfm_case c = square_product(g, rate[i].t);
		double n = (double)c.args.gemm.a.shape[0];
		struct vfm_spread seconds;

		TRY(time_op(g, &c, &seconds, err));
		set_rate(g, rate[i].key, 2 * n * n * n / 1e12, &seconds, "a product of square matrices, random data");
	}
	return 0;
}

/* Measures forward and backward of a row {head_dim, tokens, forward, backward, source}. */
static int measure_attention_row(const struct gpus *g, json_t *row, struct vfm_err *err)
{
	enum { ROWS = 8192, MOST = 64, HEADS = 24 };
	int head_dim = (int)json_integer_value(json_object_get(row, "head_dim"));
	int tokens = g->c->tiny ? 16 : (int)json_integer_value(json_object_get(row, "tokens"));
	int n = g->c->tiny || tokens >= ROWS ? 1 : ROWS / tokens < MOST ? ROWS / tokens : MOST;
	int heads = g->c->tiny ? 1 : HEADS, length[MOST], rc = 0;
	double forward = 4.0 * n * tokens * tokens * heads * head_dim / 1e12;
	struct vfm_cases l = {0};

	for (int i = 0; i < n; i++)
		length[i] = tokens;
	vfm_case_attn(&l, VFM_CASE_BENCH, "samples", VFM_BF16, VFM_BF16, n, length, length, heads, heads, head_dim);
	for (size_t i = 0; i < l.n && rc == 0; i++) {
		bool back = l.v[i]->op == VFM_OP_attn_bwd;
		double tflop = forward * (back ? 2.5 : 1);
		struct vfm_spread s;

		rc = time_op(g, l.v[i], &s, err);
		if (rc == 0)
			json_object_set_new(row, back ? "backward" : "forward",
				rate_value(tflop / s.max, tflop / s.median, tflop / s.min));
	}
	vfm_cases_release(&l);
	json_object_set_new(row, "source",
		json_string(
			"measured: random data, 24 heads, samples of this length; slowest, median and fastest run"));
	return rc;
}

static int measure_attention_rows(const struct gpus *g, struct vfm_err *err)
{
	json_t *row;
	size_t i;

	json_array_foreach(json_object_get(g->file, "attention"), i,
		row) if (measure_attention_row(g, row, err) < 0) return vfm_err_context(err, "attention[%zu]", i);
	return 0;
}

/* ---- memory ---- */

static int time_copies(const struct gpus *g, void *dst, const void *src, size_t bytes, bool to_host,
	struct vfm_spread *seconds, struct vfm_err *err)
{
	TRY(bench_time_copies(g->s, dst, src, bytes, to_host, g->c->repeat, seconds, err));
	return mean_spread(g, seconds, err);
}

/* device [2 n], host [n] */
static int measure_copies(const struct gpus *g, char *device, void *host, size_t n, struct vfm_err *err)
{
	struct vfm_tensor x = vfm_t1(NULL, VFM_BF16, (int64_t)n / 2);
	struct vfm_case kernel = {
		.op = VFM_OP_axpby, .flags = VFM_CASE_BENCH, .args.axpby = {.alpha = 1, .x = x, .y = x}};
	struct vfm_spread copy, up, down, k;
	double of[3];

	TRY(time_copies(g, device, device + n, n, false, &copy, err));
	set_rate(g, "copy_gb_s", 2 * (double)n / 1e9, &copy, "a copy within device memory, bytes read and written");
	TRY(time_op(g, &kernel, &k, err));
	of[0] = copy.median / k.max, of[1] = copy.median / k.median, of[2] = copy.median / k.min;
	set_measured(g, "kernel_of_copy", rate_value(fmin(of[0], 1), fmin(of[1], 1), fmin(of[2], 1)),
		"a kernel that reads and writes as many bytes, against the median copy");
	TRY(time_copies(g, device, host, n, false, &up, err));
	TRY(time_copies(g, host, device, n, true, &down, err));
	up = (struct vfm_spread){fmin(up.min, down.min), (up.median + down.median) / 2, fmax(up.max, down.max)};
	set_rate(g, "pcie_gb_s", (double)n / 1e9, &up, "copies to and from pinned memory, one direction at a time");
	return 0;
}

static int measure_memory(const struct gpus *g, struct vfm_err *err)
{
	size_t n = g->c->tiny ? (size_t)1 << 16 : (size_t)256 << 20;
	struct vfm_dev *d = g->s->dev;
	char *device = vfm_dev_alloc(g->s, 2 * n, "the operands of copies", err);
	void *host = device ? d->t->alloc_host(d, n, "the operands of copies", err) : NULL;
	int rc = host ? d->t->zero(g->s, device, 2 * n, err) : VFM_EENV;

	if (host)
		memset(host, 0, n);
	rc = vfm_job_agree(&g->x->job, rc, err);
	if (rc == 0)
		rc = measure_copies(g, device, host, n, err);
	if (host)
		d->t->free_host(d, host, n);
	vfm_dev_free(g->s, device, 2 * n);
	return rc;
}

/* ---- launches ---- */

enum { CHAIN = 400, AHEAD = 8 };

/* The device is busy with `ahead` while the host enqueues CHAIN of `small`; each depends on the one before. */
struct chain {
	struct vfm_case ahead, small;
	struct vfm_event *begin, *end;
};

/* Sets the seconds of an element of the chain on the device, and of its launch on the host. */
static int run_chain(
	const struct gpus *g, struct chain *c, bool graph, double *device_s, double *host_s, struct vfm_err *err)
{
	const struct vfm_dev_table *t = g->s->dev->t;
	double start;

	for (int i = 0; i < AHEAD; i++)
		TRY(vfm_case_run(&c->ahead, g->s, err));
	TRY(t->event_record(c->begin, g->s, err));
	if (graph)
		TRY(t->graph_begin(g->s, err));
	start = vfm_now();
	for (int i = 0; i < CHAIN; i++)
		TRY(vfm_case_run(&c->small, g->s, err));
	*host_s = (vfm_now() - start) / CHAIN;
	if (graph)
		TRY(t->graph_end(g->s, true, err));
	TRY(t->event_record(c->end, g->s, err));
	TRY(t->stream_sync(g->s, err));
	TRY(t->event_elapsed(c->begin, c->end, device_s, err));
	*device_s /= CHAIN;
	return 0;
}

static int time_chain(const struct gpus *g, struct chain *c, bool graph, struct vfm_spread *device,
	struct vfm_spread *host, struct vfm_err *err)
{
	double d[BENCH_REPEAT_MAX], h[BENCH_REPEAT_MAX];

	for (int i = -1; i < g->c->repeat; i++)
		TRY(run_chain(g, c, graph, &d[i < 0 ? 0 : i], &h[i < 0 ? 0 : i], err));
	*device = vfm_spread_of(d, (size_t)g->c->repeat);
	*host = vfm_spread_of(h, (size_t)g->c->repeat);
	TRY(mean_spread(g, device, err));
	return mean_spread(g, host, err);
}

static int measure_chains(const struct gpus *g, struct chain *c, struct vfm_err *err)
{
	double kernel_us = g->like.least.v[VFM_MID];
	struct vfm_spread device, host;

	TRY(time_chain(g, c, false, &device, &host, err));
	set_micros(g, "gap_us", &device, kernel_us,
		"from one small kernel to the next that depends on it, less kernel_us");
	set_micros(g, "launch_host_us", &host, 0, "the host's time for a launch while the device is busy");
	if (!g->s->dev->t->graph_begin)
		return 0;
	TRY(time_chain(g, c, true, &device, &host, err));
	set_micros(g, "graph_gap_us", &device, kernel_us, "the same in a captured graph");
	return 0;
}

static int measure_launches(const struct gpus *g, struct vfm_err *err)
{
	struct vfm_tensor one = vfm_t1(NULL, VFM_F32, 64);
	struct chain c = {.ahead = square_product(g, VFM_BF16),
		.small = {.op = VFM_OP_axpby,
			.flags = VFM_CASE_BENCH,
			.args.axpby = {.alpha = 1, .beta = 0.5f, .y = one}}};
	const struct vfm_dev_table *t = g->s->dev->t;
	struct vfm_dev *d = g->s->dev;
	int rc;

	c.small.args.axpby.x = one;
	rc = vfm_case_alloc(&c.ahead, g->s, 1, err);
	if (rc == 0)
		rc = vfm_case_alloc(&c.small, g->s, 1, err);
	c.begin = rc == 0 ? t->event_new_timed(d, err) : NULL;
	c.end = c.begin ? t->event_new_timed(d, err) : NULL;
	rc = vfm_job_agree(&g->x->job, c.end ? 0 : VFM_EENV, err);
	if (rc == 0)
		rc = measure_chains(g, &c, err);
	if (c.begin)
		t->event_free(c.begin);
	if (c.end)
		t->event_free(c.end);
	vfm_case_free(&c.ahead, g->s);
	vfm_case_free(&c.small, g->s);
	return rc;
}

/* ---- collectives ---- */

/* Measures the seconds of a call: of all_gather, else of all_reduce, of n elements in f32. */
static int time_collectives(const struct gpus *g, struct vfm_comm *c, char *p, int64_t n, bool gather, int calls,
	struct vfm_spread *seconds, struct vfm_err *err)
{
	struct vfm_tensor all = vfm_t1(p, VFM_F32, n),
			  own = vfm_t1(p + (size_t)(n / c->size * c->rank) * 4, VFM_F32, n / c->size);
	double x[BENCH_REPEAT_MAX], start;

	for (int i = -1; i < g->c->repeat; i++) {
		TRY(vfm_barrier(g->x->job.world, NULL, err));
		start = vfm_now();
		for (int k = 0; k < calls; k++)
			TRY(gather ? vfm_all_gather(c, g->s, own, all, NULL, err) : vfm_all_reduce(c, g->s, all, err));
		TRY(g->s->dev->t->stream_sync(g->s, err));
		if (i >= 0)
			x[i] = (vfm_now() - start) / calls;
	}
	*seconds = vfm_spread_of(x, (size_t)g->c->repeat);
	return mean_spread(g, seconds, err);
}

/* Returns what each of n adds to `less`, in ascending order. */
static struct vfm_spread added_by_each(const struct vfm_spread *all, const struct vfm_spread *less, int n)
{
	double median = fmax(all->median - less->median, 0) / n;

	return (struct vfm_spread){
		fmin(fmax(all->min - less->min, 0) / n, median), median, fmax((all->max - less->max) / n, median)};
}

/* node: the ranks of this node; pair: two of them. */
static int measure_groups(
	const struct gpus *g, struct vfm_comm *node, struct vfm_comm *pair, char *p, int64_t n, struct vfm_err *err)
{
	enum { LARGE_CALLS = 4, SMALL_CALLS = 200, SMALL = 16 };
	struct vfm_comm *world = g->x->world;
	double bytes = 4 * (double)n;
	struct vfm_spread large, two, small;

	TRY(time_collectives(g, node, p, n, true, LARGE_CALLS, &large, err));
	set_rate(g, "nvlink_gb_s", bytes * (node->size - 1) / node->size / 1e9, &large,
		"bus bandwidth of an all-gather within a node");
	TRY(time_collectives(g, pair, p, SMALL, false, SMALL_CALLS, &two, err));
	set_micros(g, "collective_us", &two, 0, "an all-reduce of 64 bytes between two GPUs");
	if (node->size > 2) {
		TRY(time_collectives(g, node, p, SMALL, false, SMALL_CALLS, &small, err));
		small = added_by_each(&small, &two, node->size - 2);
		set_micros(g, "hop_us", &small, 0, "what each further GPU of a node adds to that");
	}
	if (world->size == node->size)
		return 0;
	TRY(time_collectives(g, world, p, n, true, LARGE_CALLS, &large, err));
	set_rate(g, "network_gb_s", bytes * (world->size - 1) / world->size / node->size / 1e9, &large,
		"bus bandwidth of an all-gather across nodes, divided by the GPUs of one");
	return 0;
}

static int measure_network(const struct gpus *g, struct vfm_err *err)
{
	const struct vfm_launch *l = &g->x->job.launch;
	int64_t n = (g->c->tiny ? (int64_t)1 << 12 : (int64_t)64 << 20) / l->size * l->size;
	struct vfm_comm *world = g->x->world, *node = NULL, *pair = NULL;
	char *p;
	int rc;

	if (l->size == 1)
		return 0;
	if (l->local_size < 2 || l->local_size % 2 || l->size != l->local_size * l->nodes)
		return vfm_fail(err, VFM_EUSAGE, "-n: expected an even number of ranks on each node, equal on all");
	p = vfm_dev_alloc(g->s, (size_t)n * 4, "the operands of collectives", err);
	rc = vfm_job_agree(&g->x->job, p ? g->s->dev->t->zero(g->s, p, (size_t)n * 4, err) : VFM_EENV, err);
	if (rc == 0)
		rc = vfm_comm_split(world, l->node, l->local_rank, "node", &node, err);
	if (rc == 0)
		rc = vfm_comm_split(world, l->rank / 2, l->rank, "pair", &pair, err);
	if (rc == 0)
		rc = measure_groups(g, node, pair, p, n, err);
	vfm_comm_free(pair);
	vfm_comm_free(node);
	vfm_dev_free(g->s, p, (size_t)n * 4);
	return rc;
}

/* ---- all ---- */

static int read_like(struct gpus *g, struct vfm_err *err)
{
	char *path;

	TRY(vfm_machine_load(&g->like, g->c->like, err));
	if (g->like.kind != VFM_MACHINE_GPU)
		return vfm_fail(err, VFM_EUSAGE, "--like: '%s' is not a machine of GPUs", g->c->like);
	path = vfm_installed_find("machines", g->c->like, "VFM_MACHINE_DIR", err);
	g->file = path ? vfm_document_load(path, FILE_MOST, err) : NULL;
	free(path);
	return g->file ? 0 : VFM_EUSAGE;
}

static int measure_gpus(struct gpus *g, struct vfm_err *err)
{
	const struct vfm_dev *d = g->s->dev;

	if (strcmp(d->name, g->like.name) != 0 && g->x->job.world->rank == 0)
		vfm_warn("'%s' describes %s, not %s: keys that are not measured keep their values", g->c->like,
			g->like.name, d->name);
	json_object_set_new(g->file, "name", json_string(d->name));
	if (d->mem_total)
		set_measured(g, "capacity_bytes", json_integer((json_int_t)d->mem_total), "what the driver reports");
	TRY(measure_square_products(g, err));
	TRY(measure_attention_rows(g, err));
	TRY(measure_memory(g, err));
	TRY(measure_launches(g, err));
	return measure_network(g, err);
}

/* The file is one that predictions accept. */
static int check_measured_file(const json_t *file, struct vfm_err *err)
{
	struct vfm_machine m;
	struct vfm_buf b = {0};
	int rc;

	vfm_json_text(&b, file, 1);
	rc = vfm_machine_parse(&m, b.data, b.len, "the measured machine", err);
	vfm_buf_release(&b);
	return rc < 0 ? vfm_fail(err, VFM_EENV, "%s", err->msg) : 0;
}

int calibrate_gpus(struct vfm_context *x, const struct gpu_calibration *c, json_t **out, struct vfm_err *err)
{
	struct gpus g = {.x = x, .s = x->device.stream, .c = c};
	bool first = x->job.world->rank == 0;
	int rc = vfm_job_agree(&x->job, read_like(&g, err), err);

	*out = NULL;
	if (rc == 0)
		rc = measure_gpus(&g, err);
	if (rc == 0 && first)
		rc = check_measured_file(g.file, err);
	if (rc == 0 && first)
		*out = json_incref(g.file);
	json_decref(g.file);
	return rc;
}
