/* What a block saves for its backward: the list of spec/saved.h against the bytes that the device counts after a
 * forward, for every architecture and mode of recompute. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/par.h"
#include "ok.h"
#include "spec/saved.h"
#include "train/device.h"
#include "train/synthetic.h"
#include "train/micro.h"

enum { FEW = 2, MANY = 5, SAMPLES = 3 };

/* An image, a video, and a sample without text. */
static const struct vfm_synthetic samples[SAMPLES] = {{{1, 8, 8}, 24, 1}, {{5, 4, 8}, 40, 2}, {{3, 6, 4}, 0, 3}};
static const double rows[VFM_ROW_KINDS] = {
	[VFM_ROWS_TOKENS] = 64 + 160 + 72, [VFM_ROWS_TEXT] = 64, [VFM_ROWS_SAMPLES] = SAMPLES};

/* Bytes that the tape of a forward holds. */
static int64_t measure_saved(struct vfm_config *c, int64_t layers)
{
	struct vfm_model_in *in;
	struct vfm_params ps;
	struct vfm_model *net;
	struct vfm_tape *tape;
	struct vfm_device d;
	struct vfm_pack b;
	struct vfm_micro u;
	int64_t before, bytes;

	c->model.layers = layers;
	OK(vfm_device_open(&d, "cpu", &err));
	vfm_params_init(&ps, d.stream, vfm_mesh_one());
	net = vfm_model_new(&c->model, &ps);
	vfm_model_set_residual(net, (enum vfm_dtype)c->train.residual);
	OK(vfm_params_alloc(&ps, (enum vfm_dtype)c->train.dtype, true, &err));
	OK(vfm_params_fill_dense(&ps, 1, &err));
	OK(vfm_synthetic_pack(&b, samples, SAMPLES, &c->model, 5, &err));
	OK(vfm_micro_make(&u, d.stream, &(struct vfm_micro_opts){c, vfm_mesh_one(), 0, true}, &b, &err));
	in = &u.in;
	tape = vfm_tape_new(d.stream);
	before = d.dev->mem_now;
	vfm_model_forward(
		net, tape, in, 0, NULL, (struct vfm_recompute_how){(enum vfm_recompute)c->train.recompute, 0});
	OK(vfm_tape_status(tape, &err));
	bytes = d.dev->mem_now - before;
	vfm_tape_free(tape);
	vfm_micro_release(&u);
	vfm_pack_release(&b);
	vfm_model_free(net);
	vfm_params_release(&ps);
	vfm_device_close(&d);
	return bytes;
}

static void compare(const char *what, struct vfm_config *c)
{
	struct vfm_saved_how how = {.dtype = (enum vfm_dtype)c->train.dtype,
		.residual = (enum vfm_dtype)c->train.residual,
		.rows = {rows[0], rows[1], rows[2]}};

	OK(vfm_model_check(&c->model, &err));
	for (int mode = VFM_RECOMPUTE_NONE; mode <= VFM_RECOMPUTE_LIGHT; mode++) {
		double counted, listed;

		c->train.recompute = mode;
		how.mode = (enum vfm_recompute)mode;
		counted = (double)(measure_saved(c, MANY) - measure_saved(c, FEW)) / (MANY - FEW);
		listed = vfm_block_saved_bytes(&c->model, &how);
		if (listed < 0.995 * counted || listed > 1.005 * counted)
			fail_msg("%s, recompute %d: a block saves %.0f bytes, the list has %.0f", what, mode, counted,
				listed);
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
			c.model.kv_heads = 2;
			c.model.qk_norm = false;
			c.model.cross_attention = false;
			c.model.pooled_text = true;
			snprintf(what, sizeof(what), "%s without text attention, dtypes %d", vfm_arch_names[i], k);
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
	for (int shared = 0; shared < 3; shared++) {
		configure(&c, "moe", VFM_BF16, VFM_BF16);
		c.model.shared_experts = shared;
		c.model.moe_router = VFM_MOE_TOKEN_CHOICE;
		compare("moe, token choice", &c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_architectures),
		cmocka_unit_test(test_variants),
	};

	vfm_par_set_threads(1); /* the models are tiny */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
