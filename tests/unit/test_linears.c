/* The list of linear layers: against the parameters that the models declare, and against their FLOPs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "train/job/config.h"
#include "device/open/open.h"
#include "net/diffusion/model.h"
#include "spec/model/linears.h"

/* Variants of each architecture; those that it refuses are left out. */
static const struct variant {
	bool pooled_text, no_cross, kv_heads, adaln_lora, image, single;
} variants[] = {{0}, {.pooled_text = true}, {.no_cross = true}, {.kv_heads = true}, {.adaln_lora = true},
	{.image = true}, {.single = true}};

enum { N_VARIANTS = sizeof(variants) / sizeof(variants[0]) };

static bool set_variant(struct vfm_model_spec *m, const struct vfm_arch *a, const struct variant *v)
{
	struct vfm_err err = {0};

	vfm_model_defaults(m);
	snprintf(m->arch, sizeof(m->arch), "%s", a->name);
	m->pos = a->pos;
	m->layers = 3;
	m->hidden = 64;
	m->heads = 4;
	m->channels = 4;
	m->text_dim = 24;
	m->experts = 4;
	m->expert_ffn = 16;
	m->moe_capacity = 2;
	m->pooled_text = v->pooled_text;
	m->cross_attention = !v->no_cross;
	m->kv_heads = v->kv_heads ? 2 : 0;
	m->adaln_lora = v->adaln_lora ? 8 : 0;
	m->cond_channels = v->image ? 20 : 0;
	m->image_dim = v->image ? 24 : 0;
	m->image_len = 7;
	m->single_layers = v->single ? 2 : 0;
	m->text2_dim = v->single ? 20 : 0;
	m->guidance_dim = v->single ? 32 : 0;
	return vfm_model_check(m, &err) == 0;
}

static void some_pack(const struct vfm_model_spec *m, struct vfm_pack_sums *p)
{
	*p = (struct vfm_pack_sums){0};
	vfm_pack_sums_add(p, (int32_t[]){2, 3, 5}, vfm_model_text_rows(m, 7));
	vfm_pack_sums_add(p, (int32_t[]){1, 4, 4}, vfm_model_text_rows(m, 2));
}

struct declared {
	const struct vfm_params *ps;
	int found;
	double flops;
};

static void check_linear(void *ctx, const struct vfm_linear_shape *l)
{
	struct declared *d = ctx;
	const struct vfm_param *p;
	char name[96];

	vfm_linear_name(l, ".weight", name, sizeof(name));
	p = vfm_param_find(d->ps, name);
	if (!p)
		fail_msg("%s is not declared", name);
	assert_int_equal(p->d.shape[p->d.ndim - 2], l->out);
	assert_int_equal(p->d.shape[p->d.ndim - 1], l->in);
	if (p->d.cut[VFM_AX_TP].groups > 0 && p->d.cut[VFM_AX_TP].dim == 0)
		assert_int_equal(p->d.cut[VFM_AX_TP].groups, l->blocks);
	d->found++;
	d->flops += 2 * l->rows * (double)l->in * (double)l->out;
}

static double attention_flops(const struct vfm_model_spec *m, const struct vfm_pack_sums *p)
{
	const struct vfm_arch *a = vfm_model_arch(m);
	double sum = 0;

	if (a->text == VFM_TEXT_REFINER) /* it reads the text of each sample */
		sum += (double)m->refiner_layers / (double)m->layers * p->pairs_text;
	if (a->joint)
		return 4 * (double)(m->layers * m->hidden) * (p->pairs_joint + sum);
	for (int i = 0; i < a->n_attn; i++)
		sum += a->attn[i] == VFM_ATTN_SPATIAL     ? p->pairs_spatial
			: a->attn[i] == VFM_ATTN_TEMPORAL ? p->pairs_temporal
							  : p->pairs_full;
	if (m->cross_attention)
		sum += p->pairs_cross + (m->image_dim ? p->tokens * (double)m->image_len : 0);
	return 4 * (double)(m->layers * m->hidden) * sum;
}

