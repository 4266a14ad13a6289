/* Simulated jobs: a few ranks stand for all, collectives meet, slower parts show where they are, deadlocks are named.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "device/sim/network.h"
#include "device/sim/sim.h"
#include "ok.h"
#include "train/predict/bench.h"
#include "train/predict/simulate.h"

static struct vfm_machine h200;
static struct vfm_err err;

static int read_machine_file(void **state)
{
	(void)state;
	vfm_log_set_quiet(true);
	return vfm_machine_load(&h200, "share/machines/h200.json", &err);
}

/* ---- steps ---- */

struct seen {
	struct vfm_config config;
	int packs;
	struct vfm_bench_result r;    /* of rank 0 */
	double s[VFM_ESTIMATES];      /* of the last step */
	double sent, launches;        /* of all simulated ranks: bytes of messages, collectives */
	int stand_for;                /* ranks that they stand for */
	double work[VFM_SIM_CLASSES]; /* of rank 0 */
};

static struct vfm_bench_step step_of(const struct seen *seen)
{
	return (struct vfm_bench_step){.samples = 1, .grid = {4, 8, 8}, .text_len = 16, .packs = seen->packs};
}

static int run_bench(struct vfm_context *x, void *ctx, struct vfm_err *e)
{
	struct seen *seen = ctx;
	struct vfm_bench_predicted predicted;
	struct vfm_bench_step b = step_of(seen);
	struct vfm_bench_result r;
	const struct vfm_sim_launch *l;
	size_t n;

	vfm_bench_predict(&b, 2, &predicted);
	TRY(vfm_context_open(x, &seen->config, e));
	TRY(vfm_bench_run(x, &seen->config, &b, &r, e));
	seen->stand_for += x->sim->job->stands_for[x->sim->rep];
	l = vfm_sim_launches(x->device.dev, &n);
	for (size_t i = 0; i < n; i++) {
		seen->launches += l[i].class == VFM_SIM_COMM;
		if (x->mesh.rank == 0)
			seen->work[l[i].class] += (double)l[i].work[VFM_MID];
		if (!strcmp(l[i].op, "messages"))
			seen->sent += l[i].bytes;
	}
	if (x->mesh.rank == 0) {
		seen->r = r;
		memcpy(seen->s, predicted.s, sizeof(seen->s));
	}
	return 0;
}

static struct vfm_config config_of(const char *preset, const char *sets)
{
	struct vfm_config c;
	char text[512], *save = NULL, *word;

	vfm_config_defaults(&c);
	c.train.ema_decay = 0;
	OK(vfm_model_preset(preset, &c.model, &err));
	snprintf(text, sizeof(text), "train.dtype=bf16 model.layers=8 %s", sets);
	for (word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save))
		OK(vfm_bench_set(&c, word, &err));
	OK(vfm_config_check(&c, &err));
	return c;
}

static struct seen simulate_step(
	const struct vfm_machine *m, const char *preset, const char *sets, int ranks, int packs, bool all)
{
	struct seen seen = {.config = config_of(preset, sets), .packs = packs};
	struct vfm_bench_step b = step_of(&seen);
	struct vfm_simulated how;

	if (vfm_simulate(&(struct vfm_simulation){.config = &seen.config,
				 .machine = m,
				 .ranks = ranks,
				 .cp_apart = vfm_bench_cp_apart(&b, &seen.config),
				 .all = all},
		    run_bench, &seen, &how, &err) < 0)
		fail_msg("%s on %d ranks: %s", sets, ranks, err.msg);
	assert_false(how.full);
	assert_true(all ? how.reps == ranks : how.reps <= ranks);
	assert_int_equal(seen.stand_for, ranks);
	return seen;
}

