/* The text of a record: what is accepted, and that its digest is that of the record. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "curate/dedup/record_text.h"
#include "data/record/record.h"

static bool accepts(const char *line)
{
	struct vfm_record_text t = {0};
	bool good = vfm_record_text_read(&t, line, strlen(line));

	vfm_record_text_release(&t);
	return good;
}

static void test_refused(void **state)
{
	static const char *const bad[] = {"", "{", "{}x", "[]", "1", "{\"a\":1,}", "{\"a\" :1}", "{ \"a\":1}",
		"{\"a\":1,\"a\":2}", "{\"b\":{\"a\":1,\"a\":2}}", "{\"a\":01}", "{\"a\":-0}", "{\"a\":-0.0}",
		"{\"a\":1.50}", "{\"a\":1.}", "{\"a\":.5}", "{\"a\":1e5}", "{\"a\":0.00001}",
		"{\"a\":0.1000000000000000055}", "{\"a\":1234567890123456789}", "{\"a\":nul}", "{\"a\":\"\\u0041\"}",
		"{\"a\":\"\\/\"}", "{\"a\":\"\t\"}", "{\"a\":\"\xc0\x80\"}", "{\"a\":\"\xed\xa0\x80\"}",
		"{\"a\":\"\xff\"}", "{\"a\":\"", "{\"\\n\":1}", "{\"a\":1}{"};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (accepts(bad[i]))
			fail_msg("accepted: %s", bad[i]);
}

static void test_accepted(void **state)
{
	static const char *const without[] = {"v", "src", NULL};
	static const char *const good[] = {"{}",
		"{\"v\":1,\"id\":\"a\",\"src\":\"b\",\"n\":[1,{\"z\":2.0,\"a\":-3.25}]}",
		"{\"b\":\"\\\"\\\\\\n\",\"a\":true,\"\":null}", "{\"a\":0.30000000000000004,\"c\":1e+20,\"b\":1e-05}",
		"{\"a\":\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\",\"aa\":0.0001,\"B\":123456789012345678}",
		"{\"x\":29.97,\"y\":24.0,\"w\":0.0,\"id\":{\"b\":[],\"a\":{}}}"};
	struct vfm_record_text t = {0};
	char a[VFM_SHA256_HEX], b[VFM_SHA256_HEX];

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		json_t *v = json_loads(good[i], 0, NULL);

		assert_non_null(v);
		if (!vfm_record_text_read(&t, good[i], strlen(good[i])))
			fail_msg("refused: %s", good[i]);
		vfm_rec_digest("x 1\n", v, without, a);
		vfm_record_text_digest(&t, "x 1\n", without, b);
		assert_string_equal(a, b);
		json_decref(v);
	}
	vfm_record_text_release(&t);
}

static void test_access(void **state)
{
	static const char line[] = "{\"id\":\"x\\ny\",\"score\":{\"m\":0.5,\"w\":7},\"w\":3,\"s\":\"abc\"}";
	struct vfm_record_text t = {0};
	const char *s;
	double x;
	size_t n;

	(void)state;
	assert_true(vfm_record_text_read(&t, line, strlen(line)));
	assert_true(vfm_record_text_num(&t, "w", &x) && x == 3);
	assert_true(vfm_record_text_num(&t, "score.w", &x) && x == 7);
	assert_true(vfm_record_text_num(&t, "m", &x) && x == 0.5);
	assert_false(vfm_record_text_num(&t, "s", &x));
	assert_false(vfm_record_text_num(&t, "s.w", &x));
	s = vfm_record_text_str(&t, vfm_record_text_get(&t, "s"), &n);
	assert_true(s && n == 3 && !memcmp(s, "abc", 3));
	assert_null(vfm_record_text_str(&t, vfm_record_text_get(&t, "id"), &n)); /* escapes */
	assert_null(vfm_record_text_get(&t, "m"));
	vfm_record_text_release(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_accepted),
		cmocka_unit_test(test_access),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
