/* test_ops - every case of the list on every instruction set of this CPU and on the emulated CUDA kernels: parity with
 * float64, gradients by finite differences, equal bits from run to run and for any number of threads, and the checks.
 * The tests are in ops_*.c.  VFM_TEST_ONLY=test_parity runs one of them, and -test_parity the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/cpu/cpu.h"
#include "device/cpu/cpu_isa.h"
#include "ops_test.h"

static void test_pool(void **state)
{
	struct vfm_stream *s = levels[0].s;
	struct vfm_dev *d = levels[0].dev;
	struct vfm_err err = {0};
	char *p, *q;

	(void)state;
	vfm_dev_peak_reset(d);
	assert_int_equal(d->mem_now, 0);
	p = vfm_dev_alloc(s, 1000003, "a", &err);
	q = vfm_dev_alloc(s, 1, "b", &err);
	assert_non_null(p);
	assert_non_null(q);
	assert_int_equal((uintptr_t)p % 64, 0);
	assert_int_equal(d->mem_now, 1000004);
	memset(p, 1, 1000003);
	vfm_dev_free(s, p, 1000003);
	assert_int_equal(d->mem_now, 1);
	assert_int_equal(d->mem_peak, 1000004);
	assert_ptr_equal(vfm_dev_alloc(s, 1000001, "again", &err), p); /* the freed block is reused */
	vfm_dev_free(s, p, 1000001);
	vfm_dev_free(s, q, 1);
	assert_null(vfm_dev_alloc(s, SIZE_MAX / 2, "too much", &err));
	assert_int_equal(err.code, VFM_EENV);
	assert_non_null(strstr(err.msg, "too much"));
	vfm_dev_free(s, NULL, 5);
	p = vfm_dev_alloc(s, 0, "nothing", &err); /* a rank without tokens: a distinct address */
	q = vfm_dev_alloc(s, 0, "nothing", &err);
	assert_non_null(p);
	assert_non_null(q);
	assert_ptr_not_equal(p, q);
	assert_int_equal(d->mem_now, 0);
	vfm_dev_free(s, p, 0);
	vfm_dev_free(s, q, 0);
	assert_int_equal(d->mem_now, 0);
}

static void test_isa_names(void **state)
{
	struct vfm_err err = {0};
	enum vfm_isa isa;

	(void)state;
	setenv("VFM_CPU_ISA", "avx1024", 1);
	assert_int_equal(vfm_isa_choose(&isa, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "avx1024"));
	assert_null(vfm_cpu_open(&err));
	setenv("VFM_CPU_ISA", "base", 1);
	assert_int_equal(vfm_isa_choose(&isa, &err), 0);
	assert_int_equal(isa, VFM_ISA_BASE);
	setenv("VFM_CPU_ISA", "", 1);
	assert_int_equal(vfm_isa_choose(&isa, &err), 0);
	assert_int_equal(isa, vfm_isa_best());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pool),
		cmocka_unit_test(test_checks),
		cmocka_unit_test(test_parity),
		cmocka_unit_test(test_gradients),
		cmocka_unit_test(test_same_bits),
		cmocka_unit_test(test_unread),
		cmocka_unit_test(test_nan),
		cmocka_unit_test(test_skipped_update),
		cmocka_unit_test(test_clip_nonfinite),
		cmocka_unit_test(test_adamw_units),
		cmocka_unit_test(test_in_place),
		cmocka_unit_test(test_conv_past),
		cmocka_unit_test(test_norm8),
		cmocka_unit_test(test_mxfp8),
		cmocka_unit_test(test_decode_weights),
		cmocka_unit_test(test_sum_in_place),
		cmocka_unit_test(test_merged_blocks),
		cmocka_unit_test(test_low_scores),
		cmocka_unit_test(test_bias_alone),
		cmocka_unit_test(test_channel_rms_values),
		cmocka_unit_test(test_channel_group_values),
		cmocka_unit_test(test_conv_parts),
		cmocka_unit_test(test_conv_in_place),
		cmocka_unit_test(test_conv_up),
		cmocka_unit_test(test_conv_packed),
		cmocka_unit_test(test_conv_not_finite),
		cmocka_unit_test(test_bad_indices),
		cmocka_unit_test(test_bad_indices_of_kernels),
		cmocka_unit_test(test_philox),
		cmocka_unit_test(test_normals),
		cmocka_unit_test(test_gemm_noise),
		cmocka_unit_test(test_gemm_precision),
		cmocka_unit_test(test_rows_alone),
		cmocka_unit_test(test_long_sums),
		cmocka_unit_test(test_isa_names),
	};
	const struct CMUnitTest of_device[] = {
		cmocka_unit_test(test_parity),
		cmocka_unit_test(test_gradients),
		cmocka_unit_test(test_same_bits),
		cmocka_unit_test(test_unread),
		cmocka_unit_test(test_nan),
		cmocka_unit_test(test_skipped_update),
		cmocka_unit_test(test_clip_nonfinite),
		cmocka_unit_test(test_adamw_units),
		cmocka_unit_test(test_in_place),
		cmocka_unit_test(test_conv_past),
		cmocka_unit_test(test_norm8),
		cmocka_unit_test(test_mxfp8),
		cmocka_unit_test(test_decode_weights),
		cmocka_unit_test(test_sum_in_place),
		cmocka_unit_test(test_merged_blocks),
		cmocka_unit_test(test_low_scores),
		cmocka_unit_test(test_bias_alone),
		cmocka_unit_test(test_channel_rms_values),
		cmocka_unit_test(test_channel_group_values),
		cmocka_unit_test(test_conv_parts),
		cmocka_unit_test(test_conv_in_place),
		cmocka_unit_test(test_conv_up),
		cmocka_unit_test(test_conv_packed),
		cmocka_unit_test(test_conv_not_finite),
		cmocka_unit_test(test_bad_indices_of_kernels),
		cmocka_unit_test(test_normals),
	};

	const char *only = getenv("VFM_TEST_ONLY");

	device = getenv("VFM_TEST_DEVICE");
	case_words = getenv("VFM_TEST_CASES");
	if (only && *only == '-')
		cmocka_set_skip_filter(only + 1);
	else if (only)
		cmocka_set_test_filter(only);
	if (device)
		return cmocka_run_group_tests(of_device, open_levels, close_levels);
	return cmocka_run_group_tests(tests, open_levels, close_levels);
}
