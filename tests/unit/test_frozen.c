/* Frozen weights that are stored in another dtype: a step has the bits of one whose weights were rounded to the same values
 * before, in every kind of product; its memory is what the format takes; layers whose rows it cannot divide, and runs
 * without such layers, are refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "ok.h"
#include "device/open/open.h"
#include "spec/model/tuning.h"
#include "train/step/synthetic.h"
#include "train/step/trainer.h"

enum { STEPS = 2, SAMPLES = 3 };

static const struct vfm_synthetic samples[SAMPLES] = {{{2, 4, 4}, 7, 11}, {{1, 3, 5}, 2, 12}, {{3, 2, 2}, 0, 13}};

static void configure(struct vfm_config *c, const char *const *set)
{
	static const char *const small[] = {"model.layers=2", "model.hidden=64", "model.heads=2", "model.ffn=96",
		"model.text_dim=24", "model.channels=4", "model.experts=4", "model.expert_ffn=64",
		"model.moe_capacity=2", "train.lr=0.01", "train.warmup_steps=0", "train.seed=7"};

	vfm_config_defaults(c);
	for (size_t i = 0; i < sizeof(small) / sizeof(small[0]); i++)
		OK(vfm_config_set(c, small[i], &err));
	for (; *set; set++)
		OK(vfm_config_set(c, *set, &err));
	OK(vfm_config_check(c, &err));
}

struct trained {
	struct vfm_step_stats stats[STEPS];
	float *grad; /* [n]: of the last step, as owned */
	int64_t n;
	int64_t state, peak; /* bytes of the device: before the steps, the most during them */
};

/* Copies the values of every frozen parameter of one trainer to another. */
static void copy_frozen(struct vfm_trainer *from, struct vfm_trainer *to)
{
	struct vfm_params *a = vfm_trainer_params(from), *b = vfm_trainer_params(to);

	for (size_t i = 0; i < a->n; i++) {
		float *x = vfm_calloc((size_t)a->p[i]->n, sizeof(*x));

		if (a->p[i]->frozen) {
			OK(vfm_param_get(a, NULL, a->p[i], x, &err));
			OK(vfm_param_put(b, NULL, b->p[i], x + vfm_param_owned(b, b->p[i]).a, &err));
		}
		free(x);
	}
	OK(vfm_params_refresh(b, &err));
}

static void train(struct vfm_trainer *tr, const struct vfm_config *c, struct trained *r)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	struct vfm_dev *d = ps->stream->dev;
	struct vfm_pack b;
	struct vfm_pack_array packs = {&b, 1, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);

	OK(vfm_synthetic_pack(&b, samples, SAMPLES, &c->model, 5, &err));
	r->state = d->mem_now;
	vfm_dev_peak_reset(d);
	for (int i = 0; i < STEPS; i++) {
		OK(vfm_trainer_step(tr, i, 1, &source, c->train.lr, &err));
		OK(vfm_trainer_stats(tr, &r->stats[i], &err));
	}
	r->peak = d->mem_peak;
	for (size_t i = 0; i < ps->n; i++)
		assert_true(
			ps->p[i]->stored == VFM_FROZEN_SAME || !ps->p[i]->var.v.data); /* no copy outlives its unit */
	r->n = ps->n_grad;
	r->grad = vfm_calloc((size_t)r->n + 1, sizeof(*r->grad));
	memcpy(r->grad, ps->grad, (size_t)r->n * sizeof(*r->grad));
	vfm_pack_release(&b);
}

static struct vfm_trainer *open_trainer(struct vfm_config *c, enum vfm_frozen_dtype frozen, struct vfm_device *d)
{
	struct vfm_trainer *tr;

	OK(vfm_device_open(d, "cpu", &err));
	c->tuning.frozen_dtype = frozen;
	tr = vfm_trainer_new(c, vfm_mesh_one(), d->stream, &err);
	OK(tr ? 0 : -1);
	OK(vfm_params_fill_dense(vfm_trainer_params(tr), 3, &err));
	return tr;
}

/* Returns the bytes of n elements, without the scales of rows and groups. */
static int64_t bytes_of(enum vfm_frozen_dtype stored, int64_t n)
{
	return stored == VFM_FROZEN_FP8 ? n * 33 / 32 : stored == VFM_FROZEN_INT8 ? n : n * 33 / 64;
}

/* Returns the bytes that the format saves, and in *running those of the largest copy for a unit. */
static int64_t saved_bytes(const struct vfm_params *ps, int64_t *running)
{
	int64_t saved = 0, unit[16] = {0};

	*running = 0;
	for (int i = 0; i < ps->n_buckets; i++) {
		const struct vfm_param_bucket *s = &ps->bucket[i];
		int64_t size = (int64_t)vfm_dtype_size(ps->dtype), *u = &unit[s->first_unit];

		if (s->stored == VFM_FROZEN_SAME)
			continue;
		saved += s->n * size - bytes_of(s->stored, s->n);
		*u += s->n * size;
		*running = *u > *running ? *u : *running;
	}
	return saved;
}

