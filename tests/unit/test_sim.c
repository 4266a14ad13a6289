/* The simulated device: its record, memory and clocks; the files of machines; and training steps on it, compared with
 * the same steps on the CPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/sim/kernels.h"
#include "io/json.h"
#include "ok.h"
#include "device/ops/cases.h"
#include "device/sim/estimate.h"
#include "device/sim/libraries.h"
#include "device/sim/network.h"
#include "spec/model/arch.h"
#include "train/predict/bench.h"

static struct vfm_machine h200;

static int load_h200(void **state)
{
	(void)state;
	return vfm_machine_load(&h200, "share/machines/h200.json", &err);
}

/* ---- ops ---- */

/* Every op is accepted, and recorded once with the cost of ops.h. */
static void test_ops(void **state)
{
	struct vfm_dev *d = vfm_sim_open(&h200, NULL, &err);
	struct vfm_stream *s = d->t->stream_new(d, false, &err);
	bool seen[VFM_OP_N] = {false};
	struct vfm_cases l;

	(void)state;
	vfm_cases_init(&l);
	for (size_t i = 0; i < l.n; i++) {
		struct vfm_case *c = l.v[i];
		struct vfm_cost cost = vfm_case_cost(c);
		const struct vfm_sim_launch *x;
		size_t n;

		if (!(c->flags & VFM_CASE_TEST))
			continue;
		OK(vfm_case_alloc(c, s, 1, &err));
		vfm_sim_clear(d);
		OK(vfm_case_run(c, s, &err));
		x = vfm_sim_launches(d, &n);
		assert_int_equal(n, 1);
		assert_string_equal(x->op, vfm_op_info(c->op)->name);
		assert_true(x->flops == cost.flops && x->bytes == cost.bytes);
		for (int e = 0; e < VFM_ESTIMATES; e++)
			if (!(x->work[e] >= 0 && isfinite(x->work[e])) || (x->kernels == 0 && x->work[e] > 0))
				fail_msg("%s: %d kernels, %g s", c->name, x->kernels, x->work[e]);
		if (x->work[VFM_LOW] < x->work[VFM_HIGH])
			fail_msg("%s: the high rates are slower", c->name);
		if ((double)x->work[VFM_MID] < x->kernels * h200.least.v[VFM_MID] * (1 - 1e-6) * 1e-6)
			fail_msg("%s: shorter than a kernel can be", c->name);
		seen[c->op] = true;
		vfm_case_free(c, s);
	}
	for (int op = 0; op < VFM_OP_N; op++)
		if (!seen[op])
			fail_msg("no case of %s ran", vfm_op_info(op)->name);
	vfm_cases_release(&l);
	assert_int_equal(d->mem_now, vfm_sim_held(d).scratch);
	d->t->stream_free(s);
	assert_int_equal(d->mem_now, 0);
	d->t->dev_free(d);
}

/* 64k tokens, 32 heads of 128: cuDNN 9.19 asks for 1.08 GB. */
static void test_scratch(void **state)
{
	struct vfm_dev *d = vfm_sim_open(&h200, NULL, &err);
	struct vfm_stream *s = d->t->stream_new(d, false, &err);
	const int32_t cu[] = {0, 65536};
	struct vfm_seqs seqs;
	struct vfm_tensor x = vfm_t3((void *)256, VFM_BF16, 65536, 32, 128);
	struct vfm_attn_bwd a = {.q = x,
		.k = x,
		.v = x,
		.o = x,
		.dout = x,
		.lse = vfm_t2((void *)256, VFM_F32, 65536, 32),
		.dq = x,
		.dk = x,
		.dv = x,
		.seqs_q = &seqs,
		.seqs_k = &seqs,
		.scale = 1};
	struct vfm_sim_nccl two = {.channels = 1, .p2p_channels = 8, .nodes = 1, .per_node = 2};
	int64_t peak;
	(void)state;

	vfm_seqs_init(&seqs, 1, cu);
	assert_int_equal(vfm_sim_scratch(VFM_OP_attn_bwd, &a), 1082130432);
	a.dq.stride[0] *= 3; /* within qkv */
	assert_int_equal(vfm_sim_scratch(VFM_OP_attn_bwd, &a), 1082130432 + 65536 * 32 * 128 * 2);
	a.dq.stride[0] /= 3;
	/* it is kept for the next op, and grows */
	OK(d->t->ops->attn_bwd(s, &a, &err));
	peak = d->mem_peak;
	assert_true(peak > 1082130432 && peak < INT64_C(1082130432) * 9 / 8 + 4096);
	OK(d->t->ops->attn_bwd(s, &a, &err));
	assert_int_equal(d->mem_peak, peak);
	assert_int_equal(vfm_sim_held(d).outside, h200.context);
	/* what a library takes outside the pool is not the pool's */
	OK(vfm_sim_take_outside(d, h200.capacity - h200.context - (INT64_C(2) << 30), "buffers", &err));
	assert_null(vfm_dev_alloc(s, (size_t)1 << 30, "what does not fit", &err));
	assert_int_equal(vfm_sim_take_outside(d, (int64_t)1 << 30, "more buffers", &err), VFM_EENV);
	assert_non_null(strstr(err.msg, "more buffers"));
	d->t->stream_free(s);
	d->t->dev_free(d);

	assert_int_equal(vfm_sim_nccl_bytes(&two), 0);
	two.rings = true;
	assert_int_equal(vfm_sim_nccl_bytes(&two), 10 << 20);
	two.near_peers = 1;
	assert_int_equal(vfm_sim_nccl_bytes(&two), 90 << 20);
}

