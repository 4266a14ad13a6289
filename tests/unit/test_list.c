#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/mem.h"

/* The items of `text`, joined by '|'. */
static void gives(const char *text, const char *want)
{
	struct vfm_list l = {0};
	struct vfm_err err = {0};
	struct vfm_buf got = {0};

	if (vfm_list_parse(&l, text, &err) < 0)
		fail_msg("'%s': %s", text, err.msg);
	for (size_t i = 0; i < l.n; i++)
		vfm_buf_addf(&got, "%s%s", i ? "|" : "", l.v[i]);
	assert_string_equal(got.len ? got.data : "", want);
	vfm_buf_release(&got);
	vfm_list_release(&l);
}

static void refuses(const char *text, const char *why)
{
	struct vfm_list l = {0};
	struct vfm_err err = {0};

	assert_int_equal(vfm_list_parse(&l, text, &err), VFM_EUSAGE);
	if (!strstr(err.msg, why))
		fail_msg("'%s': expected '%s', got '%s'", text, why, err.msg);
	vfm_list_release(&l);
}

static void items(void **state)
{
	(void)state;
	gives("a", "a");
	gives("fp32,bf16", "fp32|bf16");
	gives("dit-s,dit-7b", "dit-s|dit-7b");
	gives("1e-5,-3,-1-2", "1e-5|-3|-1-2");
	gives("4K,1M,10Q-3", "4K|1M|10Q-3");
	gives("[a,b],c,[1-3]", "a,b|c|1-3");
	gives("[[\"x\",\"y\"]],[]", "[\"x\",\"y\"]|");
}

static void ranges(void **state)
{
	(void)state;
	gives("1024-8192*2", "1024|2048|4096|8192");
	gives("1K-4K+1K", "1024|2048|3072|4096");
	gives("1-4", "1|2|3|4");
	gives("5-5*2", "5");
	gives("1-10*3,7,0-1", "1|3|9|7|0|1");
	gives("10-19+4", "10|14|18");
	/* up to the largest number, beyond which the next value would be */
	gives("4611686018427387904-9223372036854775807*2", "4611686018427387904");
	gives("9223372036854775806-9223372036854775807", "9223372036854775806|9223372036854775807");
}

static void malformed(void **state)
{
	static const char *const faults[][2] = {{"", "missing"}, {"a,", "missing"}, {",a", "missing"},
		{"a,,b", "missing"}, {"1-", "range '1-': expected a size"}, {"1-x", "range '1-x'"},
		{"1--2", "range '1--2'"}, {"1-2-3", "range '1-2-3'"}, {"8-1*2", "less than the first"},
		{"1-10*1", "factor of at least 2"}, {"1-10*0", "factor of at least 2"},
		{"0-10*2", "first value of at least 1"}, {"1-10+0", "step of at least 1"}, {"1-10+", "expected a size"},
		{"1-10*", "expected a size"}, {"1-10+-1", "expected a size"}, {"1-10*2+3", "expected a size"},
		{"1-+2", "expected a size"}, {"1-9223372036854775808", "range '1-9223372036854775808'"},
		{"1-9000000T", "too large"}, {"1-5000", "more than 4096"}, {"1-9223372036854775807", "more than 4096"},
		{"[a,b", "expected a ']'"}, {"[", "expected a ']'"}, {"[a]b", "expected a ']'"},
		{"[a]]", "expected a ']'"}, {"a,[[b]", "expected a ']'"}, {"[a],", "missing"}};

	(void)state;
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		refuses(faults[i][0], faults[i][1]);
}

static void as_many_as_allowed(void **state)
{
	struct vfm_list l = {0};
	struct vfm_err err = {0};

	(void)state;
	assert_int_equal(vfm_list_parse(&l, "1-4096", &err), 0);
	assert_int_equal(l.n, VFM_LIST_MAX);
	assert_string_equal(l.v[4095], "4096");
	assert_int_equal(vfm_list_parse(&l, "x", &err), VFM_EUSAGE);
	vfm_list_release(&l);
	vfm_list_release(&l);
}

/* Texts of the characters that mean something either have items or are refused. */
static void random_texts(void **state)
{
	static const char letters[] = "019,-+*[]KTx";
	unsigned seed = 1;

	(void)state;
	for (int i = 0; i < 20000; i++) {
		struct vfm_list l = {0};
		struct vfm_err err = {0};
		char text[16] = "";

		for (unsigned n = 0; n < seed / 65536 % 15; n++)
			text[n] = letters[(seed = seed * 1103515245 + 12345) / 65536 % (sizeof(letters) - 1)];
		seed = seed * 1103515245 + 12345;
		if (vfm_list_parse(&l, text, &err) < 0)
			assert_true(err.code == VFM_EUSAGE && err.msg[0]);
		else
			assert_true(l.n > 0);
		vfm_list_release(&l);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(items), cmocka_unit_test(ranges),
		cmocka_unit_test(malformed), cmocka_unit_test(as_many_as_allowed), cmocka_unit_test(random_texts)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
