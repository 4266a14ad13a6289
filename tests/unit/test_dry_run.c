/* The dry run of plans whose dp ranks have different packs: a few ranks stand for all, and the others wait for the
 * slowest. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "ok.h"
#include "device/sim/machine.h"
#include "device/sim/uneven.h"
#include "spec/cost/goodput.h"
#include "train/predict/bench.h"
#include "train/predict/dry_run.h"

static struct vfm_machine h200;
static struct vfm_err err;
static char plan_path[64];
static double expert_skew, slow_factor; /* of predictions */
static int slow_rank;

static int read_machine_file(void **state)
{
	(void)state;
	vfm_log_set_quiet(true);
	snprintf(plan_path, sizeof(plan_path), "/tmp/test_dry_run.%d", (int)getpid());
	return vfm_machine_load(&h200, "share/machines/h200.json", &err);
}

static int remove_plan(void **state)
{
	(void)state;
	return unlink(plan_path);
}

/* ---- plans ---- */

enum { CONTEXT = 4096 };

static FILE *begin_plan(int steps, int batch, int cp)
{
	FILE *f = fopen(plan_path, "w");

	assert_non_null(f);
	fprintf(f, "{\"v\":1,\"type\":\"vfm-manifest\",\"context\":%d,\"batch\":%d,", CONTEXT, batch);
	if (cp)
		fprintf(f, "\"cp\":%d,", cp);
	fprintf(f,
		"\"seed\":0,\"steps\":%d,\"patch\":[1,2,2],\"latent_channels\":16,\"text_dim\":4096,\"sets\":[{"
		"\"name\":\"d\",\"dir\":\"d\",\"records\":1,\"index_sha256\":\"%064d\",\"weight\":1.0}]}\n",
		steps, 0);
	return f;
}

/* A pack of n samples of equal size. */
static void put_pack(FILE *f, int step, int pack, int cp, int tokens, int n)
{
	fprintf(f, "{\"step\":%d,\"pack\":%d,", step, pack);
	if (cp)
		fprintf(f, "\"cp\":%d,", cp);
	fprintf(f, "\"tokens\":%d,\"cost\":%g,\"samples\":[", n * tokens,
		n * (tokens + (double)tokens * tokens / 8000));
	for (int i = 0; i < n; i++)
		fprintf(f, "%s[0,0,0,%d]", i ? "," : "", tokens);
	fprintf(f, "]}\n");
}

/* Packs of mixed lengths, by a linear congruence; `distinct` different ones in a step. */
static void write_mixed_plan(int first, int steps, int batch, int distinct)
{
	FILE *f = begin_plan(steps, batch, 0);

	for (int s = 0; s < steps; s++)
		for (int p = 0; p < batch; p++) {
			unsigned x = (unsigned)((first + s) * 64 + p % distinct) * 1103515245U + 12345U;
			int tokens = 256 << (x >> 16) % 5, most = CONTEXT / tokens;

			put_pack(f, s, p, 0, tokens, 1 + (int)(x >> 20) % most);
		}
	assert_int_equal(fclose(f), 0);
}

/* A step of packs of one sample of so many tokens. */
static void write_equal_plan(int batch, int tokens)
{
	FILE *f = begin_plan(1, batch, 0);

	for (int p = 0; p < batch; p++)
		put_pack(f, 0, p, 0, tokens, 1);
	assert_int_equal(fclose(f), 0);
}

static struct vfm_config mixed_config(const char *preset, const char *sets)
{
	struct vfm_config c;
	char text[512], *save = NULL, *word;

	vfm_config_defaults(&c);
	c.train.ema_decay = 0;
	OK(vfm_model_preset(preset, &c.model, &err));
	snprintf(text, sizeof(text),
		"train.dtype=bf16 model.layers=4 model.channels=16 model.text_dim=4096 model.patch=[1,2,2] %s", sets);
	for (word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save))
		OK(vfm_bench_set(&c, word, &err));
	OK(vfm_config_check(&c, &err));
	return c;
}

static struct vfm_dry_run predict_plan(const char *preset, const char *sets, int ranks, bool all)
{
	struct vfm_config c = mixed_config(preset, sets);
	struct vfm_dry_run d;

