/* Tests of the configuration, the learning rate and metrics files.  `test_train make DIR` writes the small dataset for
 * tests/cli/train.t. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/stat.h>
#include <unistd.h>

#define DATASET_SCALE 0x1p-10f /* values 0 to 2, which a training run can learn */
#include "dataset.h"
#include "ok.h"
#include "device/open/open.h"
#include "spec/model/linears.h"
#include "train/job/config.h"
#include "train/run/experts.h"
#include "train/run/metrics.h"
#include "train/step/micro.h"
#include "train/step/synthetic.h"
#include "train/step/trainer.h"

static char *dir;

/* ---- configuration ---- */

static int from_text(struct vfm_config *c, const char *text)
{
	json_t *o = vfm_json_parse(text, strlen(text), "test", &err);
	int rc = o ? vfm_config_json(c, o, &err) : VFM_EUSAGE;

	json_decref(o);
	return rc;
}

static void test_config_round_trip(void **state)
{
	struct vfm_config a, b;
	struct vfm_buf ta = {0}, tb = {0};
	json_t *ja, *jb;

	(void)state;
	vfm_config_defaults(&a);
	/* Numbers that need 17 digits, and the largest integer. */
	OK(from_text(&a,
		"{\"model\": {\"preset\": \"dit-b\", \"layers\": 3, \"patch\": [2, 1, 4], \"pos\": \"both\"},"
		"\"train\": {\"lr\": 0.12345678901234566, \"steps\": 1e6, \"dtype\": \"bf16\", \"seed\": "
		"9000000000000000}}"));
	OK(vfm_config_set(&a, "diffusion.shift=0.30000000000000004", &err));
	OK(vfm_config_set(&a, "diffusion.kind=flow", &err));
	OK(vfm_config_set(&a, "model.qk_norm=false", &err));
	OK(vfm_config_check(&a, &err));
	assert_int_equal(a.model.layers, 3);
	assert_int_equal(a.model.hidden, 768);
	assert_int_equal(a.train.steps, 1000000);
	assert_true(a.train.seed == 9000000000000000);
	ja = vfm_config_to_json(&a);
	vfm_json_text(&ta, ja, 2);
	vfm_config_defaults(&b);
	OK(from_text(&b, ta.data));
	OK(vfm_config_check(&b, &err));
	jb = vfm_config_to_json(&b);
	vfm_json_text(&tb, jb, 2);
	assert_string_equal(ta.data, tb.data);
	assert_true(a.train.lr == b.train.lr && a.diffusion.shift == b.diffusion.shift);
	vfm_buf_release(&ta);
	vfm_buf_release(&tb);
	json_decref(ja);
	json_decref(jb);
}

static void test_config_errors(void **state)
{
	static const char *const set[][2] = {
		{"model.layer=4", "unknown key 'model.layer' (did you mean 'model.layers'?)"},
		{"model.layers=x", "model.layers: expected an integer, got a string"},
		{"model.layers=2.5", "model.layers: expected an integer, got a number"},
		{"model.layers=1e99", "model.layers: expected"},
		{"model.layers=0", "model.layers: expected 1 to 1024, got 0"},
		{"model.layers=99999999999999999999", "model.layers: expected"},
		{"model.layers=", "model.layers: expected an integer, got a string"},
		{"model.patch=[1,2]", "model.patch: expected an array of three integers"},
		{"model.patch=[1,2,true]", "model.patch: expected an integer, got true"},
		{"model.patch=[1,2,17]", "model.patch: expected 1 to 16, got 17"},
		{"model.qk_norm=1", "model.qk_norm: expected true or false"},
		{"model.arch=abcdefghijklmnopq", "model.arch: expected a short string"},
		{"model.preset=dit-9b", "model.preset: unknown model 'dit-9b'"},
		{"diffusion.kind=ddpm", "diffusion.kind: expected one of edm, flow, got 'ddpm'"},
		{"diffusion.kind=1", "diffusion.kind: expected one of edm, flow"},
		{"diffusion.image_cond=2", "diffusion.image_cond: expected 0 to 1, got 2"},
		{"diffusion.image_drop=-0.1", "diffusion.image_drop: expected 0 to 1, got -0.1"},
		{"model.image_len=0", "model.image_len: expected 1 to 65536, got 0"},
		{"train.lr=null", "train.lr: expected a number, got null"},
		{"train.lr=-1", "train.lr: expected 0 to 10, got -1"},
		{"train.lr", "expected key=value"},
		{"=3", "expected key=value"},
		{"model={\"layers\":2}", "unknown key 'model'"},
		{"train.lr=\xff", "the value is not UTF-8"},
	};
	struct vfm_config c;

	(void)state;
	for (size_t i = 0; i < sizeof(set) / sizeof(set[0]); i++) {
		vfm_config_defaults(&c);
		assert_int_equal(vfm_config_set(&c, set[i][0], &err), VFM_EUSAGE);
		if (!strstr(err.msg, set[i][1]))
			fail_msg("--set %s: message '%s' lacks '%s'", set[i][0], err.msg, set[i][1]);
		if (strncmp(err.msg, "--set", 5) != 0)
			fail_msg("message '%s' does not name its source", err.msg);
	}
	vfm_config_defaults(&c);
	assert_int_equal(from_text(&c, "[]"), VFM_EUSAGE);
	assert_int_equal(from_text(&c, "{\"model\": 3}"), VFM_EUSAGE);
	assert_string_equal(err.msg, "model: expected an object (a section)");
	assert_int_equal(from_text(&c, "{\"model\": {\"layers\": 2, \"layers\": 3}}"), VFM_EUSAGE);
	assert_int_equal(from_text(&c, "{\"trian\": {\"lr\": 1}}"), VFM_EUSAGE);
	OK(vfm_config_set(&c, "train.min_lr=0.5", &err));
	assert_int_equal(vfm_config_check(&c, &err), VFM_EUSAGE);
}

