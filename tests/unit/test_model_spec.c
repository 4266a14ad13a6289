/* Model dimensions: presets against the manual, counts, and what the check refuses. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/file.h"
#include "ok.h"
#include "spec/model/linears.h"
#include "spec/model/model.h"

static struct vfm_model_spec preset(const char *name)
{
	struct vfm_model_spec m;

	OK(vfm_model_preset(name, &m, &err));
	OK(vfm_model_check(&m, &err));
	return m;
}

/* ---- the manual ---- */

#define PAGE "man/vfm-config.5"

struct row {
	char name[32], ffn[32];
	long long layers, hidden, heads, kv_heads, adaln_lora;
	double params, active; /* in millions; active 0: all */
};

/* A row of the table of presets: ".It dit-s Ta 12 Ta ...". */
static bool read_row(const char *line, struct row *r)
{
	int n;

	*r = (struct row){0};
	n = sscanf(line, ".It %31s Ta %lld Ta %lld Ta %lld Ta %lld Ta %31[0-9x ] Ta %lld Ta %lf (%lf active)", r->name,
		&r->layers, &r->hidden, &r->heads, &r->kv_heads, r->ffn, &r->adaln_lora, &r->params, &r->active);
	for (size_t k = strlen(r->ffn); k > 0 && r->ffn[k - 1] == ' '; k--)
		r->ffn[k - 1] = '\0';
	return n >= 8;
}

/* The parameters that compute one token on average: of the experts, moe_capacity. */
static int64_t active_params(const struct vfm_model_spec *m)
{
	double idle = vfm_model_has_experts(m) ? (double)m->experts - m->moe_capacity : 0;

	return vfm_model_params(m) - (int64_t)(idle * (double)(m->layers * 2 * m->hidden * m->expert_ffn));
}

static void check_row(const struct row *r)
{
	struct vfm_model_spec m = preset(r->name);
	double p = (double)vfm_model_params(&m) / 1e6, a = (double)active_params(&m) / 1e6,
	       active = r->active > 0 ? r->active : r->params;
	char ffn[64];

	if (vfm_model_has_experts(&m))
		snprintf(ffn, sizeof(ffn), "%lld x %lld", (long long)m.experts, (long long)m.expert_ffn);
	else
		snprintf(ffn, sizeof(ffn), "%lld", (long long)m.ffn);
	if (m.layers != r->layers || m.hidden != r->hidden || m.heads != r->heads || m.kv_heads != r->kv_heads ||
		m.adaln_lora != r->adaln_lora || strcmp(ffn, r->ffn) != 0)
		fail_msg("%s has other dimensions in " PAGE, r->name);
	if (fabs(p / r->params - 1) > 0.004 || fabs(a / active - 1) > 0.004)
		fail_msg("%s: %.1f M parameters, %.1f M active; not those of " PAGE, r->name, p, a);
}

/* The manual has a row for each preset, in the same order, with dimensions and parameters by hand; h, f, k = outputs of
 * the keys:
 *   dit       a block: 8 h^2 (self, cross), 2 h f, modulation 6 h^2, or 7 r h with LoRA of rank r
 *   moviegen  6 h^2 (modulation), 4 h^2 + 4 h k (self and cross), 3 h f.  The 30B of arXiv 2410.13720 has no grouped
 *             queries (+ 3.4e9), and a modulation much smaller than a matrix a block (- 10.9e9)
 *   wan       a block: 8 h^2 (self, cross), 2 h f; the model: 6 h^2 (modulation), the text MLP td h + h^2
 *   moe-1b    is named by its active parameters */
static void test_presets(void **state)
{
	const struct vfm_preset *p;
	int at = 0;
	char line[1024];
	struct row r;
	FILE *f = fopen(PAGE, "r");

	(void)state;
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		if (!read_row(line, &r))
			continue;
		p = vfm_preset_at(at++);
		if (!p || strcmp(r.name, p->name) != 0)
			fail_msg(PAGE ": %s stands where the presets have %s", r.name, p ? p->name : "no more");
		check_row(&r);
	}
	fclose(f);
	p = vfm_preset_at(at);
	if (p)
		fail_msg(PAGE " has no row for %s", p->name);
}

/* The manual explains every architecture. */
static void test_architectures(void **state)
{
	char *text, item[64];
	size_t len;

	(void)state;
	OK(vfm_read_file(PAGE, 1 << 20, &text, &len, &err));
	for (int i = 0; vfm_arch_names[i]; i++) {
		assert_string_equal(vfm_archs[i]->name, vfm_arch_names[i]);
		snprintf(item, sizeof(item), "\n.It Cm %s\n", vfm_arch_names[i]);
		if (!strstr(text, item))
			fail_msg(PAGE " does not explain model.arch '%s'", vfm_arch_names[i]);
	}
	free(text);
}