	if (vfm_dry_run(&(struct vfm_dry_run_opts){.config = &c,
				.machine = &h200,
				.ranks = ranks,
				.plan = plan_path,
				.expert_skew = expert_skew,
				.slow_rank = slow_rank,
				.slow_factor = slow_factor,
				.all = all},
		    &d, &err) < 0)
		fail_msg("%s: %s", sets, err.msg);
	return d;
}

static double mean_wait(const struct vfm_dry_run *d, int ranks)
{
	double sum = 0;

	for (int i = 0; i < d->n; i++)
		sum += d->rank[i].wait_s * d->rank[i].stands_for;
	return sum / ranks;
}

/* Compares the simulated ranks with all, but for the norm of gradients, which the first replica computes, and the part
 * of a kernel under messages, which is that of the step before. */
static void compare_with_all(const char *preset, const char *sets, int ranks, int simulated)
{
	struct vfm_dry_run few = predict_plan(preset, sets, ranks, false),
			   all = predict_plan(preset, sets, ranks, true);
	double waits = mean_wait(&few, ranks), of_all = mean_wait(&all, ranks);

	printf("%s %s: %d of %d ranks, %.3f ms, all %.3f ms; wait %.3f ms, all %.3f ms; memory %.3f, all %.3f GiB\n",
		preset, sets, few.n, ranks, few.s[VFM_MID] * 1e3, all.s[VFM_MID] * 1e3, waits * 1e3, of_all * 1e3,
		(double)few.mem_peak / 0x1p30, (double)all.mem_peak / 0x1p30);
	assert_int_equal(all.n, ranks);
	assert_int_equal(few.n, simulated);
	for (int e = 0; e < VFM_ESTIMATES; e++)
		if (fabs(few.s[e] / all.s[e] - 1) > 5e-3)
			fail_msg("%s: %g s, with all ranks %g s", sets, few.s[e], all.s[e]);
	if (fabs(waits - of_all) > 0.01 * all.s[VFM_MID])
		fail_msg("%s: waits of %g s, with all ranks %g s", sets, waits, of_all);
	assert_true(fabs((double)few.mem_peak / (double)all.mem_peak - 1) < 5e-3);
	vfm_dry_run_release(&few);
	vfm_dry_run_release(&all);
}

static void test_mixed_plan(void **state)
{
	(void)state;
	write_mixed_plan(0, 1, 16, 16);
	compare_with_all("dit-s", "parallel.dp=4", 4, 4);
	compare_with_all("dit-s", "parallel.dp=4 parallel.fsdp=true", 4, 4);
	compare_with_all("dit-s", "parallel.tp=2 parallel.dp=2 parallel.pp=2", 8, 8);
	compare_with_all("dit-b", "parallel.tp=4 parallel.dp=4 parallel.fsdp=true", 16, 12);
	compare_with_all("dit-s", "parallel.dp=4 parallel.cp=2 parallel.fsdp=true", 8, 4);
	compare_with_all("moe-1b", "parallel.ep=4 parallel.dp=4", 4, 4);
	compare_with_all(
		"stdit-xl", "model.hidden=192 model.heads=6 model.kv_heads=6 parallel.dp=2 parallel.cp=3", 6, 6);
	write_mixed_plan(1, 1, 16, 4); /* of the four, two are equal */
	compare_with_all("dit-s", "parallel.dp=8 parallel.fsdp=true", 8, 3);
	compare_with_all("dit-s", "parallel.dp=8 parallel.pp=2 parallel.distopt=true", 16, 6);
}

static struct vfm_dry_run predict_two(double boundary, int64_t turn, int idle)
{
	struct vfm_config c = mixed_config("dit-b", "diffusion.kind=flow diffusion.t_dist=uniform");
	struct vfm_dry_run_opts o = {.config = &c, .machine = &h200, .ranks = 1, .context = CONTEXT, .packs = 2};
	struct vfm_dry_run d;

	c.experts.boundary = boundary;
	c.experts.turn = turn;
	c.experts.idle = idle;
	OK(vfm_dry_run(&o, &d, &err));
	return d;
}