/* Settings of image to video that exclude each other. */
static void test_image_errors(void **state)
{
	static const char *const set[][3] = {
		{"diffusion.image_cond=0.5", "diffusion.kind=edm", "diffusion.image_cond: only diffusion.kind=flow"},
		{"diffusion.image_cond=0", "diffusion.image_drop=0.5",
			"diffusion.image_drop: the model has no image condition"},
		{"diffusion.t_min=0.5", "diffusion.kind=edm", "only diffusion.kind=flow has a t"},
		{"diffusion.t_min=0.5", "diffusion.t_max=0.5",
			"diffusion.t_min: expected less than diffusion.t_max 0.5"},
		{"diffusion.t_min=0.999", "diffusion.t_mean=-20", "no t falls between 0.999 and 1"},
		{"diffusion.t_max=0.5", "diffusion.t_std=0", "no t falls between 0 and 0.5"},
		{"model.image_dim=8", "model.cross_attention=false", "model.image_dim: only cross-attention"},
	};
	struct vfm_config c;

	(void)state;
	for (size_t i = 0; i < sizeof(set) / sizeof(set[0]); i++) {
		vfm_config_defaults(&c);
		OK(vfm_config_set(&c, "diffusion.kind=flow", &err));
		OK(vfm_config_set(&c, "model.pooled_text=true", &err));
		OK(vfm_config_check(&c, &err));
		for (int k = 0; k < 2; k++)
			OK(vfm_config_set(&c, set[i][k], &err));
		assert_int_equal(vfm_config_check(&c, &err), VFM_EUSAGE);
		if (!strstr(err.msg, set[i][2]))
			fail_msg("%s, %s: message '%s' lacks '%s'", set[i][0], set[i][1], err.msg, set[i][2]);
	}
}

/* Draws in a range of t are those of the whole range that fall into it: the same distribution function. */
static void test_time_range(void **state)
{
	static const double ranges[][2] = {{0, 0.4}, {0.4, 1}, {0.9, 1}, {0.3, 0.31}, {0.99, 0.9999}};
	enum { DRAWS = 20000 };
	struct vfm_diffusion all, d;

	(void)state;
	vfm_diffusion_defaults(&all);
	all.kind = VFM_FLOW;
	all.t_mean = 0.3;
	all.t_std = 1.2;
	all.shift = 3;
	for (size_t r = 0; r < sizeof(ranges) / sizeof(ranges[0]); r++) {
		double lo = ranges[r][0], hi = ranges[r][1], mid = 0.5 * (lo + hi);
		int below = 0, in = 0, in_below = 0;

		d = all;
		d.t_min = lo;
		d.t_max = hi;
		OK(vfm_diffusion_check(&d, &err));
		for (uint64_t id = 0; id < DRAWS; id++) {
			double t = vfm_diffusion_draw(&d, 1, 2, id, 64).noise;

			assert_true(t >= lo && t <= hi);
			below += t < mid;
		}
		for (uint64_t id = 0; id < 10 * DRAWS; id++) {
			double t = vfm_diffusion_draw(&all, 1, 3, id, 64).noise;

			in += t >= lo && t <= hi;
			in_below += t >= lo && t < mid;
		}
		/* six standard deviations of either count */
		if (fabs((double)below / DRAWS - (double)in_below / in) > 3 / sqrt(DRAWS) + 3 / sqrt(in))
			fail_msg("t in %g..%g: %d of %d draws below %g, expected %d of %d", lo, hi, below, DRAWS, mid,
				in_below, in);
	}
	assert_true(vfm_diffusion_draw(&d, 1, 2, 5, 64).noise == vfm_diffusion_draw(&d, 1, 2, 5, 64).noise);
}

static void test_lr(void **state)
{
	struct vfm_train_config t = {.lr = 2, .min_lr = 0.5, .warmup_steps = 4, .schedule = VFM_SCHEDULE_COSINE};
	static const double warm[] = {0.5, 1, 1.5, 2};

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_true(vfm_lr_at(&t, i, 24) == warm[i]);
	assert_true(vfm_lr_at(&t, 4, 24) == 2);
	assert_true(fabs(vfm_lr_at(&t, 14, 24) - 1.25) < 1e-12);
	assert_true(fabs(vfm_lr_at(&t, 24, 24) - 0.5) < 1e-12);
	assert_true(fabs(vfm_lr_at(&t, 99, 24) - 0.5) < 1e-12);
	t.schedule = VFM_SCHEDULE_LINEAR;
	assert_true(fabs(vfm_lr_at(&t, 9, 24) - 1.625) < 1e-12);
	t.schedule = VFM_SCHEDULE_CONSTANT;
	assert_true(vfm_lr_at(&t, 20, 24) == 2);
	t.warmup_steps = 0;
	assert_true(vfm_lr_at(&t, 0, 24) == 2);
	t.warmup_steps = 50; /* longer than the run */
	t.schedule = VFM_SCHEDULE_COSINE;
	assert_true(vfm_lr_at(&t, 24, 24) == 1);
}

