/* The two passes of base/suballoc.h, and the tensors that device/ops/tensor.h makes of them. */
#include "base/suballoc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/ops/tensor.h"

struct arrays {
	char *a;
	double *b;
	int16_t (*c)[3];
	void *none;
	int32_t *d;
};

static void place(struct arrays *x, struct vfm_suballoc *s)
{
	x->a = vfm_suballoc(s, 1, 1);
	x->b = vfm_suballoc(s, 9, sizeof(*x->b));
	x->c = vfm_suballoc(s, 5, sizeof(*x->c));
	x->none = vfm_suballoc(s, 0, 8);
	x->d = vfm_suballoc(s, 16, sizeof(*x->d));
}

/* Sizes are 1, 72, 30, 0 and 64 bytes. */
static void test_passes(void **state)
{
	static const size_t align[] = {0, 64, 256, 16};
	static const size_t at[4][5] = {
		{0, 64, 192, 256, 256}, {0, 64, 192, 256, 256}, {0, 256, 512, 768, 768}, {0, 16, 96, 128, 128}};
	static const size_t total[] = {320, 320, 1024, 192};

	(void)state;
	for (int i = 0; i < 4; i++) {
		struct vfm_suballoc count = {.align = align[i]}, give = {.align = align[i]};
		struct arrays x;
		char *mem;

		place(&x, &count);
		assert_null(x.a);
		assert_null(x.d);
		assert_int_equal(count.used, total[i]);
		give.base = mem = vfm_malloc(count.used);
		place(&x, &give);
		assert_int_equal(give.used, count.used);
		assert_ptr_equal(x.a, mem + at[i][0]);
		assert_ptr_equal(x.b, mem + at[i][1]);
		assert_ptr_equal(x.c, mem + at[i][2]);
		assert_ptr_equal(x.none, mem + at[i][3]);
		assert_ptr_equal(x.d, mem + at[i][4]);
		free(mem);
	}
}

/* Whatever follows, the sum stays where no allocation succeeds. */
static void test_overflow(void **state)
{
	static const struct {
		int64_t n;
		size_t size;
	} big[] = {{INT64_MAX, 16}, {INT64_MAX, 1}, {-1, 1}, {INT64_MAX / 8, 8}};
	struct vfm_err err = {0};

	(void)state;
	for (size_t i = 0; i < sizeof(big) / sizeof(big[0]); i++) {
		struct vfm_suballoc count = {0};

		vfm_suballoc(&count, 100, 4);
		vfm_suballoc(&count, big[i].n, big[i].size);
		vfm_suballoc(&count, 100, 4);
		assert_true(count.used > SIZE_MAX / 2 - 64 && count.used <= SIZE_MAX / 2);
		assert_int_equal(count.used % 64, 0);
		assert_null(vfm_big_alloc(count.used, "too much", &err));
	}
}

static void test_tensors(void **state)
{
	char mem[1024];
	struct vfm_suballoc count = {0}, give = {.base = mem};
	struct vfm_tensor x = vfm_sub_t1(&count, VFM_I64, 9), y = vfm_sub_t2(&count, VFM_BF16, 5, 7);

	(void)state;
	assert_true(!x.data && !y.data && y.shape[1] == 7);
	assert_int_equal(count.used, 128 + 128);
	x = vfm_sub_t1(&give, VFM_I64, 9);
	y = vfm_sub_t2(&give, VFM_BF16, 5, 7);
	assert_ptr_equal(x.data, mem);
	assert_ptr_equal(y.data, mem + 128);
	assert_true(x.ndim == 1 && x.dtype == VFM_I64 && x.shape[0] == 9);
	assert_true(y.ndim == 2 && y.dtype == VFM_BF16 && y.shape[0] == 5 && y.shape[1] == 7 && y.stride[0] == 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_passes), cmocka_unit_test(test_overflow), cmocka_unit_test(test_tensors)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