static const struct vfm_sim_room alone;

/* The measured product takes the measured time, and waves are whole. */
static void test_gemm_time(void **state)
{
	double S = (double)h200.gemm_size;
	struct vfm_sim_product p = {S, S, S, 6 * S * S, 2 * S * S}, half = {128, 256, 4096, 1, 0}, more = half;

	(void)state;
	for (int e = 0; e < VFM_ESTIMATES; e++) {
		double want = 2 * S * S * S / (h200.gemm_bf16.v[e] * 1e12),
		       got = vfm_sim_gemm_s(&h200, &alone, &h200.gemm_bf16, &p, (enum vfm_estimate)e);

		assert_true(fabs(got - want) < 1e-9 * want);
	}
	half.m = 128.0 * (double)h200.sms;
	more.m = half.m + 1; /* one tile of another wave */
	assert_true(vfm_sim_gemm_s(&h200, &alone, &h200.gemm_bf16, &more, VFM_MID) >
		1.3 * vfm_sim_gemm_s(&h200, &alone, &h200.gemm_bf16, &half, VFM_MID));
}

/* A convolution of one pixel takes the time of its product; with a larger kernel, that of the products of its blocks
 * and of im2col. */
static void test_conv_time(void **state)
{
	static char some[1];
	struct vfm_conv3d a = {.x = vfm_t4(some, VFM_BF16, 1, 480, 832, 96),
		.weight = vfm_t3(some, VFM_BF16, 96, 1, 96),
		.y = vfm_t4(some, VFM_BF16, 1, 480, 832, 96),
		.kernel = {1, 1, 1},
		.stride = {1, 1, 1}};
	struct vfm_gemm g = {.a = vfm_t2(some, VFM_BF16, 480 * 832, 96),
		.b = vfm_t2(some, VFM_BF16, 96, 96),
		.c = vfm_t2(some, VFM_BF16, 480 * 832, 96),
		.trans_b = true};
	struct vfm_sim_cost conv, gemm;

	(void)state;
	OK(vfm_sim_cost_of(&h200, &alone, VFM_OP_conv3d, &a, 0, &conv, &err));
	OK(vfm_sim_cost_of(&h200, &alone, VFM_OP_gemm, &g, 0, &gemm, &err));
	assert_int_equal(conv.kernels, 1);
	assert_true(fabs(conv.work[VFM_MID] - gemm.work[VFM_MID]) < 1e-9 * gemm.work[VFM_MID]);

	a.weight = vfm_t3(some, VFM_BF16, 96, 27, 96);
	a.kernel[0] = a.kernel[1] = a.kernel[2] = 3;
	a.zeros = 2;
	for (int i = 0; i < 4; i++)
		a.pad[i] = 1;
	OK(vfm_sim_cost_of(&h200, &alone, VFM_OP_conv3d, &a, 0, &conv, &err));
	/* 32 MiB are 6472 pixels: 62 blocks, in whole tiles of 128 pixels */
	assert_int_equal(vfm_sim_conv_rows(&a), 6528);
	assert_int_equal(conv.kernels, 2 * 62);
	for (int e = 0; e < VFM_ESTIMATES; e++) {
		double bytes = 480.0 * 832 * 27 * 96 * 2;

		assert_true(conv.work[e] > bytes / (h200.copy.v[e] * 1e9));
		assert_true(conv.work[e] > conv.flops / (h200.gemm_bf16.v[e] * 1e12));
	}
}

/* ---- memory ---- */