/* One rank of each class gives the time and the memory of all ranks. */
static void test_classes(void **state)
{
	static const struct {
		const char *preset, *sets;
		int ranks, packs;
	} mesh[] = {
		{"dit-s", "parallel.dp=8", 8, 8},
		{"dit-s", "parallel.dp=4 parallel.fsdp=true", 4, 4},
		{"dit-s", "parallel.tp=2 parallel.dp=4 parallel.distopt=true", 8, 8},
		{"dit-s", "parallel.tp=3 parallel.cp=2", 6, 2},
		{"dit-b", "parallel.tp=6 parallel.pp=2 parallel.overlap=on", 12, 2},
		{"dit-s", "parallel.cp=4 parallel.dp=2 parallel.fsdp=true", 8, 4},
		{"dit-s", "parallel.cp=2 parallel.cp_a2a=2 parallel.pp=2", 4, 4},
		{"dit-s", "parallel.pp=4 parallel.dp=2", 8, 8},
		{"dit-s", "parallel.pp=2 parallel.vpp=2 parallel.tp=2", 4, 4},
		{"dit-b", "parallel.tp=4 parallel.pp=4 parallel.dp=4 parallel.distopt=true", 64, 16},
		{"dit-b", "parallel.tp=2 parallel.cp=2 parallel.pp=2 parallel.dp=4", 32, 16},
		{"moe-1b", "parallel.ep=4 parallel.dp=4", 4, 4},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(mesh) / sizeof(*mesh); i++) {
		struct seen few = simulate_step(
				    &h200, mesh[i].preset, mesh[i].sets, mesh[i].ranks, mesh[i].packs, false),
			    all = simulate_step(
				    &h200, mesh[i].preset, mesh[i].sets, mesh[i].ranks, mesh[i].packs, true),
			    again = simulate_step(
				    &h200, mesh[i].preset, mesh[i].sets, mesh[i].ranks, mesh[i].packs, false);

		for (int e = 0; e < VFM_ESTIMATES; e++) {
			if (fabs(few.s[e] / all.s[e] - 1) > 5e-3)
				fail_msg("%s: %g s, with all ranks %g s", mesh[i].sets, few.s[e], all.s[e]);
			assert_true(few.s[e] == again.s[e]);
		}
		assert_int_equal(few.r.mem_peak_bytes, all.r.mem_peak_bytes);
		assert_int_equal(few.r.tokens, 256 * mesh[i].packs);
		assert_true(few.r.flops == all.r.flops);
		assert_true(few.s[VFM_LOW] > few.s[VFM_MID] && few.s[VFM_MID] > few.s[VFM_HIGH]);
	}
}

/* 4 frames of 8 x 8 tokens do not divide among 3 ranks, of which the second has two frames. */
static void test_uneven_shares(void **state)
{
	static const char *const presets[] = {"dit-s", "stdit-xl"};
	static const char *const sets = "model.layers=2 model.hidden=192 model.heads=6 model.kv_heads=6 parallel.cp=3 "
					"parallel.dp=2 parallel.fsdp=true";

	(void)state;
	for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++) {
		struct seen few = simulate_step(&h200, presets[i], sets, 6, 2, false),
			    all = simulate_step(&h200, presets[i], sets, 6, 2, true);

		for (int e = 0; e < VFM_ESTIMATES; e++)
			if (fabs(few.s[e] / all.s[e] - 1) > 5e-3)
				fail_msg("%s: %g s, with all ranks %g s", presets[i], few.s[e], all.s[e]);
		assert_int_equal(few.r.mem_peak_bytes, all.r.mem_peak_bytes);
	}
}

