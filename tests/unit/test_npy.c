#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/npy.h"
#include "spec/model/dtype.h"

static void header_is_what_numpy_writes(void **state)
{
	static const char want[] = "{'descr': '<f2', 'fortran_order': False, 'shape': (16, 4, 16, 16), }";
	int64_t shape[] = {16, 4, 16, 16};
	char h[VFM_NPY_HEADER_MAX];
	size_t n = vfm_npy_header(h, VFM_NPY_F16, 4, shape);
	struct vfm_npy r;
	struct vfm_err err = {0};

	(void)state;
	assert_int_equal(n, 128);
	assert_memory_equal(h, "\x93NUMPY\x01\x00\x76\x00", 10);
	assert_memory_equal(h + 10, want, sizeof(want) - 1);
	assert_int_equal(h[n - 1], '\n');
	assert_int_equal(vfm_npy_parse(&r, h, n, n + 2 * 16 * 4 * 16 * 16, "x", &err), 0);
	assert_int_equal(r.type, VFM_NPY_F16);
	assert_int_equal(r.ndim, 4);
	assert_int_equal(vfm_npy_count(&r), 16384);
	assert_int_equal(r.header_bytes, 128);
	assert_int_equal(r.data_bytes, 32768);
}

static void shapes_round_trip(void **state)
{
	static const int64_t shape[] = {3, 1, 0, 2, 5, 1, 1, 7};
	char h[VFM_NPY_HEADER_MAX];

	(void)state;
	for (int t = VFM_NPY_F16; t <= VFM_NPY_BF16; t++) {
		for (int d = 0; d <= VFM_NPY_DIMS; d++) {
			size_t n = vfm_npy_header(h, t, d, shape);
			uint64_t bytes = vfm_npy_type_size(t) * (d == 0 ? 1 : d <= 2 ? 3 : 0);
			struct vfm_npy r;

			assert_int_equal(vfm_npy_parse(&r, h, n, n + bytes, "x", NULL), 0);
			assert_int_equal(r.ndim, d);
			assert_int_equal(r.type, t);
			assert_int_equal(r.data_bytes, bytes);
			assert_memory_equal(r.shape, shape, (size_t)d * 8);
			assert_int_equal(vfm_npy_parse(&r, h, n, n + bytes + 1, "x", NULL), VFM_EINPUT);
			if (bytes)
				assert_int_equal(vfm_npy_parse(&r, h, n, n + bytes - 1, "x", NULL), VFM_EINPUT);
			for (size_t cut = 0; cut < n; cut++)
				assert_int_equal(vfm_npy_parse(&r, h, cut, n + bytes, "x", NULL), VFM_EINPUT);
		}
	}
}

static int parse_text(const char *dict, uint64_t data, struct vfm_err *err)
{
	char b[1024] = "\x93NUMPY\x01";
	size_t n = strlen(dict);
	struct vfm_npy r;

	b[8] = (char)(n & 255);
	b[9] = (char)(n >> 8);
	memcpy(b + 10, dict, n);
	return vfm_npy_parse(&r, b, 10 + n, 10 + n + data, "x.npy", err);
}

static void hostile_headers(void **state)
{
	static const struct {
		const char *dict, *why;
	} bad[] = {
		{"{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", "big-endian"},
		{"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "unsupported element type"},
		{"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "not a plain type"},
		{"{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }", "Fortran"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "bad dimension"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (1 1), }", "bad dimension"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (1), }", "not a tuple"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4), }", "overflows"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", "bad dimension"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", "too many"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }", "truncated"},
		{"{'descr': '<f4', 'fortran_order': False, }", "missing"},
		{"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "twice"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}", "unknown header key"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } import os", "after the header"},
		{"{'descr': '<f4' 'fortran_order': False, 'shape': (1,), }", "not a dictionary"},
		{"", "not a dictionary"},
		{"{", "not a dictionary"},
		{"{'descr': '", "not a plain type"},
	};
	struct vfm_err err;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(parse_text(bad[i].dict, 4, &err), VFM_EINPUT);
		if (!strstr(err.msg, bad[i].why))
			fail_msg("%s: got '%s', expected '%s'", bad[i].dict, err.msg, bad[i].why);
	}
	assert_int_equal(parse_text("{'descr': '>V2', 'fortran_order': False, 'shape': (2,), }", 4, &err), VFM_EINPUT);
	assert_int_equal(parse_text("{'descr': '<V4', 'fortran_order': False, 'shape': (1,), }", 4, &err), VFM_EINPUT);
	assert_int_equal(parse_text("{'descr': '|V2', 'fortran_order': False, 'shape': (2,), }", 4, &err), 0);
	assert_int_equal(parse_text("{\"shape\":(1,),\"fortran_order\":False,\"descr\":\"<f4\"}\n", 4, &err), 0);
}