static void test_memory(void **state)
{
	struct vfm_dev *d = vfm_sim_open(&h200, NULL, &err);
	struct vfm_stream *s = d->t->stream_new(d, false, &err);
	size_t gib = (size_t)1 << 30;
	char *big, *p, *host;
	double x[2] = {1.5, 2.5}, y[3] = {7, 7, 7};

	(void)state;
	assert_int_equal(d->mem_total, h200.capacity);
	big = vfm_dev_alloc(s, 120 * gib, "activations", &err);
	assert_non_null(big);
	assert_int_equal(d->mem_now, 120 * gib);
	assert_null(vfm_dev_alloc(s, 30 * gib, "parameters", &err));
	assert_int_equal(err.code, VFM_EENV);
	assert_non_null(strstr(err.msg, "out of memory on NVIDIA H200: 30.00 GiB for parameters"));
	assert_non_null(strstr(err.msg, "activations 120.00 GiB"));
	vfm_dev_free(s, big, 120 * gib);
	p = vfm_dev_alloc(s, 30 * gib, "parameters", &err);
	assert_non_null(p);
	assert_int_equal(d->mem_peak, 120 * gib);
	/* small arrays are known, all else reads as zero */
	OK(d->t->to_device(s, p + 8, x, sizeof(x), &err));
	OK(d->t->to_host(s, y, p, sizeof(y), &err));
	assert_true(y[0] == 0 && y[1] == 1.5 && y[2] == 2.5);
	OK(d->t->zero(s, p + 16, 8, &err));
	OK(d->t->to_host(s, y, p, sizeof(y), &err));
	assert_true(y[0] == 0 && y[2] == 0);
	host = d->t->alloc_host(d, 4096 * gib, "offloaded activations", &err);
	assert_non_null(host);
	OK(d->t->to_host(s, host, p, 30 * gib, &err)); /* writes no page */
	d->t->free_host(d, host, 4096 * gib);
	vfm_dev_free(s, p, 30 * gib);
	d->t->stream_free(s);
	d->t->dev_free(d);
}

/* ---- clocks ---- */

static void run_op(struct vfm_stream *s, size_t bytes)
{
	struct vfm_fill fill = {.x = vfm_t1(NULL, VFM_F32, (int64_t)bytes / 4)};

	fill.x.data = vfm_dev_alloc(s, bytes, "x", &err);
	OK(vfm_op_fill(s, &fill, &err));
	vfm_dev_free(s, fill.x.data, bytes);
}

/* Copies on another stream overlap with computation; the slower of the two counts. */
static void test_overlap(void **state)
{
	struct vfm_dev *d = vfm_sim_open(&h200, NULL, &err);
	const struct vfm_dev_table *t = d->t;
	struct vfm_stream *s = t->stream_new(d, false, &err), *side = t->stream_new(d, true, &err);
	size_t bytes = (size_t)1 << 28;
	void *p = vfm_dev_alloc(s, bytes, "x", &err), *host = t->alloc_host(d, bytes, "y", &err);
	struct vfm_event *e = NULL, *a = t->event_new_timed(d, &err), *b = t->event_new_timed(d, &err);
	double copy = (double)bytes / (h200.pcie.v[VFM_MID] * 1e9), op, took, now[VFM_ESTIMATES];

	(void)state;
	OK(t->event_record(a, s, &err));
	OK(t->to_host(side, host, p, bytes, &err));
	run_op(s, bytes);
	OK(t->event_record(b, s, &err));
	OK(t->event_elapsed(a, b, &op, &err));
	assert_true(op > 0 && op < copy / 2);
	assert_true(vfm_dev_now(d) == 0); /* the host has not waited */
	OK(vfm_stream_follow(s, side, &e, &err));
	run_op(s, bytes);
	OK(t->stream_sync(s, &err));
	took = vfm_dev_now(d);
	assert_true(fabs(took - (copy + op)) < 1e-6 * took);
	vfm_sim_host_now(d, now);
	assert_true(now[VFM_LOW] > took && now[VFM_HIGH] < took);
	t->event_free(e);
	t->event_free(a);
	t->event_free(b);
	t->free_host(d, host, bytes);
	vfm_dev_free(s, p, bytes);
	t->stream_free(side);
	t->stream_free(s);
	t->dev_free(d);
}

static struct vfm_sim_launch last_launch(const struct vfm_dev *d)
{
	size_t n;
	const struct vfm_sim_launch *l = vfm_sim_launches(d, &n);

	return l[n - 1];
}

/* An update on some multiprocessors moves bytes at their bandwidth.  Beside it a product has the others, and other ops
 * have what is left of the bandwidth, for as many FLOPs as are counted. */
