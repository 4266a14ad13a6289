/* Measured and predicted sampling: a prediction counts the bytes of the CPU, weights move to the host as far as the
 * memory of a GPU demands it, a device that is too small is reported with its needs, and FLOPs and evaluations are those
 * of guidance and solver. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "ok.h"
#include "device/cpu/cpu.h"
#include "device/open/open.h"
#include "spec/model/linears.h"
#include "train/predict/bench_sampling.h"

static const char *const tiny[] = {"model.layers=4", "model.hidden=64", "model.heads=2", "model.ffn=128",
	"model.text_dim=24", "model.text_len=8", "model.channels=4", "model.experts=4", "model.expert_ffn=64",
	"model.moe_capacity=2", NULL};

static void configure(struct vfm_config *c, const char *arch, const char *const *set)
{
	vfm_config_defaults(c);
	snprintf(c->model.arch, sizeof(c->model.arch), "%s", arch);
	for (int i = 0; tiny[i]; i++)
		OK(vfm_config_set(c, tiny[i], &err));
	for (; *set; set++)
		OK(vfm_config_set(c, *set, &err));
	OK(vfm_config_check(c, &err));
	OK(vfm_inference_layout(c, NULL, 0, false, 1, &err));
}

static struct vfm_bench_sampling bench_of(double cfg, int stored, int64_t offload)
{
	struct vfm_bench_sampling b = {.grid = {2, 4, 6},
		.samples = 2,
		.text_len = 5,
		.inference = {.stored = stored, .offload = offload},
		.warmup = 1,
		.evals = 2};

	vfm_sampler_defaults(&b.sampler);
	b.sampler.cfg = cfg;
	return b;
}

/* ---- the bytes of the CPU ---- */

struct run {
	const struct vfm_config *c;
	const struct vfm_bench_sampling *b;
	struct vfm_bench_sampled r;
	struct vfm_machine machine; /* of the device, without a limit of memory */
};

static int measure(struct vfm_context *x, void *ctx, struct vfm_err *e)
{
	struct run *run = ctx;

	TRY(vfm_context_open(x, run->c, e));
	vfm_machine_of_memory(&run->machine, VFM_MACHINE_CPU, INT64_C(1) << 39, 1);
	for (int i = 0; i < 2; i++) {
		struct vfm_cpu_copies k = vfm_cpu_copies_of(x->device.dev, i ? VFM_BF16 : VFM_F32);

		run->machine.copies[i] = (struct vfm_cpu_copy_rule){k.few, k.rows, k.columns, k.depth, k.bytes};
	}
	return vfm_bench_sampling_run(x, run->c, run->b, &run->r, e);
}

static void same_bytes(const char *arch, double cfg, int stored, int64_t offload, const char *const *set)
{
	static const struct vfm_context_opts opts = VFM_CONTEXT_OPTS_INIT;
	const struct vfm_bench_sampling b = bench_of(cfg, stored, offload);
	struct vfm_bench_sampled r;
	struct vfm_config c;
	struct run run = {.c = &c, .b = &b};

	configure(&c, arch, set);
	OK(vfm_context_run(&opts, measure, &run, &err));
	assert_int_equal(run.r.n, 2);
	assert_true(run.r.eval_s.min > 0 && run.r.mem_peak > 0);
	OK(vfm_bench_sampling_predict(&b, &c, &run.machine, 1, &r, &err));
	if (r.mem_peak != run.r.mem_peak)
		fail_msg("%s, cfg %g, stored %d, %lld blocks on the host: %lld bytes, predicted %lld, by owner %lld",
			arch, cfg, stored, (long long)offload, (long long)run.r.mem_peak, (long long)r.mem_peak,
			(long long)r.memory.peak);
	assert_true(r.fits);
	assert_int_equal(r.offloaded, offload);
	assert_int_equal(run.r.offloaded, offload);
	assert_true(r.host_bytes == run.r.host_bytes && (r.host_bytes > 0) == (offload > 0));
	vfm_bench_sampled_release(&r);
}

#define SAME_BYTES(arch, cfg, stored, offload, ...)                                                                    \
	same_bytes(arch, cfg, stored, offload, (const char *const[]){__VA_ARGS__, NULL})

static void test_bytes(void **state)
{
	(void)state;
	SAME_BYTES("wan", 1, VFM_FROZEN_SAME, 0, "train.dtype=bf16");
	SAME_BYTES("wan", 5, VFM_FROZEN_SAME, 0, "train.dtype=bf16", "diffusion.kind=flow");
	SAME_BYTES("wan", 5, VFM_FROZEN_SAME, 3, "train.dtype=bf16");
	SAME_BYTES("wan", 5, VFM_FROZEN_FP8, 4, "train.dtype=bf16");
	SAME_BYTES("dit", 5, VFM_FROZEN_FP8, 0, "train.dtype=fp32");
	SAME_BYTES("moe", 5, VFM_FROZEN_SAME, 2, "train.dtype=bf16");
	SAME_BYTES("stdit", 1, VFM_FROZEN_SAME, 1, "train.dtype=fp32");
}

/* ---- the memory of a GPU ---- */

static void configure_preset(struct vfm_config *c, const char *preset)
{
	vfm_config_defaults(c);
	OK(vfm_model_preset(preset, &c->model, &err));
	OK(vfm_config_set(c, "train.dtype=bf16", &err));
	OK(vfm_config_check(c, &err));
	OK(vfm_inference_layout(c, NULL, 0, false, 1, &err));
}

