/* What is said when memory runs out: the sizes that are promised against what the device counts, and that it names only
 * what is not on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/dev/holders.h"
#include "device/open/open.h"
#include "train/predict/oom_hints.h"
#include "train/step/synthetic.h"
#include "train/step/trainer.h"

static struct vfm_err err;

/* A CPU of `limit` bytes. */
static struct vfm_dev_table limited;
static const struct vfm_dev_table *cpu;
static struct vfm_holders holders;
static int64_t limit;

static void *alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *e)
{
	const struct vfm_dev *d = s->dev;
	char text[VFM_ERR_MAX];

	if (d->mem_now + (int64_t)bytes <= limit)
		return cpu->alloc(s, bytes, what, e);
	vfm_oom_sentence(&(struct vfm_oom){.device = "a small device",
				 .what = what,
				 .bytes = bytes,
				 .in_use = (uint64_t)d->mem_now,
				 .total = (uint64_t)limit,
				 .holders = &holders,
				 .oom_hints = &d->oom_hints},
		text, sizeof(text));
	vfm_fail(e, VFM_EENV, "%s", text);
	return NULL;
}

static void device(struct vfm_device *d, int64_t bytes)
{
	assert_int_equal(vfm_device_open(d, "cpu", &err), 0);
	cpu = d->dev->t;
	limited = *cpu;
	limited.alloc = alloc;
	limit = bytes;
	d->dev->t = &limited;
}

