/* Mapped weights: what fits, and one message for everything that does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "ckpt/safetensors.h"
#include "ckpt/weights.h"
#include "io/file.h"

static char folder[] = "/tmp/vfm-test-weights-XXXXXX";

/* Writes a file with a [2,3] f32, b [4] bf16 and c [2] i64; cut: bytes that are missing at its end. */
static void write_file(const char *name, int cut)
{
	struct vfm_st_tensor t[] = {{.name = "net.0.a", .dtype = VFM_F32, .ndim = 2, .shape = {2, 3}},
		{.name = "net.0.b", .dtype = VFM_BF16, .ndim = 1, .shape = {4}},
		{.name = "net.1.c", .dtype = VFM_I64, .ndim = 1, .shape = {2}}};
	char *path = vfm_strfmt("%s/%s", folder, name);
	const float a[6] = {1, 2, 3, 4, 5, 6};
	const uint16_t b[4] = {0x3f80, 0x4000, 0xbf80, 0};
	const int64_t c[2] = {7, 8};
	struct vfm_buf head = {0};
	uint8_t data[48] = {0};
	FILE *f = fopen(path, "wb");

	vfm_st_layout(t, 3, NULL, 0, &head);
	for (int i = 0; i < 3; i++) {
		const void *v = t[i].dtype == VFM_F32 ? (const void *)a : t[i].dtype == VFM_I64 ? (const void *)c : b;

		memcpy(data + t[i].begin, v, (size_t)(t[i].end - t[i].begin));
	}
	assert_int_equal(fwrite(head.data, 1, head.len, f), head.len);
	assert_int_equal(fwrite(data, 1, sizeof(data) - (size_t)cut, f), sizeof(data) - (size_t)cut);
	fclose(f);
	vfm_buf_release(&head);
	free(path);
}