/* A network above t = 0.75 has every fourth turn, so two exchanges in four turns.  The other one waits in memory. */
static void test_two_networks(void **state)
{
	struct vfm_config c = mixed_config("dit-b", "");
	double bytes = (double)vfm_model_params(&c.model) * 14; /* f32 weights and two moments, bf16 copy */
	struct vfm_dry_run one = predict_two(0, 1, VFM_IDLE_HOST), two = predict_two(0.75, 1, VFM_IDLE_HOST),
			   rare = predict_two(0.75, 10, VFM_IDLE_HOST), device = predict_two(0.75, 1, VFM_IDLE_DEVICE);

	(void)state;
	assert_true(one.exchanges == 0 && one.exchange.s[VFM_MID] == 0 && one.exchange.bytes == 0);
	assert_true(fabs(two.exchanges - 0.5) < 1e-3);
	assert_true(fabs(rare.exchanges - 0.05) < 1e-3);
	if (fabs((double)two.exchange.bytes / bytes - 1) > 0.01)
		fail_msg("an exchange of %g bytes, not %g", (double)two.exchange.bytes, bytes);
	printf("an exchange of %.3f GB: %.2f ms, on the device %.2f ms\n", bytes / 1e9, two.exchange.s[VFM_MID] * 1e3,
		device.exchange.s[VFM_MID] * 1e3);
	/* both directions at a time */
	assert_true(two.exchange.s[VFM_MID] * 1e9 * h200.pcie.v[VFM_MID] > bytes);
	assert_true(two.exchange.s[VFM_MID] * 1e9 * h200.pcie.v[VFM_MID] < 1.3 * bytes);
	assert_true(device.exchange.s[VFM_MID] < 0.2 * two.exchange.s[VFM_MID]);
	for (int e = 0; e < VFM_ESTIMATES; e++)
		assert_true(two.s[e] > one.s[e]);
	assert_true(fabs(two.s[VFM_MID] - one.s[VFM_MID] - 0.5 * two.exchange.s[VFM_MID]) < 0.01 * one.s[VFM_MID]);
	assert_true(fabs(two.copy_s - one.copy_s - 0.5 * two.exchange.s[VFM_MID]) < 0.01 * one.s[VFM_MID]);
	assert_true(two.mem_peak - one.mem_peak <= 64 << 20);
	assert_true(device.mem_peak - two.mem_peak >= two.exchange.bytes);
	vfm_dry_run_release(&one);
	vfm_dry_run_release(&two);
	vfm_dry_run_release(&rare);
	vfm_dry_run_release(&device);
}

/* Groups smaller than dp x cp, of which each waits for its own members. */
static void test_small_groups(void **state)
{
	(void)state;
	write_mixed_plan(1, 1, 16, 4);
	compare_with_all("dit-s",
		"parallel.dp=16 parallel.fsdp=true parallel.shard=8 parallel.grad_reduce=bf16_internode", 16, 3);
	compare_with_all("dit-s", "parallel.dp=16 parallel.fsdp=true parallel.shard=2", 16, 4);
	compare_with_all("dit-s", "parallel.dp=8 parallel.pp=2 parallel.fsdp=true parallel.shard=2", 16, 8);
	compare_with_all("dit-s", "parallel.dp=8 parallel.cp=2 parallel.fsdp=true parallel.shard=4", 16, 4);
	compare_with_all("moe-1b", "parallel.ep=2 parallel.dp=8", 8, 4);
	write_mixed_plan(3, 1, 32, 3);
	compare_with_all("dit-b", "parallel.dp=16 parallel.distopt=true parallel.shard=4", 16, 3);
	compare_with_all("dit-s",
		"parallel.dp=32 parallel.fsdp=true parallel.shard=16 parallel.grad_reduce=bf16_internode", 32, 6);
}