static void test_side(void **state)
{
	enum { N = 1 << 26, K = 4096 };
	struct vfm_dev *d = vfm_sim_open(&h200, NULL, &err);
	const struct vfm_dev_table *t = d->t;
	struct vfm_stream *s = t->stream_new(d, false, &err), *side = t->stream_new(d, true, &err);
	float *p = vfm_dev_alloc(s, (size_t)4 * N * 4, "x", &err);
	struct vfm_adamw adam = {.p = vfm_t1(p, VFM_F32, N),
		.m = vfm_t1(p + N, VFM_F32, N),
		.v = vfm_t1(p + 2 * (int64_t)N, VFM_F32, N),
		.g = vfm_t1(p + 3 * (int64_t)N, VFM_F32, N)};
	struct vfm_gemm g = {.a = vfm_t2(p, VFM_BF16, K, K),
		.b = vfm_t2(p, VFM_BF16, K, K),
		.c = vfm_t2(p, VFM_BF16, K, K),
		.trans_b = true};
	double flops = 2.0 * K * K * K, bytes = vfm_cost_adamw(&adam).bytes, own[2], shared[2], left;

	(void)state;
	assert_int_equal(d->side.units, h200.sms / 4);
	OK(vfm_op_gemm(s, &g, &err));
	own[0] = last_launch(d).work[VFM_MID];
	run_op(s, N);
	own[1] = last_launch(d).work[VFM_MID];
	side->units = d->side.taken = d->side.units;
	d->side.flops = 1.5 * flops;
	OK(vfm_op_adamw(side, &adam, &err));
	assert_true(d->side.flops == 1.5 * flops);
	assert_true(
		fabs(last_launch(d).work[VFM_MID] * d->side.units * h200.sm_bw.v[VFM_MID] * 1e9 / bytes - 1) < 1e-6);
	run_op(s, N);
	shared[1] = last_launch(d).work[VFM_MID];
	left = 1 - d->side.units * h200.sm_bw.v[VFM_MID] / (h200.copy.v[VFM_MID] * h200.kernel.v[VFM_MID]);
	assert_true(fabs(own[1] / shared[1] - left) < 1e-6);
	for (int i = 0; i < 3; i++) {
		OK(vfm_op_gemm(s, &g, &err));
		shared[0] = last_launch(d).work[VFM_MID];
		assert_true(i < 2 ? shared[0] > 1.2 * own[0] && shared[0] < 1.6 * own[0] : shared[0] == own[0]);
	}
	vfm_dev_free(s, p, (size_t)4 * N * 4);
	t->stream_free(side);
	t->stream_free(s);
	t->dev_free(d);
}

/* An update that overlaps the second of three fills, of which the first may have two parts: a launch that only one step has
 * does not keep the simulation from the step before. */
static void run_beside(struct vfm_stream *s, struct vfm_stream *side, const struct vfm_adamw *adam, int parts)
{
	struct vfm_event *e = NULL;

	for (int i = 0; i < parts; i++)
		run_op(s, ((size_t)1 << 28) / (size_t)parts);
	OK(vfm_stream_follow(side, s, &e, &err));
	s->dev->t->event_free(e);
	OK(vfm_op_adamw(side, adam, &err));
	for (int i = 0; i < 2; i++)
		run_op(s, (size_t)1 << (30 - i));
}

static void test_steps_differ(void **state)
{
	enum { N = 1 << 20 };
	struct vfm_dev *d = vfm_sim_open(&h200, NULL, &err);
	const struct vfm_dev_table *t = d->t;
	struct vfm_stream *s = t->stream_new(d, false, &err), *side = t->stream_new(d, true, &err);
	float *p = vfm_dev_alloc(s, (size_t)4 * N * 4, "x", &err), work[4];
	struct vfm_adamw adam = {.p = vfm_t1(p, VFM_F32, N),
		.m = vfm_t1(p + N, VFM_F32, N),
		.v = vfm_t1(p + 2 * (int64_t)N, VFM_F32, N),
		.g = vfm_t1(p + 3 * (int64_t)N, VFM_F32, N)};

	(void)state;
	side->units = d->side.taken = d->side.units;
	d->side.flops = 1e30;
	for (int step = 0; step < 4; step++) {
		size_t n;
		const struct vfm_sim_launch *l;

		run_beside(s, side, &adam, step == 2 ? 2 : 1);
		l = vfm_sim_launches(d, &n);
		work[step] = l[n - 2].work[VFM_MID];
		vfm_sim_clear(d);
	}
	assert_true(work[1] < 0.95F * work[0]); /* overlaps a part of it */
	for (int step = 2; step < 4; step++)
		assert_true(fabsf(work[step] / work[1] - 1) < 0.001F); /* the part changes with the work */
	vfm_dev_free(s, p, (size_t)4 * N * 4);
	t->stream_free(side);
	t->stream_free(s);
	t->dev_free(d);
}

/* ---- training steps ---- */

struct counted {
	double flops, bytes;
	int64_t ops, peak;
	double s; /* seconds on the device's clock */
};

static struct counted count; /* of the current step on the CPU */
static const struct vfm_dev_table *cpu;

#define X(name)                                                                                                        \
	static int count_##name(struct vfm_stream *s, const struct vfm_##name *a, struct vfm_err *e)                   \
	{                                                                                                              \
		struct vfm_cost c = vfm_cost_##name(a);                                                                \
                                                                                                                       \
		count.flops += c.flops;                                                                                \
		count.bytes += c.bytes;                                                                                \
		count.ops++;                                                                                           \
		return cpu->ops->name(s, a, e);                                                                        \
	}
VFM_OP_LIST(X)
#undef X

static const struct vfm_ops counting = {
#define X(name) .name = count_##name,
	VFM_OP_LIST(X)
#undef X
};

static void clear_counts(void *ctx, struct vfm_dev *d)
{
	struct counted *c = ctx;

	count = (struct counted){0};
	if (vfm_dev_predicts(d))
		vfm_sim_clear(d);
	c->s = vfm_dev_now(d);
}

struct step {
	struct vfm_config config;
	int packs;
	struct counted got;
};

