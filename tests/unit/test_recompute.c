/* train.recompute=auto in small artificial capacities: the same bits as without recompute, and a peak of memory that
 * the plan predicted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/par.h"
#include "device/dev/holders.h"
#include "ok.h"
#include "device/open/open.h"
#include "train/predict/dry_run.h"
#include "train/step/synthetic.h"
#include "train/step/trainer.h"

enum { PACKS = 2, STEPS = 2, SAMPLES = 2 };

static const struct vfm_synthetic samples[SAMPLES] = {{{4, 8, 8}, 24, 1}, {{2, 8, 8}, 8, 2}};

struct result {
	double loss[STEPS];
	char *weights; /* masters */
	size_t bytes;
	int64_t peak, state;
	struct vfm_recompute_plan plan;
};

static void configure(struct vfm_config *c, const char *arch, int dtype)
{
	vfm_config_defaults(c);
	snprintf(c->model.arch, sizeof(c->model.arch), "%s", arch);
	c->model.pos = vfm_model_arch(&c->model)->pos;
	c->model.layers = 7;
	c->model.hidden = 128;
	c->model.heads = 2;
	c->model.ffn = 384;
	c->model.text_len = 24;
	c->model.text_dim = 48;
	c->model.experts = 4;
	c->model.expert_ffn = 128;
	c->model.moe_capacity = 2;
	c->train.ema_decay = 0;
	c->train.dtype = c->train.residual = dtype;
	OK(vfm_config_check(c, &err));
	OK(vfm_parallel_check(&c->parallel, &c->model, 1, &err));
}

static void make_load(struct vfm_load *load)
{
	/* Tiny blocks would hide no copy at the rate of PCIe. */
	static const struct vfm_keep_plan_rates rates = {.flops = 720e12, .mem = 4.3e12, .host = 1e12};

	*load = (struct vfm_load){.packs = PACKS, .host_bytes = 1e12, .rates = &rates};
	for (int i = 0; i < SAMPLES; i++)
		vfm_pack_sums_add(&load->largest, samples[i].grid, samples[i].text_len);
}

static void train(const struct vfm_config *c, struct result *r)
{
	struct vfm_pack b;
	struct vfm_pack_array packs = {&b, 1, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);
	struct vfm_step_stats stats;
	struct vfm_trainer *tr;
	struct vfm_params *ps;
	struct vfm_device d;
	struct vfm_load load;
	int64_t copies;

	make_load(&load);
	OK(vfm_device_open(&d, "cpu", &err));
	OK(vfm_synthetic_pack(&b, samples, SAMPLES, &c->model, 5, &err));
	b.step_tokens = PACKS * b.tokens;
	tr = vfm_trainer_new(c, vfm_mesh_one(), d.stream, &err);
	if (!tr)
		fail_msg("%s", err.msg);
	ps = vfm_trainer_params(tr);
	OK(vfm_params_fill_dense(ps, 3, &err));
	OK(vfm_optim_start(vfm_trainer_optim(tr), &err));
	r->state = d.dev->mem_now;
	OK(vfm_trainer_plan(tr, &load, &err));
	r->plan = *vfm_trainer_recompute(tr);
	vfm_dev_peak_reset(d.dev);
	for (int i = 0; i < STEPS; i++) {
		OK(vfm_trainer_step(tr, i, PACKS, &source, 1e-3, &err));
		OK(vfm_trainer_stats(tr, &stats, &err));
		r->loss[i] = stats.loss;
	}
	/* without a plan, products keep packed copies of the weights during a step of several packs */
	copies = d.dev->mem_now;
	vfm_dev_drop_copies(d.stream);
	copies -= d.dev->mem_now;
	assert_true(r->plan.made ? copies == 0 : copies > 0);
	r->peak = d.dev->mem_peak - copies;
	r->bytes = (size_t)ps->n_master * 4;
	r->weights = vfm_malloc(r->bytes);
	memcpy(r->weights, ps->master, r->bytes);
	vfm_trainer_free(tr);
	vfm_pack_release(&b);
	vfm_device_close(&d);
}

