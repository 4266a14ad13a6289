/* Training on the CUDA kernels (emulated; GEMM and attention by libraries use the CPU) against training on the CPU:
 * losses, gradient norms, gradients and weights of a few steps of every architecture.  It covers what cases of single
 * ops cannot: views, strides, accumulations and packs without rows as layers pass them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "emu_dev.h"
#include "ok.h"
#include "train/step/synthetic.h"
#include "train/step/trainer.h"

enum { STEPS = 3, PACKS = 2, SAMPLES = 3 };

struct trained {
	struct vfm_step_stats stats[STEPS];
	float *grad; /* of the first step, by parameter */
	float *weight;
	int64_t n;
};

/* Images, videos, one token, a sample without text. */
static const struct vfm_synthetic samples[PACKS][SAMPLES] = {
	{{{2, 4, 4}, 7, 0xfedcba9876543210u}, {{1, 3, 5}, 2, 12}, {{3, 2, 2}, 5, 13}},
	{{{1, 4, 6}, 1, 21}, {{4, 2, 3}, 0, 22}, {{1, 1, 1}, 9, 23}},
};

static void configure(struct vfm_config *c, const char *const *set)
{
	static const char *const small[] = {"model.layers=2", "model.hidden=64", "model.heads=2", "model.kv_heads=0",
		"model.ffn=96", "model.text_dim=24", "model.text_len=16", "model.channels=4", "train.lr=0.001",
		"train.weight_decay=0.1", "train.clip_norm=0.5", "train.seed=7"};

	vfm_config_defaults(c);
	for (size_t i = 0; i < sizeof(small) / sizeof(small[0]); i++)
		OK(vfm_config_set(c, small[i], &err));
	for (; *set; set++)
		OK(vfm_config_set(c, *set, &err));
	OK(vfm_config_check(c, &err));
}

static void take(struct vfm_params *ps, bool grad, float *out)
{
	for (size_t i = 0; i < ps->n; i++) {
		const struct vfm_param *p = ps->p[i];

		if (grad && p->frozen)
			memset(out, 0, (size_t)p->n * sizeof(*out));
		else if (grad)
			memcpy(out, ps->grad + p->off, (size_t)p->n * sizeof(*out));
		else
			OK(vfm_param_get(ps, NULL, p, out, &err));
		out += p->n;
	}
}

static void train(struct vfm_dev *(*open)(struct vfm_err *), const struct vfm_config *c, struct trained *r)
{
	struct vfm_dev *dev = open(&err);
	struct vfm_stream *s = dev ? dev->t->stream_new(dev, false, &err) : NULL;
	struct vfm_trainer *tr = s ? vfm_trainer_new(c, vfm_mesh_one(), s, &err) : NULL;
	struct vfm_pack b[PACKS];
	struct vfm_pack_array packs = {b, PACKS, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);
	struct vfm_params *ps;

	if (!tr)
		fail_msg("%s", err.msg);
	for (int k = 0; k < PACKS; k++)
		OK(vfm_synthetic_pack(&b[k], samples[k], SAMPLES, &c->model, c->train.seed, &err));
	for (int k = 0; k < PACKS; k++)
		b[k].step_tokens = b[0].tokens + b[1].tokens;
	ps = vfm_trainer_params(tr);
	OK(vfm_params_fill_dense(ps, c->train.seed, &err));
	for (size_t i = 0; i < ps->n; i++)
		r->n += ps->p[i]->n;
	r->grad = vfm_calloc((size_t)r->n, sizeof(float));
	r->weight = vfm_calloc((size_t)r->n, sizeof(float));
	for (int step = 0; step < STEPS; step++) {
		OK(vfm_trainer_step(tr, step, PACKS, &source, c->train.lr, &err));
		OK(vfm_trainer_stats(tr, &r->stats[step], &err));
		if (step == 0)
			take(ps, true, r->grad);
	}
	take(ps, false, r->weight);
	for (int k = 0; k < PACKS; k++)
		vfm_pack_release(&b[k]);
	vfm_trainer_free(tr);
	assert_int_equal(dev->mem_now, 0);
	dev->t->stream_free(s);
	dev->t->dev_free(dev);
}