enum { SAMPLES = 2, TOKENS = 2 * 4 * 4 }; /* of a pack; of a sample */

static int64_t copies; /* bytes of packed weights, which only the CPU keeps */

static void drop_and_count(struct vfm_stream *s)
{
	int64_t before = s->dev->mem_now;

	cpu->drop_copies(s);
	copies += before - s->dev->mem_now;
}

static int run_step(struct vfm_context *x, void *ctx, struct vfm_err *e)
{
	static struct vfm_dev_table table;
	struct step *step = ctx;
	struct vfm_bench_step b = {.samples = SAMPLES,
		.grid = {2, 4, 4},
		.text_len = 8,
		.packs = step->packs,
		.warmup = 1,
		.steps = 1,
		.before = clear_counts,
		.ctx = &step->got};
	struct vfm_bench_result r;
	bool sim;

	copies = 0;
	TRY(vfm_context_open(x, &step->config, e));
	sim = vfm_dev_predicts(x->device.dev);
	if (!sim) {
		cpu = x->device.dev->t;
		table = *cpu;
		table.ops = &counting;
		table.drop_copies = drop_and_count;
		x->device.dev->t = &table;
	}
	TRY(vfm_bench_run(x, &step->config, &b, &r, e));
	if (sim) {
		size_t n;
		const struct vfm_sim_launch *l = vfm_sim_launches(x->device.dev, &n);

		for (size_t i = 0; i < n; i++)
			if (strcmp(l[i].op, "zero") != 0 && strcmp(l[i].op, "copy") != 0 &&
				l[i].class != VFM_SIM_TRANSFER) {
				count.flops += l[i].flops;
				count.bytes += l[i].bytes;
				count.ops++;
			}
		count.s = vfm_dev_now(x->device.dev) - step->got.s;
		copies = vfm_sim_held(x->device.dev).scratch; /* which the CPU's ops do not take of its memory */
	}
	count.peak = r.mem_peak_bytes - copies;
	step->got = count;
	return r.flops > 0 && r.tokens == 2 * 32 * step->packs
		? 0
		: vfm_fail(e, VFM_EENV, "no FLOPs, or %lld tokens", (long long)r.tokens);
}

static void run_on(const char *device, struct step *s)
{
	struct vfm_context_opts o = VFM_CONTEXT_OPTS_INIT;

	o.device = device;
	o.machine = "share/machines/h200.json";
	if (vfm_context_run(&o, run_step, s, &err) < 0)
		fail_msg("%s: %s", device, err.msg);
}

static void configure(struct vfm_config *c, const char *preset, const char *const *set)
{
	static const char *const tiny[] = {"model.layers=2", "model.hidden=32", "model.heads=2", "model.kv_heads=2",
		"model.ffn=48", "model.text_dim=8", "model.channels=4", "model.experts=4", "model.expert_ffn=16",
		"model.moe_capacity=2"};

	vfm_config_defaults(c);
	OK(vfm_model_preset(preset, &c->model, &err));
	c->model.adaln_lora = c->model.adaln_lora ? 8 : 0;
	c->model.single_layers = c->model.single_layers ? 1 : 0;
	memset(c->model.rope_axes, 0, sizeof(c->model.rope_axes));
	for (size_t i = 0; i < sizeof(tiny) / sizeof(tiny[0]); i++)
		OK(vfm_bench_set(c, tiny[i], &err));
	for (; *set; set++)
		OK(vfm_bench_set(c, *set, &err));
	OK(vfm_config_check(c, &err));
}

static const char *const settings[][4] = {
	{"train.dtype=fp32", NULL},
	{"train.dtype=bf16", "train.recompute=full", NULL},
	{"train.dtype=bf16", "train.recompute=light", "train.master=split", NULL},
	{"train.dtype=bf16", "train.recompute=selective", "train.offload=both", NULL},
};

/* The peak of memory of one pack is equal on both devices.  With several, a simulated device holds the next pack, too.
 */
static void check_peak(const struct step *s, const char *name, size_t k)
{
	struct step on_cpu = *s, sim = *s;

	on_cpu.packs = sim.packs = 1;
	run_on("cpu", &on_cpu);
	run_on("sim", &sim);
	if (sim.got.peak != on_cpu.got.peak)
		fail_msg("%s %zu: a peak of %lld bytes; on the CPU %lld", name, k, (long long)sim.got.peak,
			(long long)on_cpu.got.peak);
}

/* The bytes of a pack's input and of the maps of its image rows, at most. */
static int64_t pack_bytes(const struct step *s)
{
	const struct vfm_model_spec *m = &s->config.model;

	return (64 << 10) +
		4 *
		(SAMPLES * m->image_len * (m->image_dim + 8) +
			SAMPLES * TOKENS * (vfm_model_cond_dim(m) + vfm_model_given_dim(m)));
}