static void configure(struct vfm_config *c, const char *const *set)
{
	vfm_config_defaults(c);
	for (; *set; set++)
		if (vfm_config_set(c, *set, &err) < 0)
			fail_msg("%s", err.msg);
	if (vfm_config_check(c, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(vfm_parallel_check(&c->parallel, &c->model, 1, &err), 0);
}

/* The most that a step of it takes; 0: it does not fit, err says so. */
static int64_t peak_of(const struct vfm_config *c, int64_t bytes)
{
	static const struct vfm_synthetic sample = {{2, 8, 8}, 4, 1};
	struct vfm_pack b;
	struct vfm_pack_array packs = {&b, 1, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);
	struct vfm_oom_hints hints;
	struct vfm_pack_source seen;
	struct vfm_step_stats stats;
	struct vfm_trainer *tr;
	struct vfm_device d;
	int64_t peak = 0;

	err = (struct vfm_err){0};
	device(&d, bytes);
	assert_int_equal(vfm_synthetic_pack(&b, &sample, 1, &c->model, 5, &err), 0);
	vfm_oom_hints_install(&hints, c, vfm_mesh_one(), d.dev);
	seen = vfm_oom_hints_source(&hints, &source, 1);
	tr = vfm_trainer_new(c, vfm_mesh_one(), d.stream, &err);
	if (tr && vfm_trainer_step(tr, 0, 1, &seen, 1e-3, &err) == 0 && vfm_trainer_stats(tr, &stats, &err) == 0)
		peak = d.dev->mem_peak;
	vfm_trainer_free(tr);
	vfm_oom_hints_remove(&hints);
	assert_null(d.dev->oom_hints.savings);
	vfm_pack_release(&b);
	vfm_device_close(&d);
	return peak;
}

/* How many bytes are promised for a setting; -1: it is not named. */
static int64_t promised(const struct vfm_config *c, const char *how)
{
	struct vfm_dev_saving v[32];
	struct vfm_oom_hints a;
	struct vfm_device d;
	int64_t bytes = -1;
	int n;

	device(&d, INT64_MAX);
	vfm_oom_hints_install(&a, c, vfm_mesh_one(), d.dev);
	a.sample = vfm_calloc(1, sizeof(*a.sample));
	*a.sample = (struct vfm_synthetic){{2, 8, 8}, 4, 1};
	a.n = 1;
	a.packs = 1;
	n = d.dev->oom_hints.savings(d.dev->oom_hints.ctx, v, 32);
	assert_in_range(n, 1, 31);
	for (int i = 0; i < n; i++)
		if (strcmp(v[i].how, how) == 0)
			bytes = v[i].bytes;
	vfm_oom_hints_remove(&a);
	vfm_device_close(&d);
	return bytes;
}

#define MODEL "model.layers=10", "model.heads=2", "model.text_len=4", "model.text_dim=64", "model.kv_heads=0"

/* Turns a setting on and looks at what it saves. */
static void saves(const char *const *set, const char *how)
{
	const char *with[24];
	struct vfm_config c, on;
	int64_t said, is;
	int n = 0;

	for (; set[n]; n++)
		with[n] = set[n];
	with[n] = how;
	with[n + 1] = NULL;
	configure(&c, set);
	configure(&on, with);
	said = promised(&c, how);
	is = peak_of(&c, INT64_MAX) - peak_of(&on, INT64_MAX);
	if (said != is)
		fail_msg("%s with %s: %lld bytes are promised, %lld are saved", set[0], how, (long long)said,
			(long long)is);
	assert_int_equal(promised(&on, how), -1);
}

static void test_sizes(void **state)
{
	static const char *const archs[][12] = {
		{"model.preset=dit-s", MODEL, "model.hidden=128", "model.ffn=512", NULL},
		{"model.preset=dit-s", MODEL, "model.hidden=128", "model.cross_attention=false",
			"model.pooled_text=true", NULL},
		{"model.preset=moviegen-1b", MODEL, "model.hidden=128", "model.ffn=320", NULL},
		{"model.preset=stdit-xl", MODEL, "model.hidden=128", "model.ffn=512", NULL},
		{"model.preset=moe-1b", MODEL, "model.hidden=128", "model.experts=4", "model.moe_capacity=2",
			"model.expert_ffn=128", NULL},
	};
	static const char *const settings[] = {"train.recompute=light", "train.recompute=outputs",
		"train.recompute=selective", "train.recompute=full"};
	(void)state;

	for (size_t i = 0; i < sizeof(archs) / sizeof(*archs); i++)
		for (size_t k = 0; k < 4; k++) {
			const char *set[14];
			int n = 0;

			for (; archs[i][n]; n++)
				set[n] = archs[i][n];
			set[n] = i % 2 ? "train.dtype=fp32" : "train.dtype=bf16";
			set[n + 1] = NULL;
			saves(set, settings[k]);
		}
}

#define SMALL MODEL, "model.hidden=128", "train.dtype=bf16"

static void test_state(void **state)
{
	static const char *const plain[] = {SMALL, "train.recompute=full", NULL};
	static const char *const average[] = {
		SMALL, "train.recompute=full", "train.ema_decay=0.9", "train.moments=bf16", NULL};
	static const char *const some[] = {SMALL, "train.recompute=full", "train.recompute_blocks=2", NULL};
	static const char *const adapters[] = {SMALL, "model.arch=wan", "lora.rank=4", "train.recompute=full", NULL};
	static const char *const fp8[] = {
		SMALL, "model.arch=wan", "lora.rank=4", "train.recompute=selective", "train.frozen_dtype=fp8", NULL};
	struct vfm_config c;
	(void)state;

	saves(plain, "train.master=split");
	saves(adapters, "train.frozen_dtype=fp8");
	saves(adapters, "train.frozen_dtype=nf4");
	saves(adapters, "train.offload_weights=10");
	saves(fp8, "train.offload_weights=10");
	configure(&c, plain);
	assert_int_equal(promised(&c, "train.frozen_dtype=fp8"), -1); /* nothing is frozen */
	saves(plain, "train.moments=bf16");
	saves(plain, "train.offload=optimizer");
	saves(average, "train.offload=optimizer");
	saves(some, "train.recompute_blocks=0");
	configure(&c, average);
	assert_int_equal(promised(&c, "train.moments=bf16"), -1);
	assert_int_equal(promised(&c, "train.recompute=full"), -1);
	assert_int_equal(promised(&c, "train.recompute_blocks=0"), -1);
	assert_int_equal(promised(&c, "parallel.distopt=true"), -1); /* of one rank */
}

/* Where both are on, they are one setting. */
static void test_offload(void **state)
{
	static const char *const optimizer[] = {SMALL, "train.recompute=light", "train.offload=optimizer", NULL};
	static const char *const none[] = {SMALL, NULL};
	struct vfm_config c;
	(void)state;

	saves(optimizer, "train.offload=both");
	configure(&c, optimizer);
	assert_int_equal(promised(&c, "train.moments=bf16"), -1); /* they are not on the device */
	configure(&c, none);
	assert_int_equal(promised(&c, "train.offload=activations"), -1); /* nothing is run again */
	assert_true(promised(&c, "train.offload=optimizer") > 0);
}

/* The sentence itself, and that what it names first makes it fit. */
static void test_sentence(void **state)
{
	static const char *const before[] = {SMALL, "train.moments=bf16", NULL};
	static const char *const after[] = {SMALL, "train.moments=bf16", "train.recompute=full", NULL};
	struct vfm_config c;
	const char *full, *light;
	int64_t need, least;
	(void)state;

	configure(&c, before);
	need = peak_of(&c, INT64_MAX);
	assert_true(need > 0);
	assert_int_equal(peak_of(&c, need), need);
	least = need - promised(&c, "train.recompute=full") / 2;
	assert_int_equal(peak_of(&c, least), 0);
	assert_int_equal(err.code, VFM_EENV);
	full = strstr(err.msg, "train.recompute=full (");
	light = strstr(err.msg, "train.recompute=light (");
	if (strncmp(err.msg, "out of memory on a small device: ", 33) != 0 ||
		!strstr(err.msg, "; approximate savings: ") || !full || !light || light < full ||
		strstr(err.msg, "train.moments") || !strstr(err.msg, "train.master=split (") ||
		!strstr(err.msg, "; with twice the ranks: parallel."))
		fail_msg("%s", err.msg);
	configure(&c, after);
	assert_true(peak_of(&c, least) > 0);
	/* The first allocation of all, with nothing to say yet but what is known of the state. */
	assert_int_equal(peak_of(&c, 1000), 0);
	if (!strstr(err.msg, "do not fit in addition to the 0 bytes in use") ||
		!strstr(err.msg, "train.master=split (") || strstr(err.msg, "recompute"))
		fail_msg("%s", err.msg);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_state),
		cmocka_unit_test(test_offload),
		cmocka_unit_test(test_sentence),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
