/* Token ids and the clean-up of texts.  tests/ref/check_text.py compares both with their originals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"
#include "encoder/text/clean.h"
#include "encoder/text/text_tokenizer.h"
#include "io/file.h"

static char folder[] = "/tmp/vfm-test-text-XXXXXX";

#define SP "\xe2\x96\x81"
/* Scores are such that "ab" is better than "a" + "b"; ids are the places in the list. */
#define MODEL                                                                                                          \
	"\"model\":{\"type\":\"Unigram\",\"unk_id\":2,\"vocab\":[[\"<pad>\",0],[\"</s>\",0],[\"<unk>\",0],"            \
	"[\"" SP "\",-2],[\"a\",-3],[\"b\",-3],[\"ab\",-4],[\"" SP "a\",-4],[\"" SP "ab\",-9],[\"\xc3\xa9\",-5],"      \
	"[\"<0xF0>\",-6],[\"<0x9F>\",-6],[\"<0x98>\",-6],[\"<0x80>\",-6]]"
#define EOS                                                                                                            \
	"\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}," \
	"{\"SpecialToken\":{\"id\":\"</s>\",\"type_id\":0}}],\"special_tokens\":{\"</s>\":{\"id\":\"</"                \
	"s>\",\"ids\":[1]}}}"
#define META  "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" SP "\",\"add_prefix_space\":true}"
#define ADDED "\"added_tokens\":[{\"id\":1,\"content\":\"</s>\"},{\"id\":20,\"content\":\"<x>\",\"lstrip\":true}]"

static struct vfm_text_tokenizer *open_text(const char *name, const void *data, size_t len, struct vfm_err *err)
{
	struct vfm_text_tokenizer *t = NULL;
	char *path = vfm_strfmt("%s/%s", folder, name);
	int rc;

	assert_int_equal(vfm_write_file(path, data, len, err), 0);
	rc = vfm_text_tokenizer_open(&t, path, err);
	assert_true((rc == 0) == (t != NULL));
	assert_true(rc == 0 || rc == VFM_EUSAGE);
	free(path);
	return t;
}

static struct vfm_text_tokenizer *open_json(const char *text, struct vfm_err *err)
{
	return open_text("tokenizer.json", text, strlen(text), err);
}

/* ids: "7 5 1" */
static void expect_ids(const struct vfm_text_tokenizer *t, const char *text, int64_t max_len, const char *ids)
{
	struct vfm_buf b = {0};
	struct vfm_err err = {0};
	int32_t id[64];
	int64_t n;

	assert_true(max_len <= 64);
	n = vfm_text_tokenizer_encode(t, text, max_len, id, &err);
	assert_true(n >= 1 && n <= max_len);
	for (int64_t i = 0; i < n; i++)
		vfm_buf_addf(&b, i ? " %d" : "%d", id[i]);
	assert_string_equal(b.data, ids);
	vfm_buf_release(&b);
}

static void test_ids(void **state)
{
	struct vfm_err err = {0};
	struct vfm_text_tokenizer *t = open_json("{" MODEL "}," EOS "," META "," ADDED "}", &err);

	(void)state;
	assert_non_null(t);
	expect_ids(t, "", 64, "1");
	expect_ids(t, "ab", 64, "3 6 1"); /* -2 - 4 is more than -4 - 3 and -9 */
	expect_ids(t, "a ab", 64, "7 3 6 1");
	expect_ids(t, "a", 64, "7 1");
	expect_ids(t, "b  b", 64, "3 5 3 3 5 1");
	expect_ids(t, "zzz", 64, "3 2 1");                /* unknown neighbours are one */
	expect_ids(t, "z\xf0\x9f\x98\x80z", 64, "3 2 1"); /* bytes only with byte_fallback */
	expect_ids(t, "a</s>b", 64, "7 1 3 5 1");         /* an added token, and a new beginning behind it */
	expect_ids(t, "a \t<x> b", 64, "7 20 3 5 1");     /* lstrip takes the white space before it */
	expect_ids(t, "\xc3\xa9<x", 64, "3 9 2 1");
	expect_ids(t, "a a a a", 3, "7 7 1"); /* truncation keeps the end */
	expect_ids(t, "a a a a", 1, "1");
	assert_int_equal(vfm_text_tokenizer_max_id(t), 20);
	assert_int_equal(strlen(vfm_text_tokenizer_sha256(t)), 64);
	vfm_text_tokenizer_close(t);

	t = open_json("{" MODEL ",\"byte_fallback\":true}," EOS "," META "}", &err);
	assert_non_null(t);
	expect_ids(t, "a\xf0\x9f\x98\x80", 64, "7 10 11 12 13 1");
	expect_ids(t, "a\xf0\x9f\x98\x81", 64, "7 2 1"); /* there is no piece <0x81> */
	vfm_text_tokenizer_close(t);

	t = open_json("{" MODEL "}," EOS ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
		      "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true},"
		      "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"},"
		      "{\"type\":\"Replace\",\"pattern\":{\"String\":\"q\"},\"content\":\"ab\"}]},"
		      "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},"
		      "{\"type\":\"Metaspace\",\"replacement\":\"" SP "\",\"prepend_scheme\":\"first\"}]}}",
		&err);
	assert_non_null(t);
	expect_ids(t, "  a   q\xe3\x80\x80", 64, "7 6 1");
	vfm_text_tokenizer_close(t);
}