/* ---- metrics ---- */

static char *metrics_text(void)
{
	char *path = vfm_strfmt("%s/metrics.jsonl", dir), *text;
	size_t len;

	OK(vfm_read_file(path, 1 << 20, &text, &len, &err));
	free(path);
	return text;
}

static void metrics_put(const char *text)
{
	char *path = vfm_strfmt("%s/metrics.jsonl", dir);

	OK(vfm_write_file(path, text, strlen(text), &err));
	free(path);
}

/* Opens a metrics file with contents `before` after `steps` steps, and expects contents `after`. */
static void check_cut(const char *before, int64_t steps, const char *after)
{
	struct vfm_metrics m;
	char *text;

	metrics_put(before);
	OK(vfm_metrics_open(&m, dir, steps, &err));
	vfm_metrics_close(&m);
	text = metrics_text();
	assert_string_equal(text, after);
	free(text);
}

static void test_metrics_cut(void **state)
{
	(void)state;
	check_cut("", 0, "");
	check_cut("{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n", 2, "{\"step\":1}\n{\"step\":2}\n");
	check_cut("{\"step\":1}\n{\"step\":2}\n", 2, "{\"step\":1}\n{\"step\":2}\n");
	check_cut("{\"step\":1}\n{\"step\":2}\n", 0, "");
	/* A process killed within a line, and one killed before the newline. */
	check_cut("{\"step\":1}\n{\"step\":2", 2, "{\"step\":1}\n");
	check_cut("{\"step\":1}\n{\"step\":2}", 2, "{\"step\":1}\n");
	/* Damage before good lines stays with them; behind them it is cut. */
	check_cut("{\"step\":1}\n{\"st\n{\"step\":3}\n{\"step\":4}\n", 3, "{\"step\":1}\n{\"st\n{\"step\":3}\n");
	check_cut("{\"step\":1}\n\x01\x02\n", 2, "{\"step\":1}\n");
}

static void test_metrics_add(void **state)
{
	struct vfm_step_record r = {.step = 1,
		.s = {.loss = NAN, .grad_norm = 2, .tokens = 10, .samples = 3, .rank = {.step_s = 0.5, .comm_s = 0.25}},
		.update = {{.loss = NAN, .grad_norm = 2, .lr = 1e-4}},
		.updates = 1,
		.ranks = 2};
	struct vfm_metrics m;
	json_t *o = vfm_step_json(&r), *back;
	char *text;

	(void)state;
	metrics_put("");
	OK(vfm_metrics_open(&m, dir, 0, &err));
	OK(vfm_metrics_add(&m, &r, o, &err));
	OK(vfm_metrics_flush(&m, &err));
	vfm_metrics_close(&m);
	text = metrics_text();
	back = vfm_json_parse(text, strlen(text), "line", &err);
	assert_true(json_is_null(json_object_get(back, "loss")));
	assert_true(json_number_value(json_object_get(back, "tok_s")) == 20);
	assert_true(json_number_value(json_object_get(back, "step_ms")) == 500);
	assert_true(json_number_value(json_object_get(back, "comm_ms")) == 250);
	assert_true(json_number_value(json_object_get(back, "lr")) == 1e-4);
	json_decref(back);
	json_decref(o);
	free(text);
}

/* A step of two updates: sums, the mean loss over the tokens, and each network's own numbers. */
static void test_metrics_of_two(void **state)
{
	struct vfm_step_record a = {.step = 7,
		.s = {.loss = 2,
			.mse = 4,
			.tokens = 30,
			.samples = 3,
			.flops = 6e12,
			.rank = {.step_s = 2, .data_wait_s = 0.5, .mem_peak_bytes = 0x1p30}},
		.update = {{.network = "low", .loss = 2, .grad_norm = 0.5, .lr = 1e-4}},
		.updates = 1,
		.ranks = 1,
		.weighted = true,
		.skipped = 4};
	struct vfm_step_record b = a;
	json_t *o;

	(void)state;
	b.s.loss = 6;
	b.s.tokens = 10;
	b.s.rank.mem_peak_bytes = 0x1p31;
	b.update[0] = (struct vfm_step_update){.network = "high", .loss = 6, .grad_norm = NAN, .lr = 1e-5};
	b.skipped = 0;
	b.held_out = (struct vfm_held_out_loss){.levels = 1, .level = {3}, .mean = 3};
	vfm_step_record_add(&a, &b);
	o = vfm_step_json(&a);
	assert_int_equal(json_integer_value(json_object_get(o, "step")), 7);
	assert_true(json_number_value(json_object_get(o, "loss")) == 3);
	assert_true(json_number_value(json_object_get(o, "tokens")) == 40);
	assert_true(json_number_value(json_object_get(o, "samples")) == 6);
	assert_true(json_number_value(json_object_get(o, "tok_s")) == 10);
	assert_true(json_number_value(json_object_get(o, "tflops")) == 3);
	assert_true(json_number_value(json_object_get(o, "step_ms")) == 4000);
	assert_true(json_number_value(json_object_get(o, "data_wait_ms")) == 1000);
	assert_true(json_number_value(json_object_get(o, "mem_gib")) == 2);
	assert_true(json_number_value(json_object_get(o, "low_loss")) == 2);
	assert_true(json_number_value(json_object_get(o, "low_grad_norm")) == 0.5);
	assert_true(json_number_value(json_object_get(o, "high_loss")) == 6);
	assert_true(json_number_value(json_object_get(o, "high_lr")) == 1e-5);
	assert_true(json_is_null(json_object_get(o, "high_grad_norm")));
	assert_null(json_object_get(o, "lr"));
	assert_null(json_object_get(o, "grad_norm"));
	assert_int_equal(json_integer_value(json_object_get(o, "skipped")), 4);
	assert_true(json_number_value(json_object_get(o, "held_out_loss")) == 3);
	json_decref(o);
}

