/* YAML as JSON: values by the core schema; what JSON cannot hold is refused with its line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/yaml.h"

static void values(void **state)
{
	static const char *const cases[][2] = {
		{"", "null"},
		{"# only a comment\n\n", "null"},
		{"---\na: 1\n", "{\"a\":1}"},
		{"a: 1\nb:\n  c: x y # comment\n  d: 'it''s # not'\n",
			"{\"a\":1,\"b\":{\"c\":\"x y\",\"d\":\"it's # not\"}}"},
		{"- 1\n- -2\n- 1.5\n- 1e3\n- ~\n- null\n- true\n- False\n- 1.2.3\n- 007\n- \"5\"\n",
			"[1,-2,1.5,1000.0,null,null,true,false,\"1.2.3\",7,\"5\"]"},
		{"a:\n- x\n- y: 1\n  z: 2\nb: c\n", "{\"a\":[\"x\",{\"y\":1,\"z\":2}],\"b\":\"c\"}"},
		{"a:\n  -   p: 1\n      q: 2\n  -\n    r: 3\n", "{\"a\":[{\"p\":1,\"q\":2},{\"r\":3}]}"},
		{"- - 1\n  - 2\n- - 3\n", "[[1,2],[3]]"},
		{"a: [25%, 'x, y', {b: 1, \"c\": [ ]}]\n", "{\"a\":[\"25%\",\"x, y\",{\"b\":1,\"c\":[]}]}"},
		{"a: {}\nb: []\nc:\n", "{\"a\":{},\"b\":[],\"c\":null}"},
		{"path: ./d/{000..012}.tar\nurl: s3://x/y\nt: a#b\n",
			"{\"path\":\"./d/{000..012}.tar\",\"url\":\"s3://x/y\",\"t\":\"a#b\"}"},
		{"s: \"a\\tb\\\"\\\\\"\r\n", "{\"s\":\"a\\tb\\\"\\\\\"}"},
		{"a: 1\n...\n", "{\"a\":1}"},
		{"yes: no\non: y\nv: 0x10\nw: .inf\nx: NULL\n1: 2\n",
			"{\"yes\":\"no\",\"on\":\"y\",\"v\":\"0x10\",\"w\":\".inf\",\"x\":null,\"1\":2}"},
		{"a: |\n  one\n  two\nb: >-\n  one\n  two\nc: [1,\n  2]\n",
			"{\"a\":\"one\\ntwo\\n\",\"b\":\"one two\",\"c\":[1,2]}"},
		{"{\"a\": [1, 2.5e-4, \"x\"], \"b\": {}}", "{\"a\":[1,2.5e-4,\"x\"],\"b\":{}}"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct vfm_err err = {0};
		json_t *got = vfm_yaml_parse(cases[i][0], strlen(cases[i][0]), "f", &err);
		json_t *want = json_loads(cases[i][1], JSON_DECODE_ANY, NULL);

		if (!got || !want || !json_equal(got, want))
			fail_msg("case %zu: %s", i, got ? json_dumps(got, JSON_ENCODE_ANY) : err.msg);
		json_decref(got);
		json_decref(want);
	}
}

static void refused(void **state)
{
	static const struct {
		const char *text;
		int line;
	} cases[] = {{"a: &x 1\n", 1}, {"a: 1\nb: *x\n", 2}, {"b: 1\na: !!str 1\n", 2}, {"b: 1\n&x a: 1\n", 2},
		{"a:\n\tb: 1\n", 2}, {"a: 1\na: 2\n", 2}, {"a: 1\n  b: 2\n", 2}, {"a: [1, 2\n", 2}, {"a: 'x\n", 2},
		{"a: b: c\n", 1}, {"a: 1\n---\nb: 2\n", 2}, {"- 1\nb: 2\n", 2}, {"a: \"\\q\"\n", 1},
		{"a: {b: 1, b: 2}\n", 1}, {"a: [1 2]]\n", 1}, {"  a: 1\n b: 2\n", 2}, {"[1]: 2\n", 1},
		{"b: 1\na: \xff\n", 1}, {"a: \"\\0\"\n", 1}, {"a: 1\n<<: *b\n", 2}};
	char deep[200];
	struct vfm_err err;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *got = vfm_yaml_parse(cases[i].text, strlen(cases[i].text), "f", &err);
		char line[32];

		snprintf(line, sizeof(line), "'f', line %d: ", cases[i].line);
		if (got || err.code != VFM_EUSAGE || !strstr(err.msg, line))
			fail_msg("case %zu: %s", i, got ? json_dumps(got, JSON_ENCODE_ANY) : err.msg);
	}
	memset(deep, '[', sizeof(deep));
	assert_null(vfm_yaml_parse(deep, sizeof(deep), "f", &err));
	assert_non_null(strstr(err.msg, "nested too deeply"));
	for (size_t i = 0; i < sizeof(deep); i++)
		deep[i] = i % 2 ? ' ' : '-';
	assert_null(vfm_yaml_parse(deep, sizeof(deep), "f", &err));
	assert_null(vfm_yaml_parse("a\0b", 3, "f", &err));
	assert_null(vfm_yaml_parse("a: 1\nb: 2\na: 3\n", 15, "f", &err));
	assert_string_equal(err.msg, "'f', line 3: the key 'a' occurs twice");
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(values), cmocka_unit_test(refused)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