/* One of 8 dp ranks has a long video in step 0: the others wait for it, and do what they did without it. */
static void test_planted_imbalance(void **state)
{
	static const char *const sets[] = {
		"parallel.dp=8", "parallel.dp=8 parallel.fsdp=true", "parallel.dp=8 parallel.pp=2"};

	(void)state;
	for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
		int ranks = i == 2 ? 16 : 8;
		struct vfm_dry_run equal, uneven;
		FILE *f;

		for (int long_one = 0; long_one < 2; long_one++) {
			f = begin_plan(1, 16, 0);
			for (int p = 0; p < 16; p++)
				put_pack(f, 0, p, 0, p == 5 && long_one ? 4096 : 256, 1);
			assert_int_equal(fclose(f), 0);
			*(long_one ? &uneven : &equal) = predict_plan("dit-b", sets[i], ranks, false);
		}
		assert_true(equal.dp_distinct == 1 && uneven.dp_distinct == 2 && uneven.dp_classes == 2);
		assert_true(uneven.n == 2 * equal.n && uneven.s[VFM_MID] > 1.2 * equal.s[VFM_MID]);
		assert_true(mean_wait(&equal, ranks) == 0);
		for (int k = 0; k < uneven.n; k++) {
			const struct vfm_dry_run_rank *r = &uneven.rank[k], *was = &equal.rank[0];
			double more = uneven.s[VFM_MID] - equal.s[VFM_MID];

			while (was->stage != r->stage)
				was++;
			assert_int_equal(r->stands_for, r->packs == 0 ? 1 : 7);
			if (r->packs == 0) { /* it waits for none */
				assert_true(r->class_s[VFM_SIM_GEMM] > 1.2 * was->class_s[VFM_SIM_GEMM]);
				if (r->wait_s > 0.1 * more)
					fail_msg("%s: rank %d waits %g s of %g s", sets[i], r->rank, r->wait_s, more);
				continue;
			}
			for (int c = 0; c < VFM_SIM_CLASSES; c++)
				if (fabs(r->class_s[c] - was->class_s[c]) >
					0.08 * was->class_s[c]) /* they overlap collectives less */
					fail_msg("%s rank %d class %d %g %g", sets[i], r->rank, c, r->class_s[c],
						was->class_s[c]);
			/* collectives that the slow rank delays take the rest */
			if (r->wait_s < 0.55 * more || r->wait_s > 1.05 * more)
				fail_msg("%s: rank %d waits %g s, the step takes %g s more", sets[i], r->rank,
					r->wait_s, more);
		}
		vfm_dry_run_release(&equal);
		vfm_dry_run_release(&uneven);
	}
}

/* The slowest class in time need not be the one with the most cost: all that differ are simulated. */
static void test_slowest_counts(void **state)
{
	struct vfm_dry_run d;
	FILE *f = begin_plan(1, 2, 0);

	(void)state;
	put_pack(f, 0, 0, 0, 256, 16); /* has more rows of text than the cost knows */
	put_pack(f, 0, 1, 0, 4096, 1);
	assert_int_equal(fclose(f), 0);
	d = predict_plan("dit-b", "parallel.dp=2", 2, false);
	assert_int_equal(d.n, 2);
	assert_true(d.rank[1].packs == 0); /* the most cost */
	assert_true(d.rank[1].wait_s > 0.02 * d.s[VFM_MID] && d.rank[0].wait_s < 0.01 * d.s[VFM_MID]);
	vfm_dry_run_release(&d);
}

/* With more different dp ranks than are simulated the time is near, and the memory is that of the largest pack. */
static void test_few_of_many(void **state)
{
	static const char *const sets[] = {
		"parallel.dp=64 parallel.fsdp=true", "parallel.dp=64 parallel.fsdp=true parallel.shard=8"};

	(void)state;
	write_mixed_plan(3, 1, 128, 128);
	for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
		struct vfm_dry_run few = predict_plan("dit-s", sets[i], 64, false),
				   all = predict_plan("dit-s", sets[i], 64, true);

		printf("%s: %d of %d: %.3f ms, all %.3f; waits %.3f, %.3f\n", sets[i], few.dp_classes, few.dp_distinct,
			few.s[VFM_MID] * 1e3, all.s[VFM_MID] * 1e3, mean_wait(&few, 64) * 1e3,
			mean_wait(&all, 64) * 1e3);
		assert_true(few.dp_classes == 36 && few.dp_distinct > 36 && few.n == 36);
		assert_true(fabs(few.s[VFM_MID] / all.s[VFM_MID] - 1) < 5e-3);
		assert_true(fabs(mean_wait(&few, 64) - mean_wait(&all, 64)) < (i ? 0.03 : 0.01) * all.s[VFM_MID]);
		assert_int_equal(few.mem_peak, all.mem_peak);
		vfm_dry_run_release(&few);
		vfm_dry_run_release(&all);
	}
}

