/* Captions of records, and the choice among them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "data/record/caption.h"
#include "train/job/config.h"

/* chi^2 of the choices of n samples in `steps` steps; p[k] is the probability of name k. */
static double chi2(
	const struct vfm_name_weights *w, int n_names, const char *const *names, const double *p, bool unlisted)
{
	enum { SAMPLES = 200, STEPS = 100 };
	int count[VFM_CAPTIONS_MAX] = {0}, after[VFM_CAPTIONS_MAX][VFM_CAPTIONS_MAX] = {0}, before = 0;
	double sum = 0;
	bool none;

	for (uint64_t s = 0; s < STEPS; s++)
		for (uint64_t id = 0; id < SAMPLES; id++) {
			int k = vfm_caption_choose(w, n_names, names, 42, s, id * 977, &none);

			assert_in_range(k, 0, n_names - 1);
			assert_int_equal(none, unlisted);
			assert_int_equal(k, vfm_caption_choose(w, n_names, names, 42, s, id * 977, &none));
			count[k]++;
			after[before][k]++;
			before = k;
		}
	for (int k = 0; k < n_names; k++) {
		double want = SAMPLES * STEPS * p[k];

		if (p[k] == 0)
			assert_int_equal(count[k], 0);
		else
			sum += (count[k] - want) * (count[k] - want) / want;
		for (int b = 0; b < n_names; b++) { /* consecutive choices are independent */
			double pair = want * p[b];

			if (pair > 0)
				sum += (after[b][k] - pair) * (after[b][k] - pair) / pair;
		}
	}
	return sum;
}

static void choices_follow_the_weights(void **state)
{
	static const char *const names[] = {"long", "short", "tags"};
	static const double equal[] = {1. / 3, 1. / 3, 1. / 3}, weighted[] = {0.75, 0.25, 0}, two[] = {0.5, 0.5};
	const struct vfm_name_weights none = {0}, w = {3, {{"long", 3}, {"other", 5}, {"short", 1}}},
				      other = {1, {{"other", 1}}};

	(void)state;
	/* 2 to 10 degrees of freedom: a value of 30 has a probability below 0.001; the draws are always the same. */
	assert_true(chi2(&none, 3, names, equal, false) < 30);
	assert_true(chi2(&none, 2, names, two, false) < 30);
	assert_true(chi2(&w, 3, names, weighted, false) < 30);
	assert_true(chi2(&other, 3, names, equal, true) < 30);
	assert_true(chi2(&w, 3, names, equal, false) > 1000); /* the statistic tells them apart */
}

static int set(struct vfm_config *c, const char *value, struct vfm_err *err)
{
	char text[600];

	snprintf(text, sizeof(text), "data.captions=%s", value);
	return vfm_config_set(c, text, err);
}

static void weights_are_parsed(void **state)
{
	static const char *const bad[][2] = {{"short", "expected NAME:WEIGHT"}, {"short:", "expected NAME:WEIGHT"},
		{"short:1x", "expected NAME:WEIGHT"}, {"Short:1", "no name of a caption"}, {"a.b:1", "no name"},
		{"short:-1", "short: expected a weight"}, {"short:nan", "expected a weight"}, {"short:inf", "a weight"},
		{"a:1,a:2", "'a' occurs twice"}, {"a:0,b:0", "all weights are 0"}, {"7", "expected an object"},
		{"{\"a\":\"b\"}", "expected a weight"}, {"[1]", "expected an object"},
		{"a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1,j:1,k:1,l:1,m:1,n:1,o:1,p:1,q:1", "more than 16"}};
	struct vfm_config c, d;
	struct vfm_err err;
	json_t *j;

	(void)state;
	vfm_config_defaults(&c);
	assert_int_equal(c.data.captions.n, 0);
	assert_int_equal(set(&c, "short:1,long:3.5", &err), 0);
	assert_int_equal(c.data.captions.n, 2);
	assert_string_equal(c.data.captions.list[0].name, "long");
	assert_true(c.data.captions.list[0].weight == 3.5 && c.data.captions.list[1].weight == 1);
	vfm_config_defaults(&d);
	assert_int_equal(set(&d, "{\"short\": 1, \"long\": 3.5}", &err), 0);
	assert_memory_equal(&c.data.captions, &d.data.captions, sizeof(c.data.captions));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(set(&c, bad[i][0], &err), VFM_EUSAGE);
		if (!strstr(err.msg, bad[i][1]) || !strstr(err.msg, "data.captions"))
			fail_msg("%s: got '%s'", bad[i][0], err.msg);
	}
	assert_memory_equal(&c.data.captions, &d.data.captions, sizeof(c.data.captions)); /* errors change nothing */
	j = vfm_config_to_json(&c);
	vfm_config_defaults(&d);
	assert_int_equal(vfm_config_json(&d, j, &err), 0);
	assert_memory_equal(&c.data.captions, &d.data.captions, sizeof(c.data.captions));
	json_decref(j);
	assert_int_equal(set(&c, "", &err), 0);
	assert_int_equal(c.data.captions.n, 0);
}

static void parts_have_names(void **state)
{
	static const char *const others[] = {"text", "text.", "text.npy.x", "texts.npy", "text.a.npz", "latent.npy"};
	char part[VFM_TEXT_PART], name[VFM_CAPTION_NAME + 1];

	(void)state;
	assert_string_equal(vfm_text_part(part, ""), "text.npy");
	assert_string_equal(vfm_text_part(part, "short"), "text.short.npy");
	assert_true(vfm_text_part_name("text.npy", name) && !*name);
	assert_true(vfm_text_part_name("text.short.npy", name) && !strcmp(name, "short"));
	assert_true(vfm_text_part_name("text.a.b.npy", name) && !vfm_caption_name_ok(name));
	assert_true(vfm_text_part_name("text.0123456789012345678901234567890.npy", name) && vfm_caption_name_ok(name));
	assert_true(
		vfm_text_part_name("text.01234567890123456789012345678901.npy", name) && !vfm_caption_name_ok(name));
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		assert_false(vfm_text_part_name(others[i], name));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(choices_follow_the_weights),
		cmocka_unit_test(weights_are_parsed),
		cmocka_unit_test(parts_have_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