/* The closed forms agree with a count of packs, for random blocks and shares. */
static void test_turns(void **state)
{
	(void)state;
	for (int k = 0; k < 400; k++) {
		int64_t n = 1 + rand() % 6, block = 1 + rand() % 4;
		bool divides = k % 2;
		struct vfm_turns t = {.block = divides ? block : block * n,
			.batch = divides ? block * n : n,
			.share = rand() % ((1 << 20) + 1)};
		int64_t packs[2] = {0}, updates[2] = {0}, blocks = 0;

		for (int64_t s = 0; s < 60; s++) {
			int64_t own[2] = {0};

			for (int64_t p = 0; p < t.batch; p++) {
				int e = vfm_turns_at(&t, s, p);

				own[e]++;
				if ((s * t.batch + p) % t.block == 0)
					blocks++;
				else
					assert_int_equal(e,
						p ? vfm_turns_at(&t, s, p - 1) : vfm_turns_at(&t, s - 1, t.batch - 1));
			}
			for (int e = 0; e < 2; e++) {
				assert_int_equal(vfm_turns_packs(&t, e, s), own[e]);
				assert_int_equal(vfm_turns_before(&t, e, s), updates[e]);
				packs[e] += own[e];
				updates[e] += own[e] > 0;
			}
			assert_true(own[vfm_turns_first(&t, s)] > 0);
			assert_true(divides || !own[0] || !own[1]);
		}
		/* of all blocks, the share of the high network, rounded down */
		if (divides)
			assert_int_equal(packs[VFM_EXPERT_HIGH] / block, blocks * t.share >> 20);
	}
}

/* experts.turn_packs that do not fit a plan are refused. */
static void test_turns_of(void **state)
{
	struct vfm_plan_header h = {.context = 64, .batch = 6};
	struct vfm_config c;
	struct vfm_turns t;

	(void)state;
	vfm_config_defaults(&c);
	c.diffusion.kind = VFM_FLOW;
	c.diffusion.t_dist = VFM_TIME_UNIFORM;
	c.experts.boundary = 0.75;
	OK(vfm_turns_of(&t, &c, &h, &err));
	assert_int_equal(t.block, 6);
	assert_int_equal(t.share, 1 << 18);
	for (int64_t n = 1; n <= 12; n++) {
		c.experts.turn_packs = n;
		assert_int_equal(vfm_turns_of(&t, &c, &h, &err), 6 % n && n % 6 ? VFM_EUSAGE : 0);
		assert_int_equal(vfm_turns_divide(&t), n < 6);
	}
	c.experts.turn_packs = 3;
	c.experts.turn = 2;
	assert_int_equal(vfm_turns_of(&t, &c, &h, &err), VFM_EUSAGE);
	c.experts.turn = 1;
	h.cp = 2;
	assert_int_equal(vfm_turns_of(&t, &c, &h, &err), VFM_EUSAGE);
	c.experts.turn_packs = 6;
	OK(vfm_turns_of(&t, &c, &h, &err));
}

static int setup(void **state)
{
	static char name[] = "/tmp/vfm-train.XXXXXX";

	(void)state;
	dir = mkdtemp(name);
	return dir ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	return vfm_rm_rf(dir, NULL);
}

/* Images and videos of several sizes, with and without text. */
static int make(const char *path)
{
	static const struct dataset_dims dims[] = {
		{1, 4, 4, 3}, {2, 4, 4, 5}, {1, 8, 4, 0}, {3, 4, 6, 2}, {1, 4, 4, 1}};
	int rc = dataset_make(path, dims, 5, 23, 10, &err);

	if (rc < 0)
		fprintf(stderr, "%s\n", err.msg);
	return rc < 0;
}