/* The same program runs on both devices: equal ops, FLOPs, bytes and peak of memory.  A second run has equal times. */
static void test_conservation(void **state)
{
	const struct vfm_preset *p;

	(void)state;
	for (int at = 0; (p = vfm_preset_at(at)); at++)
		for (size_t k = 0; k < sizeof(settings) / sizeof(*settings); k++) {
			struct step on_cpu, sim, again;

			configure(&on_cpu.config, p->name, settings[k]);
			on_cpu.packs = 2;
			sim = again = on_cpu;
			run_on("cpu", &on_cpu);
			run_on("sim", &sim);
			run_on("sim", &again);
			if (sim.got.ops != on_cpu.got.ops || sim.got.flops != on_cpu.got.flops ||
				sim.got.bytes != on_cpu.got.bytes)
				fail_msg("%s %zu: %lld ops, %.17g FLOPs, %.17g bytes; on the CPU %lld, %.17g, %.17g",
					p->name, k, (long long)sim.got.ops, sim.got.flops, sim.got.bytes,
					(long long)on_cpu.got.ops, on_cpu.got.flops, on_cpu.got.bytes);
			if (sim.got.peak < on_cpu.got.peak || sim.got.peak > on_cpu.got.peak + pack_bytes(&on_cpu))
				fail_msg("%s %zu: a peak of %lld bytes; on the CPU, without the next pack, %lld",
					p->name, k, (long long)sim.got.peak, (long long)on_cpu.got.peak);
			check_peak(&on_cpu, p->name, k);
			assert_memory_equal(&sim.got, &again.got, sizeof(sim.got));
			assert_true(sim.got.s > 0);
		}
}

/* ---- machines ---- */

static const char *changed(json_t *m, struct vfm_err *e)
{
	char *text = json_dumps(m, 0);
	struct vfm_machine got;
	int rc = vfm_machine_parse(&got, text, strlen(text), "m.json", e);

	free(text);
	return rc == 0 ? "" : e->msg;
}

static void check_fault(const char *key, const char *value, const char *want)
{
	json_t *m = vfm_json_load("share/machines/h200.json", 1 << 20, &err), *v;
	const char *got;

	v = json_loads(value, JSON_DECODE_ANY, NULL);
	assert_non_null(v);
	json_object_set_new(m, key, v);
	got = changed(m, &err);
	if (!strstr(got, want))
		fail_msg("%s: '%s', expected '%s'", key, got, want);
	json_decref(m);
}

static void test_machines(void **state)
{
	struct vfm_machine m;

	(void)state;
	check_fault("pcie", "{}", "m.json: pcie: unknown key");
	check_fault("sms", "{\"value\":132}", "sms.source");
	check_fault("sms", "{\"value\":0,\"source\":\"x\"}", "sms.value: ");
	check_fault("copy_gb_s", "4300", "copy_gb_s: expected an object");
	check_fault("copy_gb_s", "{\"value\":[1,2],\"source\":\"x\"}", "copy_gb_s: expected a number, or");
	check_fault("gemm_size", "{\"value\":128,\"source\":\"x\"}",
		"gemm_bf16_tflops.value: at 770 a product of 128 rows");
	check_fault("copy_gb_s", "{\"value\":50,\"source\":\"x\"}", "takes less time than its results at copy_gb_s");
	check_fault("copy_gb_s", "{\"value\":[3,2,1],\"source\":\"x\"}", "from the slowest to the fastest");
	check_fault("gap_us", "{\"value\":[1,2,3],\"source\":\"x\"}", "from the slowest to the fastest");
	check_fault("gemm_epilogue", "{\"value\":2,\"source\":\"x\"}", "at most 1");
	check_fault("kernel_of_copy", "{\"value\":5,\"source\":\"x\"}", "at most 1, got 5");
	check_fault("kernel_of_copy", "{\"value\":[0.5,0.9,1.01],\"source\":\"x\"}", "at most 1, got 1.01");
	check_fault("gemm_tiles", "{\"value\":[[128,256]],\"source\":\"x\"}", "gemm_tiles.value[0]");
	check_fault("attention", "[]", "attention: expected 2");
	check_fault("attention", "[{},{}]", "attention[0].source");
	check_fault("v", "2", "m.json: v: ");
	assert_int_equal(vfm_machine_load(&m, "no-such", &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "no 'no-such' among the machines"));
}

static const char cpu_text[] =
	"{\"v\":1,\"kind\":\"cpu\",\"name\":\"x\","
	"\"capacity_bytes\":{\"value\":1073741824,\"source\":\"x\"},"
	"\"ranks\":{\"value\":1,\"source\":\"x\"},"
	"\"copies_f32\":{\"value\":[16,512,32,1,4],\"source\":\"x\"},"
	"\"copies_bf16\":{\"value\":[0,512,32,2,2],\"source\":\"x\"},"
	"\"threads\":{\"value\":2,\"source\":\"x\"},\"copy_gb_s\":{\"value\":10,\"source\":\"x\"},"
	"\"rates\":{\"source\":\"x\",\"value\":["
	"{\"op\":\"gemm/nt\",\"dtype\":\"f32\",\"size\":[64,64,64],\"rate\":50},"
	"{\"op\":\"comm/send\",\"dtype\":\"bf16\",\"size\":[64,2,1],\"rate\":0.064},"
	"{\"op\":\"gemm/nt\",\"dtype\":\"f32\",\"size\":[1024,64,64],\"rate\":100}]}}";

