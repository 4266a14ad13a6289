/* Frozen weights in host memory, pinned or in a file: the bits of a run that has them on the device, in any number of
 * blocks; the bytes of the device that they save; plans for any capacity, whose memory the CPU counts; what is
 * refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "ok.h"
#include "device/open/open.h"
#include "train/step/synthetic.h"
#include "train/step/trainer.h"

enum { STEPS = 2, SAMPLES = 3, PACKS = 2, BLOCKS = 7 };

static const struct vfm_synthetic samples[SAMPLES] = {{{2, 4, 4}, 7, 11}, {{1, 3, 5}, 2, 12}, {{3, 2, 2}, 0, 13}};

struct outcome {
	double loss[STEPS], norm[STEPS];
	float *grad; /* [n] of the last step */
	int64_t n;
	int64_t state, peak; /* bytes of the device: before the steps, the most during them */
	struct vfm_recompute_plan plan;
	int64_t host_units;
	double store; /* bytes of a block */
};

static void configure(struct vfm_config *c, const char *arch, const char *const *set)
{
	static const char *const small[] = {"model.layers=7", "model.hidden=64", "model.heads=2", "model.ffn=128",
		"model.text_dim=24", "model.channels=4", "model.experts=4", "model.expert_ffn=64",
		"model.moe_capacity=2", "train.lr=0.01", "train.warmup_steps=0", "train.ema_decay=0", "lora.rank=4"};

	vfm_config_defaults(c);
	snprintf(c->model.arch, sizeof(c->model.arch), "%s", arch);
	for (size_t i = 0; i < sizeof(small) / sizeof(small[0]); i++)
		OK(vfm_config_set(c, small[i], &err));
	for (; *set; set++)
		OK(vfm_config_set(c, *set, &err));
	OK(vfm_config_check(c, &err));
	OK(vfm_parallel_check(&c->parallel, &c->model, 1, &err));
}

/* The plan's rates hide copies of tiny blocks. */
static void make_load(struct vfm_load *load)
{
	static const struct vfm_keep_plan_rates rates = {.flops = 720e12, .mem = 4.3e12, .host = 1e13};

	*load = (struct vfm_load){.packs = PACKS, .host_bytes = 1e12, .rates = &rates};
	for (int i = 0; i < SAMPLES; i++)
		vfm_pack_sums_add(&load->largest, samples[i].grid, samples[i].text_len);
}

static void train(const struct vfm_config *c, struct outcome *r)
{
	struct vfm_pack b;
	struct vfm_pack_array packs = {&b, 1, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);
	struct vfm_step_stats stats;
	struct vfm_trainer *tr;
	struct vfm_params *ps;
	struct vfm_device d;
	struct vfm_load load;

	*r = (struct outcome){0};
	make_load(&load);
	OK(vfm_device_open(&d, "cpu", &err));
	OK(vfm_synthetic_pack(&b, samples, SAMPLES, &c->model, 5, &err));
	b.step_tokens = PACKS * b.tokens;
	tr = vfm_trainer_new(c, vfm_mesh_one(), d.stream, &err);
	OK(tr ? 0 : -1);
	ps = vfm_trainer_params(tr);
	OK(vfm_params_fill_dense(ps, 3, &err));
	OK(vfm_trainer_plan(tr, &load, &err));
	r->plan = *vfm_trainer_recompute(tr);
	r->host_units = ps->host_units;
	r->state = d.dev->mem_now;
	vfm_params_stores(ps, &r->store);
	vfm_dev_peak_reset(d.dev);
	for (int i = 0; i < STEPS; i++) {
		OK(vfm_trainer_step(tr, i, PACKS, &source, 1e-2, &err));
		OK(vfm_trainer_stats(tr, &stats, &err));
		r->loss[i] = stats.loss;
		r->norm[i] = stats.grad_norm;
	}
	vfm_dev_drop_copies(d.stream);
	r->peak = d.dev->mem_peak;
	r->n = ps->n_grad;
	r->grad = vfm_malloc((size_t)r->n * sizeof(*r->grad));
	memcpy(r->grad, ps->grad, (size_t)r->n * sizeof(*r->grad));
	vfm_trainer_free(tr);
	assert_int_equal(d.dev->mem_now, 0);
	vfm_pack_release(&b);
	vfm_device_close(&d);
}

static void equal_bits(const char *what, const struct outcome *a, const struct outcome *b)
{
	if (memcmp(a->loss, b->loss, sizeof(a->loss)) != 0 || memcmp(a->norm, b->norm, sizeof(a->norm)) != 0 ||
		a->n != b->n || memcmp(a->grad, b->grad, (size_t)a->n * sizeof(*a->grad)) != 0)
		fail_msg("%s: other bits, loss %.9g, on the device %.9g", what, b->loss[STEPS - 1], a->loss[STEPS - 1]);
}

/* Trains with the weights of 0, 1, 3 and all blocks in host memory, and of all with little pinned memory. */
static void compare(const char *arch, const char *const *set)
{
	static const char *const where[] = {"train.offload_weights=1", "train.offload_weights=3",
		"train.offload_weights=7", "train.offload_weights=7"};
	static const int64_t blocks[] = {1, 3, BLOCKS, BLOCKS};
	struct outcome device, host;
	struct vfm_config c;
	char what[128];

	configure(&c, arch, set);
	train(&c, &device);
	assert_true(isfinite(device.loss[STEPS - 1]) && device.norm[0] > 0);
	for (size_t i = 0; i < sizeof(where) / sizeof(where[0]); i++) {
		configure(&c, arch, set);
		OK(vfm_config_set(&c, where[i], &err));
		if (i == 3)
			OK(vfm_config_set(&c, "train.host_gib=1e-6", &err));
		OK(vfm_config_check(&c, &err));
		train(&c, &host);
		snprintf(what, sizeof(what), "%s, %s%s", arch, where[i], i == 3 ? " in a file" : "");
		equal_bits(what, &device, &host);
		assert_int_equal(host.host_units, blocks[i]);
		/* arrays are padded to 64 bytes, shards to 1,024 elements */
		if (llabs(device.state - host.state - (int64_t)((double)blocks[i] * host.store)) > 65536)
			fail_msg("%s: the state takes %lld bytes less, not %.0f", what,
				(long long)(device.state - host.state), (double)blocks[i] * host.store);
		free(host.grad);
	}
	free(device.grad);
}

