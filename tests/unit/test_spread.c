/* The smallest, the median and the largest of measurements in any order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/stats.h"

static void test_spread(void **state)
{
	double odd[] = {3, 9, 1}, even[] = {8, 2, 4, 1}, one[] = {5};
	struct vfm_spread s = vfm_spread_of(odd, 3);

	(void)state;
	assert_true(s.min == 1 && s.median == 3 && s.max == 9);
	s = vfm_spread_of(even, 4);
	assert_true(s.min == 1 && s.median == 3 && s.max == 8);
	s = vfm_spread_of(one, 1);
	assert_true(s.min == 5 && s.median == 5 && s.max == 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_spread)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