static void predict(
	const struct vfm_config *c, const struct vfm_bench_sampling *b, double gib, struct vfm_bench_sampled *r)
{
	struct vfm_machine m;

	OK(vfm_machine_load(&m, "share/machines/h200.json", &err));
	m.capacity = (int64_t)(gib * 0x1p30);
	OK(vfm_bench_sampling_predict(b, c, &m, 1, r, &err));
}

/* Between the least memory and enough for all weights, the plan fits, uses most of the memory, and offloads fewer blocks
 * with more of it. */
static void run_capacities(const char *preset, const int32_t grid[3], int64_t samples, int64_t text_len, int stored)
{
	enum { TRIES = 6 };
	struct vfm_bench_sampling b = bench_of(5, stored, 0);
	struct vfm_bench_sampled r;
	struct vfm_config c;
	double most, least, store;
	int64_t last;
	int some = 0;

	configure_preset(&c, preset);
	memcpy(b.grid, grid, sizeof(b.grid));
	b.samples = samples;
	b.text_len = text_len;
	predict(&c, &b, 1000, &r);
	most = (double)r.mem_peak / 0x1p30;
	vfm_bench_sampled_release(&r);
	b.inference.offload = last = c.model.layers;
	predict(&c, &b, 1000, &r);
	least = (double)r.mem_peak / 0x1p30;
	store = r.host_bytes / (double)last / 0x1p30;
	vfm_bench_sampled_release(&r);
	assert_true(least < most && store > 0);
	b.inference.offload = -1;
	for (int i = 0; i <= TRIES; i++) {
		const double gib = 2.2 + (least + (most - least) * i / TRIES) * 1.1;
		double used;

		predict(&c, &b, gib, &r);
		used = (double)(r.mem_peak + r.mem_beside) / 0x1p30;
		if (!r.fits || (r.offloaded > 0 && used + store < 0.88 * gib))
			fail_msg("%s, %.1f GiB: %lld blocks on the host, %.1f GiB used", preset, gib,
				(long long)r.offloaded, used);
		assert_true(r.offloaded <= last);
		some += r.offloaded > 0 && r.offloaded < c.model.layers;
		last = r.offloaded;
		vfm_bench_sampled_release(&r);
	}
	assert_int_equal(last, 0);
	assert_true(some > 1);
}

static void test_capacities(void **state)
{
	static const int32_t video[3] = {21, 30, 52}, image[3] = {1, 16, 16};

	(void)state;
	run_capacities("wan-14b", video, 1, 512, VFM_FROZEN_SAME);
	run_capacities("wan-14b", video, 1, 512, VFM_FROZEN_FP8);
	run_capacities("wan-14b", image, 32, 512, VFM_FROZEN_SAME);
	run_capacities("wan-i2v-14b", video, 1, 512, VFM_FROZEN_SAME);
	run_capacities("moviegen-30b", video, 1, 256, VFM_FROZEN_SAME);
	run_capacities("dit-7b", video, 1, 256, VFM_FROZEN_SAME);
}

static void test_too_small(void **state)
{
	static const int32_t video[3] = {21, 30, 52};
	struct vfm_bench_sampling b = bench_of(5, VFM_FROZEN_SAME, 0);
	struct vfm_bench_sampled small, large;
	struct vfm_machine m;
	struct vfm_config c;

	(void)state;
	configure_preset(&c, "wan-14b");
	memcpy(b.grid, video, sizeof(b.grid));
	b.samples = 1;
	predict(&c, &b, 24, &small);
	predict(&c, &b, 140, &large);
	assert_true(!small.fits && !small.beyond && large.fits);
	assert_int_equal(small.mem_peak, large.mem_peak);
	assert_int_equal(large.memory.peak, large.mem_peak);
	assert_true(small.eval_s.median == large.eval_s.median);
	assert_true(large.s[VFM_HIGH] < large.s[VFM_MID] && large.s[VFM_MID] < large.s[VFM_LOW]);
	assert_true(fabs(large.s[VFM_MID] / large.eval_s.median - 1) < 1e-9);
	vfm_bench_sampled_release(&small);
	vfm_bench_sampled_release(&large);
	OK(vfm_machine_load(&m, "share/machines/h200.json", &err));
	m.capacity = INT64_C(4) << 30;
	assert_int_equal(vfm_bench_sampling_predict(&b, &c, &m, 1, &small, &err), VFM_EENV);
	assert_true(small.beyond);
	assert_non_null(strstr(err.msg, "out of memory"));
	vfm_bench_sampled_release(&small);
}

/* ---- counts ---- */

static void test_counts(void **state)
{
	struct vfm_bench_sampling b = bench_of(1, VFM_FROZEN_SAME, 0);
	struct vfm_pack_sums sums = {0};
	struct vfm_bench_sampled r;
	struct vfm_config c;
	double flops;

	(void)state;
	configure(&c, "wan", (const char *const[]){NULL});
	vfm_pack_sums_add(&sums, b.grid, 5);
	vfm_pack_sums_add(&sums, b.grid, 5);
	flops = vfm_model_flops(&c.model, &sums);
	predict(&c, &b, 140, &r);
	assert_true(r.flops == flops);
	assert_int_equal(r.tokens, 96);
	assert_int_equal(r.videos, 2);
	assert_int_equal(r.video_evals, 63); /* Heun's method */
	vfm_bench_sampled_release(&r);
	b.sampler.cfg = 3;
	b.sampler.solver.kind = VFM_SOLVER_UNIPC;
	predict(&c, &b, 140, &r);
	assert_true(r.flops == 2 * flops);
	assert_int_equal(r.video_evals, 32);
	vfm_bench_sampled_release(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_capacities),
		cmocka_unit_test(test_too_small),
		cmocka_unit_test(test_counts),
	};

	vfm_log_set_quiet(true);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