/* A part that is slower shows in the time, and in its share. */
static void test_slow_parts(void **state)
{
	static const char *const tp = "parallel.tp=2 parallel.overlap=off",
				 *const wide = "parallel.dp=16 parallel.fsdp=true", *const pp = "parallel.pp=4";
	struct vfm_machine slow = h200;
	struct seen was, is;

	(void)state;
	was = simulate_step(&h200, "dit-b", tp, 2, 2, false);
	for (int e = 0; e < VFM_ESTIMATES; e++)
		slow.nvlink.v[e] /= 4;
	is = simulate_step(&slow, "dit-b", tp, 2, 2, false);
	assert_true(is.work[VFM_SIM_COMM] > 1.5 * was.work[VFM_SIM_COMM]);
	assert_true(is.r.comm_s > 1.2 * was.r.comm_s && is.s[VFM_MID] > was.s[VFM_MID]);
	assert_true(fabs(is.work[VFM_SIM_GEMM] / was.work[VFM_SIM_GEMM] - 1) < 0.02);
	is = simulate_step(&h200, "dit-b", "parallel.tp=2 parallel.overlap=on", 2, 2, false);
	assert_true(is.r.comm_s < was.r.comm_s);

	/* between nodes */
	slow = h200;
	for (int e = 0; e < VFM_ESTIMATES; e++)
		slow.network.v[e] /= 4;
	was = simulate_step(&h200, "dit-b", wide, 16, 16, false);
	is = simulate_step(&slow, "dit-b", wide, 16, 16, false);
	assert_true(is.work[VFM_SIM_COMM] > 1.5 * was.work[VFM_SIM_COMM]);
	was = simulate_step(&h200, "dit-b", "parallel.dp=8 parallel.fsdp=true", 8, 8, false);
	is = simulate_step(&slow, "dit-b", "parallel.dp=8 parallel.fsdp=true", 8, 8, false);
	assert_true(is.s[VFM_MID] == was.s[VFM_MID]); /* one node */

	/* the pipeline fills: (stages - 1) of (packs + stages - 1) */
	was = simulate_step(&h200, "dit-b", pp, 4, 4, false);
	is = simulate_step(&h200, "dit-b", pp, 4, 32, false);
	assert_true(was.r.bubble_s / was.r.step_s.median > 0.25 && was.r.bubble_s / was.r.step_s.median < 0.6);
	assert_true(is.r.bubble_s / is.r.step_s.median < 0.25);

	/* products at half the rate */
	slow = h200;
	for (int e = 0; e < VFM_ESTIMATES; e++)
		slow.gemm_bf16.v[e] /= 2;
	was = simulate_step(&h200, "dit-b", tp, 2, 2, false);
	is = simulate_step(&slow, "dit-b", tp, 2, 2, false);
	assert_true(is.work[VFM_SIM_GEMM] > 1.05 * was.work[VFM_SIM_GEMM]);
	assert_true(is.work[VFM_SIM_ATTENTION] == was.work[VFM_SIM_ATTENTION]);
}

/* Multiplies a rate of the machine. */
static struct vfm_machine with_rate(size_t offset, double factor)
{
	struct vfm_machine m = h200;
	struct vfm_rate_range *r = (struct vfm_rate_range *)((char *)&m + offset);

	for (int e = 0; e < VFM_ESTIMATES; e++)
		r->v[e] *= factor;
	return m;
}

static void test_slow_device(void **state)
{
	static const char *const tp = "parallel.tp=2 parallel.overlap=off",
				 *const offload = "train.offload=activations";
	struct seen was = simulate_step(&h200, "dit-b", tp, 2, 2, false), is, off;
	struct vfm_machine slow = h200;

	(void)state;
	for (int i = 0; i < slow.n_attn; i++)
		for (int e = 0; e < VFM_ESTIMATES; e++) {
			slow.attn[i].forward.v[e] /= 8;
			slow.attn[i].backward.v[e] /= 8;
		}
	is = simulate_step(&slow, "dit-b", tp, 2, 2, false);
	assert_true(is.work[VFM_SIM_ATTENTION] > 1.5 * was.work[VFM_SIM_ATTENTION]);
	assert_true(is.work[VFM_SIM_MEMORY] == was.work[VFM_SIM_MEMORY] && is.s[VFM_MID] > was.s[VFM_MID]);

	slow = with_rate(offsetof(struct vfm_machine, copy), 0.125);
	is = simulate_step(&slow, "dit-b", tp, 2, 2, false);
	assert_true(is.work[VFM_SIM_OPTIMIZER] > 4 * was.work[VFM_SIM_OPTIMIZER]);
	assert_true(is.work[VFM_SIM_COMM] == was.work[VFM_SIM_COMM]);

	slow = with_rate(offsetof(struct vfm_machine, gap), 10);
	is = simulate_step(&slow, "dit-b", tp, 2, 2, false);
	assert_true(is.s[VFM_MID] > 2 * was.s[VFM_MID]);
	assert_true(fabs(is.work[VFM_SIM_GEMM] / was.work[VFM_SIM_GEMM] - 1) < 0.02);

	slow = with_rate(offsetof(struct vfm_machine, collective), 10);
	is = simulate_step(&slow, "dit-b", tp, 2, 2, false);
	assert_true(is.r.comm_s > 2 * was.r.comm_s);
	assert_true(is.work[VFM_SIM_MEMORY] == was.work[VFM_SIM_MEMORY]);

	off = simulate_step(&h200, "dit-b", offload, 1, 2, false);
	slow = with_rate(offsetof(struct vfm_machine, pcie), 0.01);
	is = simulate_step(&slow, "dit-b", offload, 1, 2, false);
	assert_true(is.work[VFM_SIM_TRANSFER] > 5 * off.work[VFM_SIM_TRANSFER]);
	assert_true(is.s[VFM_MID] > off.s[VFM_MID]);
}

