/* Identities of encoders: labels, JSON, records, comparison. */
#include "ok.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "data/record/encoder_id.h"
#include "io/json.h"

#define SHA_A "1a2b3c4d5e6f00000000000000000000000000000000000000000000000000aa"
#define SHA_B "1a2b3c4d5e6f00000000000000000000000000000000000000000000000000bb"
#define SHA_C "ff00000000000000000000000000000000000000000000000000000000000000"
/* clang-format off */
#define GEOMETRY(C) {.stride = {4, 8, 8}, .channels = (C), .first = 1, .step = 4}
/* clang-format on */

static void expect_labels(const struct vfm_encoder_id *a, const struct vfm_encoder_id *b, const char *x, const char *y)
{
	char p[VFM_ENCODER_ID_LABEL], q[VFM_ENCODER_ID_LABEL];

	assert_int_equal(vfm_encoder_id_compare(a, b), VFM_ENCODER_ID_DIFFERENT);
	assert_int_equal(vfm_encoder_id_compare(b, a), VFM_ENCODER_ID_DIFFERENT);
	vfm_encoder_id_label_pair(a, b, p, q);
	assert_string_equal(p, x);
	assert_string_equal(q, y);
}

static void test_compare(void **state)
{
	const struct vfm_encoder_id
		vae = {.name = "wan-vae", .version = "2.1", .sha256 = SHA_A, .geometry = GEOMETRY(16)},
		bare = {.name = "wan-vae", .version = "2.1", .sha256 = SHA_A},
		unhashed = {.name = "wan-vae", .version = "2.1"},
		near = {.name = "wan-vae", .version = "2.1", .sha256 = SHA_B},
		far = {.name = "wan-vae", .version = "2.1", .sha256 = SHA_C},
		newer = {.name = "wan-vae", .version = "2.2", .sha256 = SHA_A},
		wide = {.name = "wan-vae", .version = "2.1", .sha256 = SHA_A, .geometry = GEOMETRY(48)}, none = {0},
		text = {.name = "umt5", .version = "xxl", .sha256 = SHA_A, .dim = 4096, .rows = 512},
		loose = {.name = "umt5", .version = "xxl", .sha256 = SHA_A, .dim = 4096},
		at_512 = {.name = "umt5", .version = "xxl", .sha256 = SHA_A, .dim = 4096, .max_rows = 512},
		at_226 = {.name = "umt5", .version = "xxl", .sha256 = SHA_A, .dim = 4096, .max_rows = 226};
	char label[VFM_ENCODER_ID_LABEL];

	(void)state;
	assert_int_equal(vfm_encoder_id_compare(&vae, &vae), VFM_ENCODER_ID_SAME);
	assert_int_equal(
		vfm_encoder_id_compare(&vae, &bare), VFM_ENCODER_ID_SAME); /* a geometry that is not recorded */
	assert_int_equal(vfm_encoder_id_compare(&vae, &none), VFM_ENCODER_ID_UNKNOWN);
	assert_int_equal(vfm_encoder_id_compare(&none, &vae), VFM_ENCODER_ID_UNKNOWN);
	expect_labels(&vae, &unhashed, "wan-vae 2.1 (sha256 1a2b3c4d5e6f)", "wan-vae 2.1");
	expect_labels(&vae, &far, "wan-vae 2.1 (sha256 1a2b3c4d5e6f)", "wan-vae 2.1 (sha256 ff0000000000)");
	expect_labels(&vae, &near, "wan-vae 2.1 (sha256 " SHA_A ")", "wan-vae 2.1 (sha256 " SHA_B ")");
	expect_labels(&vae, &newer, "wan-vae 2.1 (sha256 1a2b3c4d5e6f)", "wan-vae 2.2 (sha256 1a2b3c4d5e6f)");
	expect_labels(&vae, &wide, "wan-vae 2.1 (sha256 1a2b3c4d5e6f) (stride 4x8x8, 16 channels, 1 + 4n frames)",
		"wan-vae 2.1 (sha256 1a2b3c4d5e6f) (stride 4x8x8, 48 channels, 1 + 4n frames)");
	expect_labels(&text, &loose, "umt5 xxl (sha256 1a2b3c4d5e6f) (width 4096 in 512 rows)",
		"umt5 xxl (sha256 1a2b3c4d5e6f) (width 4096)");
	assert_int_equal(vfm_encoder_id_compare(&loose, &at_512), VFM_ENCODER_ID_SAME); /* a cut that is not recorded */
	expect_labels(&at_512, &at_226, "umt5 xxl (sha256 1a2b3c4d5e6f) (width 4096 in at most 512 rows)",
		"umt5 xxl (sha256 1a2b3c4d5e6f) (width 4096 in at most 226 rows)");
	vfm_encoder_id_label(&none, label);
	assert_string_equal(label, "unknown");
}

