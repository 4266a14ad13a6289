/* Peaks by the names of devices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "spec/cost/hw.h"

static void test_names(void **state)
{
	static const struct {
		const char *name;
		double bf16, f32;
	} known[] = {
		{"NVIDIA A100-SXM4-40GB", 312, 19.5},
		{"NVIDIA A100-SXM4-80GB", 312, 19.5},
		{"NVIDIA A100 80GB PCIe", 312, 19.5},
		{"NVIDIA H100 80GB HBM3", 989.4, 66.9},
		{"NVIDIA H100 PCIe", 756, 51},
		{"NVIDIA H100 NVL", 835.5, 60},
		{"NVIDIA H200", 989.4, 66.9},
		{"NVIDIA H200 NVL", 835.5, 60},
		{"NVIDIA H20", 148, 44},
		{"NVIDIA GH200 480GB", 989.4, 66.9},
		{"NVIDIA B200", 2250, 75},
		{"NVIDIA GB200", 2500, 80},
		{"nvidia h200", 989.4, 66.9},
		{"NVIDIA L40S", 362, 91.6},
		{"NVIDIA GeForce RTX 4090", 165.2, 82.6},
		{"NVIDIA GeForce RTX 4090 D", 147.1, 73.5},
		{"NVIDIA GeForce RTX 4090 Laptop GPU", 0, 0},
		{"NVIDIA GeForce RTX 5090", 209.5, 104.8},
		{"NVIDIA GeForce RTX 5090 D", 209.5, 104.8},
		{"NVIDIA GeForce RTX 5090 Laptop GPU", 0, 0},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		double bf16 = vfm_hw_peak(known[i].name, VFM_BF16), f32 = vfm_hw_peak(known[i].name, VFM_F32);

		if (bf16 != known[i].bf16 || f32 != known[i].f32)
			fail_msg("%s has %g and %g TFLOP/s", known[i].name, bf16, f32);
	}
}

static void test_unknown(void **state)
{
	(void)state;
	assert_true(vfm_hw_peak("", VFM_BF16) == 0);
	assert_true(vfm_hw_peak("NVIDIA H2000", VFM_BF16) == 0);
	assert_true(vfm_hw_peak("NVIDIA XH100", VFM_BF16) == 0);
	assert_true(vfm_hw_peak("cpu", VFM_BF16) == 0);
	assert_true(vfm_hw_peak("NVIDIA H200", VFM_BF16) == 989.4);
	assert_true(vfm_hw_peak("NVIDIA H200", VFM_F32) == 66.9);
	assert_true(vfm_hw_peak("NVIDIA H200", VFM_I32) == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_unknown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
