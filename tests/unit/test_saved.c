/* What a block saves for its backward: the list of spec/cost/saved.h against the bytes that the device counts after a
 * forward, and the products that it recomputes, for every architecture and every group of kept tensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/par.h"
#include "device/open/open.h"
#include "net/tape/node.h"
#include "net/tape/region.h"
#include "ok.h"
#include "spec/cost/saved.h"
#include "train/step/micro.h"
#include "train/step/synthetic.h"

enum { FEW = 2, MANY = 5, SAMPLES = 3 };

/* An image, a video, and a sample without text. */
static const struct vfm_synthetic samples[SAMPLES] = {{{1, 8, 8}, 24, 1}, {{5, 4, 8}, 40, 2}, {{3, 6, 4}, 0, 3}};

/* ---- a device that counts what a tape recomputes ---- */

static struct vfm_dev_table counting;
static struct vfm_ops counting_ops;
static const struct vfm_ops *cpu;
static struct vfm_tape *counted_tape;
static struct vfm_block_again again;

static void count_op(struct vfm_cost c)
{
	if (!counted_tape || !vfm_tape_recomputing(counted_tape))
		return;
	again.flops += c.flops;
	again.traffic += c.flops > 0 ? 0 : c.bytes;
}

#define X(name)                                                                                                        \
	static int count_##name(struct vfm_stream *s, const struct vfm_##name *a, struct vfm_err *e)                   \
	{                                                                                                              \
		count_op(vfm_cost_##name(a));                                                                          \
		return cpu->name(s, a, e);                                                                             \
	}
VFM_OP_LIST(X)
#undef X

static void open_counting(struct vfm_device *d)
{
	OK(vfm_device_open(d, "cpu", &err));
	cpu = d->dev->t->ops;
#define X(name) counting_ops.name = count_##name;
	VFM_OP_LIST(X)
#undef X
	counting = *d->dev->t;
	counting.ops = &counting_ops;
	d->dev->t = &counting;
}

/* Bytes that the tape of a forward holds, and in *redone what its backward recomputes. */
static int64_t measure_saved(struct vfm_config *c, int64_t layers, unsigned keep, struct vfm_block_again *redone)
{
	struct vfm_keeps keeps[MANY];
	struct vfm_params ps;
	struct vfm_model *net;
	struct vfm_tape *tape;
	struct vfm_device d;
	struct vfm_pack b;
	struct vfm_micro u;
	struct vfm_var *out;
	int64_t before, bytes;

	c->model.layers = layers;
	c->model.single_layers = c->model.single_layers ? layers - 1 : 0;
	for (int i = 0; i < MANY; i++)
		keeps[i] = (struct vfm_keeps){keep, 0};
	open_counting(&d);
	vfm_params_init(&ps, d.stream, vfm_mesh_one());
	ps.tuning = c->tuning;
	net = vfm_model_new(&c->model, &ps);
	vfm_model_set_residual(net, (enum vfm_dtype)c->train.residual);
	OK(vfm_params_alloc(&ps, (enum vfm_dtype)c->train.dtype, true, &err));
	OK(vfm_params_fill_dense(&ps, 1, &err));
	OK(vfm_synthetic_pack(&b, samples, SAMPLES, &c->model, 5, &err));
	OK(vfm_micro_make(
		&u, d.stream, &(struct vfm_micro_opts){.config = c, .mesh = vfm_mesh_one(), .ends = true}, &b, &err));
	counted_tape = tape = vfm_tape_new(d.stream);
	again = (struct vfm_block_again){0};
	OK(vfm_params_grad_begin(&ps, &err));
	before = d.dev->mem_now;
	out = vfm_model_forward(net, tape, &u.in, 0, NULL, keeps);
	OK(vfm_tape_status(tape, &err));
	bytes = d.dev->mem_now - before;
	OK(vfm_tape_seed(tape, out, out->v, &err));
	OK(vfm_tape_backward(tape, &err));
	OK(vfm_params_grad_end(&ps, &err));
	*redone = again;
	counted_tape = NULL;
	vfm_tape_free(tape);
	vfm_micro_release(&u);
	vfm_pack_release(&b);
	vfm_model_free(net);
	vfm_params_release(&ps);
	vfm_device_close(&d);
	return bytes;
}

static bool is_near(double x, double y, double tolerance)
{
	return x >= (1 - tolerance) * y && x <= (1 + tolerance) * y;
}

/* Compares the list with the device for one set of kept groups. */
static void compare_set(const char *what, struct vfm_config *c, unsigned keep)
{
	struct vfm_saved_how how = {.keep = keep,
		.dtype = (enum vfm_dtype)c->train.dtype,
		.residual = (enum vfm_dtype)c->train.residual,
		.tuning = vfm_saved_tuning(&c->model, &c->tuning),
		.single = c->model.single_layers ? 1 : 0};
	struct vfm_block_again few, many, listed;
	double bytes, counted;

	for (int i = 0; i < SAMPLES; i++)
		vfm_pack_sums_add(&how.pack, samples[i].grid, samples[i].text_len);
	counted = (double)measure_saved(c, MANY, keep, &many);
	counted = (counted - (double)measure_saved(c, FEW, keep, &few)) / (MANY - FEW);
	bytes = vfm_block_saved_bytes(&c->model, &how);
	if (!is_near(bytes, counted, 0.005))
		fail_msg("%s, keep %#x: a block saves %.0f bytes, the list has %.0f", what, keep, counted, bytes);
	many.flops = (many.flops - few.flops) / (MANY - FEW);
	many.traffic = (many.traffic - few.traffic) / (MANY - FEW);
	listed = vfm_block_again(&c->model, &how);
	if (!is_near(listed.flops, many.flops, 0.005))
		fail_msg("%s, keep %#x: a block computes %.0f FLOPs again, the list has %.0f", what, keep, many.flops,
			listed.flops);
	if (listed.traffic < many.traffic / 2 || listed.traffic > many.traffic * 2)
		fail_msg("%s, keep %#x: the other ops of a recomputed block move %.0f bytes, the estimate is %.0f",
			what, keep, many.traffic, listed.traffic);
}

static void compare_modes(const char *what, struct vfm_config *c)
{
	OK(vfm_model_check(&c->model, &err));
	for (int mode = 0; mode < VFM_RECOMPUTE_MODES; mode++)
		compare_set(what, c, vfm_recompute_keeps((enum vfm_recompute)mode));
}

static void compare(const char *what, struct vfm_config *c)
{
	compare_modes(what, c);
	for (unsigned group = 1; group < VFM_KEEP_REST; group *= 2) {
		compare_set(what, c, group);
		compare_set(what, c, VFM_KEEP_PRODUCTS & ~group);
	}
}

static void configure(struct vfm_config *c, const char *arch, int dtype, int residual)
{
	vfm_config_defaults(c);
	snprintf(c->model.arch, sizeof(c->model.arch), "%s", arch);
	c->model.pos = vfm_model_arch(&c->model)->pos;
	c->model.hidden = 96;
	c->model.heads = 4;
	c->model.ffn = 160;
	c->model.channels = 4;
	c->model.text_dim = 32;
	c->model.experts = 4;
	c->model.expert_ffn = 40;
	c->model.moe_capacity = 2;
	c->model.adaln_lora = vfm_model_arch(&c->model)->mod == VFM_MOD_LOW_RANK ? 8 : 0;
	c->train.dtype = dtype;
	c->train.residual = residual;
}

static void test_architectures(void **state)
{
	static const int dtypes[][2] = {{VFM_F32, VFM_F32}, {VFM_BF16, VFM_F32}, {VFM_BF16, VFM_BF16}};
	struct vfm_config c;
	char what[64];

	(void)state;
	for (int i = 0; vfm_arch_names[i]; i++)
		for (int k = 0; k < 3; k++) {
			configure(&c, vfm_arch_names[i], dtypes[k][0], dtypes[k][1]);
			snprintf(what, sizeof(what), "%s, dtypes %d", vfm_arch_names[i], k);
			compare(what, &c);
			if (vfm_model_has_row_rope(&c.model)) /* needs as many key heads, and their norms */
				c.model.pos = VFM_POS_SINCOS;
			c.model.kv_heads = 2;
			c.model.qk_norm = false;
			if (!vfm_model_arch(&c.model)->cross_mod &&
				!vfm_model_arch(&c.model)->joint) { /* the others may be without */
				c.model.cross_attention = false;
				c.model.pooled_text = true;
			}
			snprintf(what, sizeof(what), "%s with fewer parts, dtypes %d", vfm_arch_names[i], k);
			compare(what, &c);
		}
}

static void test_variants(void **state)
{
	struct vfm_config c;

	(void)state;
	configure(&c, "dit", VFM_BF16, VFM_F32);
	c.model.adaln_lora = 16;
	c.model.pos = VFM_POS_SINCOS;
	compare("dit with adaln_lora", &c);
	c.model.qk_norm = false;
	compare("dit without rotation and norm of q and k", &c);
	configure(&c, "wan", VFM_BF16, VFM_BF16);
	c.model.cond_channels = 5;
	c.model.image_dim = 40;
	c.model.image_len = 9;
	compare("wan with image rows", &c);
	c.model.qk_norm = false;
	compare("wan with image rows, without norm of q and k", &c);
	for (int shared = 0; shared < 3; shared++) {
		configure(&c, "moe", VFM_BF16, VFM_BF16);
		c.model.shared_experts = shared;
		c.model.moe_router = VFM_MOE_TOKEN_CHOICE;
		compare("moe, token choice", &c);
	}
}

/* Single-stream blocks, and sums over a mean of both kinds. */
static void test_single(void **state)
{
	static const int dtypes[][2] = {{VFM_F32, VFM_F32}, {VFM_BF16, VFM_F32}, {VFM_BF16, VFM_BF16}};
	struct vfm_config c;

	(void)state;
	for (int k = 0; k < 3; k++) {
		struct vfm_saved_how how = {.keep = VFM_KEEP_ATTN, .dtype = VFM_BF16, .residual = VFM_F32};
		double kinds[2], mean;

		configure(&c, "hunyuan1", dtypes[k][0], dtypes[k][1]);
		c.model.single_layers = 1;
		compare("single-stream blocks", &c);
		c.tuning.rank = 4;
		compare("single-stream blocks with adapters", &c);
		snprintf(c.tuning.freeze.text, sizeof(c.tuning.freeze.text), "%s", "blocks.*.weight,!*.ada*");
		c.tuning.rank = 0;
		compare("single-stream blocks, only the modulation is trained", &c);
		vfm_pack_sums_add(&how.pack, samples[0].grid, samples[0].text_len);
		for (int i = 0; i < 2; i++) {
			how.single = i;
			kinds[i] = vfm_block_saved_bytes(&c.model, &how);
		}
		how.single = 0.25;
		mean = 0.75 * kinds[0] + 0.25 * kinds[1];
		assert_true(kinds[0] > kinds[1] && fabs(vfm_block_saved_bytes(&c.model, &how) - mean) < 1e-9 * mean);
	}
}

static void compare_tuned(const char *arch, int dtype, int64_t rank, const char *targets, const char *freeze)
{
	struct vfm_config c;
	char what[256];

	configure(&c, arch, dtype, dtype);
	c.tuning.rank = rank;
	if (targets)
		snprintf(c.tuning.targets.text, sizeof(c.tuning.targets.text), "%s", targets);
	snprintf(c.tuning.freeze.text, sizeof(c.tuning.freeze.text), "%s", freeze);
	if (!strcmp(arch, "wan")) {
		c.model.image_dim = 40;
		c.model.image_len = 9;
		c.model.cond_channels = 3;
	}
	snprintf(what, sizeof(what), "%s, dtype %d, rank %d, adapters of %s, frozen: %s", arch, dtype, (int)rank,
		targets ? targets : "all", freeze);
	compare_modes(what, &c);
}

/* Layers without a gradient of their weight do not save their input; frozen modulation reads no branch. */
static void test_tuned(void **state)
{
	(void)state;
	for (int i = 0; vfm_arch_names[i]; i++) {
		const char *arch = vfm_arch_names[i];

		compare_tuned(arch, i % 2 ? VFM_F32 : VFM_BF16, 4, NULL, "");
		compare_tuned(arch, i % 2 ? VFM_BF16 : VFM_F32, 4, "blocks.*.attn*.q*", "");
		compare_tuned(arch, VFM_BF16, 0, NULL, "*,!blocks.*.*norm*,!*.qn.*,!*.fc2*,!*.w2*");
		compare_tuned(arch, VFM_BF16, 0, NULL, "blocks.*.weight,!*.ada*");
		compare_tuned(arch, VFM_F32, 2, "blocks.*.proj", "*,!t_mlp*,!ctx*");
		compare_tuned(arch, VFM_BF16, 0, NULL, "*,!blocks.*.fc1.*,!blocks.*.w13*");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_architectures),
		cmocka_unit_test(test_variants),
		cmocka_unit_test(test_single),
		cmocka_unit_test(test_tuned),
	};

	vfm_par_set_threads(1); /* the models are tiny */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