/* The time of all steps, against each simulated. */
static void test_total_time(void **state)
{
	static const char *const sets = "parallel.dp=2 parallel.fsdp=true";
	enum { STEPS = 24 };
	struct vfm_dry_run d;
	double sum = 0;

	(void)state;
	for (int s = 0; s < STEPS; s++) {
		write_mixed_plan(s, 1, 4, 4);
		d = predict_plan("dit-s", sets, 2, true);
		sum += d.total_s;
		assert_true(d.total_s == d.s[VFM_MID]);
		vfm_dry_run_release(&d);
	}
	write_mixed_plan(0, STEPS, 4, 4);
	d = predict_plan("dit-s", sets, 2, false);
	printf("all steps: %.3f s, each simulated %.3f s (%+.1f %%)\n", d.total_s, sum, 100 * (d.total_s / sum - 1));
	assert_int_equal(d.timed_steps, 5);
	assert_true(fabs(d.total_s / sum - 1) < 0.05);
	vfm_dry_run_release(&d);
}

/* Packs that 1, 2 or 4 of the cp ranks compute. */
static void test_packs_with_cp(void **state)
{
	FILE *f = begin_plan(1, 16, 4);

	(void)state;
	put_pack(f, 0, 0, 4, 4096, 3);
	put_pack(f, 0, 4, 2, 4096, 2);
	put_pack(f, 0, 6, 1, 1024, 4);
	put_pack(f, 0, 7, 1, 256, 8);
	put_pack(f, 0, 8, 1, 2048, 2);
	put_pack(f, 0, 9, 1, 4096, 1);
	put_pack(f, 0, 10, 2, 2048, 3);
	put_pack(f, 0, 12, 4, 8192, 2);
	assert_int_equal(fclose(f), 0);
	compare_with_all("dit-s", "parallel.cp=4", 4, 4);
	compare_with_all("dit-s", "parallel.cp=4 parallel.cp_mode=hybrid parallel.cp_a2a=2 parallel.fsdp=true", 4, 4);
	compare_with_all("dit-s", "parallel.cp=4 parallel.dp=2 parallel.fsdp=true", 8, 6);
	compare_with_all("dit-s", "parallel.cp=2 parallel.dp=2 parallel.pp=2", 8, 8);
	compare_with_all("dit-s", "parallel.cp=2 parallel.tp=2", 4, 4);
	compare_with_all("dit-s", "parallel.cp=2", 2, 2);
	compare_with_all("dit-s", "parallel.dp=4", 4, 4);
	f = begin_plan(1, 16, 4);
	for (int k = 0; k < 2; k++) {
		put_pack(f, 0, 8 * k, 4, 4096, 3);
		put_pack(f, 0, 8 * k + 4, 2, 4096, 2);
		put_pack(f, 0, 8 * k + 6, 1, 1024, 4);
		put_pack(f, 0, 8 * k + 7, 1, 1024, 4);
	}
	assert_int_equal(fclose(f), 0);
	/* of 8 ranks along cp, 0 and 1 do the same, 2 and 3, and likewise those behind */
	compare_with_all("dit-s", "parallel.cp=4 parallel.fsdp=true", 4, 2);
	compare_with_all("dit-s", "parallel.cp=8 parallel.fsdp=true", 8, 3);
}

/* ---- experts ---- */

static void test_routing(void **state)
{
	static const struct {
		int64_t E, n, most;
		double skew;
	} of[] = {{8, 2000, 1000, 0}, {8, 2000, 1000, 0.5}, {8, 2000, 1000, 1}, {64, 4097 * 8, 4097, 1.2},
		{4, 300, 100, 9}, {4, 400, 100, 3}, {8, 0, 0, 1}, {1, 5, 5, 1}};

	(void)state;
	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		for (uint64_t layer = 0; layer < 5; layer++) {
			int32_t count[64], again[64], most = 0, other[64];
			int64_t sum = 0, moved = 0;
			double share = 1, top = 0;

			vfm_sim_route(count, of[i].E, of[i].n, of[i].most, of[i].skew, layer);
			vfm_sim_route(again, of[i].E, of[i].n, of[i].most, of[i].skew, layer);
			vfm_sim_route(other, of[i].E, of[i].n, of[i].most, of[i].skew, layer + 1);
			for (int64_t e = 0; e < of[i].E; e++) {
				assert_true(count[e] >= 0 && count[e] <= of[i].most && count[e] == again[e]);
				sum += count[e];
				most = count[e] > most ? count[e] : most;
				moved += count[e] != other[e];
				top += pow((double)e + 1, -of[i].skew);
			}
			assert_true(sum == of[i].n);
			share = fmin((double)of[i].most, (double)of[i].n / top);
			assert_true(fabs(most - share) <= 1);
			if (of[i].skew > 0 && of[i].E > 4 && of[i].n > 0)
				assert_true(moved > 0);
		}
}

