/* Products on the CPU.  Held operands (device/ops/tensor.h): packed once for each version, used by every call, and
 * freed. A row has the same bits in products of few and many rows, on which packs of several samples and overlap by
 * chunks rely.
 */
#include <string.h>

#include "device/cpu/cpu.h"
#include "ok.h"
#include "device/ops/ops.h"

enum { IN = 200, OUT = 331, ROWS = 300, LONG = 1000 };

static struct vfm_dev *dev;
static struct vfm_stream *s;

static void fill(struct vfm_tensor *t, uint64_t id)
{
	struct vfm_fill a = {
		.x = vfm_t1(t->data, t->dtype, vfm_numel(t)), .rng = vfm_rng_stream(1, 0, id, VFM_RNG_TEST), .std = 1};

	OK(vfm_op_fill(s, &a, &err));
}

static struct vfm_tensor make(enum vfm_dtype dt, int64_t rows, int64_t cols, uint64_t id)
{
	struct vfm_tensor t = vfm_t2(NULL, dt, rows, cols);

	t.data = vfm_dev_alloc(s, vfm_nbytes(&t), "a test", &err);
	assert_non_null(t.data);
	fill(&t, id);
	return t;
}

static void drop(struct vfm_tensor *t)
{
	vfm_dev_free(s, t->data, vfm_nbytes(t));
}

/* Compares a forward and a data gradient with weights w, of the given version, with those of a copy of `values`. */
static bool uses(const struct vfm_tensor *w, const struct vfm_tensor *values, int64_t version, int64_t rows)
{
	bool same = true;

	for (int bwd = 0; bwd < 2; bwd++) {
		struct vfm_tensor x = make(w->dtype, rows, bwd ? OUT : IN, 7),
				  y = make(VFM_F32, rows, bwd ? IN : OUT, 0),
				  ref = make(VFM_F32, rows, bwd ? IN : OUT, 0);
		struct vfm_gemm a = {.a = x, .b = *w, .c = y, .trans_b = !bwd};

		a.b.version = version;
		OK(vfm_op_gemm(s, &a, &err));
		a.b = *values;
		a.c = ref;
		OK(vfm_op_gemm(s, &a, &err));
		same &= !memcmp(y.data, ref.data, vfm_nbytes(&y));
		drop(&x);
		drop(&y);
		drop(&ref);
	}
	return same;
}

static void run_versions(enum vfm_dtype dt)
{
	struct vfm_tensor w = make(dt, OUT, IN, 1), before = make(dt, OUT, IN, 1);
	int64_t v = vfm_dev_version(dev), start = dev->mem_now, held;

	assert_true(uses(&w, &w, v, ROWS)); /* many rows */
	held = dev->mem_now - start;
	assert_true(held >= 2 * (int64_t)vfm_nbytes(&w) && held < 6 * OUT * IN * (int64_t)sizeof(float));
	assert_true(uses(&w, &w, v, 40)); /* rows of one block */
	assert_int_equal(dev->mem_now - start, held);
	fill(&w, 2);
	/* The caller breaks its promise: calls read the packed copies, so they do not pack again. */
	assert_true(uses(&w, &before, v, ROWS));
	assert_true(uses(&w, &before, v, 40));
	assert_false(uses(&w, &w, v, 40));
	/* without the promise */
	assert_true(uses(&w, &w, 0, ROWS));
	assert_true(uses(&w, &w, 0, 40));
	/* a new version, in the same memory */
	v = vfm_dev_version(dev);
	assert_true(uses(&w, &w, v, 40));
	assert_true(uses(&w, &w, v, ROWS));
	assert_int_equal(dev->mem_now - start, held);
	vfm_dev_drop_copies(s);
	assert_int_equal(dev->mem_now, start);
	fill(&w, 3);
	assert_true(uses(&w, &w, v, ROWS));
	vfm_dev_drop_copies(s);
	drop(&w);
	drop(&before);
}

static void test_versions(void **state)
{
	(void)state;
	run_versions(VFM_F32);
	run_versions(VFM_BF16);
}

/* Compares the first `rows` rows of a product with the product of these rows alone.  a.b has the dtype of x. */
static void compare_rows(struct vfm_gemm a, const struct vfm_tensor *x, enum vfm_dtype out, int64_t n, int64_t rows)
{
	struct vfm_tensor all = make(out, ROWS, n, 9), few = make(out, ROWS, n, 9);

	a.a = *x;
	a.c = all;
	OK(vfm_op_gemm(s, &a, &err));
	a.a.shape[0] = rows;
	a.c = few;
	a.c.shape[0] = rows;
	OK(vfm_op_gemm(s, &a, &err));
	if (memcmp(all.data, few.data, (size_t)(rows * n) * vfm_dtype_size(out)) != 0)
		fail_msg("%lld rows, %s to %s%s%s: other bits than in %d rows", (long long)rows,
			vfm_dtype_name(x->dtype), vfm_dtype_name(out), a.trans_b ? ", transposed B" : "",
			a.accumulate ? ", accumulated" : "", ROWS);
	drop(&all);
	drop(&few);
}

static void test_rows(void **state)
{
	static const enum vfm_dtype in[] = {VFM_F32, VFM_BF16, VFM_BF16}, out[] = {VFM_F32, VFM_F32, VFM_BF16};
	static const int64_t rows[] = {1, 2, 5, 7, 16, 17, 40, 200};

	(void)state;
	for (int i = 0; i < 3; i++)
		for (int trans = 0; trans < 2; trans++) {
			struct vfm_tensor x = make(in[i], ROWS, LONG, 7),
					  w = trans ? make(in[i], OUT, LONG, 1) : make(in[i], LONG, OUT, 1);

			for (size_t k = 0; k < sizeof(rows) / sizeof(*rows); k++)
				for (int add = 0; add < 2; add++)
					compare_rows((struct vfm_gemm){.b = w, .trans_b = trans, .accumulate = add}, &x,
						out[i], OUT, rows[k]);
			drop(&x);
			drop(&w);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_versions),
		cmocka_unit_test(test_rows),
	};
	int rc;

	dev = vfm_cpu_open(&err);
	s = dev ? dev->t->stream_new(dev, false, &err) : NULL;
	if (!s)
		return 1;
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	dev->t->stream_free(s);
	dev->t->dev_free(dev);
	return rc;
}