static void equal_bits(const char *what, const struct result *a, const struct result *b)
{
	if (memcmp(a->loss, b->loss, sizeof(a->loss)) != 0 || a->bytes != b->bytes ||
		memcmp(a->weights, b->weights, a->bytes) != 0)
		fail_msg("%s: other bits than without recompute, loss %.9g and %.9g", what, b->loss[1], a->loss[1]);
}

/* Runs one architecture without recompute, then in capacities from the least to enough for everything. */
static void run_capacities(const char *arch, int dtype, bool offload)
{
	struct result all = {0};
	struct vfm_config c;
	int kinds = 0, recomputed = 0, offloaded = 0;
	char what[128];

	configure(&c, arch, dtype);
	c.train.recompute = VFM_RECOMPUTE_NONE;
	train(&c, &all);
	assert_false(all.plan.made);
	c.train.recompute = VFM_RECOMPUTE_AUTO;
	c.train.offload = offload ? VFM_OFFLOAD_ACTIVATIONS : VFM_OFFLOAD_NONE;
	for (int i = 0; i <= 6; i += 2) {
		double room = (double)(all.peak - all.state) * (0.2 + 0.15 * i);
		struct result r = {0};

		c.train.memory_gib = ((double)all.state + room) / 0x1p30;
		train(&c, &r);
		assert_true(r.plan.made);
		snprintf(what, sizeof(what), "%s in %s, offload %d, %.0f KiB", arch,
			vfm_dtype_name((enum vfm_dtype)dtype), offload, room / 1024);
		equal_bits(what, &all, &r);
		if (getenv("VFM_TEST_VERBOSE"))
			print_message("%s: predicted %.0f KiB, peak %.0f KiB of activations, fits %d\n", what,
				(r.plan.peak - (double)r.state) / 1024, (double)(r.peak - r.state) / 1024,
				r.plan.blocks.fits);
		if ((double)(r.peak - r.state) > 1.02 * (r.plan.peak - (double)r.state))
			fail_msg("%s: the step takes %.0f KiB, the plan predicted %.0f", what,
				(double)(r.peak - r.state) / 1024, (r.plan.peak - (double)r.state) / 1024);
		if (r.plan.peak - (double)r.state > 1.5 * (double)(r.peak - r.state))
			fail_msg("%s: the step takes only %.0f KiB, the plan predicted %.0f", what,
				(double)(r.peak - r.state) / 1024, (r.plan.peak - (double)r.state) / 1024);
		if (r.plan.blocks.fits)
			assert_true(r.plan.peak <= c.train.memory_gib * 0x1p30);
		kinds += r.plan.blocks.n > 1;
		recomputed += r.plan.blocks.again_s > 0;
		offloaded += r.plan.blocks.host > 0;
		free(r.weights);
	}
	assert_true(kinds > 1 && recomputed > 1 && recomputed < 4);
	assert_true(offload ? offloaded > 1 : !offloaded);
	free(all.weights);
}

static void test_capacities(void **state)
{
	(void)state;
	for (int i = 0; vfm_arch_names[i]; i++) {
		if (i < 2)
			run_capacities(vfm_arch_names[i], VFM_F32, i == 1);
		run_capacities(vfm_arch_names[i], VFM_BF16, i % 2 == 0);
	}
}