/* The FLOPs of a step follow from the grids: frames and columns have separate attentions. */
static void test_flops(void **state)
{
	static const struct vfm_synthetic samples[] = {{{1, 4, 4}, 3, 1}, {{4, 4, 4}, 5, 2}};
	struct vfm_pack_sums sums = {0};
	struct vfm_step_stats stats;
	struct vfm_device d;
	struct vfm_trainer *tr;
	struct vfm_config c;
	struct vfm_pack b;
	struct vfm_pack_array packs = {&b, 1, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);
	double attention;

	(void)state;
	vfm_config_defaults(&c);
	strcpy(c.model.arch, "stdit");
	c.model.layers = 1;
	c.model.hidden = 32;
	c.model.heads = 2;
	c.model.text_dim = 8;
	OK(vfm_config_check(&c, &err));
	OK(vfm_parallel_check(&c.parallel, &c.model, 1, &err));
	OK(vfm_device_open(&d, "cpu", &err));
	OK(vfm_synthetic_pack(&b, samples, 2, &c.model, 5, &err));
	tr = vfm_trainer_new(&c, vfm_mesh_one(), d.stream, &err);
	assert_non_null(tr);
	OK(vfm_trainer_step(tr, 0, 1, &source, 1e-3, &err));
	OK(vfm_trainer_stats(tr, &stats, &err));
	for (int i = 0; i < 2; i++)
		vfm_pack_sums_add(&sums, samples[i].grid, samples[i].text_len);
	assert_true(stats.flops == 3 * vfm_model_flops(&c.model, &sums));
	/* the three attentions: frames of 16 tokens, columns of 1 and 4, full attention over 16 and 64 tokens */
	attention = 3 * 4 * 32.0 * (5 * 16 * 16 + 16 * 1 * 1 + 16 * 4 * 4 + 16 * 16 + 64 * 64);
	sums.pairs_full = sums.pairs_spatial = sums.pairs_temporal = 0;
	assert_true(stats.flops - 3 * vfm_model_flops(&c.model, &sums) == attention);
	vfm_trainer_free(tr);
	vfm_pack_release(&b);
	vfm_device_close(&d);
}

/* Makes two steps on the pack and returns the losses, the FLOPs and the hash of the gradients of the second. */
static void steps_of(struct vfm_config *c, struct vfm_pack *b, double out[4])
{
	struct vfm_pack_array packs = {b, 1, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);
	struct vfm_step_stats stats;
	struct vfm_trainer *tr;
	struct vfm_params *ps;
	struct vfm_device d;

	OK(vfm_device_open(&d, "cpu", &err));
	tr = vfm_trainer_new(c, vfm_mesh_one(), d.stream, &err);
	assert_non_null(tr);
	ps = vfm_trainer_params(tr);
	OK(vfm_params_fill_dense(ps, 3, &err));
	for (int s = 0; s < 2; s++) {
		packs.at = 0;
		OK(vfm_trainer_step(tr, s, 1, &source, 1e-2, &err));
		OK(vfm_trainer_stats(tr, &stats, &err));
		out[s] = stats.loss;
	}
	out[2] = stats.flops;
	out[3] = stats.grad_norm;
	vfm_trainer_free(tr);
	vfm_device_close(&d);
}

/* Given first frames: clean at time 0 without weight; the weights of a step sum to 1; images are not given. */
static void test_given_frames(void **state)
{
	static const struct vfm_synthetic samples[] = {{{1, 4, 4}, 3, 1}, {{3, 2, 4}, 0, 2}, {{5, 1, 3}, 6, 3}};
	enum { N = 3, G = 5 };
	static const int sample[G] = {0, 1, 1, 2, 2}, rows[G] = {16, 8, 16, 3, 12};
	struct vfm_device d;
	struct vfm_config c;
	struct vfm_micro u;
	struct vfm_pack b;
	double sum = 0;
	int64_t F;

	(void)state;
	vfm_config_defaults(&c);
	OK(vfm_config_set(&c, "diffusion.kind=flow", &err));
	OK(vfm_config_set(&c, "diffusion.image_cond=1", &err));
	OK(vfm_config_check(&c, &err));
	OK(vfm_device_open(&d, "cpu", &err));
	OK(vfm_synthetic_pack(&b, samples, N, &c.model, 5, &err));
	OK(vfm_micro_make(
		&u, d.stream, &(struct vfm_micro_opts){.config = &c, .mesh = vfm_mesh_one(), .ends = true}, &b, &err));
	assert_int_equal(u.in.segs.n, G);
	F = b.patch_dim;
	for (int g = 0, at = 0; g < G; at += rows[g++]) {
		bool given = g == 1 || g == 3;
		const float *x = (const float *)u.in.x.data + at * F, *x0 = (const float *)b.x0 + at * F;
		float w = ((const float *)u.w.data)[g], t = ((const float *)u.in.t_cond.data)[g];

		assert_int_equal(u.in.seg_sample[g], sample[g]);
		assert_int_equal(vfm_seqs_len(&u.in.segs, g), rows[g]);
		assert_int_equal(u.in.seg_given[g], given);
		assert_true(given ? w == 0 && t == 0 : w > 0 && t > 0);
		assert_int_equal(memcmp(x, x0, (size_t)(rows[g] * F) * sizeof(*x)) == 0, given);
		sum += w * rows[g];
		if (!given) /* a sample has the weight of all its tokens */
			assert_true(fabs(w * rows[g] * (double)b.tokens /
						    (b.cu_seqlens[sample[g] + 1] - b.cu_seqlens[sample[g]]) -
					    1) < 1e-6);
	}
	assert_true(fabs(sum - 1) < 1e-6);
	vfm_micro_release(&u);
	vfm_pack_release(&b);
	vfm_device_close(&d);
}

/* Several given frames, in cosmos: as many as were drawn, but not all; at the time of given frames, marked by the first
 * mask, without weight.  The rest of the sample has its weight. */