static void test_refused_texts(void **state)
{
	static const char *const bad[] = {"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80", "\xe3\x81"};
	struct vfm_err err = {0};
	struct vfm_text_tokenizer *t = open_json("{" MODEL "}," EOS "," META "}", &err);
	const size_t n = VFM_TEXT_TOKENIZER_TEXT_MAX;
	struct vfm_buf b = {0};
	char *big = vfm_malloc(n + 2);
	int32_t id[8];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		assert_int_equal(vfm_text_tokenizer_encode(t, bad[i], 8, id, &err), VFM_EINPUT);
		assert_non_null(strstr(err.msg, "UTF-8"));
		assert_int_equal(vfm_clean_text(bad[i], &b, &err), VFM_EINPUT);
	}
	memset(big, 'a', n + 1);
	big[n + 1] = 0;
	assert_int_equal(vfm_text_tokenizer_encode(t, big, 8, id, &err), VFM_EINPUT);
	big[4 << 20] = 0; /* one word of megabytes */
	assert_int_equal(vfm_text_tokenizer_encode(t, big, 8, id, &err), 8);
	assert_int_equal(id[7], 1);
	assert_int_equal(vfm_text_tokenizer_encode(t, "a", 0, id, &err), VFM_EUSAGE);
	free(big);
	vfm_buf_release(&b);
	vfm_text_tokenizer_close(t);
}

static void test_refused_json(void **state)
{
	static const struct {
		const char *text, *named;
	} bad[] = {{"{}", "model.type"}, {"{\"model\":{\"type\":\"BPE\"}}", "BPE"},
		{"{" MODEL "}," EOS "}", "Metaspace"}, {"{" MODEL "}," META "}", "post_processor"},
		{"{" MODEL "}," EOS "," META ",\"normalizer\":{\"type\":\"NFKC\"}}", "normalizer.type"},
		{"{" MODEL "}," EOS "," META
		 ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}}",
			"precompiled_charsmap"},
		{"{" MODEL "}," EOS "," META ",\"added_tokens\":[{\"id\":1,\"content\":\"x\",\"normalized\":true}]}",
			"added_tokens[0].normalized"},
		{"{" MODEL "}," EOS ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"}}",
			"replacement"},
		{"{\"model\":{\"type\":\"Unigram\",\"unk_id\":5,\"vocab\":[[\"a\",0]]}," EOS "," META "}", "unk_id"},
		{"{ ", "tokenizer.json"}};
	struct vfm_err err = {0};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		assert_null(open_json(bad[i].text, &err));
		if (!strstr(err.msg, bad[i].named))
			fail_msg("%s: %s", bad[i].text, err.msg);
	}
}

static void add_field(struct vfm_buf *b, int number, const void *data, size_t len)
{
	const char head[2] = {(char)(number << 3 | 2), (char)len};

	vfm_buf_add(b, head, 2);
	vfm_buf_add(b, data, len);
}

static void add_piece(struct vfm_buf *model, const char *text, float score, char type)
{
	struct vfm_buf p = {0};

	add_field(&p, 1, text, strlen(text));
	vfm_buf_add(&p, "\x15", 1);
	vfm_buf_add(&p, &score, 4);
	vfm_buf_add(&p, (const char[]){0x18, type}, 2);
	add_field(model, 1, p.data, p.len);
	vfm_buf_release(&p);
}