#define RUN(arch, ...) compare(arch, (const char *const[]){__VA_ARGS__, NULL})

static void test_bits(void **state)
{
	(void)state;
	RUN("wan", "train.recompute=none");
	RUN("wan", "train.recompute=full", "train.dtype=bf16");
	RUN("wan", "train.recompute=light", "train.dtype=bf16", "train.offload=both", "train.frozen_dtype=fp8");
	RUN("wan", "train.recompute=selective", "train.dtype=bf16", "train.fp8=delayed", "train.fp8_history=2");
	RUN("moe", "train.recompute=full", "train.freeze=*.moe.fc1.weight,*.attn.*", "lora.rank=0");
	RUN("dit", "train.recompute=outputs", "train.frozen_dtype=fp8", "train.freeze=blocks.*,!*.bias", "lora.rank=0");
}

/* Plans from the least capacity to enough for everything: the memory of the CPU is what was predicted, fewer blocks are
 * offloaded the more memory there is, and the bits stay. */
static void run_capacities(const char *arch, const char *const *set)
{
	enum { TRIES = 12 };
	struct outcome all, least, r;
	struct vfm_config c;
	int64_t last = BLOCKS;
	int some = 0;

	configure(&c, arch, set);
	c.train.memory_gib = 1;
	train(&c, &all);
	assert_true(all.plan.made && all.plan.blocks.again_s == 0);
	c.train.memory_gib = 0;
	c.train.offload_weights = BLOCKS;
	c.train.recompute = VFM_RECOMPUTE_FULL;
	train(&c, &least);
	c.train.offload_weights = -1;
	c.train.recompute = VFM_RECOMPUTE_AUTO;
	for (int i = 0; i <= TRIES; i++) {
		double capacity = (double)least.peak * 1.03;

		capacity += ((double)all.peak * 1.03 - capacity) * i / TRIES;
		c.train.memory_gib = capacity / 0x1p30;
		OK(vfm_config_check(&c, &err));
		train(&c, &r);
		assert_true(r.plan.made);
		equal_bits(arch, &all, &r);
		if (getenv("VFM_TEST_VERBOSE"))
			print_message("%s, %.0f KiB: %lld of %lld blocks on the host, predicted %.0f KiB, peak %.0f; "
				      "recompute %.2g s\n",
				arch, capacity / 1024, (long long)r.host_units, (long long)r.plan.stores,
				r.plan.peak / 1024, (double)r.peak / 1024, r.plan.blocks.again_s);
		assert_int_equal(r.host_units, r.plan.offloaded);
		if ((double)r.peak > 1.02 * r.plan.peak)
			fail_msg("%s: the step takes %.0f KiB, the plan predicted %.0f", arch, (double)r.peak / 1024,
				r.plan.peak / 1024);
		if (r.plan.blocks.fits)
			assert_true(r.plan.peak <= capacity * (1 + 1e-9));
		assert_true(r.plan.blocks.fits || i == 0);
		some += r.host_units > 0 && r.host_units < BLOCKS;
		last = r.host_units;
		free(r.grad);
	}
	assert_int_equal(last, 0);
	assert_true(some > 0);
	free(all.grad);
	free(least.grad);
}

#define CAPACITIES(arch, ...) run_capacities(arch, (const char *const[]){__VA_ARGS__, NULL})

static void test_plans(void **state)
{
	(void)state;
	CAPACITIES("wan", "train.dtype=bf16");
	CAPACITIES("wan", "train.frozen_dtype=fp8", "train.offload=activations");
	CAPACITIES("dit", "train.dtype=bf16", "model.hidden=256");
}

static void refused(const char *text, const char *const *set)
{
	struct vfm_config c;

	vfm_config_defaults(&c);
	for (; *set; set++)
		OK(vfm_config_set(&c, *set, &err));
	assert_int_equal(vfm_config_check(&c, &err), VFM_EUSAGE);
	if (!strstr(err.msg, text))
		fail_msg("'%s' instead of '%s'", err.msg, text);
}

#define REFUSED(text, ...) refused(text, (const char *const[]){__VA_ARGS__, NULL})

static void test_refused(void **state)
{
	struct vfm_config c;

	(void)state;
	REFUSED("train.offload_weights: it is for frozen weights", "train.offload_weights=2");
	REFUSED("train.offload_weights: the model has 12 blocks, not 13", "train.offload_weights=13", "lora.rank=4",
		"model.layers=12");
	REFUSED("train.offload_weights: auto needs train.recompute=auto", "train.offload_weights=auto", "lora.rank=4",
		"train.recompute=full");
	vfm_config_defaults(&c);
	assert_int_equal(vfm_config_set(&c, "train.offload_weights=some", &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "train.offload_weights: expected an integer or auto"));
	assert_int_equal(vfm_config_set(&c, "train.offload_weights=-1", &err), VFM_EUSAGE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bits),
		cmocka_unit_test(test_plans),
		cmocka_unit_test(test_refused),
	};

	vfm_log_set_quiet(true);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