static void check_cpu_fault(const char *key, const char *value, const char *want)
{
	json_t *m = json_loads(cpu_text, 0, NULL);

	json_object_set_new(m, key, json_loads(value, JSON_DECODE_ANY, NULL));
	assert_non_null(strstr(changed(m, &err), want));
	json_decref(m);
}

/* A message has the time of the least one at least; collectives without rates and other numbers of ranks are refused.
 */
static void test_cpu_ranks(void **state)
{
	struct vfm_sim_cpu_work w = vfm_sim_cpu_coll_of("send", VFM_BF16, 3, 2);
	struct vfm_machine m;
	double s = 0;

	(void)state;
	OK(vfm_machine_parse(&m, cpu_text, strlen(cpu_text), "m.json", &err));
	OK(vfm_sim_cpu_coll_s(&m, &w, &s, &err));
	assert_true(fabs(s - 1e-6) < 1e-12);
	w = vfm_sim_cpu_coll_of("all_reduce", VFM_F32, 4096, 2);
	assert_int_equal(vfm_sim_cpu_coll_s(&m, &w, &s, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "has no rate of comm/all_reduce"));
	OK(vfm_sim_check_ranks(&m, 1, &err));
	assert_int_equal(vfm_sim_check_ranks(&m, 2, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "was measured with 1 rank, this job has 2"));
}

/* Seconds of n products that overlap a collective of so many seconds, which begins with them, in the third step. */
static double products_overlapping(int n, double collective)
{
	static char some[1];
	struct vfm_gemm g = {.a = vfm_t2(some, VFM_F32, 64, 64),
		.b = vfm_t2(some, VFM_F32, 64, 64),
		.c = vfm_t2(some, VFM_F32, 64, 64),
		.trans_b = true};
	struct vfm_sim_launch l = {.op = "all_reduce", .shape = "x", .work = {(float)collective}};
	struct vfm_event *e = NULL, *f = NULL, *a, *b;
	struct vfm_stream *s, *side;
	struct vfm_machine m;
	struct vfm_dev *d;
	double took = 0;

	l.work[1] = l.work[2] = l.work[0];
	OK(vfm_machine_parse(&m, cpu_text, strlen(cpu_text), "m.json", &err));
	d = vfm_sim_open(&m, NULL, &err);
	s = d->t->stream_new(d, false, &err);
	side = d->t->stream_new(d, true, &err);
	a = d->t->event_new_timed(d, &err);
	b = d->t->event_new_timed(d, &err);
	for (int step = 0; step < 3; step++) {
		vfm_sim_clear(d);
		OK(vfm_stream_follow(side, s, &e, &err));
		OK(d->t->event_record(a, s, &err));
		vfm_sim_collective(side, &l, NULL, 0);
		for (int i = 0; i < n; i++)
			OK(d->t->ops->gemm(s, &g, &err));
		OK(d->t->event_record(b, s, &err));
		OK(d->t->event_elapsed(a, b, &took, &err));
		OK(vfm_stream_follow(s, side, &f, &err));
	}
	d->t->event_free(e);
	d->t->event_free(f);
	d->t->event_free(a);
	d->t->event_free(b);
	d->t->stream_free(side);
	d->t->stream_free(s);
	d->t->dev_free(d);
	return took;
}

/* A CPU stalls for as long as a collective works, be it shorter or longer than a product. */
static void test_cpu_stalls(void **state)
{
	double one = products_overlapping(1, 0), parts[] = {0.5, 0.9, 3, 7.5};

	(void)state;
	assert_true(one > 0);
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		for (int n = 1; n <= 10; n += 9) {
			double took = products_overlapping(n, parts[i] * one), want = (n + parts[i]) * one;

			if (fabs(took / want - 1) > 1e-3)
				fail_msg("%d products that overlap %g of one: %g of one, not %g", n, parts[i],
					took / one, want / one);
		}
}

