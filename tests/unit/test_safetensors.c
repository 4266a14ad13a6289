/* safetensors headers: truncated at every byte, bits flipped, offsets that lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "ckpt/safetensors.h"

static int parse(struct vfm_st *st, const char *json, uint64_t data, struct vfm_err *err)
{
	size_t n = strlen(json);
	uint8_t *b = vfm_malloc(n + 8);
	uint64_t need;
	int rc;

	for (int i = 0; i < 8; i++)
		b[i] = (uint8_t)(n >> (8 * i));
	memcpy(b + 8, json, n);
	rc = vfm_st_parse(st, b, n + 8, n + 8 + data, "x.safetensors", &need, err);
	assert_int_equal(need, 0);
	free(b);
	return rc;
}

static void test_good(void **state)
{
	struct vfm_st st;
	struct vfm_err err = {0};

	(void)state;
	assert_int_equal(parse(&st,
				 "{\"__metadata__\":{\"k\":\"v\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[],\"data_"
				 "offsets\":[8,10]},"
				 "\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},\"z\":{\"dtype\":"
				 "\"I64\",\"shape\":[0,7],\"data_offsets\":[8,8]}}  ",
				 10, &err),
		0);
	assert_int_equal(st.n, 3);
	assert_string_equal(st.t[0].name, "a");
	assert_string_equal(st.t[1].name, "z");
	assert_int_equal(vfm_st_find(&st, "b")->dtype, VFM_BF16);
	assert_null(vfm_st_find(&st, "c"));
	assert_int_equal(st.n_meta, 1);
	assert_string_equal(st.meta[0].value, "v");
	vfm_st_release(&st);
	assert_int_equal(
		parse(&st, "{\"__metadata__\":null,\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
			&err),
		0);
	assert_int_equal(st.n, 1);
	assert_int_equal(st.n_meta, 0);
	vfm_st_release(&st);
	assert_int_equal(parse(&st, "{}", 0, &err), 0);
	vfm_st_release(&st);
}

static void test_bad(void **state)
{
	static const struct {
		const char *json;
		uint64_t data;
		const char *want;
	} cases[] = {
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "beyond"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "after the last"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "the shape needs 8"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "beyond"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "beyond"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "gap"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":["
		 "1],\"data_offsets\":[4,8]}}",
			8, "overlaps"},
		{"{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype"},
		{"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "bad shape"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
			"bad shape"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, "bad shape"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "at most"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "expected dtype"},
		{"{\"a\":3}", 0, "expected dtype"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},\"a\":{\"dtype\":\"F32\",\"shape\":["
		 "0],\"data_offsets\":[0,0]}}",
			0, "duplicate"},
		{"{\"__metadata__\":{\"k\":1}}", 0, "expected a string"},
		{"[]", 0, "'{'"},
		{" {}", 0, "'{'"},
		{"{\"a\"", 0, "header"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct vfm_st st;
		struct vfm_err err = {0};

		assert_int_equal(parse(&st, cases[i].json, cases[i].data, &err), VFM_EUSAGE);
		if (!strstr(err.msg, cases[i].want) || !strstr(err.msg, "x.safetensors"))
			fail_msg("case %zu: '%s'", i, err.msg);
	}
}

static void sample(struct vfm_buf *head, uint64_t *data)
{
	struct vfm_st_tensor t[3] = {
		{.name = "w\"quoted\"", .dtype = VFM_F32, .ndim = 2, .shape = {3, 5}},
		{.name = "blocks.0.b", .dtype = VFM_BF16, .ndim = 1, .shape = {7}},
		{.name = "idx", .dtype = VFM_I64, .ndim = 0},
	};
	const char *meta[1][2] = {{"format", "pt"}};

	vfm_st_layout(t, 3, meta, 1, head);
	*data = t[2].end;
}

static void test_layout(void **state)
{
	struct vfm_buf head = {0};
	struct vfm_err err = {0};
	struct vfm_st st;
	uint64_t data, need;

	(void)state;
	sample(&head, &data);
	assert_int_equal(data, 8 + 60 + 14);
	assert_int_equal(head.len % 64, 0);
	assert_int_equal(vfm_st_parse(&st, head.data, head.len, head.len + data, "x", &need, &err), 0);
	assert_string_equal(st.t[0].name, "idx"); /* the largest elements first: all aligned */
	for (size_t i = 0; i < st.n; i++)
		assert_int_equal(st.t[i].begin % vfm_dtype_size(st.t[i].dtype), 0);
	assert_int_equal(vfm_st_find(&st, "w\"quoted\"")->shape[1], 5);
	vfm_st_release(&st);
	vfm_buf_release(&head);
}

static void test_torture(void **state)
{
	struct vfm_buf head = {0};
	struct vfm_err err = {0};
	struct vfm_st st;
	uint64_t data, need;
	int accepted = 0;

	(void)state;
	sample(&head, &data);
	for (size_t n = 0; n < head.len + data; n++) { /* the file ends here */
		uint8_t *cut = vfm_malloc(n ? n : 1);

		memcpy(cut, head.data, n < head.len ? n : head.len);
		assert_int_equal(vfm_st_parse(&st, cut, n < head.len ? n : head.len, n, "x", &need, &err), VFM_EUSAGE);
		assert_int_equal(need, 0);
		if (n < head.len) { /* only these bytes are at hand */
			assert_int_equal(vfm_st_parse(&st, cut, n, head.len + data, "x", &need, &err), VFM_EUSAGE);
			assert_int_equal(need, n < 8 ? 8 : head.len);
		}
		free(cut);
	}
	/* no flipped bit may crash; few are without effect on the structure */
	for (size_t i = 0; i < head.len * 8; i++) {
		head.data[i / 8] ^= (char)(1 << i % 8);
		if (vfm_st_parse(&st, head.data, head.len, head.len + data, "x", &need, &err) == 0) {
			accepted++;
			vfm_st_release(&st);
		}
		head.data[i / 8] ^= (char)(1 << i % 8);
	}
	assert_true(accepted < (int)head.len * 4); /* names, metadata and blanks may change unseen */
	vfm_buf_release(&head);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_layout),
		cmocka_unit_test(test_torture),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
