/* Packs in host memory: what vfm_pack_set derives from grids, blocks that are used again, and the boundaries as struct
 * vfm_seqs. */
#include "spec/layout/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device/ops/ops.h"

static struct vfm_err err;

static const int32_t grid[3][3] = {{2, 3, 4}, {1, 1, 1}, {1, 5, 2}};
static const int32_t text[3] = {0, 4, 1};

static void make(struct vfm_pack *p, int n)
{
	p->n = n;
	p->tokens = p->text_tokens = 0;
	for (int i = 0; i < n; i++) {
		p->tokens += grid[i][0] * grid[i][1] * grid[i][2];
		p->text_tokens += text[i];
	}
	assert_int_equal(vfm_pack_alloc(p, &err), 0);
	for (int i = 0; i < n; i++)
		vfm_pack_set(p, i, 100 + (uint64_t)i, grid[i], text[i]);
}

static void check(const struct vfm_pack *p)
{
	static const int32_t cu[] = {0, 24, 25, 35}, cu_text[] = {0, 0, 4, 5};

	assert_memory_equal(p->cu_seqlens, cu, ((size_t)p->n + 1) * sizeof(*cu));
	assert_memory_equal(p->cu_text, cu_text, ((size_t)p->n + 1) * sizeof(*cu));
	assert_memory_equal(p->grid, grid, (size_t)p->n * sizeof(grid[0]));
	for (int i = 0; i < p->n; i++) {
		assert_int_equal(p->id[i], 100 + i);
		for (int32_t k = cu[i]; k < cu[i + 1]; k++) {
			assert_int_equal(p->seg[k], i);
			assert_int_equal(p->idx[k], k - cu[i]);
			assert_int_equal(
				(p->pos[k][0] * grid[i][1] + p->pos[k][1]) * grid[i][2] + p->pos[k][2], p->idx[k]);
			assert_true(p->pos[k][1] < grid[i][1] && p->pos[k][2] < grid[i][2]);
		}
	}
}

/* A block that is large enough stays; every array is aligned and has its room. */
static void test_blocks(void **state)
{
	struct vfm_pack p = {.patch_dim = 7, .text_dim = 3};
	size_t bytes;
	void *mem;

	(void)state;
	make(&p, 3);
	check(&p);
	assert_int_equal((uintptr_t)p.x0 % 64, 0);
	assert_int_equal((uintptr_t)p.pos % 64, 0);
	mem = p.mem;
	bytes = p.bytes;
	make(&p, 1);
	assert_ptr_equal(p.mem, mem);
	assert_int_equal(p.bytes, bytes);
	check(&p);
	p.patch_dim = 7000;
	p.x0_dtype = VFM_BF16;
	make(&p, 3);
	assert_true(p.bytes > bytes);
	memset(p.x0, 0xff, (size_t)(p.tokens * p.patch_dim) * vfm_dtype_size(p.x0_dtype));
	memset(p.text, 0xff, (size_t)(p.text_tokens * p.text_dim) * sizeof(*p.text));
	check(&p);
	vfm_pack_release(&p);
	assert_null(p.mem);
	vfm_pack_release(&p);
}

static void test_no_latents(void **state)
{
	struct vfm_pack p = {.text_dim = 3};

	(void)state;
	make(&p, 2);
	assert_null(p.x0);
	check(&p);
	vfm_pack_release(&p);
}

/* Some samples have a second text.  A pack without them has no such arrays. */
static void test_text2(void **state)
{
	static const int32_t rows[] = {0, 3, 2}, cu_text2[] = {0, 0, 3, 5};
	struct vfm_pack p = {.text_dim = 3, .text2_dim = 5, .text2_tokens = 5};

	(void)state;
	make(&p, 3);
	assert_int_equal((uintptr_t)p.text2 % 64, 0);
	assert_int_equal(p.cu_text2[3], 0);
	for (int i = 0; i < 3; i++) {
		vfm_pack_set(&p, i, 100 + (uint64_t)i, grid[i], text[i]);
		vfm_pack_set_text2(&p, i, rows[i]);
	}
	memset(p.text2, 0xff, (size_t)(p.text2_tokens * p.text2_dim) * sizeof(*p.text2));
	check(&p);
	assert_memory_equal(p.cu_text2, cu_text2, sizeof(cu_text2));
	p.text2_dim = 0;
	make(&p, 3);
	assert_true(!p.text2 && !p.cu_text2);
	vfm_pack_release(&p);
}

static void test_too_large(void **state)
{
	struct vfm_pack p = {.n = 1, .tokens = INT64_MAX / 1024, .patch_dim = 1024, .text_dim = 3};

	(void)state;
	assert_int_equal(vfm_pack_alloc(&p, &err), VFM_EENV);
	assert_non_null(strstr(err.msg, "a pack of samples"));
	vfm_pack_release(&p);
}

static void test_seqs(void **state)
{
	static const int32_t cu[] = {0, 24, 25, 35};
	struct vfm_seqs q;

	(void)state;
	memset(&q, 0xff, sizeof(q));
	vfm_seqs_init(&q, 3, cu);
	assert_true(q.n == 3 && q.total == 35 && q.max_len == 24 && q.cu == cu);
	assert_false(vfm_has(&q.dev_cu) || vfm_has(&q.seg));
	vfm_seqs_init(&q, 0, cu);
	assert_true(q.n == 0 && q.total == 0 && q.max_len == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks), cmocka_unit_test(test_no_latents),
		cmocka_unit_test(test_text2), cmocka_unit_test(test_too_large), cmocka_unit_test(test_seqs)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