/* The FLOPs of the linear layers are 2 a weight and token: what is left is attention. */
static void test_flops(void **state)
{
	const struct vfm_preset *preset_row;
	static const int32_t grid[3] = {8, 16, 16};

	(void)state;
	for (int at = 0; (preset_row = vfm_preset_at(at)); at++) {
		struct vfm_model_spec m = preset(preset_row->name);
		const struct vfm_arch *a = vfm_model_arch(&m);
		struct vfm_pack_sums p = {0};
		double s = 8 * 256, h = (double)m.hidden, attn = 0, linear, got;

		m.cross_attention = false;
		m.adaln_lora = 0;
		vfm_pack_sums_add(&p, grid, 0);
		for (int i = 0; i < a->n_attn; i++)
			attn += (double)m.layers * 4 * s * h *
				(a->attn[i] == VFM_ATTN_SPATIAL                   ? 256
						: a->attn[i] == VFM_ATTN_TEMPORAL ? 8
										  : s);
		linear = 2 * s * (double)active_params(&m);
		/* modulation and time embedding are made once a sample, not once a token */
		if (a->mod == VFM_MOD_LOW_RANK) /* of rank 0 */
			linear -= 2 * (s - 1) * 4 * h * h;
		else
			linear -= 2 * (s - 1) *
				((a->mod == VFM_MOD_TABLE ? 1 : (double)m.layers) * a->n_mod * h * h + 256 * h +
					(a->head_table ? 1 : 3) * h * h);
		if (m.pos == VFM_POS_LEARNED)
			linear -= 2 * s * 768 * h;
		if (a->joint) /* the layers of the tokens; there is no text */
			linear = 2 * s * (double)m.layers * (4 * h * h + 2 * h * (double)m.ffn) +
				2 * s * h * (double)(vfm_model_input_dim(&m) + vfm_model_patch_dim(&m));
		got = vfm_model_flops(&m, &p);
		if (fabs(got / (attn + linear) - 1) > 2e-3) /* biases and norms */
			fail_msg("%s: %g FLOPs, expected %g", preset_row->name, got, attn + linear);
	}
}

/* RoPE of cosmos, against the formula of CosmosRotaryPosEmbed in diffusers: the angles of the axes with their range, and
 * the frame rate. */
static void test_rope_axes(void **state)
{
	static const struct {
		const char *preset;
		double fps;
		int64_t features[3];
		double ratio[3]; /* exponents n / (n - 2) of the range */
		double scale;
	} cases[] = {
		{"dit-s", 0, {24, 20, 20}, {0, 0, 0}, 1},
		{"wan-1.3b", 0, {44, 42, 42}, {0, 0, 0}, 1},
		{"cosmos2-14b", 0, {44, 42, 42}, {44.0 / 42, 42.0 / 40, 42.0 / 40}, 1},
		{"cosmos2.5-2b", 16, {44, 42, 42}, {44.0 / 42, 42.0 / 40, 42.0 / 40}, 1.5},
		{"cosmos2-t2i-2b", 24, {44, 42, 42}, {44.0 / 42, 42.0 / 40, 42.0 / 40}, 1},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct vfm_model_spec m;
		struct vfm_rope_axes r;

		OK(vfm_model_preset(cases[i].preset, &m, &err));
		m.rope_fps = cases[i].fps;
		OK(vfm_model_check(&m, &err));
		vfm_model_rope_axes(&m, &r);
		for (int a = 0; a < 3; a++) {
			double theta = 10000 * pow(m.rope_scale[a], cases[i].ratio[a]);

			assert_int_equal(r.features[a], cases[i].features[a]);
			assert_true(fabs(r.theta[a] / theta - 1) < 1e-12);
			assert_true(fabs(r.scale[a] - (a ? 1 : cases[i].scale)) < 1e-12);
		}
		for (int a = 0; a < 3; a++) { /* which only cosmos and only hunyuan read */
			m.rope_scale[a] = 2;
			m.rope_axes[a] = 8;
		}
		vfm_model_rope_axes(&m, &r);
		assert_true((r.theta[0] > 10000 * 2) == (cases[i].ratio[0] > 0));
		assert_true((r.theta[2] > 10000 * 2) == (cases[i].ratio[2] > 0));
		assert_int_equal(r.features[0], cases[i].features[0]);
	}
}

/* Axes of 0 become the default; one that is 0 beside others is 0. */
static void test_own_axes(void **state)
{
	struct vfm_model_spec m;

	(void)state;
	OK(vfm_model_preset("hunyuanvideo-1.5", &m, &err));
	memset(m.rope_axes, 0, sizeof(m.rope_axes));
	OK(vfm_model_check(&m, &err));
	assert_memory_equal(m.rope_axes, ((int64_t[]){44, 42, 42}), sizeof(m.rope_axes));
	memcpy(m.rope_axes, (int64_t[]){0, 64, 64}, sizeof(m.rope_axes));
	OK(vfm_model_check(&m, &err));
	assert_memory_equal(m.rope_axes, ((int64_t[]){0, 64, 64}), sizeof(m.rope_axes));
}

static void test_check(void **state)
{
	const struct vfm_preset *p;
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
		{"moe-1b", "token choice needs an integer, the experts per token; got 1.5", 8, 8, 1.5, VFM_POS_ROPE,
			VFM_MOE_TOKEN_CHOICE},
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
	assert_non_null(strstr(err.msg, "model.arch: expected one of dit, moviegen, stdit, "));
	assert_non_null(strstr(err.msg, ", got 'unet'"));
	for (int at = 0; (p = vfm_preset_at(at)); at++) {
		OK(vfm_model_preset(p->name, &m, &err));
		m.adaln_lora = 4;
		if (vfm_model_arch(&m)->mod != VFM_MOD_TABLE) {
			OK(vfm_model_check(&m, &err));
			continue;
		}
		assert_int_equal(vfm_model_check(&m, &err), VFM_EUSAGE);
		assert_non_null(strstr(err.msg, "have no modulation matrices; 0 would fit"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_presets),
		cmocka_unit_test(test_architectures),
		cmocka_unit_test(test_flops),
		cmocka_unit_test(test_check),
		cmocka_unit_test(test_rope_axes),
		cmocka_unit_test(test_own_axes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
