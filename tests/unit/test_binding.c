/* Digests of records, and what binds files to them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/record/binding.h"
#include "data/record/record.h"
#include "io/json.h"

#define ABC "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" /* of "abc" */

static int read_binding(struct vfm_binding *b, const char *text, struct vfm_err *err)
{
	json_t *rec = vfm_json_parse(text, strlen(text), "rec", err);
	int rc;

	assert_non_null(rec);
	rc = vfm_binding_of(b, rec, err);
	json_decref(rec);
	return rc;
}

static void test_records(void **state)
{
	static const char *const bad[] = {"{\"latent\":{\"sha256\":5}}", "{\"latent\":{\"sha256\":\"\"}}",
		"{\"text\":{\"sha256\":\"" ABC "0\"}}", "{\"text\":{\"caption_sha256\":\"" ABC "\"}}",
		"{\"caption\":\"abd\",\"text\":{\"caption_sha256\":\"" ABC "\"}}",
		"{\"caption\":{\"b\":\"abc\",\"a\":\"x\"},\"text2\":{\"caption_sha256\":\"" ABC "\"}}",
		"{\"text2\":{\"sha256\":1}}",
		"{\"text\":{\"sha256\":\"BA7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"}}"};
	struct vfm_binding b, c;
	struct vfm_err err;

	(void)state;
	assert_int_equal(read_binding(&b, "{}", &err), 0);
	assert_false(vfm_binding_is_whole(&b, false));
	assert_int_equal(vfm_binding_number(&b), 0);
	assert_int_equal(read_binding(&b, "{\"text\":\"a caption\",\"latent\":{\"sha256\":null}}", &err), 0);
	assert_int_equal(vfm_binding_number(&b), 0);
	assert_int_equal(read_binding(&b, "{\"latent\":{\"sha256\":\"" ABC "\"}}", &err), 0);
	assert_true(vfm_binding_is_whole(&b, false));
	assert_false(vfm_binding_is_whole(&b, true));
	assert_int_equal(read_binding(&c,
				 "{\"caption\":\"abc\",\"text\":{\"sha256\":\"" ABC "\",\"caption_sha256\":\"" ABC
				 "\"},\"latent\":{\"sha256\":\"" ABC "\"}}",
				 &err),
		0);
	assert_true(vfm_binding_is_whole(&c, true));
	/* the second text, of the first caption by name */
	assert_int_equal(
		read_binding(&b, "{\"caption\":{\"b\":\"x\",\"a\":\"abc\"},\"text2\":{\"caption_sha256\":\"" ABC "\"}}",
			&err),
		0);
	assert_int_equal(vfm_binding_number(&b), 0);
	assert_int_equal(read_binding(&b, "{\"text2\":{\"sha256\":\"" ABC "\"}}", &err), 0);
	assert_true(vfm_binding_number(&b));
	assert_true(vfm_binding_number(&b) && vfm_binding_number(&b) != vfm_binding_number(&c));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(read_binding(&b, bad[i], &err), VFM_EINPUT);
}

static void test_files(void **state)
{
	struct vfm_err err;

	(void)state;
	assert_int_equal(vfm_binding_check(ABC, "abc", 3, "x.npy", &err), 0);
	assert_int_equal(vfm_binding_check("", "abd", 3, "x.npy", &err), 0);
	assert_int_equal(vfm_binding_check(ABC, "abd", 3, "x.npy", &err), VFM_EINPUT);
	assert_string_equal(err.msg,
		"x.npy is not the file of this record: its sha256 is a52d159f262b..., the record has ba7816bf8f01...");
}

/* Returns the digest of a record without "by"; the caller frees it. */
static char *digest(const char *text)
{
	static const char *const without[] = {"by", NULL};
	json_t *rec = vfm_json_parse(text, strlen(text), "rec", NULL);
	char hex[VFM_SHA256_HEX];

	vfm_rec_digest("head", rec, without, hex);
	json_decref(rec);
	return vfm_strdup(hex);
}

static void test_digests(void **state)
{
	static const char *const same[] = {"{\"a\":[1,{\"b\":2,\"c\":0.1}],\"by\":{\"x\":\"y\"}}",
		"{\"by\":5,\"a\":[1.0,{\"c\":0.1,\"b\":2}]}", "{\"a\":[1,{\"b\":2.0,\"c\":1e-1}]}"};
	static const char *const other[] = {"{}", "{\"a\":[1,{\"b\":2,\"c\":0.1}],\"d\":null}",
		"{\"a\":[{\"b\":2,\"c\":0.1},1]}", "{\"a\":[1,{\"b\":\"2\",\"c\":0.1}]}",
		"{\"a\":[1,{\"b\":2,\"c\":0.2}]}"};
	char *want = digest(same[0]), *got;

	(void)state;
	for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
		got = digest(same[i]);
		assert_string_equal(got, want);
		free(got);
	}
	for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
		got = digest(other[i]);
		assert_string_not_equal(got, want);
		free(got);
	}
	free(want);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_records),
		cmocka_unit_test(test_files),
		cmocka_unit_test(test_digests),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