static void write_text(const char *name, const char *text)
{
	char *path = vfm_strfmt("%s/%s", folder, name);
	FILE *f = fopen(path, "wb");

	fputs(text, f);
	fclose(f);
	free(path);
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

static void test_fits(void **state)
{
	const int64_t a[] = {2, 3}, b[] = {4};
	const struct vfm_weight *t;
	struct vfm_err err = {0};
	struct vfm_weights *w;
	float f[4];
	char hex[VFM_SHA256_HEX];

	(void)state;
	write_file("model.safetensors", 0);
	write_text("config.json", "{\"d_model\": 3}");
	assert_int_equal(vfm_weights_open(&w, folder, &err), 0);
	assert_int_equal(json_integer_value(json_object_get(vfm_weights_config(w), "d_model")), 3);
	assert_true(vfm_weights_has(w, "net.0.a"));
	assert_false(vfm_weights_has(w, "net.0"));
	t = vfm_weights_want(w, 2, a, "net.%d.a", 0);
	assert_non_null(t);
	t = vfm_weights_want(w, 1, b, "net.%d.b", 0);
	assert_non_null(t);
	vfm_weight_to_f32(t, f);
	assert_true(f[0] == 1 && f[1] == 2 && f[2] == -1 && f[3] == 0);
	vfm_weights_ignore(w, "net.1.");
	assert_int_equal(vfm_weights_check(w, "a net", &err), 0);
	assert_int_equal(vfm_weights_sha256(w, hex, &err), 0);
	assert_int_equal(strlen(hex), 64);
	vfm_weights_close(w);
}

/* Writes a file with two tensors, of the given first elements, and metadata. */
static void write_pair(const char *name, float used, float other, const char *config)
{
	struct vfm_st_tensor t[] = {{.name = "used", .dtype = VFM_F32, .ndim = 1, .shape = {2}},
		{.name = "x.other", .dtype = VFM_F32, .ndim = 1, .shape = {2}}};
	const char *const meta[][2] = {{"config", config}};
	const float data[] = {used, 1, other, 1};
	char *path = vfm_strfmt("%s/%s", folder, name);
	struct vfm_buf b = {0};
	struct vfm_err err = {0};

	vfm_st_layout(t, 2, meta, 1, &b);
	vfm_buf_add(&b, data, sizeof(data));
	assert_int_equal(vfm_write_file(path, b.data, b.len, &err), 0);
	vfm_buf_release(&b);
	free(path);
}

/* Sets hex to the sha256 of the tensor "used". */
static int hash_used(const char *name, char hex[VFM_SHA256_HEX], json_t **config, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/%s", folder, name);
	struct vfm_weights *w;
	int rc;

	assert_int_equal(vfm_weights_open(&w, path, err), 0);
	vfm_weights_ignore(w, "x.");
	assert_non_null(vfm_weights_want(w, 1, (int64_t[]){2}, "used"));
	assert_int_equal(vfm_weights_check(w, "a net", err), 0);
	assert_int_equal(vfm_weights_sha256_used(w, hex, err), 0);
	rc = vfm_weights_metadata(w, "config", config, err);
	vfm_weights_close(w);
	free(path);
	return rc;
}

/* Tensors of another model in the same file, and the metadata, do not change the sha256. */
static void test_shared_file(void **state)
{
	char first[VFM_SHA256_HEX], same[VFM_SHA256_HEX], other[VFM_SHA256_HEX];
	struct vfm_err err = {0};
	json_t *config;

	(void)state;
	write_pair("a.safetensors", 1, 2, "{\"vae\": {\"dims\": 3}}");
	write_pair("b.safetensors", 1, 3, "{}");
	write_pair("c.safetensors", 4, 2, "{");
	assert_int_equal(hash_used("a.safetensors", first, &config, &err), 0);
	assert_int_equal(json_integer_value(json_object_get(json_object_get(config, "vae"), "dims")), 3);
	json_decref(config);
	assert_int_equal(hash_used("b.safetensors", same, &config, &err), 0);
	json_decref(config);
	assert_string_equal(first, same);
	assert_int_equal(hash_used("c.safetensors", other, &config, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "__metadata__.config"));
	assert_string_not_equal(first, other);
}

static void test_all_faults_at_once(void **state)
{
	const int64_t a[] = {3, 2}, c[] = {2}, none[] = {1};
	struct vfm_err err = {0};
	struct vfm_weights *w;

	(void)state;
	write_file("model.safetensors", 0);
	assert_int_equal(vfm_weights_open(&w, folder, &err), 0);
	assert_null(vfm_weights_want(w, 2, a, "net.0.a"));
	assert_null(vfm_weights_want(w, 1, c, "net.1.c"));
	for (int i = 0; i < 3; i++)
		assert_null(vfm_weights_want(w, 1, none, "net.%d.d", i));
	assert_int_equal(vfm_weights_check(w, "a net", &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "these are not the weights of a net: 3 tensors missing: net.{0-2}.d"));
	assert_non_null(strstr(err.msg, "1 tensor of another shape: net.0.a"));
	assert_non_null(strstr(err.msg, "1 tensor not of floating-point numbers: net.1.c"));
	assert_non_null(strstr(err.msg, "1 tensor unknown: net.0.b"));
	vfm_weights_close(w);
}

static void test_bad_files(void **state)
{
	char *path = vfm_strfmt("%s/model.safetensors", folder), *other = vfm_strfmt("%s/empty", folder);
	struct vfm_err err = {0};
	struct vfm_weights *w = NULL;

	(void)state;
	write_file("model.safetensors", 1);
	assert_int_equal(vfm_weights_open(&w, folder, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "model.safetensors"));
	write_file("model.safetensors", 0);
	write_text("config.json", "[]");
	assert_int_equal(vfm_weights_open(&w, path, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "config.json: expected an object"));
	mkdir(other, 0700);
	assert_int_equal(vfm_weights_open(&w, other, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "no weights: expected"));
	assert_null(w);
	free(path);
	free(other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_fits), cmocka_unit_test(test_shared_file),
		cmocka_unit_test(test_all_faults_at_once), cmocka_unit_test(test_bad_files)};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