/* Ranks along ep that have the popular experts take longer, and need more memory. */
static void test_expert_skew(void **state)
{
	static const char *const sets =
		"parallel.ep=4 parallel.dp=4 model.moe_router=token_choice model.moe_capacity=2";
	static const double skews[] = {0, 0.3, 0.6, 1};
	double s = 0;
	int64_t mem = 0;

	(void)state;
	write_equal_plan(8, CONTEXT);
	for (size_t i = 0; i < sizeof(skews) / sizeof(skews[0]); i++) {
		struct vfm_dry_run d;

		expert_skew = skews[i];
		compare_with_all("moe-1b", sets, 4, i ? 4 : 1);
		d = predict_plan("moe-1b", sets, 4, false);
		printf("skew %.1f: %.3f ms, %.3f GiB, waits %.3f ms\n", skews[i], d.s[VFM_MID] * 1e3,
			(double)d.mem_peak / 0x1p30, mean_wait(&d, 4) * 1e3);
		assert_true(d.s[VFM_MID] > s && d.mem_peak > mem);
		assert_true(i == 0 ? mean_wait(&d, 4) == 0 : mean_wait(&d, 4) > 0);
		s = d.s[VFM_MID];
		mem = d.mem_peak;
		vfm_dry_run_release(&d);
	}
	compare_with_all("moe-1b", "parallel.ep=2 parallel.dp=8 model.moe_router=token_choice", 8, 2);
	compare_with_all("moe-1b", "parallel.ep=4 parallel.tp=2 parallel.dp=4 model.moe_router=token_choice", 8, 4);
	compare_with_all("moe-1b", "parallel.ep=2 parallel.pp=2 parallel.dp=2 model.moe_router=token_choice", 4, 4);
	write_mixed_plan(0, 1, 8, 4);
	compare_with_all(
		"moe-1b", "parallel.ep=4 parallel.dp=4 parallel.fsdp=true model.moe_router=token_choice", 4, 4);
	expert_skew = 0;
}

/* Models without experts, and experts that choose. */
static void test_no_skew(void **state)
{
	struct vfm_dry_run d;
	struct vfm_config c = mixed_config("moe-1b", "");

	(void)state;
	write_mixed_plan(0, 1, 2, 2);
	for (int i = 0; i < 2; i++) {
		if (i)
			c = mixed_config("dit-s", "");
		else
			c.model.moe_router = VFM_MOE_EXPERT_CHOICE;
		assert_int_equal(vfm_dry_run(&(struct vfm_dry_run_opts){.config = &c,
						     .machine = &h200,
						     .ranks = 1,
						     .plan = plan_path,
						     .expert_skew = 1},
					 &d, &err),
			VFM_EUSAGE);
		assert_non_null(strstr(err.msg, i ? "has no experts" : "experts choose tokens"));
		vfm_dry_run_release(&d);
	}
}

/* ---- slow ranks ---- */