static void check_given(
	const struct vfm_config *c, const struct vfm_pack *b, struct vfm_stream *s, int64_t step, int counts[8][8])
{
	const int64_t width = vfm_model_given_dim(&c->model), F = b->patch_dim;
	struct vfm_micro u;
	double sum = 0;
	int at = 0;

	OK(vfm_micro_make(&u, s,
		&(struct vfm_micro_opts){.config = c, .mesh = vfm_mesh_one(), .step = step, .ends = true}, b, &err));
	for (int g = 0, i = -1; g < u.in.segs.n; g++) {
		const int64_t rows = vfm_seqs_len(&u.in.segs, g),
			      area = b->grid[u.in.seg_sample[g]][1] * b->grid[u.in.seg_sample[g]][2];
		const bool given = u.in.seg_given[g], first = u.in.seg_sample[g] != i;
		const float w = ((const float *)u.w.data)[g], t = ((const float *)u.in.t_cond.data)[g];
		const int32_t frames = b->grid[i = u.in.seg_sample[g]][0];

		if (first)
			counts[frames][given ? rows / area : 0]++;
		assert_true(given ? first && rows % area == 0 && rows < frames * area : true);
		assert_true(given ? w == 0 && t == 1e-4F : w > 0 && t > 1e-4F && t < 1);
		if (!given)
			assert_true(fabs(w * (double)rows * (double)b->tokens / (double)(frames * area) - 1) < 1e-6);
		for (int64_t r = at; r < at + rows; r++) {
			const float *x = (const float *)u.in.x.data + r * F, *x0 = (const float *)b->x0 + r * F;
			const float *mask = (const float *)u.in.given.data + r * width;

			assert_int_equal(!memcmp(x, x0, (size_t)F * sizeof(*x)), given);
			for (int64_t j = 0; j < width; j++)
				assert_true(mask[j] == (given && j < width / 2 ? 1 : 0));
		}
		at += (int)rows;
		sum += w * (double)rows;
	}
	assert_int_equal(at, b->tokens);
	assert_true(fabs(sum - 1) < 1e-6);
	vfm_micro_release(&u);
}

static void test_given_max(void **state)
{
	static const struct vfm_synthetic samples[] = {
		{{1, 4, 4}, 3, 1}, {{2, 2, 4}, 0, 2}, {{3, 1, 3}, 6, 3}, {{5, 2, 2}, 6, 4}};
	enum { STEPS = 400 };
	/* of given frames, by frames of the sample: those that would leave none are fewer */
	static const double share[8][8] = {
		[1] = {1}, [2] = {0.25, 0.75}, [3] = {0.25, 0.25, 0.5}, [5] = {0.25, 0.25, 0.25, 0.25}};
	struct vfm_device d;
	struct vfm_config c;
	struct vfm_pack b;
	int counts[8][8] = {{0}};

	(void)state;
	vfm_config_defaults(&c);
	OK(vfm_config_set(&c, "model.arch=cosmos", &err));
	OK(vfm_config_set(&c, "diffusion.kind=flow", &err));
	OK(vfm_config_set(&c, "diffusion.image_cond=0.75", &err));
	OK(vfm_config_set(&c, "diffusion.given_max=3", &err));
	OK(vfm_config_check(&c, &err));
	OK(vfm_device_open(&d, "cpu", &err));
	OK(vfm_synthetic_pack(&b, samples, 4, &c.model, 5, &err));
	for (int64_t step = 0; step < STEPS; step++)
		check_given(&c, &b, d.stream, step, counts);
	for (int n = 0; n < 8; n++)
		for (int k = 0; k < 8; k++)
			if (fabs((double)counts[n][k] / STEPS - share[n][k]) > 0.1)
				fail_msg("%d of %d frames are given in %d of %d steps", k, n, counts[n][k], STEPS);
	vfm_pack_release(&b);
	vfm_device_close(&d);
}

static const char *const image_model[] = {"model.arch=wan", "model.layers=2", "model.hidden=32", "model.heads=2",
	"model.channels=3", "model.cond_channels=5", "model.image_dim=6", "model.image_len=4", "model.text_dim=8",
	"train.warmup_steps=0", "diffusion.kind=flow", "diffusion.image_cond=1"};

static bool all_zero(const void *data, size_t bytes)
{
	const char *p = data;

	for (size_t i = 0; i < bytes; i++)
		if (p[i])
			return false;
	return true;
}

/* Compares the input that the draws of a step make of a pack with the pack.  Counts kept and dropped images. */
static void check_dropped_images(
	const struct vfm_config *c, const struct vfm_pack *b, struct vfm_stream *s, int count[2])
{
	const size_t row = (size_t)b->cond_dim * vfm_dtype_size(b->x0_dtype),
		     image = (size_t)b->image_len * (size_t)b->image_dim * sizeof(float);
	struct vfm_micro u;

	OK(vfm_micro_make(&u, s, &(struct vfm_micro_opts){.config = c, .mesh = vfm_mesh_one(), .ends = true}, b, &err));
	for (int i = 0, g = 0; i < b->n; i++) {
		bool dropped = vfm_diffusion_draw(&c->diffusion, c->train.seed, 0, b->id[i], 1).drop_image;
		size_t at = (size_t)b->cu_seqlens[i] * row, n = (size_t)b->cu_seqlens[i + 1] * row - at;
		const char *cond = (const char *)u.in.cond.data + at,
			   *rows = (const char *)u.in.image.data + (size_t)i * image;

		assert_true(dropped ? all_zero(cond, n) : !memcmp(cond, (const char *)b->cond + at, n));
		assert_true(dropped ? all_zero(rows, image)
				    : !memcmp(rows, (const char *)b->image + (size_t)i * image, image));
		assert_int_equal(u.in.seg_given[g], !dropped && b->grid[i][0] > 1);
		for (; g < u.in.segs.n && u.in.seg_sample[g] == i; g++)
			assert_true(u.in.seg_given[g] || ((const float *)u.in.t_cond.data)[g] > 0);
		count[dropped]++;
	}
	vfm_micro_release(&u);
}