/* A host that launches more slowly than the device computes determines the time, unless it launches graphs. */
static void test_slow_host(void **state)
{
	static const char *const eager = "train.graphs=off", *const graphs = "train.graphs=on";
	struct seen was = simulate_step(&h200, "dit-s", eager, 1, 8, false), is;
	struct seen fast = simulate_step(&h200, "dit-s", graphs, 1, 8, false), replayed;
	struct vfm_machine slow = h200;

	(void)state;
	for (int e = 0; e < VFM_ESTIMATES; e++)
		slow.launch_host.v[e] = 0.1;
	is = simulate_step(&slow, "dit-s", eager, 1, 8, false);
	assert_true(is.s[VFM_MID] < 1.02 * was.s[VFM_MID] && is.s[VFM_MID] >= was.s[VFM_MID]);
	for (int e = 0; e < VFM_ESTIMATES; e++)
		slow.launch_host.v[e] = 30;
	is = simulate_step(&slow, "dit-s", eager, 1, 8, false);
	replayed = simulate_step(&slow, "dit-s", graphs, 1, 8, false);
	if (is.s[VFM_MID] < 2 * was.s[VFM_MID] || replayed.s[VFM_MID] > 1.5 * fast.s[VFM_MID])
		fail_msg("%g and %g ms, of a slow host %g and %g ms", was.s[VFM_MID] * 1e3, fast.s[VFM_MID] * 1e3,
			is.s[VFM_MID] * 1e3, replayed.s[VFM_MID] * 1e3);
	for (int c = 0; c < VFM_SIM_CLASSES; c++)
		assert_true(fabs(is.work[c] - was.work[c]) <= 0.02 * was.work[c]);
}

/* Every byte that a rank sends is received: by the counts of a pipeline, in both directions. */
static void test_conservation(void **state)
{
	struct seen pp = simulate_step(&h200, "dit-s", "parallel.pp=4", 4, 8, true);
	/* 8 packs pass each of 3 links forward and back, 256 rows of 384 in bf16 */
	double rows = 8 * 256.0 * 384 * 2;

	(void)state;
	if (pp.sent < 6 * rows || pp.sent > 6.1 * rows)
		fail_msg("%g bytes sent, expected %g", pp.sent, 6 * rows);
}

/* Stage 0 is at the end of the step, where its host waits for stage 1, while messages of stage 1 wait for its streams.
 */
static void test_host_waits_for_ranks(void **state)
{
	static const char *const moe = "model.layers=2 model.hidden=64 model.heads=4 model.kv_heads=4 model.experts=4 "
				       "model.expert_ffn=32 model.moe_capacity=2 parallel.pp=2";
	static struct vfm_machine cpu;
	char sets[256];

	(void)state;
	vfm_machine_of_memory(&cpu, VFM_MACHINE_CPU, INT64_C(1) << 39, 4);
	for (int ep = 0; ep < 2; ep++) {
		snprintf(sets, sizeof(sets), "%s parallel.%s=2", moe, ep ? "ep" : "tp");
		simulate_step(&cpu, "moe-1b", sets, 4, 4, true);
		simulate_step(&h200, "moe-1b", sets, 4, 4, true);
	}
}

static void test_memory_runs_out(void **state)
{
	struct seen seen = {.config = config_of("dit-b", "parallel.pp=2"), .packs = 2};
	struct vfm_machine small = h200;
	struct vfm_simulated how;

	(void)state;
	small.capacity = small.context + (256 << 20);
	assert_true(vfm_simulate(&(struct vfm_simulation){.config = &seen.config, .machine = &small, .ranks = 2},
			    run_bench, &seen, &how, &err) == VFM_EENV);
	assert_true(how.full);
	assert_non_null(strstr(err.msg, "out of memory on NVIDIA H200"));
}

