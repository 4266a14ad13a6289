/* Keys of samples and names of members; sets of ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/record/sample_key.h"

/* Text of n bytes. */
static char *repeat(char c, size_t n)
{
	char *s = vfm_malloc(n + 1);

	memset(s, c, n);
	s[n] = 0;
	return s;
}

static void test_keys(void **state)
{
	static const char *const good[] = {"a", "0123-45_z", "-", "_a", "\xc3\xbc", "5de8334a277414de-2"};
	static const char *const bad[] = {"", "a.b", ".a", "..", "../a", "a/b", "a\nb", "a b", "a\x7f", "__a", "\xff",
		"a\xc3", "\x01", "a\\b", "a:b", "C:"};
	struct vfm_err err;
	char *longest = repeat('k', 200), *longer = repeat('k', 201);

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		assert_int_equal(vfm_sample_key_check(good[i], &err), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(vfm_sample_key_check(bad[i], &err), VFM_EINPUT);
	assert_int_equal(vfm_sample_key_check(NULL, &err), VFM_EINPUT);
	assert_int_equal(vfm_sample_key_check(longest, &err), 0);
	assert_int_equal(vfm_sample_key_check(longer, &err), VFM_EINPUT);
	vfm_sample_key_check("a\n\xff", &err);
	assert_string_equal(err.msg, "the id 'a?\?' cannot be a sample's key: it holds byte 10");
	free(longest);
	free(longer);
}

static void test_members(void **state)
{
	static const char *const good[] = {
		"a.json", "dir/a.json", "./a.json", "a b/c+d.e/f.json", "..a/b..c/a.json", "...", "\xc3\xbc.json"};
	static const char *const bad[] = {"", "/a.json", "a//b.json", "a/", "../a.json", "a/../b.json", "a/..", "..",
		"a\n.json", "a.js\ton", "a\x7f.json", "\xff.json"};
	struct vfm_err err;
	char *longest = repeat('k', 1000), *longer = repeat('k', 1001);

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		assert_int_equal(vfm_sample_member_check(good[i], &err), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(vfm_sample_member_check(bad[i], &err), VFM_EINPUT);
	assert_int_equal(vfm_sample_member_check(longest, &err), 0);
	assert_int_equal(vfm_sample_member_check(longer, &err), VFM_EINPUT);
	free(longest);
	free(longer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_members),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