/* A dropped image: its condition and its image rows are zeros and its first frame is noise, as in the training of a
 * pack without them; the images of other samples stay. */
static void test_dropped_images(void **state)
{
	static const struct vfm_synthetic samples[] = {{{3, 2, 4}, 3, 1}, {{2, 2, 4}, 0, 2}, {{5, 1, 3}, 6, 3},
		{{1, 4, 4}, 2, 4}, {{2, 4, 2}, 1, 5}, {{3, 3, 1}, 5, 6}};
	enum { N = 6, SEEDS = 8 };
	static const struct vfm_fixed_noise fixed = {.levels = 4, .weight = 1, .t_max = INFINITY};
	double dropped[4], zeros[4], kept[4];
	int count[2] = {0};
	struct vfm_micro u;
	struct vfm_device d;
	struct vfm_config c;
	struct vfm_pack b;

	(void)state;
	vfm_config_defaults(&c);
	for (size_t i = 0; i < sizeof(image_model) / sizeof(image_model[0]); i++)
		OK(vfm_config_set(&c, image_model[i], &err));
	OK(vfm_config_set(&c, "diffusion.image_drop=0.5", &err));
	OK(vfm_config_check(&c, &err));
	OK(vfm_device_open(&d, "cpu", &err));
	OK(vfm_synthetic_pack(&b, samples, N, &c.model, 5, &err));
	for (c.train.seed = 0; c.train.seed < SEEDS; c.train.seed++)
		check_dropped_images(&c, &b, d.stream, count);
	assert_true(count[0] > 10 && count[1] > 10);
	c.diffusion.image_drop = 1; /* held-out data keeps its images */
	OK(vfm_micro_make(&u, d.stream,
		&(struct vfm_micro_opts){.config = &c, .mesh = vfm_mesh_one(), .ends = true, .fixed = &fixed}, &b,
		&err));
	assert_memory_equal(u.in.image.data, b.image, vfm_nbytes(&u.in.image));
	assert_int_equal(u.in.segs.n, N + 5);
	vfm_micro_release(&u);
	c.train.seed = 0;
	c.diffusion.image_drop = 0;
	steps_of(&c, &b, kept);
	c.diffusion.image_drop = 1;
	steps_of(&c, &b, dropped);
	memset(b.cond, 0, (size_t)b.tokens * (size_t)b.cond_dim * vfm_dtype_size(b.x0_dtype));
	memset(b.image, 0, (size_t)(N * b.image_len * b.image_dim) * sizeof(float));
	c.diffusion.image_drop = c.diffusion.image_cond = 0;
	steps_of(&c, &b, zeros);
	assert_memory_equal(dropped, zeros, sizeof(zeros));
	assert_true(kept[0] != zeros[0]);
	vfm_pack_release(&b);
	vfm_device_close(&d);
}

/* The input has the second texts of the pack, without those of dropped texts. */
static void test_second_texts(void **state)
{
	static const struct vfm_synthetic samples[] = {
		{{1, 2, 4}, 3, 1}, {{2, 2, 4}, 0, 2}, {{1, 1, 3}, 6, 3}, {{1, 4, 4}, 2, 5}, {{2, 4, 2}, 1, 7}};
	static const int32_t rows[] = {1, 0, 2, 3, 4};
	enum { N = 5, SEEDS = 8 };
	int count[2] = {0};
	struct vfm_device d;
	struct vfm_config c;
	struct vfm_pack b;

	(void)state;
	vfm_config_defaults(&c);
	OK(vfm_config_set(&c, "diffusion.text_drop=0.5", &err));
	OK(vfm_config_check(&c, &err));
	c.model.text2_dim = 6;
	c.model.text2_len = 4;
	OK(vfm_device_open(&d, "cpu", &err));
	OK(vfm_synthetic_pack(&b, samples, N, &c.model, 5, &err));
	for (int i = 0; i < N; i++)
		assert_int_equal(b.cu_text2[i + 1] - b.cu_text2[i], rows[i]);
	for (c.train.seed = 0; c.train.seed < SEEDS; c.train.seed++) {
		struct vfm_micro u;
		int32_t at = 0;

		OK(vfm_micro_make(&u, d.stream,
			&(struct vfm_micro_opts){.config = &c, .mesh = vfm_mesh_one(), .ends = true}, &b, &err));
		for (int i = 0; i < N; i++) {
			bool dropped = vfm_diffusion_draw(&c.diffusion, c.train.seed, 0, b.id[i], 1).drop_text;
			size_t n = dropped ? 0 : (size_t)rows[i] * 6 * sizeof(float);

			assert_memory_equal((const float *)u.in.text2.data + (size_t)at * 6,
				b.text2 + (size_t)b.cu_text2[i] * 6, n);
			at += dropped ? 0 : rows[i];
			assert_int_equal(u.in.host_cu_text2[i + 1], at);
			count[dropped]++;
		}
		assert_int_equal(u.in.text2.shape[0], at);
		vfm_micro_release(&u);
	}
	assert_true(count[0] > 10 && count[1] > 10);
	vfm_pack_release(&b);
	vfm_device_close(&d);
}

