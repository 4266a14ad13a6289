/* The tables of other programs' layouts: every element of theirs is one element of ours, for each preset. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ok.h"
#include "spec/model/foreign.h"
#include "spec/model/linears.h"

static struct vfm_err err;

static int by_ours(const void *a, const void *b)
{
	const struct vfm_foreign_copy *x = a, *y = b;

	return x->ours != y->ours ? x->ours - y->ours : x->a < y->a ? -1 : 1;
}

static int by_theirs(const void *a, const void *b)
{
	const struct vfm_foreign_copy *x = a, *y = b;

	return x->theirs != y->theirs ? x->theirs - y->theirs : x->b < y->b ? -1 : 1;
}

/* The copies, in the order of one side, cover each of its tensors without gap or overlap.  Returns the elements. */
static int64_t check_cover(const struct vfm_foreign_map *map, bool theirs)
{
	const struct vfm_foreign_tensor *t = theirs ? map->theirs : map->ours;
	int n = theirs ? map->n_theirs : map->n_ours, at = 0;
	int64_t next = 0, sum = 0;

	qsort(map->copy, map->n_copies, sizeof(*map->copy), theirs ? by_theirs : by_ours);
	for (size_t i = 0; i < map->n_copies; i++) {
		const struct vfm_foreign_copy *k = &map->copy[i];

		assert_int_equal(theirs ? k->theirs : k->ours, at);
		assert_true((theirs ? k->b : k->a) == next && k->n > 0);
		next += k->n;
		sum += k->n;
		if (next == t[at].numel) {
			next = 0;
			at++;
		}
	}
	assert_int_equal(at, n);
	return sum;
}

static void check_map(struct vfm_model_spec *m, int layout)
{
	struct vfm_foreign_map map;

	OK(vfm_model_check(m, &err));
	vfm_foreign_expand(&map, m, layout);
	assert_true(check_cover(&map, false) == vfm_model_params(m));
	assert_true(check_cover(&map, true) == vfm_model_params(m));
	for (int i = 1; i < map.n_theirs; i++)
		assert_string_not_equal(map.theirs[i - 1].name, map.theirs[i].name);
	vfm_foreign_map_release(&map);
}

static void test_cover(void **state)
{
	const struct vfm_preset *p;
	struct vfm_model_spec m;
	int maps = 0;

	(void)state;
	for (int i = 0; (p = vfm_preset_at(i)); i++) {
		OK(vfm_model_preset(p->name, &m, &err));
		for (int l = 0; vfm_model_arch(&m)->foreign && l < vfm_model_arch(&m)->foreign->n_layouts; l++) {
			if (m.image_dim && vfm_model_arch(&m)->foreign->layout[l].import_only)
				continue;
			check_map(&m, l);
			m.patch[0] = 2;
			m.patch[2] = 3;
			m.channels = 5;
			check_map(&m, l);
			maps++;
		}
	}
	assert_true(maps >= 9);
}

/* config.json and the shapes alone give the model back. */
static void test_dimensions(void **state)
{
	const struct vfm_preset *p;
	struct vfm_model_spec m, got;

	(void)state;
	for (int i = 0; (p = vfm_preset_at(i)); i++) {
		const struct vfm_foreign *f;

		OK(vfm_model_preset(p->name, &m, &err));
		OK(vfm_model_check(&m, &err));
		f = vfm_model_arch(&m)->foreign;
		for (int l = 0; f && l < f->n_layouts; l++) {
			struct vfm_foreign_map map;
			json_t *config;

			if (m.image_dim && f->layout[l].import_only)
				continue;
			config = vfm_foreign_write_config(&m, l);

			vfm_foreign_begin(&got, vfm_model_arch(&m));
			OK(vfm_foreign_read_config(&got, f, l, config, "config.json", &err));
			OK(vfm_foreign_check_config(&m, l, config, "config.json", &err));
			json_decref(config);
			vfm_foreign_expand(&map, &m, l);
			for (int alone = 0; alone < 2; alone++) {
				for (int pass = 0; pass < 2; pass++)
					for (const struct vfm_foreign_row *r = f->rows; r->ours; r++)
						for (int t = 0; t < map.n_theirs; t++)
							vfm_foreign_infer(&got, r, l, map.theirs[t].name,
								map.theirs[t].ndim, map.theirs[t].shape);
				OK(vfm_foreign_finish(&got, f, &err));
				assert_memory_equal(&got, &m, sizeof(m));
				vfm_foreign_begin(&got, vfm_model_arch(&m));
			}
			vfm_foreign_map_release(&map);
		}
	}
}

