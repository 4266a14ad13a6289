/* The codecs of Parquet's pages on data made by hand: what they expand to, and damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "curate/table/unpack.h"

/* Unpacks to exactly `len` bytes, behind which nothing is written. */
static bool unpacks(int64_t codec, const void *src, size_t n, const void *want, size_t len)
{
	uint8_t dst[600];
	struct vfm_err err;

	memset(dst, 0xa5, sizeof(dst));
	if (vfm_unpack(codec, src, n, dst, len, &err) < 0)
		return false;
	for (size_t i = len; i < sizeof(dst); i++)
		assert_int_equal(dst[i], 0xa5);
	assert_true(len <= vfm_unpack_most(codec, n));
	return !memcmp(dst, want, len);
}

static void test_lz4_raw(void **state)
{
	/* "abc", 4 + 2 bytes from 3 before; then the literals "xyz12" */
	static const char text[] = "\x32"
				   "abc"
				   "\x03\x00\x50"
				   "xyz12";
	uint8_t runs[3 + 2 + 2 + 6], ones[600];

	(void)state;
	assert_true(unpacks(VFM_CODEC_LZ4_RAW, text, sizeof(text) - 1, "abcabcabcxyz12", 14));
	assert_true(unpacks(VFM_CODEC_LZ4_RAW, "\0", 1, "", 0));

	/* One literal, a match of 4 + 15 + 255 + 26 that repeats it, and 5 literals. */
	memcpy(runs, "\x1f\x01\x01\x00\xff\x1a\x50\x01\x01\x01\x01\x01", 12);
	memset(ones, 1, sizeof(ones));
	assert_true(unpacks(VFM_CODEC_LZ4_RAW, runs, 12, ones, 306));

	/* 15 + 255 + 30 literals */
	ones[0] = 0xf0;
	ones[1] = 0xff;
	ones[2] = 30;
	assert_true(unpacks(VFM_CODEC_LZ4_RAW, ones, 303, ones + 3, 300));
}

static void test_lz4_damage(void **state)
{
	static const char text[] = "\x32"
				   "abc"
				   "\x03\x00\x50"
				   "xyz12";
	char bad[sizeof(text)];

	(void)state;
	for (size_t n = 0; n < sizeof(text) - 1; n++)
		assert_false(unpacks(VFM_CODEC_LZ4_RAW, text, n, "", 14));
	assert_false(unpacks(VFM_CODEC_LZ4_RAW, text, sizeof(text) - 1, "", 13));
	assert_false(unpacks(VFM_CODEC_LZ4_RAW, text, sizeof(text) - 1, "", 15));
	memcpy(bad, text, sizeof(text));
	for (int offset = 0; offset <= 4; offset += 4) { /* none, and one before the start */
		bad[4] = (char)offset;
		assert_false(unpacks(VFM_CODEC_LZ4_RAW, bad, sizeof(text) - 1, "", 14));
	}
}

static void test_lz4_hadoop(void **state)
{
	/* A frame of 9 bytes in two blocks, an empty one, and one of 2. */
	static const char frames[] = "\0\0\0\x09\0\0\0\x06\x50"
				     "hello"
				     "\0\0\0\x05\x40"
				     "more"
				     "\0\0\0\0\0\0\0\x02\0\0\0\x03\x20"
				     "!?";
	static const char whole[] = "hellomore!?";

	(void)state;
	assert_true(unpacks(VFM_CODEC_LZ4, frames, sizeof(frames) - 1, whole, 11));
	assert_false(unpacks(VFM_CODEC_LZ4_RAW, frames, sizeof(frames) - 1, whole, 11));
	for (size_t n = 0; n < sizeof(frames) - 1; n++)
		assert_false(unpacks(VFM_CODEC_LZ4, frames, n, whole, 11));
	assert_true(unpacks(VFM_CODEC_LZ4, "\x50hello", 6, "hello", 5)); /* a bare block */
}

static void test_snappy(void **state)
{
	/* 11 bytes: the literal "abc", a copy of 8 from 3 before */
	static const char text[] = "\x0b\x08"
				   "abc"
				   "\x11\x03";

	(void)state;
	assert_true(unpacks(VFM_CODEC_SNAPPY, text, sizeof(text) - 1, "abcabcabcab", 11));
	for (size_t n = 0; n < sizeof(text) - 1; n++)
		assert_false(unpacks(VFM_CODEC_SNAPPY, text, n, "", 11));
	assert_false(unpacks(VFM_CODEC_SNAPPY, text, sizeof(text) - 1, "", 10));
}

static void test_names(void **state)
{
	struct vfm_err err;

	(void)state;
	assert_string_equal(vfm_codec_name(VFM_CODEC_LZ4_RAW), "LZ4_RAW");
	assert_int_equal(vfm_codec_check(3, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "is compressed by LZO; "));
	assert_int_equal(vfm_codec_check(99, &err), VFM_EINPUT);
	assert_int_equal(vfm_unpack_most(VFM_CODEC_NONE, 7), 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lz4_raw),
		cmocka_unit_test(test_lz4_damage),
		cmocka_unit_test(test_lz4_hadoop),
		cmocka_unit_test(test_snappy),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