/* A pack without the arrays that the model reads is refused. */
static void test_missing_conditions(void **state)
{
	static const struct vfm_synthetic samples[] = {{{2, 2, 2}, 3, 7}};
	static const char *const set[][2] = {
		{"model.cond_channels=5", "sample 7 has 0 features of a condition per token, the model reads 20"},
		{"model.image_dim=8", "sample 7 has image rows [0, 0], the model reads [257, 8]"},
		{"model.text2_dim=8", "sample 7 has a second text of 0 features, the model reads 8"}};
	struct vfm_device d;
	struct vfm_config c;
	struct vfm_micro u;
	struct vfm_pack b;

	(void)state;
	OK(vfm_device_open(&d, "cpu", &err));
	for (int i = 0; i < 3; i++) {
		vfm_config_defaults(&c);
		OK(vfm_synthetic_pack(&b, samples, 1, &c.model, 5, &err));
		OK(vfm_config_set(&c, set[i][0], &err));
		assert_int_equal(
			vfm_micro_make(&u, d.stream,
				&(struct vfm_micro_opts){.config = &c, .mesh = vfm_mesh_one(), .ends = true}, &b, &err),
			VFM_EUSAGE);
		if (!strstr(err.msg, set[i][1]))
			fail_msg("message '%s' lacks '%s'", err.msg, set[i][1]);
		vfm_micro_release(&u);
		vfm_pack_release(&b);
	}
	vfm_device_close(&d);
}

/* model.text_pad gives the same bits as texts with rows of zeros in the files. */
static void test_text_pad(void **state)
{
	static const struct vfm_synthetic samples[] = {
		{{1, 4, 4}, 3, 1}, {{2, 2, 4}, 0, 2}, {{2, 4, 4}, 6, 3}, {{1, 2, 2}, 1, 4}, {{1, 2, 2}, 2, 5}};
	enum { N = 5, ROWS = 6, DIM = 8 };
	static const char *const archs[] = {"dit", "stdit"};
	double own[4], padded[4], files[4];
	struct vfm_pack b, f;
	struct vfm_config c;

	(void)state;
	for (size_t a = 0; a < sizeof(archs) / sizeof(archs[0]); a++) {
		vfm_config_defaults(&c);
		strcpy(c.model.arch, archs[a]);
		c.model.layers = 2;
		c.model.hidden = 32;
		c.model.heads = 2;
		c.model.text_dim = DIM;
		c.model.text_len = ROWS;
		c.model.pooled_text = a == 0;
		c.diffusion.text_drop = 0.5;
		c.train.warmup_steps = 0;
		OK(vfm_config_check(&c, &err));
		OK(vfm_parallel_check(&c.parallel, &c.model, 1, &err));
		OK(vfm_synthetic_pack(&b, samples, N, &c.model, 5, &err));
		f = (struct vfm_pack){.n = N,
			.tokens = b.tokens,
			.text_tokens = N * ROWS,
			.patch_dim = b.patch_dim,
			.text_dim = DIM,
			.step_tokens = b.step_tokens};
		OK(vfm_pack_alloc(&f, &err));
		memset(f.text, 0, N * ROWS * DIM * sizeof(float));
		memcpy(f.x0, b.x0, (size_t)(b.tokens * b.patch_dim) * sizeof(float));
		for (int i = 0; i < N; i++) {
			vfm_pack_set(&f, i, samples[i].id, samples[i].grid, ROWS);
			memcpy(f.text + (size_t)(i * ROWS * DIM), b.text + (size_t)b.cu_text[i] * DIM,
				(size_t)(samples[i].text_len * DIM) * sizeof(float));
		}
		steps_of(&c, &b, own);
		steps_of(&c, &f, files);
		c.model.text_pad = true;
		steps_of(&c, &b, padded);
		assert_memory_equal(padded, files, sizeof(files));
		assert_true(own[0] != padded[0] && own[1] != padded[1] && own[2] < padded[2]);
		vfm_pack_release(&b);
		vfm_pack_release(&f);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_config_round_trip),
		cmocka_unit_test(test_config_errors),
		cmocka_unit_test(test_image_errors),
		cmocka_unit_test(test_time_range),
		cmocka_unit_test(test_lr),
		cmocka_unit_test(test_metrics_cut),
		cmocka_unit_test(test_metrics_add),
		cmocka_unit_test(test_metrics_of_two),
		cmocka_unit_test(test_turns),
		cmocka_unit_test(test_turns_of),
		cmocka_unit_test(test_flops),
		cmocka_unit_test(test_text_pad),
		cmocka_unit_test(test_given_frames),
		cmocka_unit_test(test_given_max),
		cmocka_unit_test(test_dropped_images),
		cmocka_unit_test(test_second_texts),
		cmocka_unit_test(test_missing_conditions),
	};

	if (argc == 3 && !strcmp(argv[1], "make"))
		return make(argv[2]);
	return cmocka_run_group_tests(tests, setup, teardown);
}
