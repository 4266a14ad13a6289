/* Labels of encoders: text, JSON, comparison. */
#include "ok.h"

#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "data/maker.h"

static void test_text(void **state)
{
	static const struct {
		const char *label, *name, *again; /* again NULL: refused */
		int version;
	} cases[] = {
		{"", "", "", 0},
		{"wavelet:16", "wavelet:16", "wavelet:16", 1},
		{"wavelet:16@1", "wavelet:16", "wavelet:16", 1},
		{"bytes:1024@12", "bytes:1024", "bytes:1024@12", 12},
		{"12345678901234567890123", "12345678901234567890123", "12345678901234567890123", 1},
		{"123456789012345678901234", NULL, NULL, 0},
		{"@2", NULL, NULL, 0},
		{"a@", NULL, NULL, 0},
		{"a@0", NULL, NULL, 0},
		{"a@99999999999", NULL, NULL, 0},
		{"a@2@3", NULL, NULL, 0},
		{"a b", NULL, NULL, 0},
		{"a\x7f", NULL, NULL, 0},
		{"\xc3\xa4", NULL, NULL, 0},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct vfm_maker m;
		char label[VFM_MAKER_LABEL];

		if (!cases[i].again) {
			assert_int_equal(vfm_maker_parse(&m, cases[i].label, &err), VFM_EINPUT);
			assert_true(err.msg[0]);
			continue;
		}
		assert_int_equal(vfm_maker_parse(&m, cases[i].label, &err), 0);
		assert_string_equal(m.name, cases[i].name);
		assert_int_equal(m.version, cases[i].version);
		vfm_maker_label(&m, label);
		assert_string_equal(label, cases[i].again);
	}
}

static void test_compare(void **state)
{
	const struct vfm_makers a = {{"wavelet:16", 1}, {"bytes:8", 2}}, b = {{"wavelet:16", 1}, {"bytes:8", 1}},
				none = {0};
	struct vfm_makers all = {{"", 0}, {"t5", 1}};

	(void)state;
	assert_int_equal(vfm_maker_compare(&a.tokenizer, &b.tokenizer), VFM_MAKER_SAME);
	assert_int_equal(vfm_maker_compare(&a.text, &b.text), VFM_MAKER_DIFFERENT);
	assert_int_equal(vfm_maker_compare(&a.text, &a.tokenizer), VFM_MAKER_DIFFERENT);
	assert_int_equal(vfm_maker_compare(&a.text, &none.text), VFM_MAKER_UNKNOWN);
	assert_int_equal(vfm_makers_check(&a, "x", &a, "y", &err), 0);
	assert_int_equal(vfm_makers_check(&a, "x", &none, "y", &err), 0);
	assert_int_equal(vfm_makers_check(&a, "x", &b, "y", &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "x has text encoder 'bytes:8@2', y has 'bytes:8'");
	vfm_makers_fill(&all, &a);
	assert_string_equal(all.tokenizer.name, "wavelet:16");
	assert_string_equal(all.text.name, "t5");
}

static void test_json(void **state)
{
	static const struct {
		const char *text, *says;
	} bad[] = {
		{"[]", "encoders: expected an object"},
		{"{\"tokenizer\":1}", "encoders.tokenizer: expected an object"},
		{"{\"text\":{\"version\":1}}", "encoders.text.name"},
		{"{\"text\":{\"name\":7,\"version\":1}}", "encoders.text.name"},
		{"{\"text\":{\"name\":\"\",\"version\":1}}", "encoders.text.name"},
		{"{\"text\":{\"name\":\"a b\",\"version\":1}}", "encoders.text.name"},
		{"{\"text\":{\"name\":\"a\"}}", "encoders.text.version"},
		{"{\"text\":{\"name\":\"a\",\"version\":0}}", "encoders.text.version"},
	};
	const struct vfm_makers a = {{"wavelet:16", 3}, {"", 0}};
	struct vfm_makers m;
	struct vfm_buf b = {0};
	json_t *o = vfm_makers_json(&a);

	(void)state;
	vfm_json_text(&b, o, 0);
	assert_string_equal(b.data, "{\"tokenizer\":{\"name\":\"wavelet:16\",\"version\":3}}");
	assert_int_equal(vfm_makers_from_json(&m, o, "encoders", &err), 0);
	assert_int_equal(m.tokenizer.version, 3);
	assert_string_equal(m.text.name, "");
	json_decref(o);
	vfm_buf_release(&b);
	assert_int_equal(vfm_makers_from_json(&m, NULL, "encoders", &err), 0);
	assert_string_equal(m.tokenizer.name, "");
	/* keys of later versions are ignored */
	o = json_loads("{\"text\":{\"name\":\"t5\",\"version\":1,\"sha256\":\"00\"},\"audio\":{}}", 0, NULL);
	assert_int_equal(vfm_makers_from_json(&m, o, "encoders", &err), 0);
	assert_string_equal(m.text.name, "t5");
	json_decref(o);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		o = json_loads(bad[i].text, 0, NULL);
		assert_int_equal(vfm_makers_from_json(&m, o, "encoders", &err), VFM_EUSAGE);
		if (!strstr(err.msg, bad[i].says))
			fail_msg("'%s' does not say '%s'", err.msg, bad[i].says);
		json_decref(o);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_compare),
		cmocka_unit_test(test_json),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