static void test_check(void **state)
{
	const struct vfm_encoder_ids
		a = {.tokenizer = {.name = "wavelet:16", .version = "1"}, .text = {.name = "bytes:8", .version = "2"}},
		b = {.tokenizer = {.name = "wavelet:16", .version = "1"}, .text = {.name = "bytes:8", .version = "1"}},
		none = {0}, glyphs = {.text2 = {.name = "byt5", .version = "1"}},
		others = {.text2 = {.name = "byt5", .version = "2"}},
		sized = {.tokenizer = {.name = "wavelet:16", .version = "1", .geometry = GEOMETRY(16)},
			.text = {.name = "t5", .version = "2", .dim = 8}};
	struct vfm_encoder_ids all = {.tokenizer = {.name = ""}, .text = {.name = "t5", .version = "1"}};

	(void)state;
	assert_int_equal(vfm_encoder_ids_check(&a, "x", &a, "y", &err), 0);
	assert_int_equal(vfm_encoder_ids_check(&a, "x", &none, "y", &err), 0);
	assert_int_equal(vfm_encoder_ids_check(&a, "x", &b, "y", &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "x has text encoder 'bytes:8 2', y has 'bytes:8 1'");
	assert_int_equal(vfm_encoder_ids_check(&glyphs, "x", &none, "y", &err), 0);
	assert_int_equal(vfm_encoder_ids_check(&glyphs, "x", &others, "y", &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "x has second text encoder 'byt5 1', y has 'byt5 2'");
	vfm_encoder_ids_fill(&all, &a);
	assert_string_equal(all.tokenizer.name, "wavelet:16");
	assert_string_equal(all.text.name, "t5");
	vfm_encoder_ids_fill(&all, &sized);
	assert_int_equal(all.tokenizer.geometry.channels, 16);
	assert_int_equal(all.text.dim, 0); /* of another version */
}

/* A label of the longest fields is whole. */
static void test_longest(void **state)
{
	struct vfm_encoder_id a = {.sha256 = SHA_A,
		.geometry = {{256, 256, 256}, 4096, 16777216, 256, 16777216, false, "1234567890123456789012345678901"}};
	struct vfm_encoder_id b;
	char x[VFM_ENCODER_ID_LABEL], y[VFM_ENCODER_ID_LABEL];

	(void)state;
	memset(a.name, 'n', sizeof(a.name) - 1);
	memset(a.version, 'v', sizeof(a.version) - 1);
	b = a;
	b.geometry.scaling[0] = '2';
	vfm_encoder_id_label_pair(&a, &b, x, y);
	assert_string_equal(strrchr(x, ' '), " 1234567890123456789012345678901)");
	assert_string_equal(strrchr(y, ' '), " 2234567890123456789012345678901)");
}

static void test_json(void **state)
{
	const struct vfm_encoder_ids
		a = {.tokenizer = {.name = "wan-vae", .version = "2.1", .sha256 = SHA_A, .geometry = GEOMETRY(16)},
			.text = {.name = ""}},
		t = {.tokenizer = {.name = ""},
			.text = {.name = "umt5", .version = "xxl", .sha256 = SHA_B, .dim = 4096, .rows = 512}};
	struct vfm_encoder_ids m;
	struct vfm_buf b = {0};
	json_t *o = vfm_encoder_ids_json(&a);

	(void)state;
	vfm_json_text(&b, o, 0);
	assert_string_equal(b.data,
		"{\"tokenizer\":{\"name\":\"wan-vae\",\"version\":\"2.1\",\"sha256\":\"" SHA_A
		"\",\"geometry\":{\"stride\":"
		"[4,8,8],\"channels\":16,\"frames\":[1,4]}}}");
	vfm_buf_release(&b);
	OK(vfm_encoder_ids_from_json(&m, o, "encoders", &err));
	assert_int_equal(vfm_encoder_id_compare(&m.tokenizer, &a.tokenizer), VFM_ENCODER_ID_SAME);
	assert_int_equal(m.tokenizer.geometry.channels, 16);
	assert_string_equal(m.text.name, "");
	json_decref(o);
	o = vfm_encoder_ids_json(&t);
	OK(vfm_encoder_ids_from_json(&m, o, "encoders", &err));
	assert_int_equal(vfm_encoder_id_compare(&m.text, &t.text), VFM_ENCODER_ID_SAME);
	assert_int_equal(m.text.rows, 512);
	json_decref(o);
	OK(vfm_encoder_ids_from_json(&m, NULL, "encoders", &err));
	assert_string_equal(m.tokenizer.name, "");
	/* a version of earlier plans, and keys of later ones */
	o = json_loads("{\"text\":{\"name\":\"t5\",\"version\":\"3\",\"later\":\"00\"},\"audio\":{}}", 0, NULL);
	OK(vfm_encoder_ids_from_json(&m, o, "encoders", &err));
	assert_string_equal(m.text.version, "3");
	json_decref(o);
}

#define NAMED "\"name\":\"a\",\"version\":\"1\""

static void test_bad_json(void **state)
{
	static const struct {
		const char *text, *says;
	} bad[] = {
		{"[]", "encoders: expected an object"},
		{"{\"tokenizer\":1}", "encoders.tokenizer: expected an object"},
		{"{\"text\":{\"version\":\"1\"}}", "encoders.text.name"},
		{"{\"text\":{\"name\":7,\"version\":\"1\"}}", "encoders.text.name"},
		{"{\"text\":{\"name\":\"\",\"version\":\"1\"}}", "encoders.text.name"},
		{"{\"text\":{\"name\":\"a b\",\"version\":\"1\"}}", "encoders.text.name"},
		{"{\"text\":{\"name\":\"\xc3\xa4\",\"version\":\"1\"}}", "encoders.text.name"},
		{"{\"text\":{\"name\":\"1234567890123456789012345678901234567890123456789012345678901234\",\"version\":"
		 "\"1\"}}",
			"encoders.text.name: expected 1 to 63 characters"},
		{"{\"text\":{\"name\":\"a\"}}", "encoders.text.version"},
		{"{\"text\":{\"name\":\"a\",\"version\":0}}", "encoders.text.version"},
		{"{\"text\":{\"name\":\"a\",\"version\":1.5}}", "encoders.text.version"},
		{"{\"text\":{\"name\":\"a\",\"version\":\"\"}}", "encoders.text.version"},
		{"{\"text\":{\"name\":\"a\",\"version\":\"12345678901234567890123456789012\"}}",
			"encoders.text.version"},
		{"{\"text\":{" NAMED ",\"sha256\":\"abc\"}}", "encoders.text.sha256: expected 64"},
		{"{\"text\":{" NAMED
		 ",\"sha256\":\"1A2b3c4d5e6f00000000000000000000000000000000000000000000000000aa\"}}",
			"encoders.text.sha256: expected 64"},
		{"{\"text\":{" NAMED ",\"sha256\":64}}", "encoders.text.sha256"},
		{"{\"text\":{" NAMED ",\"dim\":0}}", "encoders.text.dim"},
		{"{\"text\":{" NAMED ",\"dim\":8,\"rows\":-1}}", "encoders.text.rows"},
		{"{\"text\":{" NAMED ",\"dim\":8,\"rows\":65536}}", "encoders.text.rows"},
		{"{\"text\":{" NAMED ",\"dim\":8,\"max_rows\":65536}}", "encoders.text.max_rows"},
		{"{\"tokenizer\":{" NAMED ",\"geometry\":7}}", "encoders.tokenizer.geometry: expected an object"},
		{"{\"tokenizer\":{" NAMED ",\"geometry\":{\"stride\":[4,8]}}}", "encoders.tokenizer.geometry.stride"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		json_t *o = json_loads(bad[i].text, 0, NULL);
		struct vfm_encoder_ids m;

		assert_non_null(o);
		assert_int_equal(vfm_encoder_ids_from_json(&m, o, "encoders", &err), VFM_EUSAGE);
		if (!strstr(err.msg, bad[i].says))
			fail_msg("'%s' does not say '%s'", err.msg, bad[i].says);
		json_decref(o);
	}
}

static void test_record(void **state)
{
	static const struct {
		const char *text, *says;
	} bad[] = {
		{"{\"latent\":{\"maker\":\"wavelet:16\"}}", "latent.maker: expected an object"},
		{"{\"text\":{\"maker\":{\"name\":\"a\"}}}", "text.maker.version"},
		{"{\"text2\":{\"maker\":{\"name\":\"a\"}}}", "text2.maker.version"},
	};
	struct vfm_encoder_ids m;
	json_t *o = json_loads("{\"latent\":{\"maker\":{" NAMED
			       "}},\"text\":\"a caption of another program\",\"text2\":{\"maker\":{" NAMED "}}}",
		0, NULL);

	(void)state;
	OK(vfm_encoder_ids_from_record(&m, o, &err));
	assert_string_equal(m.tokenizer.name, "a");
	assert_string_equal(m.text.name, "");
	assert_string_equal(m.text2.name, "a");
	json_decref(o);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		o = json_loads(bad[i].text, 0, NULL);
		assert_int_equal(vfm_encoder_ids_from_record(&m, o, &err), VFM_EINPUT);
		assert_int_equal(err.code, VFM_EINPUT);
		if (!strstr(err.msg, bad[i].says))
			fail_msg("'%s' does not say '%s'", err.msg, bad[i].says);
		json_decref(o);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_compare),
		cmocka_unit_test(test_check),
		cmocka_unit_test(test_longest),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_bad_json),
		cmocka_unit_test(test_record),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