static void test_spm(void **state)
{
	struct vfm_buf b = {0};
	struct vfm_err err = {0};
	struct vfm_text_tokenizer *t;
	char *config = vfm_strfmt("%s/tokenizer_config.json", folder);

	(void)state;
	add_piece(&b, "<pad>", 0, 3);
	add_piece(&b, "</s>", 0, 3);
	add_piece(&b, "<unk>", 0, 2);
	add_piece(&b, SP, -2, 1);
	add_piece(&b, "a", -3, 1);
	add_piece(&b, SP "a", -4, 1);
	add_piece(&b, "[U]", 0, 4);
	add_field(&b, 2, "\x18\x01\xc0\x02\x02", 5); /* unigram, unk_id 2 */
	t = open_text("spiece.model", b.data, b.len, &err);
	assert_non_null(t);
	expect_ids(t, " a\xe3\x80\x80z a[U]", 64, "5 3 2 5 6 1");
	expect_ids(t, "<extra_id_0><extra_id_99>", 64, "106 7 1");
	expect_ids(t, "<pad><unk></s>", 64, "0 2 1 1");
	assert_int_equal(vfm_text_tokenizer_max_id(t), 106);
	vfm_text_tokenizer_close(t);

	assert_int_equal(vfm_write_file(config, "{\"extra_ids\": 2}", 16, &err), 0);
	t = open_text("spiece.model", b.data, b.len, &err);
	assert_non_null(t);
	expect_ids(t, "<extra_id_0>", 64, "8 1");
	vfm_text_tokenizer_close(t);
	assert_int_equal(unlink(config), 0);
	for (size_t i = 0; i < b.len; i++) { /* any part of a file is refused or read, never a fault */
		t = open_text("spiece.model", b.data, i, &err);
		vfm_text_tokenizer_close(t);
		b.data[i] = (char)(b.data[i] ^ 0x55);
		t = open_text("spiece.model", b.data, b.len, &err);
		vfm_text_tokenizer_close(t);
		b.data[i] = (char)(b.data[i] ^ 0x55);
	}
	free(config);
	vfm_buf_release(&b);
}

/* Results of ftfy 6.3 without fix_encoding, and of html.unescape. */
static void test_clean(void **state)
{
	static const char *const is[][2] = {{"", ""}, {"  a\t b\n\nc ", "a b c"},
		{"sch\xc3\x83\xc2\xb6n", "sch\xc3\x83\xc2\xb6n"}, /* mojibake stays */
		{"caf\xc3\xa9 \xe2\x80\x93 5\xc2\xb0\x43", "caf\xc3\xa9 \xe2\x80\x93 5\xc2\xb0\x43"},
		{"P&EACUTE;REZ &amp;amp; &notit; &semi;", "P\xc3\x89REZ & \xc2\xacit; ;"},
		{"<b>&eacute;</b>", "<b>\xc3\xa9</b>"}, {"&#128;&#xD800;&#1;", "\xe2\x82\xac\xef\xbf\xbd"},
		{"\x1b[31mred\x1b[0m", "red"}, {"\xef\xbc\xac\xef\xbc\xaf\xe3\x80\x80\xef\xac\x81", "LO fi"},
		{"\xe2\x80\x9cq\xe2\x80\x99", "\"q'"}, {"e\xcc\x81 a\r\nb\xe2\x80\xa8\x63", "\xc3\xa9 a b c"},
		{"\xef\xbb\xbf\x01x\x7f", "x"}, {"a\xcc\x80\xcc\xa3", "\xe1\xba\xa1\xcc\x80"}};
	struct vfm_buf b = {0};
	struct vfm_err err = {0};

	(void)state;
	for (size_t i = 0; i < sizeof(is) / sizeof(*is); i++) {
		assert_int_equal(vfm_clean_text(is[i][0], &b, &err), 0);
		assert_string_equal(b.data, is[i][1]);
	}
	vfm_buf_release(&b);
}

/* The time is linear in the text: no run of marks, entities or escapes makes it quadratic. */
static void test_clean_long(void **state)
{
	static const char *const unit[] = {"\xcc\x80\xcc\xa3", "&", "\x1b[1", "&amp;", "amp;", " ", "<"};
	const size_t bytes = 1 << 19;
	struct vfm_buf b = {0}, out = {0};
	struct vfm_err err = {0};

	(void)state;
	for (size_t i = 0; i < sizeof(unit) / sizeof(*unit); i++) {
		vfm_buf_clear(&b);
		vfm_buf_adds(&b, "&");
		while (b.len < bytes)
			vfm_buf_adds(&b, unit[i]);
		assert_int_equal(vfm_clean_text(b.data, &out, &err), 0);
		assert_true(out.len <= 3 * bytes);
	}
	vfm_buf_release(&b);
	vfm_buf_release(&out);
}

static int make_folder(void **state)
{
	(void)state;
	return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
	(void)state;
	return vfm_rm_rf(folder, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ids),
		cmocka_unit_test(test_refused_texts),
		cmocka_unit_test(test_refused_json),
		cmocka_unit_test(test_spm),
		cmocka_unit_test(test_clean),
		cmocka_unit_test(test_clean_long),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