/* Products of held weights keep a copy of them, rounded up to whole panels, until the copies are dropped. */
static void test_cpu_copies(void **state)
{
	static char some[1];
	struct vfm_gemm g = {.a = vfm_t2(some, VFM_F32, 64, 40),
		.b = vfm_t2(some, VFM_F32, 50, 40),
		.c = vfm_t2(some, VFM_F32, 64, 50),
		.trans_b = true};
	struct vfm_machine m;
	struct vfm_stream *s;
	struct vfm_dev *d;

	(void)state;
	OK(vfm_machine_parse(&m, cpu_text, strlen(cpu_text), "m.json", &err));
	d = vfm_sim_open(&m, NULL, &err);
	s = d->t->stream_new(d, false, &err);
	OK(d->t->ops->gemm(s, &g, &err));
	assert_int_equal(d->mem_now, 0);
	g.b.version = 1;
	for (int i = 0; i < 2; i++)
		OK(d->t->ops->gemm(s, &g, &err));
	assert_int_equal(d->mem_now, 64 * 40 * 4);
	g.c.shape[0] = g.a.shape[0] = 513; /* too many rows */
	g.b.data = some + 1;
	OK(d->t->ops->gemm(s, &g, &err));
	assert_int_equal(d->mem_now, 64 * 40 * 4);
	d->t->drop_copies(s);
	assert_int_equal(d->mem_now, 0);
	d->t->stream_free(s);
	d->t->dev_free(d);
}

/* Measured sizes have the measured rate; those halfway, the mean time; ops without rates move bytes. */
static void test_cpu_machine(void **state)
{
	static char some[1];
	struct vfm_gemm g = {.a = vfm_t2(some, VFM_F32, 64, 64),
		.b = vfm_t2(some, VFM_F32, 64, 64),
		.c = vfm_t2(some, VFM_F32, 64, 64),
		.trans_b = true};
	struct vfm_fill fill = {.x = vfm_t1(some, VFM_F32, 1 << 20)};
	struct vfm_sim_cpu_work w = {.op = "gemm/nt", .dtype = VFM_F32, .size = {64, 64, 64}};
	struct vfm_sim_cost cost, again;
	struct vfm_machine m;
	struct vfm_dev *d;

	(void)state;
	OK(vfm_machine_parse(&m, cpu_text, strlen(cpu_text), "m.json", &err));
	assert_true(fabs(vfm_sim_cpu_rate(&m, &w) - 50) < 0.01);
	w.size[0] = 256;
	assert_true(fabs(vfm_sim_cpu_rate(&m, &w) - 1 / (0.5 / 50 + 0.5 / 100)) < 0.01);
	w.size[0] = 1 << 20;
	assert_true(vfm_sim_cpu_rate(&m, &w) > 70 && vfm_sim_cpu_rate(&m, &w) < 100);
	w.dtype = VFM_BF16; /* the rates of f32 */
	assert_true(vfm_sim_cpu_rate(&m, &w) > 70);
	OK(vfm_sim_cost_of(&m, &alone, VFM_OP_gemm, &g, 0, &cost, &err));
	assert_true(fabs(cost.work[VFM_MID] / (cost.flops / 50e9) - 1) < 1e-3);
	g.act = VFM_ACT_GELU_TANH; /* the rates without an activation */
	OK(vfm_sim_cost_of(&m, &alone, VFM_OP_gemm, &g, 0, &again, &err));
	assert_true(again.work[VFM_MID] == cost.work[VFM_MID]);
	OK(vfm_sim_cost_of(&m, &alone, VFM_OP_fill, &fill, 0, &cost, &err));
	assert_true(fabs(cost.work[VFM_MID] / (cost.bytes / 10e9) - 1) < 1e-9);
	d = vfm_sim_open(&m, NULL, &err);
	assert_false(d->async);
	d->t->dev_free(d);

	check_cpu_fault("kind", "\"tpu\"", "kind: expected gpu or cpu");
	check_cpu_fault("gap_us", "1", "gap_us: unknown key");
	check_cpu_fault("threads", "{\"value\":0,\"source\":\"x\"}", "threads.value: ");
	check_cpu_fault("rates", "{\"value\":[],\"source\":\"x\"}", "rates.value: expected 1 to");
	check_cpu_fault("rates",
		"{\"value\":[{\"op\":\"norm\",\"dtype\":\"i32\",\"size\":[1,1,1],\"rate\":1}],"
		"\"source\":\"x\"}",
		"rates.value[0].dtype: ");
	check_cpu_fault("rates",
		"{\"value\":[{\"op\":\"norm\",\"dtype\":\"f32\",\"size\":[1,0,1],\"rate\":1}],"
		"\"source\":\"x\"}",
		"rates.value[0].size[1]: ");
	check_cpu_fault("rates",
		"{\"value\":[{\"op\":\"norm\",\"dtype\":\"f32\",\"size\":[1,1,1],\"rate\":0}],"
		"\"source\":\"x\"}",
		"rates.value[0].rate: ");
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_ops), cmocka_unit_test(test_scratch),
		cmocka_unit_test(test_gemm_time), cmocka_unit_test(test_conv_time), cmocka_unit_test(test_memory),
		cmocka_unit_test(test_overlap), cmocka_unit_test(test_side), cmocka_unit_test(test_steps_differ),
		cmocka_unit_test(test_conservation), cmocka_unit_test(test_machines),
		cmocka_unit_test(test_cpu_machine), cmocka_unit_test(test_cpu_ranks), cmocka_unit_test(test_cpu_stalls),
		cmocka_unit_test(test_cpu_copies)};

	return cmocka_run_group_tests(tests, load_h200, NULL);
}
