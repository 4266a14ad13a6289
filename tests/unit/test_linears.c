/* The list of linear layers: against the parameters that the models declare, and against their FLOPs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "model/model.h"
#include "spec/linears.h"
#include "train/config.h"
#include "train/device.h"

static const char *const variants[][5] = {
	{"model.arch=dit", "model.pooled_text=true"},
	{"model.arch=dit", "model.adaln_lora=8", "model.kv_heads=2"},
	{"model.arch=dit", "model.cross_attention=false"},
	{"model.arch=moviegen", "model.pos=learned", "model.kv_heads=2"},
	{"model.arch=stdit"},
	{"model.arch=pixart", "model.pos=sincos"},
	{"model.arch=wan"},
	{"model.arch=wan", "model.cond_channels=20", "model.image_dim=24", "model.image_len=7"},
	{"model.arch=moe", "model.experts=4", "model.expert_ffn=16", "model.moe_capacity=2"},
};

static void variant(struct vfm_config *c, int i)
{
	struct vfm_err err = {0};

	vfm_config_defaults(c);
	c->model.layers = 3;
	c->model.hidden = 64;
	c->model.heads = 4;
	c->model.channels = 4;
	c->model.text_dim = 24;
	c->diffusion.kind = VFM_FLOW;
	for (int k = 0; k < 5 && variants[i][k]; k++)
		assert_int_equal(vfm_config_set(c, variants[i][k], &err), 0);
	if (vfm_config_check(c, &err) < 0)
		fail_msg("%s", err.msg);
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

	snprintf(name, sizeof(name), "%s.weight", l->name);
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

	for (int i = 0; i < a->n_attn; i++)
		sum += a->attn[i] == VFM_ATTN_SPATIAL ? p->Qs : a->attn[i] == VFM_ATTN_TEMPORAL ? p->Qt : p->Q;
	if (m->cross_attention)
		sum += p->X + (m->image_dim ? p->q * (double)m->image_len : 0);
	return 4 * (double)(m->layers * m->hidden) * sum;
}

static void test_declared(void **state)
{
	struct vfm_err err = {0};
	struct vfm_device dev;

	(void)state;
	assert_int_equal(vfm_device_open(&dev, "cpu", &err), 0);
	for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
		struct vfm_params ps;
		struct declared d = {.ps = &ps};
		struct vfm_pack_sums p;
		struct vfm_config c;
		struct vfm_model *m;
		double want;
		int matrices = 0;

		variant(&c, (int)i);
		some_pack(&c.model, &p);
		vfm_params_init(&ps, dev.stream, vfm_mesh_one());
		m = vfm_model_new(&c.model, &ps);
		vfm_model_linears(&c.model, &p, 0, c.model.layers, check_linear, &d);
		for (size_t k = 0; k < ps.n; k++) {
			const char *name = ps.p[k]->name;

			matrices += ps.p[k]->d.ndim > 1 && strncmp(name, "pos.", 4) != 0 &&
				!strstr(name, "scale_shift_table");
		}
		assert_int_equal(d.found, matrices);
		want = vfm_model_flops(&c.model, &p);
		assert_true(fabs(d.flops + attention_flops(&c.model, &p) - want) < 1e-9 * want);
		vfm_model_free(m);
		vfm_params_release(&ps);
	}
	vfm_device_close(&dev);
}

static void test_train_flops(void **state)
{
	struct vfm_pack_sums p;
	struct vfm_config c;
	double all, linear, ends, r = 4, h = 64;

	(void)state;
	variant(&c, 6); /* wan */
	some_pack(&c.model, &p);
	all = vfm_model_train_flops(&c.model, &c.tuning, &p);
	assert_true(all == 3 * vfm_model_flops(&c.model, &p));
	/* only the MLPs are trained */
	strcpy(c.tuning.freeze.text, "*,!blocks.*.fc?.weight");
	linear = 2 * p.q * h * h; /* of a projection [h,h] of the tokens */
	ends = 2 * p.n * (256 * h + h * h + 6 * h * h) + 2 * p.c * (24 * h + h * h) + 2 * p.q * 2 * 16 * h;
	assert_true(fabs(vfm_model_train_flops(&c.model, &c.tuning, &p) -
			    (all - 3 * (6 * linear + 2 * 2 * p.c * h * 2 * h) - 2 * ends)) < 1e-9 * all);
	/* adapters of the self-attention */
	c.tuning = (struct vfm_tuning){.rank = 4, .targets = {"blocks.*.attn.*"}, .freeze = {"nothing"}};
	assert_true(fabs(vfm_model_train_flops(&c.model, &c.tuning, &p) -
			    (all + 3 * 3 * 2 * p.q * r * (3 * h + 3 * h + h + h))) < 1e-9 * all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_declared),
		cmocka_unit_test(test_train_flops),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