/* numpy.save(f, numpy.array([1, -3.140625, 1e38, 2e-39]).astype(ml_dtypes.bfloat16)) */
static void bf16_is_what_numpy_writes(void **state)
{
	static const char dict[] = "{'descr': '<V2', 'fortran_order': False, 'shape': (4,), }";
	static const uint16_t in[4] = {0x3f80, 0xc049, 0x7e96, 0x0016};
	static const float want[4] = {1, -3.140625f, 0x1.2cp+126f, 0x1.6p-129f};
	uint16_t all[19];
	char h[VFM_NPY_HEADER_MAX];
	float f[19];

	(void)state;
	assert_int_equal(vfm_npy_header(h, VFM_NPY_BF16, 1, (const int64_t[]){4}), 128);
	assert_memory_equal(h + 10, dict, sizeof(dict) - 1);
	vfm_dtype_convert(VFM_F32, f, VFM_BF16, in, 4);
	assert_memory_equal(f, want, sizeof(want));
	for (uint32_t v = 0; v < 65536; v++) { /* 16 through the vector path, 3 through the scalar one */
		uint32_t bits = v << 16;

		for (int i = 0; i < 19; i++)
			all[i] = (uint16_t)v;
		vfm_dtype_convert(VFM_F32, f, VFM_BF16, all, 19);
		for (int i = 0; i < 19; i++)
			assert_memory_equal(&f[i], &bits, 4);
	}
}

static void save_writes_what_parse_reads(void **state)
{
	char path[] = "/tmp/vfm_npy_XXXXXX";
	float x[6] = {1, 2, 3, 4, 5, 6};
	struct vfm_npy n = {.type = VFM_NPY_F32, .ndim = 2, .shape = {2, 3}};
	char hex[VFM_SHA256_HEX], want[VFM_SHA256_HEX];
	struct vfm_err err = {0};
	char data[256];
	ssize_t len;
	int fd;

	(void)state;
	close(mkstemp(path));
	assert_int_equal(vfm_npy_save(path, &n, x, hex, &err), 0);
	assert_int_equal(vfm_sha256_file(path, NULL, want, &err), 0);
	assert_string_equal(hex, want);
	fd = open(path, O_RDONLY);
	len = read(fd, data, sizeof(data));
	close(fd);
	assert_int_equal(vfm_npy_parse(&n, data, (size_t)len, (uint64_t)len, path, &err), 0);
	assert_int_equal(n.ndim, 2);
	assert_int_equal(n.shape[1], 3);
	assert_memory_equal(data + len - sizeof(x), x, sizeof(x));
	assert_int_equal(vfm_npy_parse(&n, data, (size_t)len, (uint64_t)len - 1, path, &err), VFM_EINPUT);
	unlink(path);
}

/* The check of n elements with `bits` at position `at`, 1 byte off any alignment; the others are finite. */
static int check_with(enum vfm_npy_type type, size_t n, size_t at, uint64_t bits, struct vfm_err *err)
{
	static const uint64_t finite[] = {[VFM_NPY_F16] = 0x7bff,
		[VFM_NPY_F32] = 0xff7fffff,
		[VFM_NPY_F64] = 0x7fefffffffffffff,
		[VFM_NPY_U8] = 0xff,
		[VFM_NPY_I32] = 0x7f800000,
		[VFM_NPY_I64] = 0x7ff0000000000000,
		[VFM_NPY_BF16] = 0xff7f};
	static uint8_t buf[20000];
	size_t size = vfm_npy_type_size(type);
	struct vfm_npy npy = {.type = type, .ndim = 2, .shape = {(int64_t)n / 5, 5}, .data_bytes = n * size};

	assert_in_range(n * size, 0, sizeof(buf) - 1);
	for (size_t i = 0; i < n; i++)
		memcpy(buf + 1 + i * size, i == at ? &bits : i % 3 ? &finite[type] : &(uint64_t){1}, size);
	return vfm_npy_check_finite(&npy, buf + 1, "x.npy", err);
}

static void finite_or_not(void **state)
{
	static const struct {
		enum vfm_npy_type type;
		uint64_t bits;
		const char *is;
	} bad[] = {{VFM_NPY_F16, 0x7c00, "infinite"}, {VFM_NPY_F16, 0xfc00, "infinite"}, {VFM_NPY_F16, 0x7e00, "NaN"},
		{VFM_NPY_F16, 0xfc01, "NaN"}, {VFM_NPY_F32, 0x7f800000, "infinite"}, {VFM_NPY_F32, 0x7f800001, "NaN"},
		{VFM_NPY_F32, 0xffc00000, "NaN"}, {VFM_NPY_F64, 0xfff0000000000000, "infinite"},
		{VFM_NPY_F64, 0x7ff0000000000001, "NaN"}, {VFM_NPY_BF16, 0x7f80, "infinite"},
		{VFM_NPY_BF16, 0xff80, "infinite"}, {VFM_NPY_BF16, 0xff81, "NaN"}, {VFM_NPY_BF16, 0x7fc0, "NaN"}};
	static const size_t sizes[] = {5, 510, 515, 1025, 2045, 2050, 2400};
	struct vfm_err err;
	char want[80];

	(void)state;
	for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
		for (int t = VFM_NPY_F16; t <= VFM_NPY_BF16; t++)
			assert_int_equal(check_with((enum vfm_npy_type)t, sizes[k], SIZE_MAX, 0, &err), 0);
		for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
			for (size_t at = 0; at < sizes[k]; at += at < 5 || at + 6 > sizes[k] ? 1 : 101) {
				assert_int_equal(check_with(bad[i].type, sizes[k], at, bad[i].bits, &err), VFM_EINPUT);
				snprintf(want, sizeof(want), "x.npy: element [%zu,%zu] is %s", at / 5, at % 5,
					bad[i].is);
				assert_string_equal(err.msg, want);
			}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(header_is_what_numpy_writes),
		cmocka_unit_test(shapes_round_trip),
		cmocka_unit_test(hostile_headers),
		cmocka_unit_test(bf16_is_what_numpy_writes),
		cmocka_unit_test(finite_or_not),
		cmocka_unit_test(save_writes_what_parse_reads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
