/* The dry run of plans whose dp ranks have different packs: a few ranks stand for all, and the others wait for the
 * slowest. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "ok.h"
#include "sim/machine.h"
#include "train/bench.h"
#include "train/dry_run.h"

static struct vfm_machine h200;
static struct vfm_err err;
static char plan_path[64];

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

	if (vfm_dry_run(
		    &(struct vfm_dry_run_opts){
			    .config = &c, .machine = &h200, .ranks = ranks, .plan = plan_path, .all = all},
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

/* Compares the simulated ranks with all. */
static void compare_with_all(const char *preset, const char *sets, int ranks, double within, int fewer)
{
	double waits_within = within > 5e-3 ? 0.12 : 1e-2; /* of the step */
	struct vfm_dry_run few = predict_plan(preset, sets, ranks, false),
			   all = predict_plan(preset, sets, ranks, true);
	double waits = mean_wait(&few, ranks), of_all = mean_wait(&all, ranks);

	printf("%s %s: %d of %d ranks, %.3f ms, all %.3f ms; wait %.3f ms, all %.3f ms; memory %.3f, all %.3f GiB\n",
		preset, sets, few.n, ranks, few.s[VFM_MID] * 1e3, all.s[VFM_MID] * 1e3, waits * 1e3, of_all * 1e3,
		(double)few.mem_peak / 0x1p30, (double)all.mem_peak / 0x1p30);
	assert_int_equal(all.n, ranks);
	assert_true(few.n <= ranks - fewer);
	for (int e = 0; e < VFM_ESTIMATES; e++)
		if (fabs(few.s[e] / all.s[e] - 1) > within)
			fail_msg("%s: %g s, with all ranks %g s", sets, few.s[e], all.s[e]);
	assert_true(fabs(waits - of_all) < waits_within * all.s[VFM_MID]);
	assert_true(fabs((double)few.mem_peak / (double)all.mem_peak - 1) < within);
	vfm_dry_run_release(&few);
	vfm_dry_run_release(&all);
}

static void test_mixed_plan(void **state)
{
	(void)state;
	write_mixed_plan(0, 1, 16, 16);
	compare_with_all("dit-s", "parallel.dp=4", 4, 5e-3, 0);
	compare_with_all("dit-s", "parallel.dp=4 parallel.fsdp=true", 4, 5e-3, 0);
	compare_with_all("dit-s", "parallel.tp=2 parallel.dp=2 parallel.pp=2", 8, 5e-3, 0);
	compare_with_all("dit-b", "parallel.tp=4 parallel.dp=4 parallel.fsdp=true", 16, 5e-3, 4);
	compare_with_all("dit-s", "parallel.dp=4 parallel.cp=2 parallel.fsdp=true", 8, 5e-3, 4);
	compare_with_all("moe-1b", "parallel.ep=4 parallel.dp=4", 4, 5e-3, 0);
	write_mixed_plan(1, 1, 16, 4);
	compare_with_all("dit-s", "parallel.dp=8 parallel.fsdp=true", 8, 5e-3, 4);
	compare_with_all("dit-s", "parallel.dp=8 parallel.pp=2 parallel.distopt=true", 16, 5e-3, 8);
	compare_with_all("dit-s",
		"parallel.dp=16 parallel.fsdp=true parallel.shard=8 parallel.grad_reduce=bf16_internode", 16, 5e-3, 12);
	/* groups that have no rank of the most expensive class wait for it all the same */
	compare_with_all("moe-1b", "parallel.ep=2 parallel.dp=8", 8, 2e-2, 4);
	compare_with_all("dit-s", "parallel.dp=16 parallel.fsdp=true parallel.shard=2", 16, 2e-2, 8);
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
	struct vfm_dry_run few, all;

	(void)state;
	write_mixed_plan(3, 1, 128, 128);
	few = predict_plan("dit-s", "parallel.dp=64 parallel.fsdp=true", 64, false);
	all = predict_plan("dit-s", "parallel.dp=64 parallel.fsdp=true", 64, true);
	printf("%d of %d: %.3f ms, all %.3f; waits %.3f, %.3f\n", few.dp_classes, few.dp_distinct, few.s[VFM_MID] * 1e3,
		all.s[VFM_MID] * 1e3, mean_wait(&few, 64) * 1e3, mean_wait(&all, 64) * 1e3);
	assert_true(few.dp_classes == 36 && few.dp_distinct > 36 && few.n == 36);
	assert_true(fabs(few.s[VFM_MID] / all.s[VFM_MID] - 1) < 0.02);
	assert_true(fabs(mean_wait(&few, 64) - mean_wait(&all, 64)) < 0.02 * all.s[VFM_MID]);
	assert_int_equal(few.mem_peak, all.mem_peak);
	vfm_dry_run_release(&few);
	vfm_dry_run_release(&all);
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
	compare_with_all("dit-s", "parallel.cp=4", 4, 5e-3, 0);
	compare_with_all(
		"dit-s", "parallel.cp=4 parallel.cp_mode=hybrid parallel.cp_a2a=2 parallel.fsdp=true", 4, 5e-3, 0);
	compare_with_all("dit-s", "parallel.cp=4 parallel.dp=2 parallel.fsdp=true", 8, 5e-3, 0);
	compare_with_all("dit-s", "parallel.cp=2 parallel.dp=2 parallel.pp=2", 8, 5e-3, 0);
	compare_with_all("dit-s", "parallel.cp=2 parallel.tp=2", 4, 5e-3, 0);
	compare_with_all("dit-s", "parallel.cp=2", 2, 5e-3, 0);
	compare_with_all("dit-s", "parallel.dp=4", 4, 5e-3, 0);
	f = begin_plan(1, 16, 4);
	for (int k = 0; k < 2; k++) {
		put_pack(f, 0, 8 * k, 4, 4096, 3);
		put_pack(f, 0, 8 * k + 4, 2, 4096, 2);
		put_pack(f, 0, 8 * k + 6, 1, 1024, 4);
		put_pack(f, 0, 8 * k + 7, 1, 1024, 4);
	}
	assert_int_equal(fclose(f), 0);
	/* of 8 ranks along cp, 0 and 1 do the same, 2 and 3, and likewise those behind */
	compare_with_all("dit-s", "parallel.cp=4 parallel.fsdp=true", 4, 5e-3, 1);
	compare_with_all("dit-s", "parallel.cp=8 parallel.fsdp=true", 8, 5e-3, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mixed_plan),
		cmocka_unit_test(test_planted_imbalance),
		cmocka_unit_test(test_slowest_counts),
		cmocka_unit_test(test_few_of_many),
		cmocka_unit_test(test_total_time),
		cmocka_unit_test(test_packs_with_cp),
	};

	return cmocka_run_group_tests(tests, read_machine_file, remove_plan);
}