static void test_declared(void **state)
{
	struct vfm_err err = {0};
	struct vfm_device dev;
	int checked = 0;

	(void)state;
	assert_int_equal(vfm_device_open(&dev, "cpu", &err), 0);
	for (int i = 0; vfm_archs[i / N_VARIANTS]; i++) {
		struct vfm_params ps;
		struct declared d = {.ps = &ps};
		struct vfm_pack_sums p;
		struct vfm_model_spec spec;
		struct vfm_model *m;
		double want;
		int matrices = 0;

		if (!set_variant(&spec, vfm_archs[i / N_VARIANTS], &variants[i % N_VARIANTS]))
			continue;
		checked++;
		some_pack(&spec, &p);
		vfm_params_init(&ps, dev.stream, vfm_mesh_one());
		m = vfm_model_new(&spec, &ps);
		vfm_model_linears(&spec, &p, 0, spec.layers, check_linear, &d);
		for (size_t k = 0; k < ps.n; k++) {
			const char *name = ps.p[k]->name;

			matrices += ps.p[k]->d.ndim > 1 && strncmp(name, "pos.", 4) != 0 &&
				!strstr(name, "scale_shift_table");
		}
		assert_int_equal(d.found, matrices);
		want = vfm_model_flops(&spec, &p);
		assert_true(fabs(d.flops + attention_flops(&spec, &p) - want) < 1e-9 * want);
		vfm_model_free(m);
		vfm_params_release(&ps);
	}
	assert_true(checked > 20);
	vfm_device_close(&dev);
}

static void test_train_flops(void **state)
{
	struct vfm_tuning t;
	struct vfm_pack_sums p;
	struct vfm_model_spec m;
	double all, linear, ends, r = 4, h = 64;

	(void)state;
	assert_true(set_variant(&m, vfm_archs[0], &variants[0])); /* a modulation matrix in every block, MLP of 4 h */
	some_pack(&m, &p);
	vfm_tuning_defaults(&t);
	all = vfm_model_train_flops(&m, &t, &p);
	assert_true(all == 3 * vfm_model_flops(&m, &p));
	/* only the MLPs are trained */
	strcpy(t.freeze.text, "*,!blocks.*.fc?.weight");
	linear = 2 * p.tokens * h * h; /* of a projection [h,h] of the tokens */
	ends = 2 * p.samples * (256 * h + h * h + 2 * h * h + 3 * 6 * h * h) + 2 * p.text_rows * 24 * h +
		2 * p.tokens * 2 * 16 * h;
	assert_true(fabs(vfm_model_train_flops(&m, &t, &p) -
			    (all - 3 * (6 * linear + 2 * 2 * p.text_rows * h * 2 * h) - 2 * ends)) < 1e-9 * all);
	/* adapters of the self-attention */
	t = (struct vfm_tuning){.rank = 4, .targets = {"blocks.*.attn.*"}, .freeze = {"nothing"}};
	assert_true(fabs(vfm_model_train_flops(&m, &t, &p) -
			    (all + 3 * 3 * 2 * p.tokens * r * (3 * h + 3 * h + h + h))) < 1e-9 * all);
}

/* The FLOPs of a forward, as torch.utils.flop_counter counts those of diffusers' models. */
static void test_counted(void **state)
{
	static const struct {
		const char *set[16];
		int32_t grid[3];
		int text, text2, image;
		double flops;
	} rows[] = {
		{{"model.arch=hunyuan", "model.layers=3", "model.hidden=120", "model.heads=3", "model.ffn=360",
			 "model.channels=5", "model.patch=[1,1,1]", "model.text_dim=24", "model.text2_dim=32",
			 "model.image_dim=28", "model.rope_axes=[8,16,16]"},
			{3, 6, 8}, 11, 7, 9, 262764352},
		{{"model.arch=hunyuan1", "model.layers=5", "model.single_layers=3", "model.hidden=120", "model.heads=3",
			 "model.ffn=360", "model.channels=5", "model.patch=[1,2,2]", "model.text_dim=24",
			 "model.text2_dim=20", "model.guidance_dim=256", "model.rope_axes=[8,16,16]"},
			{3, 6, 8}, 11, 1, 0, 291487200},
		{{"model.arch=cosmos", "model.layers=2", "model.hidden=96", "model.heads=4", "model.ffn=288",
			 "model.adaln_lora=8", "model.channels=4", "model.mask_channels=1", "model.text_dim=24"},
			{1, 6, 8}, 512, 0, 0, 51761664},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct vfm_pack_sums p = {0};
		struct vfm_config c;
		struct vfm_err err = {0};

		vfm_config_defaults(&c);
		for (const char *const *set = rows[i].set; *set; set++)
			if (vfm_config_set(&c, *set, &err) != 0)
				fail_msg("%s", err.msg);
		if (vfm_model_check(&c.model, &err) != 0)
			fail_msg("%s", err.msg);
		if (vfm_model_arch(&c.model)->joint)
			vfm_pack_sums_add_joint(&p, rows[i].grid, rows[i].text,
				vfm_model_text2_rows(&c.model, rows[i].text2), rows[i].image);
		else
			vfm_pack_sums_add(&p, rows[i].grid, rows[i].text);
		if (vfm_model_flops(&c.model, &p) != rows[i].flops)
			fail_msg("%s: %.17g FLOPs, not %.17g", rows[i].set[0], vfm_model_flops(&c.model, &p),
				rows[i].flops);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_declared),
		cmocka_unit_test(test_train_flops),
		cmocka_unit_test(test_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