/* ---- failures ---- */

/* Stage 0 waits for a message that stage 1 never sends. */
static int wait_in_vain(struct vfm_context *x, void *ctx, struct vfm_err *e)
{
	static char word[8];

	TRY(vfm_context_open(x, ctx, e));
	if (x->mesh.rank == 0)
		TRY(vfm_recv(x->mesh.bwd_in, x->device.stream, vfm_t1(word, VFM_U8, 8), 1 - x->mesh.bwd_in->rank, e));
	return x->device.dev->t->stream_sync(x->device.stream, e);
}

static int fail_alone(struct vfm_context *x, void *ctx, struct vfm_err *e)
{
	TRY(vfm_context_open(x, ctx, e));
	if (x->mesh.rank == 1)
		return vfm_fail(e, VFM_EENV, "no luck");
	return vfm_barrier(x->mesh.world, NULL, e);
}

static void test_failures(void **state)
{
	struct vfm_config c = config_of("dit-s", "parallel.pp=2");
	struct vfm_simulated how;

	(void)state;
	assert_int_equal(vfm_simulate(&(struct vfm_simulation){.config = &c, .machine = &h200, .ranks = 2},
				 wait_in_vain, &c, &how, &err),
		VFM_EENV);
	if (!strstr(err.msg, "deadlock in the simulated job") || !strstr(err.msg, "messages 'backward'"))
		fail_msg("%s", err.msg);
	assert_int_equal(vfm_simulate(&(struct vfm_simulation){.config = &c, .machine = &h200, .ranks = 2}, fail_alone,
				 &c, &how, &err),
		VFM_EENV);
	assert_string_equal(err.msg, "no luck");
	assert_int_equal(vfm_simulate(&(struct vfm_simulation){.config = &c, .machine = &h200, .ranks = 3}, fail_alone,
				 &c, &how, &err),
		VFM_EUSAGE);
}

/* ---- the network ---- */

static void test_spans(void **state)
{
	static const int near[] = {0, 1, 2, 3}, far[] = {0, 8, 16}, mixed[] = {6, 7, 8, 9, 10};
	struct vfm_sim_span g = vfm_sim_span_of(&h200, near, 4);
	double S = 1e9;

	(void)state;
	assert_true(g.nodes == 1 && g.per_node == 4 && g.ranks == 4);
	for (int e = 0; e < VFM_ESTIMATES; e++) {
		double gather = vfm_sim_coll_s(&h200, &g, VFM_SIM_ALL_GATHER, S, (enum vfm_estimate)e);
		double want = 0.75 * S / (h200.nvlink.v[e] * 1e9) + 1e-6 * (h200.collective.v[e] + 2 * h200.hop.v[e]);

		assert_true(fabs(gather / want - 1) < 1e-12);
	}
	g = vfm_sim_span_of(&h200, far, 3);
	assert_true(g.nodes == 3 && g.per_node == 1);
	assert_true(vfm_sim_coll_s(&h200, &g, VFM_SIM_ALL_REDUCE, S, VFM_MID) >
		2 * 2.0 / 3 * S / (h200.network.v[VFM_MID] * 1e9));
	g = vfm_sim_span_of(&h200, mixed, 5);
	assert_true(g.nodes == 2 && g.per_node == 3);
	assert_true(vfm_sim_messages_s(&h200, S, 0, VFM_MID) < vfm_sim_messages_s(&h200, 0, S, VFM_MID));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_classes),
		cmocka_unit_test(test_uneven_shares),
		cmocka_unit_test(test_slow_parts),
		cmocka_unit_test(test_slow_device),
		cmocka_unit_test(test_slow_host),
		cmocka_unit_test(test_conservation),
		cmocka_unit_test(test_host_waits_for_ranks),
		cmocka_unit_test(test_memory_runs_out),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_spans),
	};

	return cmocka_run_group_tests(tests, read_machine_file, NULL);
}