/* |a - b| / |b| */
static double distance(const float *a, const float *b, int64_t n)
{
	double d = 0, s = 0;

	for (int64_t i = 0; i < n; i++) {
		double e = (double)a[i] - (double)b[i];

		d += e * e;
		s += (double)b[i] * (double)b[i];
	}
	return s > 0 ? sqrt(d / s) : sqrt(d);
}

static void compare(const char *what, const char *const *set, double tol)
{
	struct trained cpu = {0}, gpu = {0};
	struct vfm_config c;
	double grad, weight;

	assert_true(vfm_emu_has(VFM_OP_norm_bwd) && vfm_emu_has(VFM_OP_adamw) && vfm_emu_has(VFM_OP_mse) &&
		vfm_emu_has(VFM_OP_moe_sort));
	configure(&c, set);
	train(vfm_cpu_open, &c, &cpu);
	train(vfm_emu_open, &c, &gpu);
	assert_int_equal(cpu.n, gpu.n);
	grad = distance(gpu.grad, cpu.grad, cpu.n);
	weight = distance(gpu.weight, cpu.weight, cpu.n);
	for (int i = 0; i < STEPS; i++) {
		double a = gpu.stats[i].loss, b = cpu.stats[i].loss, na = gpu.stats[i].grad_norm,
		       nb = cpu.stats[i].grad_norm;

		if (!(fabs(a - b) <= tol * fabs(b)) || !(fabs(na - nb) <= 20 * tol * nb))
			fail_msg("%s: step %d: loss %.9g, on the CPU %.9g; gradient norm %.9g, on the CPU %.9g", what,
				i, a, b, na, nb);
	}
	print_message("%s: loss %.6f, gradients differ by %.1e, weights by %.1e\n", what, gpu.stats[STEPS - 1].loss,
		grad, weight);
	if (!(grad <= 5 * tol) || !(weight <= 5 * tol))
		fail_msg("%s: gradients differ by %g, weights by %g", what, grad, weight);
	assert_true(gpu.stats[0].loss != gpu.stats[1].loss); /* the loss decreases */
	free(cpu.grad), free(cpu.weight), free(gpu.grad), free(gpu.weight);
}

#define RUN(what, tol, ...) compare(what, (const char *const[]){__VA_ARGS__, NULL}, tol)

static void test_dit(void **state)
{
	(void)state;
	RUN("dit", 2e-6, "model.arch=dit", "model.adaln_lora=8", "train.ema_decay=0.9");
	RUN("dit, pooled text, both positions", 2e-6, "model.arch=dit", "model.cross_attention=false",
		"model.pooled_text=true", "model.pos=both", "diffusion.kind=flow");
	RUN("dit in bf16", 2e-3, "model.arch=dit", "train.dtype=bf16", "train.recompute=selective");
	RUN("dit, residual in bf16", 2e-3, "model.arch=dit", "train.dtype=bf16", "train.residual=bf16",
		"model.pos=both", "model.adaln_lora=8");
	RUN("dit, 8-bit moments", 1e-4, "model.arch=dit", "train.moments=int8");
	RUN("dit in bf16, split master, bf16 moments", 2e-3, "model.arch=dit", "train.dtype=bf16", "train.master=split",
		"train.moments=bf16");
}

static void test_moviegen(void **state)
{
	(void)state;
	RUN("moviegen", 2e-6, "model.arch=moviegen", "model.pos=learned", "model.pos_max=[4,6,6]", "model.heads=4",
		"model.kv_heads=2", "diffusion.kind=flow");
	RUN("moviegen in bf16", 2e-3, "model.arch=moviegen", "model.pos=learned", "model.pos_max=[4,6,6]",
		"model.heads=4", "model.kv_heads=2", "diffusion.kind=flow", "train.dtype=bf16", "train.recompute=full");
	RUN("moviegen, residual in bf16", 2e-3, "model.arch=moviegen", "model.pos=learned", "model.pos_max=[4,6,6]",
		"model.heads=4", "model.kv_heads=2", "diffusion.kind=flow", "train.dtype=bf16", "train.residual=bf16",
		"train.recompute=light");
}