static void test_slow_rank(void **state)
{
	static const struct {
		const char *sets;
		int ranks, slow, simulated;
	} of[] = {{"parallel.dp=4", 4, 2, 2}, {"parallel.dp=8 parallel.fsdp=true", 8, 0, 2},
		{"parallel.dp=16 parallel.fsdp=true parallel.shard=4", 16, 5, 4},
		{"parallel.tp=2 parallel.dp=2 parallel.pp=2", 8, 3, 8},
		{"parallel.tp=6 parallel.dp=2 parallel.fsdp=true", 12, 8, 8}, {"parallel.cp=2 parallel.dp=4", 8, 5, 3},
		{"parallel.pp=4 parallel.dp=2", 8, 2, 8}};

	(void)state;
	write_equal_plan(16, CONTEXT);
	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
		struct vfm_dry_run was, is;
		const struct vfm_dry_run_rank *slow;

		slow_factor = 0;
		was = predict_plan("dit-s", of[i].sets, of[i].ranks, true);
		slow_factor = 2;
		slow_rank = of[i].slow;
		compare_with_all("dit-s", of[i].sets, of[i].ranks, of[i].simulated);
		is = predict_plan("dit-s", of[i].sets, of[i].ranks, true);
		assert_true(is.s[VFM_MID] > 1.15 * was.s[VFM_MID] && is.s[VFM_MID] < 2.05 * was.s[VFM_MID]);
		slow = &is.rank[of[i].slow];
		for (int r = 0; r < of[i].ranks; r++) {
			double work = is.rank[r].class_s[VFM_SIM_GEMM] / was.rank[r].class_s[VFM_SIM_GEMM];

			assert_true(r == of[i].slow ? work > 1.85 && work < 2.1 : work > 0.8 && work < 1.1);
			if (is.rank[r].stage == slow->stage && r != of[i].slow)
				assert_true(is.rank[r].wait_s > slow->wait_s + 0.2 * (is.s[VFM_MID] - was.s[VFM_MID]));
		}
		vfm_dry_run_release(&was);
		vfm_dry_run_release(&is);
	}
	slow_factor = slow_rank = 0;
}

/* The largest of two log-normal numbers has a mean of 2 Phi(sigma / sqrt 2). */
static void test_straggler_factor(void **state)
{
	double last = 1;

	(void)state;
	for (double cv = 0.01; cv < 1; cv *= 2) {
		double sigma = sqrt(log1p(cv * cv));

		assert_true(fabs(vfm_straggler_factor(cv, 1) - 1) < 1e-6);
		assert_true(fabs(vfm_straggler_factor(cv, 2) / (1 + erf(sigma / 2)) - 1) < 1e-6);
	}
	for (double n = 1; n < 2e5; n *= 4) {
		double f = vfm_straggler_factor(0.03, n);

		assert_true(fabs(vfm_straggler_factor(0, n) - 1) < 1e-6);
		assert_true(f > last - 1e-9 && f < 1.2);
		last = f;
	}
	assert_true(
		fabs(vfm_straggler_factor(0.05, 1000) - exp(0.05 * 3.2414 - 0.00125)) < 3e-3); /* E max of normals */
}

/* The estimate from the distribution against a job with one slow rank. */
static void test_straggler_step(void **state)
{
	struct vfm_config c = mixed_config("dit-b", "parallel.dp=8");
	struct vfm_dry_run even, slow;
	double f = vfm_straggler_factor(0.1, 8);

	(void)state;
	write_equal_plan(16, CONTEXT);
	OK(vfm_dry_run(
		&(struct vfm_dry_run_opts){
			.config = &c, .machine = &h200, .ranks = 8, .plan = plan_path, .straggler_cv = 0.1},
		&even, &err));
	OK(vfm_dry_run(&(struct vfm_dry_run_opts){.config = &c,
			       .machine = &h200,
			       .ranks = 8,
			       .plan = plan_path,
			       .slow_rank = 3,
			       .slow_factor = f},
		&slow, &err));
	printf("stragglers: %.3f of the step, with one rank at %.3f: %.3f\n", even.straggler, f,
		slow.s[VFM_MID] / even.s[VFM_MID]);
	assert_true(slow.straggler == 1 || fabs(slow.straggler - 1) < 1e-6);
	assert_true(fabs(slow.s[VFM_MID] / even.s[VFM_MID] / even.straggler - 1) < 0.03);
	vfm_dry_run_release(&even);
	vfm_dry_run_release(&slow);
}

