/* Benchmarks of a step run on dense values: no operand of a matrix product is mostly zero, from the first product on.
 * The speed of a product depends on its values, and algorithms are chosen by timing at its first use. */
#include <stdio.h>
#include <string.h>

#include "ok.h"
#include "device/ops/ops.h"
#include "spec/model/arch.h"
#include "train/predict/bench.h"

static struct {
	const struct vfm_ops *ops;
	int64_t products;
	double worst; /* the largest share of zeros in an operand */
	char what[256];
} seen;

static double share_of_zeros(const struct vfm_tensor *t)
{
	int64_t cols = t->shape[t->ndim - 1], rows = vfm_numel(t) / (cols ? cols : 1), zeros = 0, n = 0;
	size_t size = vfm_dtype_size(t->dtype);

	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++, n++) {
			static const char nothing[8];
			const char *at = (const char *)t->data + (size_t)(r * t->stride[t->ndim - 2] + c) * size;

			zeros += memcmp(at, nothing, size) == 0;
		}
	return n ? (double)zeros / (double)n : 0;
}

static void look_at(const char *name, const struct vfm_tensor *t)
{
	double share = t->ndim == 2 ? share_of_zeros(t) : 0;

	if (share > seen.worst) {
		seen.worst = share;
		snprintf(seen.what, sizeof(seen.what), "product %d: %s is [%d, %d]", (int)seen.products, name,
			(int)t->shape[0], (int)t->shape[1]);
	}
}

static int watched_gemm(struct vfm_stream *s, const struct vfm_gemm *a, struct vfm_err *e)
{
	seen.products++;
	look_at("a", &a->a);
	look_at("b", &a->b);
	return seen.ops->gemm(s, a, e);
}

static int run_bench(struct vfm_context *x, void *ctx, struct vfm_err *e)
{
	const struct vfm_config *c = ctx;
	struct vfm_bench_step b = {
		.samples = 2, .grid = {2, 4, 4}, .text_len = 7, .packs = 2, .warmup = 0, .steps = 1, .min_s = 0};
	struct vfm_bench_result r;
	const struct vfm_dev_table *t;
	struct vfm_dev_table table;
	struct vfm_ops ops;
	int rc;

	TRY(vfm_context_open(x, c, e));
	t = x->device.dev->t;
	seen.ops = t->ops;
	ops = *t->ops;
	ops.gemm = watched_gemm;
	table = *t;
	table.ops = &ops;
	x->device.dev->t = &table;
	rc = vfm_bench_run(x, c, &b, &r, e);
	x->device.dev->t = t;
	return rc;
}

static void test_presets(void **state)
{
	const struct vfm_preset *p;
	struct vfm_context_opts o = VFM_CONTEXT_OPTS_INIT;
	struct vfm_config c;
	double most;

	(void)state;
	for (int at = 0; (p = vfm_preset_at(at)); at++)
		for (int dt = VFM_F32; dt <= VFM_BF16; dt++) {
			vfm_config_defaults(&c);
			OK(vfm_model_preset(p->name, &c.model, &err));
			c.model.layers = 2;
			c.model.single_layers = c.model.single_layers ? 1 : 0;
			c.model.hidden = 64;
			c.model.heads = 4;
			c.model.kv_heads = c.model.kv_heads ? 2 : 0;
			c.model.ffn = 0;
			memset(c.model.rope_axes, 0, sizeof(c.model.rope_axes));
			c.model.adaln_lora = c.model.adaln_lora ? 4 : 0;
			c.model.expert_ffn = c.model.experts ? 16 : 0;
			c.model.text_pad = false; /* rows of zeros */
			c.train.ema_decay = 0;
			c.train.dtype = dt;
			OK(vfm_config_check(&c, &err));
			memset(&seen, 0, sizeof(seen));
			OK(vfm_context_run(&o, run_bench, &c, &err));
			print_message("%-12s %s: %d products, at most %.2f %% zeros\n", p->name,
				dt == VFM_BF16 ? "bf16" : "fp32", (int)seen.products, 100 * seen.worst);
			assert_true(seen.products > 50);
			/* What the input says of given frames is zeros; so is the gradient of the last block's text. */
			most = 0.02 + (double)vfm_model_given_dim(&c.model) / (double)vfm_model_input_dim(&c.model);
			most = vfm_model_arch(&c.model)->joint ? 1 : most;
			if (seen.worst > most)
				fail_msg("%s: %.0f %% zeros: %s", p->name, 100 * seen.worst, seen.what);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_presets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