static void compare(const char *what, enum vfm_frozen_dtype stored, const char *const *set)
{
	struct trained coded = {0}, rounded = {0}, plain = {0};
	struct vfm_trainer *a, *b, *u;
	struct vfm_device da, db, du;
	int64_t saved, running;
	struct vfm_config c;

	configure(&c, set);
	a = open_trainer(&c, stored, &da);
	b = open_trainer(&c, VFM_FROZEN_SAME, &db);
	u = open_trainer(&c, VFM_FROZEN_SAME, &du);
	copy_frozen(a, b);
	if (stored == VFM_FROZEN_FP8)
		copy_frozen(b, a); /* rounded values stay */
	train(a, &c, &coded);
	train(b, &c, &rounded);
	train(u, &c, &plain);
	for (int i = 0; i < STEPS; i++)
		if (coded.stats[i].loss != rounded.stats[i].loss ||
			coded.stats[i].grad_norm != rounded.stats[i].grad_norm)
			fail_msg("%s, step %d: loss %.9g, gradient norm %.9g, with rounded weights %.9g and %.9g", what,
				i, coded.stats[i].loss, coded.stats[i].grad_norm, rounded.stats[i].loss,
				rounded.stats[i].grad_norm);
	assert_int_equal(coded.n, rounded.n);
	assert_memory_equal(coded.grad, rounded.grad, (size_t)coded.n * sizeof(*coded.grad));
	assert_true(coded.stats[0].loss != plain.stats[0].loss);
	if (fabs(coded.stats[0].loss - plain.stats[0].loss) > 0.02 * plain.stats[0].loss)
		fail_msg("%s: loss %.9g, without rounding %.9g", what, coded.stats[0].loss, plain.stats[0].loss);
	saved = saved_bytes(vfm_trainer_params(a), &running);
	/* arrays are padded to 64 bytes, shards to 512 elements */
	if (llabs(rounded.state - coded.state - saved) > 16384)
		fail_msg("%s: the state takes %lld bytes less, not %lld", what,
			(long long)(rounded.state - coded.state), (long long)saved);
	if (coded.peak - coded.state > rounded.peak - rounded.state + running)
		fail_msg("%s: a step takes %lld bytes, %lld without a copy of %lld", what,
			(long long)(coded.peak - coded.state), (long long)(rounded.peak - rounded.state),
			(long long)running);
	print_message("%s: loss %.6f, %.6f without rounding; %lld bytes less\n", what, coded.stats[0].loss,
		plain.stats[0].loss, (long long)saved);
	free(coded.grad), free(rounded.grad), free(plain.grad);
	vfm_trainer_free(a), vfm_trainer_free(b), vfm_trainer_free(u);
	vfm_device_close(&da), vfm_device_close(&db), vfm_device_close(&du);
}

#define RUN(what, ...)            compare(what, VFM_FROZEN_FP8, (const char *const[]){__VA_ARGS__, NULL})
#define RUN_AS(stored, what, ...) compare(what, stored, (const char *const[]){__VA_ARGS__, NULL})

static void test_steps(void **state)
{
	(void)state;
	RUN("adapters", "model.arch=wan", "lora.rank=4");
	RUN("adapters, recompute", "model.arch=wan", "lora.rank=4", "train.recompute=full");
	RUN("adapters, bf16", "model.arch=wan", "lora.rank=4", "train.dtype=bf16", "train.recompute=selective");
	RUN("adapters, products in fp8", "model.arch=wan", "lora.rank=4", "train.dtype=bf16", "train.fp8=current");
	RUN("adapters, products in fp8 with histories", "model.arch=dit", "lora.rank=4", "train.dtype=bf16",
		"train.fp8=delayed", "train.fp8_history=2", "train.recompute=light");
	RUN("a frozen block", "model.arch=dit", "train.freeze=blocks.1.*");
	for (int d = VFM_FROZEN_INT8; d <= VFM_FROZEN_NF4; d++) {
		RUN_AS(d, vfm_frozen_names[d], "model.arch=wan", "lora.rank=4", "model.ffn=128");
		RUN_AS(d, vfm_frozen_names[d], "model.arch=wan", "lora.rank=4", "model.ffn=128", "train.dtype=bf16",
			"train.recompute=full");
		RUN_AS(d, vfm_frozen_names[d], "model.arch=moe", "lora.rank=4", "model.ffn=128", "train.dtype=bf16",
			"train.fp8=current");
	}
	RUN("frozen experts", "model.arch=moe", "train.freeze=*.moe.fc1.weight,*.moe.fc2.weight", "train.dtype=bf16");
}

static int open_refused(const char *const *set, const struct vfm_mesh *mesh)
{
	struct vfm_device d;
	struct vfm_config c;
	struct vfm_trainer *tr;

	configure(&c, set);
	OK(vfm_device_open(&d, "cpu", &err));
	tr = vfm_trainer_new(&c, mesh, d.stream, &err);
	assert_null(tr);
	vfm_device_close(&d);
	return err.code;
}

#define REFUSED(text, ...)                                                                                             \
	do {                                                                                                           \
		assert_int_equal(open_refused((const char *const[]){__VA_ARGS__, NULL}, vfm_mesh_one()), VFM_EUSAGE);  \
		assert_non_null(strstr(err.msg, text));                                                                \
	} while (0)

static void test_refused(void **state)
{
	(void)state;
	REFUSED("train.frozen_dtype: fp8 needs rows of a multiple of 32 elements on each rank, and blocks.0.fc2.weight "
		"has "
		"80 of 80",
		"lora.rank=4", "train.frozen_dtype=fp8", "model.ffn=80");
	REFUSED("train.frozen_dtype: fp8 is for linear layers of blocks, and train.freeze 'patch*' freezes none",
		"train.freeze=patch*", "train.frozen_dtype=fp8");
	REFUSED("train.frozen_dtype: nf4 needs rows of a multiple of 64 elements on each rank, and blocks.0.fc2.weight "
		"has 96 of 96",
		"lora.rank=4", "train.frozen_dtype=nf4");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_steps),
		cmocka_unit_test(test_refused),
	};

	vfm_log_set_quiet(true);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