/* A job that does not fit: is simulated again with more memory, or fails; so does one that needs even more. */
static void test_memory_runs_out(void **state)
{
	static const struct {
		double capacity; /* of what the job needs */
		bool once, fails, fits;
	} of[] = {{2, false, false, true}, {2, true, false, true}, {0.6, false, false, false}, {0.6, true, true, false},
		{0.1, false, true, false}};
	struct vfm_config c = mixed_config("dit-b", "train.recompute=none");
	struct vfm_machine m = h200;
	struct vfm_dry_run_opts o = {.config = &c, .machine = &m, .ranks = 1, .context = 65536, .packs = 1};
	struct vfm_dry_run d;
	int64_t need;

	(void)state;
	m.context = 0;
	OK(vfm_dry_run(&o, &d, &err));
	need = d.mem_peak + d.mem_beside;
	vfm_dry_run_release(&d);
	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
		m.capacity = (int64_t)(of[i].capacity * (double)need);
		o.once = of[i].once;
		assert_int_equal(vfm_dry_run(&o, &d, &err) < 0, of[i].fails);
		assert_int_equal(d.beyond, of[i].fails);
		assert_int_equal(d.fits, of[i].fits);
		if (!of[i].fails)
			assert_true(d.mem_peak + d.mem_beside == need);
		vfm_dry_run_release(&d);
	}
}

/* What a job needs is more than the capacity if it does not fit, and no more than that if it does, also near the limit:
 * the chunks of the pool that are partly in use count. */
static void test_need_near_capacity(void **state)
{
	struct vfm_machine machine = h200;
	struct vfm_config c;
	struct vfm_dry_run_opts o = {.config = &c, .machine = &machine, .ranks = 2, .context = 8192, .packs = 4};
	int64_t need = 0;

	(void)state;
	vfm_config_defaults(&c);
	OK(vfm_model_preset("dit-xl", &c.model, &err));
	c.model.layers = 8;
	c.train.dtype = VFM_BF16;
	c.train.recompute = VFM_RECOMPUTE_NONE;
	c.parallel.pp = 2;
	OK(vfm_config_check(&c, &err));
	for (int i = -1; i < 8; i++) {
		struct vfm_dry_run d = {0};
		int64_t needs;

		machine.capacity = i < 0 ? h200.capacity : need + (i - 6) * (INT64_C(16) << 20);
		OK(vfm_dry_run(&o, &d, &err));
		needs = d.mem_peak + d.mem_beside;
		if (d.fits != (needs <= machine.capacity))
			fail_msg("%.3f GiB: fits %d, needs %.3f", (double)machine.capacity / 0x1p30, d.fits,
				(double)needs / 0x1p30);
		assert_true(i < 0 || d.fits == (i >= 6));
		need = i < 0 ? needs : need;
		vfm_dry_run_release(&d);
	}
}

/* Texts without padding take the memory of their rows. */
static void test_text_rows(void **state)
{
	struct vfm_config c = mixed_config("dit-b", "");
	struct vfm_dry_run_opts o = {.config = &c, .machine = &h200, .ranks = 1, .context = 1024, .packs = 2};
	struct vfm_dry_run most, same, few;

	(void)state;
	OK(vfm_dry_run(&o, &most, &err));
	o.text = c.model.text_len;
	OK(vfm_dry_run(&o, &same, &err));
	o.text = 8;
	OK(vfm_dry_run(&o, &few, &err));
	assert_true(same.s[VFM_MID] == most.s[VFM_MID] && same.flops == most.flops && same.mem_peak == most.mem_peak);
	assert_true(few.s[VFM_MID] < most.s[VFM_MID] && few.flops < most.flops && few.mem_peak < most.mem_peak);
	vfm_dry_run_release(&most);
	vfm_dry_run_release(&same);
	vfm_dry_run_release(&few);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mixed_plan),
		cmocka_unit_test(test_small_groups),
		cmocka_unit_test(test_planted_imbalance),
		cmocka_unit_test(test_slowest_counts),
		cmocka_unit_test(test_few_of_many),
		cmocka_unit_test(test_total_time),
		cmocka_unit_test(test_packs_with_cp),
		cmocka_unit_test(test_routing),
		cmocka_unit_test(test_expert_skew),
		cmocka_unit_test(test_no_skew),
		cmocka_unit_test(test_slow_rank),
		cmocka_unit_test(test_two_networks),
		cmocka_unit_test(test_straggler_factor),
		cmocka_unit_test(test_straggler_step),
		cmocka_unit_test(test_memory_runs_out),
		cmocka_unit_test(test_need_near_capacity),
		cmocka_unit_test(test_text_rows),
	};

	return cmocka_run_group_tests(tests, read_machine_file, remove_plan);
}
