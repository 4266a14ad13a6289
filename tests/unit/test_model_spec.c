/* Model dimensions: presets against published sizes, counts, and what the check refuses. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ok.h"
#include "spec/model.h"

static struct vfm_model_spec preset(const char *name)
{
	struct vfm_model_spec m;

	OK(vfm_model_preset(name, &m, &err));
	OK(vfm_model_check(&m, &err));
	return m;
}

/* In millions, by hand from the dimensions (h, f, k = outputs of the keys):
 *   dit       a block: 8 h^2 (self, cross), 2 h f, modulation 6 h^2, or 7 r h with LoRA of rank r
 *   moviegen  6 h^2 (modulation), 4 h^2 + 4 h k (self and cross), 3 h f.  The 30B of arXiv 2410.13720 has no grouped
 *             queries (+ 3.4e9), and a modulation much smaller than a matrix a block (- 10.9e9)
 *   moe-1b    is named by its active parameters */
static void test_presets(void **state)
{
	static const struct {
		const char *name;
		double params, active;
	} want[] = {
		{"dit-s", 39.9, 39.9},
		{"dit-b", 158.6, 158.6},
		{"dit-xl", 823.1, 823.1},
		{"dit-7b", 7879, 7879},
		{"dit-28b", 29868, 29868},
		{"moviegen-1b", 1560.5, 1560.5},
		{"moviegen-5b", 5873.5, 5873.5},
		{"moviegen-30b", 33950, 33950},
		{"stdit-xl", 1343.3, 1343.3},
		{"moe-1b", 5117.8, 1359.7},
	};
	int n = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		struct vfm_model_spec m = preset(want[i].name);
		double p = (double)vfm_model_params(&m) / 1e6, a = (double)vfm_model_active_params(&m) / 1e6;

		if (fabs(p / want[i].params - 1) > 0.004 || fabs(a / want[i].active - 1) > 0.004)
			fail_msg("%s: %.1f M parameters, %.1f M active", want[i].name, p, a);
	}
	while (vfm_model_presets[n]) {
		struct vfm_model_spec m = preset(vfm_model_presets[n++]);

		assert_int_equal(m.hidden % m.heads, 0);
	}
	assert_int_equal(n, 11);
}

/* The FLOPs of the linear layers are 2 a weight and token: what is left is attention. */
static void test_flops(void **state)
{
	static const char *const names[] = {"dit-28b", "moviegen-30b", "stdit-xl", "moe-1b"};
	static const int32_t grid[3] = {8, 16, 16};

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct vfm_model_spec m = preset(names[i]);
		struct vfm_pack_sums p = {0};
		double s = 8 * 256, h = (double)m.hidden, attn, linear, got;

		m.cross_attention = false;
		m.adaln_lora = 0;
		vfm_pack_sums_grid(&p, grid, 0);
		attn = (double)m.layers * 4 * s * s * h;
		if (!strcmp(m.arch, "stdit"))
			attn += (double)m.layers * 4 * s * h * (256 + 8);
		linear = 2 * s * (double)vfm_model_active_params(&m);
		/* modulation and time embedding are made once a sample, not once a token */
		linear -= 2 * (s - 1) * ((double)m.layers * vfm_model_mods(&m) * h * h + 256 * h + h * h + 2 * h * h);
		if (m.pos == VFM_POS_LEARNED)
			linear -= 2 * s * 768 * h;
		got = vfm_model_flops(&m, &p);
		if (fabs(got / (attn + linear) - 1) > 2e-3) /* biases and norms */
			fail_msg("%s: %g FLOPs, expected %g", names[i], got, attn + linear);
	}
}

static void test_check(void **state)
{
	static const struct {
		const char *preset, *says;
		int64_t kv_heads, experts;
		double capacity;
		int pos, router;
	} bad[] = {
		{"dit-s", "model.kv_heads: 4 does not divide model.heads 6", 4, 8, 1, VFM_POS_ROPE, 0},
		{"dit-s", "model.kv_heads: expected 0 to 6, got 7", 7, 8, 1, VFM_POS_ROPE, 0},
		{"dit-s", "model.pos: model.arch 'dit' does not have 'learned'", 0, 8, 1, VFM_POS_LEARNED, 0},
		{"moviegen-1b", "model.pos: model.arch 'moviegen' has only 'learned'", 8, 8, 1, VFM_POS_ROPE, 0},
		{"moe-1b", "model.experts: expected 1 to 4096, got 0", 8, 0, 1, VFM_POS_ROPE, 0},
		{"moe-1b", "model.moe_capacity: expected more than 0, at most model.experts 8, got 9", 8, 8, 9,
			VFM_POS_ROPE, 0},
		{"moe-1b", "model.moe_capacity: expected more than 0, at most model.experts 8, got 0", 8, 8, 0,
			VFM_POS_ROPE, 0},
		{"moe-1b", "with token choice it is the experts of a token, an integer; got 1.5", 8, 8, 1.5,
			VFM_POS_ROPE, VFM_MOE_TOKEN_CHOICE},
	};
	struct vfm_model_spec m;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		OK(vfm_model_preset(bad[i].preset, &m, &err));
		m.kv_heads = bad[i].kv_heads;
		m.experts = bad[i].experts;
		m.moe_capacity = bad[i].capacity;
		m.pos = bad[i].pos;
		m.moe_router = bad[i].router;
		assert_int_equal(vfm_model_check(&m, &err), VFM_EUSAGE);
		if (!strstr(err.msg, bad[i].says))
			fail_msg("'%s' does not say '%s'", err.msg, bad[i].says);
	}
	vfm_model_defaults(&m);
	strcpy(m.arch, "unet");
	assert_int_equal(vfm_model_check(&m, &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "model.arch: expected one of dit, moviegen, stdit, moe, got 'unet'");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_presets),
		cmocka_unit_test(test_flops),
		cmocka_unit_test(test_check),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