/* Plans of ranks that share packs, on simulated GPUs: what is planned for is nearly used, and not exceeded. */
static void test_parallel(void **state)
{
	static const char *const preset[] = {"wan-14b", "moviegen-5b"};
	static const struct {
		int tp, cp, pp;
		enum vfm_cp_mode mode;
		int vpp;
		enum vfm_pp_schedule schedule;
		int packs; /* of a dp rank */
	} layout[] = {{2, 1, 1, 0, 1, 0, 2}, {8, 1, 1, 0, 1, 0, 2}, {1, 4, 1, 0, 1, 0, 2},
		{1, 4, 1, VFM_CP_A2A, 1, 0, 2}, {2, 4, 1, 0, 1, 0, 2}, {4, 1, 2, 0, 1, 0, 2},
		{2, 2, 2, VFM_CP_A2A, 1, 0, 2}, {1, 1, 2, 0, 2, 0, 5}, {2, 1, 2, 0, 3, 0, 4},
		{1, 1, 2, 0, 1, VFM_PP_ZB, 4}};
	struct vfm_machine machine;

	(void)state;
	OK(vfm_machine_load(&machine, "share/machines/h200.json", &err));
	for (size_t k = 0; k < sizeof(preset) / sizeof(preset[0]); k++)
		for (size_t i = 0; i < sizeof(layout) / sizeof(layout[0]); i++) {
			struct vfm_config c;
			struct vfm_dry_run_opts o = {.config = &c, .machine = &machine, .context = 24576};
			struct vfm_dry_run all = {0}, least = {0}, d = {0};
			double planned;

			vfm_config_defaults(&c);
			OK(vfm_model_preset(preset[k], &c.model, &err));
			c.model.layers = 6;
			c.train.dtype = VFM_BF16;
			c.train.recompute = VFM_RECOMPUTE_NONE;
			c.parallel.tp = layout[i].tp;
			c.parallel.cp = layout[i].cp;
			c.parallel.pp = layout[i].pp;
			c.parallel.cp_mode = layout[i].mode;
			c.parallel.vpp = layout[i].vpp;
			c.parallel.schedule = layout[i].schedule;
			OK(vfm_config_check(&c, &err));
			o.ranks = 2 * layout[i].tp * layout[i].cp * layout[i].pp;
			o.packs = 2 * layout[i].packs;
			OK(vfm_dry_run(&o, &all, &err));
			c.train.recompute = VFM_RECOMPUTE_FULL;
			OK(vfm_dry_run(&o, &least, &err));
			c.train.recompute = VFM_RECOMPUTE_AUTO;
			planned = 0.5 * (double)(least.mem_peak + all.mem_peak);
			c.train.memory_gib = planned / 0x1p30;
			OK(vfm_dry_run(&o, &d, &err));
			if ((double)d.mem_peak > 1.02 * planned || (double)d.mem_peak < 0.94 * planned)
				fail_msg("%s, tp %d, cp %d, pp %d, vpp %d: a plan for %.2f GiB takes %.2f; everything, "
					 "%.2f",
					preset[k], layout[i].tp, layout[i].cp, layout[i].pp, layout[i].vpp,
					planned / 0x1p30, (double)d.mem_peak / 0x1p30, (double)all.mem_peak / 0x1p30);
			if (getenv("VFM_TEST_VERBOSE"))
				print_message("%s, tp %d, cp %d, pp %d, vpp %d: planned %.2f GiB, peak %.2f\n",
					preset[k], layout[i].tp, layout[i].cp, layout[i].pp, layout[i].vpp,
					planned / 0x1p30, (double)d.mem_peak / 0x1p30);
			vfm_dry_run_release(&all);
			vfm_dry_run_release(&least);
			vfm_dry_run_release(&d);
		}
}

/* Simulates a step of dit-7b with 65,536 tokens on H200s, which may offload host_gib. */
static double step_with_host(const struct vfm_machine *machine, int pp, int vpp, double host_gib, double *peak)
{
	struct vfm_config c;
	struct vfm_dry_run_opts o = {.config = &c, .machine = machine, .context = 65536, .ranks = pp, .packs = 2 * pp};
	struct vfm_dry_run d = {0};
	double s;

	vfm_config_defaults(&c);
	OK(vfm_model_preset("dit-7b", &c.model, &err));
	c.train.dtype = c.train.residual = VFM_BF16;
	c.train.offload = VFM_OFFLOAD_ACTIVATIONS;
	c.train.host_gib = host_gib;
	c.train.ema_decay = 0;
	c.parallel.pp = pp;
	c.parallel.vpp = vpp;
	c.model.layers = 12 * pp;
	c.train.memory_gib = pp > 1 ? 100 : 79;
	OK(vfm_config_check(&c, &err));
	OK(vfm_dry_run(&o, &d, &err));
	*peak = (double)d.mem_peak / 0x1p30 - c.train.memory_gib;
	s = d.s[VFM_MID];
	vfm_dry_run_release(&d);
	return s;
}

