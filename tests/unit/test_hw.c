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
		double bf16, mem_gb_s;
	} known[] = {
		{"NVIDIA A100-SXM4-40GB", 312, 1555},
		{"NVIDIA A100-SXM4-80GB", 312, 2039},
		{"NVIDIA A100 80GB PCIe", 312, 1935},
		{"NVIDIA H100 80GB HBM3", 989.4, 3350},
		{"NVIDIA H100 PCIe", 756, 2039},
		{"NVIDIA H100 NVL", 835.5, 3900},
		{"NVIDIA H200", 989.4, 4800},
		{"NVIDIA H200 NVL", 835.5, 4800},
		{"NVIDIA H20", 148, 4000},
		{"NVIDIA GH200 480GB", 989.4, 4000},
		{"NVIDIA B200", 2250, 8000},
		{"NVIDIA GB200", 2500, 8000},
		{"nvidia h200", 989.4, 4800},
		{"NVIDIA L40S", 362, 864},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		const struct vfm_hw *h = vfm_hw_find(known[i].name);

		assert_non_null(h);
		if (h->bf16 != known[i].bf16 || h->mem_gb_s != known[i].mem_gb_s)
			fail_msg("%s is taken for a %s", known[i].name, h->words);
	}
}

static void test_unknown(void **state)
{
	(void)state;
	assert_null(vfm_hw_find("cpu"));
	assert_null(vfm_hw_find(""));
	assert_null(vfm_hw_find("NVIDIA H2000"));
	assert_null(vfm_hw_find("NVIDIA XH100"));
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