/* The fp8 kernels give the bits of the CPU for equal inputs.  Their inputs differ in the last bit, and then an element
 * of e5m2 differs by an eighth. */
static void test_fp8(void **state)
{
	(void)state;
	RUN("dit in fp8, current scaling", 6e-3, "model.arch=dit", "train.dtype=bf16", "train.fp8=current",
		"train.recompute=full");
	RUN("dit in fp8, delayed scaling", 6e-3, "model.arch=dit", "train.dtype=bf16", "train.fp8=delayed",
		"train.fp8_history=2");
	RUN("moviegen in fp8, delayed scaling", 6e-3, "model.arch=moviegen", "model.pos=learned",
		"model.pos_max=[4,6,6]", "model.heads=4", "model.kv_heads=2", "diffusion.kind=flow", "train.dtype=bf16",
		"train.fp8=delayed", "train.recompute=light");
}

static void test_frozen(void **state)
{
	(void)state;
	RUN("wan, adapters, base in fp8", 2e-6, "model.arch=wan", "lora.rank=4", "train.frozen_dtype=fp8");
	RUN("wan, adapters, base in fp8, products in bf16", 2e-3, "model.arch=wan", "lora.rank=4",
		"train.frozen_dtype=fp8", "train.dtype=bf16", "train.recompute=full");
	RUN("wan, adapters, base in NF4 on the host", 2e-6, "model.arch=wan", "model.ffn=128", "lora.rank=4",
		"train.frozen_dtype=nf4", "train.offload_weights=1");
	RUN("wan, adapters, base in int8", 2e-3, "model.arch=wan", "model.ffn=128", "lora.rank=4",
		"train.frozen_dtype=int8", "train.dtype=bf16", "train.recompute=full");
}

/* Every architecture; in bf16 a rounding may change which expert a token gets (test_moe). */
static void test_architectures(void **state)
{
	(void)state;
	for (int i = 0; vfm_arch_names[i]; i++) {
		bool learned = vfm_archs[i]->pos == VFM_POS_LEARNED, experts = vfm_archs[i]->mlp == VFM_MLP_EXPERTS;
		const char *pos = learned ? "model.pos=learned" : "model.pos=rope";
		char arch[64];

		snprintf(arch, sizeof(arch), "model.arch=%s", vfm_arch_names[i]);
		RUN(arch, 2e-6, arch, pos);
		if (experts)
			continue;
		RUN(arch, 2e-3, arch, pos, "train.dtype=bf16");
		RUN(arch, 2e-3, arch, pos, "train.dtype=bf16", "train.residual=bf16");
	}
}

/* Rounding in bf16 may change the routing, so every expert gets every token. */
static void test_moe(void **state)
{
	(void)state;
	RUN("moe, experts choose", 2e-6, "model.arch=moe", "model.experts=6", "model.expert_ffn=40",
		"model.shared_experts=1", "model.moe_capacity=2");
	RUN("moe, tokens choose", 2e-6, "model.arch=moe", "model.experts=6", "model.expert_ffn=40",
		"model.shared_experts=0", "model.moe_router=token_choice", "model.moe_capacity=2", "model.moe_aux=0.01",
		"train.recompute=full");
	RUN("moe, residual in bf16", 2e-3, "model.arch=moe", "model.experts=3", "model.expert_ffn=40",
		"model.shared_experts=1", "model.moe_capacity=3", "train.dtype=bf16", "train.residual=bf16");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dit),
		cmocka_unit_test(test_moviegen),
		cmocka_unit_test(test_fp8),
		cmocka_unit_test(test_frozen),
		cmocka_unit_test(test_architectures),
		cmocka_unit_test(test_moe),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