/* Little memory of the host is used as well as much, and more of it makes no step slower. */
static void test_host_room(void **state)
{
	static const double host[] = {0.4, 1.2, 2.2, 4, 8, 12, 24, 64};
	double first[2] = {0}, last[2] = {INFINITY, INFINITY};
	struct vfm_machine machine;

	(void)state;
	OK(vfm_machine_load(&machine, "share/machines/h200.json", &err));
	for (size_t i = 0; i < sizeof(host) / sizeof(host[0]); i++)
		for (int k = 0; k < 2; k++) {
			double peak, s = step_with_host(&machine, 1 + k, 1 + k, host[i], &peak);

			if (getenv("VFM_TEST_VERBOSE"))
				print_message("pp %d, %.1f GiB of the host: %.0f ms, %.2f GiB beyond the room\n", 1 + k,
					host[i], 1e3 * s, peak);
			/* One GPU lacks 1 GiB, which the inputs of three or four blocks are. */
			if ((peak <= 0) != (k > 0 || host[i] > 2))
				fail_msg("pp %d, %.1f GiB of the host: %.2f GiB beyond the room", 1 + k, host[i], peak);
			assert_true(s <= 1.0005 * last[k]);
			last[k] = s;
			first[k] = i > 0 ? first[k] : s;
		}
	assert_true(last[0] < 0.87 * first[0] && last[1] < 0.93 * first[1]);
}

/* A faster link to the host offloads more, and saves more time. */
static void test_host_link(void **state)
{
	struct vfm_machine machine;
	double peak, slow, fast;

	(void)state;
	OK(vfm_machine_load(&machine, "share/machines/h200.json", &err));
	slow = step_with_host(&machine, 1, 1, 64, &peak);
	for (int i = 0; i < VFM_ESTIMATES; i++)
		machine.pcie.v[i] = 51;
	fast = step_with_host(&machine, 1, 1, 64, &peak);
	if (getenv("VFM_TEST_VERBOSE"))
		print_message("51 GB/s: %.0f ms, 14 GB/s: %.0f\n", 1e3 * fast, 1e3 * slow);
	assert_true(peak <= 0);
	assert_true(fast < 0.98 * slow);
}

/* Without a capacity, as on a CPU, auto recomputes nothing. */
static void test_unknown_capacity(void **state)
{
	struct result none = {0}, plain = {0};
	struct vfm_config c;

	(void)state;
	configure(&c, vfm_arch_names[0], VFM_F32);
	assert_int_equal(c.train.recompute, VFM_RECOMPUTE_AUTO);
	train(&c, &plain);
	assert_false(plain.plan.made);
	c.train.recompute = VFM_RECOMPUTE_NONE;
	train(&c, &none);
	assert_int_equal(none.peak, plain.peak);
	equal_bits("auto on a CPU", &none, &plain);
	free(none.weights);
	free(plain.weights);
}

static void test_refused(void **state)
{
	struct vfm_config c;

	(void)state;
	configure(&c, vfm_arch_names[0], VFM_F32);
	c.train.recompute_blocks = 2;
	assert_int_equal(vfm_config_check(&c, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "train.recompute_blocks"));
	c.train.recompute_blocks = 0;
	c.train.recompute = VFM_RECOMPUTE_LIGHT;
	c.train.memory_gib = 1;
	assert_int_equal(vfm_config_check(&c, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "train.memory_gib"));
	c.train.memory_gib = 0;
	c.train.recompute = VFM_RECOMPUTE_AUTO;
	c.train.host_gib = 1;
	assert_int_equal(vfm_config_check(&c, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "train.host_gib"));
}

/* A plan that turns out to be wrong is part of the message. */
static void test_message(void **state)
{
	struct vfm_dev_oom_hints hints = {.plan = "7 blocks keep light; predicted peak 1.00 of 1.25 GiB"};
	struct vfm_buf b = {0};

	(void)state;
	vfm_oom_add_hints(&hints, 1 << 30, &b);
	assert_non_null(strstr(b.data, "; train.recompute=auto planned: 7 blocks keep light; predicted peak"));
	vfm_buf_release(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_capacities),
		cmocka_unit_test(test_parallel),
		cmocka_unit_test(test_host_room),
		cmocka_unit_test(test_host_link),
		cmocka_unit_test(test_unknown_capacity),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_message),
	};

	vfm_par_set_threads(1); /* the models are tiny */
	vfm_log_set_quiet(true);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