/* The files of a model of another program have all rows that its table has. */
static void test_lacking(void **state)
{
	struct vfm_model_spec m, got;
	json_t *config;
	int layout;

	(void)state;
	OK(vfm_model_preset("hunyuanvideo-1.5", &m, &err));
	OK(vfm_model_check(&m, &err));
	OK(vfm_foreign_find(&m, "diffusers", &layout, &err));
	m.text2_dim = 0;
	assert_int_equal(vfm_foreign_find(&m, "diffusers", &layout, &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "model.text2_dim: the layout diffusers cannot express its value");
	config = vfm_foreign_write_config(&m, layout);
	vfm_foreign_begin(&got, vfm_model_arch(&m));
	OK(vfm_foreign_read_config(&got, vfm_model_arch(&m)->foreign, layout, config, "config.json", &err));
	assert_int_equal(vfm_foreign_finish(&got, vfm_model_arch(&m)->foreign, &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "neither config.json nor the tensors give model.text2_dim");
	json_decref(config);
}

/* config.json of another program may lack what its code has by default; the metadata of an export have the rest. */
static void test_defaults(void **state)
{
	struct vfm_model_spec m, got;
	json_t *config, *model;

	(void)state;
	OK(vfm_model_preset("hunyuanvideo-1.5", &m, &err));
	m.text2_len = 3;
	m.image_len = 5;
	m.text_len = 7;
	m.rope_theta = 300;
	OK(vfm_model_check(&m, &err));
	config = vfm_foreign_write_config(&m, 0);
	model = vfm_model_json(&m);
	json_object_del(config, "rope_theta");
	vfm_foreign_begin(&got, vfm_model_arch(&m));
	OK(vfm_foreign_read_config(&got, vfm_model_arch(&m)->foreign, 0, config, "config.json", &err));
	assert_true(got.rope_theta == 256);
	json_object_set_new(model, "text2_dim", json_integer(9));
	OK(vfm_foreign_read_meta(&got, model, "meta", &err));
	assert_true(got.rope_theta == 300 && got.text2_len == 3 && got.image_len == 5 && got.text_len == 7);
	assert_int_equal(got.text2_dim, m.text2_dim);
	json_object_set_new(config, "mlp_ratio", json_real(1e-4));
	vfm_foreign_begin(&got, vfm_model_arch(&m));
	assert_int_equal(
		vfm_foreign_read_config(&got, vfm_model_arch(&m)->foreign, 0, config, "config.json", &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "config.json: mlp_ratio: 0.0001 times 2048 features are none");
	json_decref(config);
	json_decref(model);
}

/* 472 / 232 * 232 is less than 472 in double; readers round it down. */
static void test_mlp_ratio(void **state)
{
	struct vfm_model_spec m, got;
	json_t *config;

	(void)state;
	OK(vfm_model_preset("cosmos2-2b", &m, &err));
	m.hidden = 232;
	m.heads = 29;
	m.ffn = 472;
	config = vfm_foreign_write_config(&m, 0);
	vfm_foreign_begin(&got, vfm_model_arch(&m));
	OK(vfm_foreign_read_config(&got, vfm_model_arch(&m)->foreign, 0, config, "config.json", &err));
	assert_int_equal(got.ffn, 472);
	json_decref(config);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_cover), cmocka_unit_test(test_dimensions),
		cmocka_unit_test(test_lacking), cmocka_unit_test(test_defaults), cmocka_unit_test(test_mlp_ratio)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
