/* Attention of the CUDA device through cuDNN, without either: attn.c, cudnn_attn.c and attn_pack.c unchanged, our
 * kernels emulated, and graphs executed on the host (dnn_ref.c).  Every bf16 case of the list is compared with the CPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "cuda/attn.c" /* for its limits */

#include "dev_stub.h"
#include "dnn_ref.h"

cudnnStatus_t cudnnCreate(cudnnHandle_t *h)
{
	static int it;

	*h = (cudnnHandle_t)(void *)&it;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t h)
{
	(void)h;
	return CUDNN_STATUS_SUCCESS;
}

static double at(const char *mem, enum vfm_dtype t, int64_t i)
{
	return t == VFM_F32 ? (double)((const float *)(const void *)mem)[i]
			    : (double)vfm_bf16_to_f32(((const uint16_t *)(const void *)mem)[i]);
}

/* Compares all bytes of an operand, gaps and guard included: equal, or close values. */
static void compare(const struct vfm_case *c, int o, const struct vfm_tensor *t, const char *want, const char *got)
{
	size_t size = vfm_dtype_size(t->dtype), n = c->bytes[o] / size;
	double rms = 0;

	for (int64_t i = 0; i < vfm_numel(t); i++) {
		int64_t cols = t->shape[1] * (t->ndim == 3 ? t->shape[2] : 1);
		double x = at(want, t->dtype, i / cols * t->stride[0] + i % cols);

		rms += isfinite(x) ? x * x / (double)vfm_numel(t) : 0;
	}
	rms = sqrt(rms);
	for (size_t i = 0; i < n; i++) {
		double x = at(want, t->dtype, (int64_t)i), y = at(got, t->dtype, (int64_t)i);

		if (memcmp(want + i * size, got + i * size, size) != 0 && !(fabs(x - y) <= 0.05 * rms + 0.01 * fabs(x)))
			fail_msg("%s: %s: element %zu is %g, not %g (rms %g)", c->name,
				vfm_op_infos[c->op].operands[o].name, i, y, x, rms);
	}
}

static void check(struct vfm_case *c, struct vfm_cuda *dev)
{
	const struct vfm_operand *o = vfm_op_infos[c->op].operands;
	char *want[VFM_MAX_OPERANDS] = {0};
	struct vfm_stream s = {.dev = &dev->dev};
	struct vfm_err err = {0};
	int rc;

	assert_int_equal(vfm_case_alloc(c, cpu_s, 1, &err), 0);
	assert_int_equal(vfm_case_run(c, cpu_s, &err), 0);
	for (int i = 0; o[i].name; i++) {
		want[i] = vfm_malloc(c->bytes[i]);
		memcpy(want[i], vfm_operand_of(&c->args, &o[i])->data, c->bytes[i]);
	}
	vfm_case_free(c, cpu_s);
	assert_int_equal(vfm_case_alloc(c, cpu_s, 1, &err), 0);
	rc = c->op == VFM_OP_attn ? vfm_cuda_attn(&s, &c->args.attn, &err)
				  : vfm_cuda_attn_bwd(&s, &c->args.attn_bwd, &err);
	if (rc < 0)
		fail_msg("%s: %s", c->name, err.msg);
	for (int i = 0; o[i].name; i++) {
		compare(c, i, vfm_operand_of(&c->args, &o[i]), want[i], vfm_operand_of(&c->args, &o[i])->data);
		free(want[i]);
	}
	vfm_case_free(c, cpu_s);
}

/* The name states the expected plan: attn/packed-ring/bf16 … */
static void check_kind(const struct vfm_case *c)
{
	static const char *const kinds[] = {[VFM_ATTN_PACKED] = "packed", [VFM_ATTN_FIXED] = "fixed"};
	struct vfm_attn_limits lim = {.hkv = 1, .group = 1};
	const char *name = strchr(c->name, '/') + 1;
	struct vfm_attn_piece *p;
	int n = vfm_attn_pieces(&c->seqs[0], &c->seqs[1], &lim, &p);

	if (n > 0 && !strstr(name, "-odd") && !strstr(name, "-any") &&
		strncmp(name, kinds[p->kind], strlen(kinds[p->kind])) != 0)
		fail_msg("%s is %s", c->name, kinds[p->kind]);
	free(p);
}

static const char *among = ""; /* only cases with this in their name */

/* Runs every bf16 case on a device of this kind. */
static void all(int sm, bool deterministic, const char *mode, int64_t pairs)
{
	struct vfm_cuda dev = {.sm = sm, .deterministic = deterministic};
	struct vfm_err err = {0};
	struct vfm_stream s = {.dev = &dev.dev};
	int n = 0;

	setenv("VFM_CUDA_ATTN", mode, 1);
	assert_non_null(attn_context(&s, &err));
	if (pairs)
		dev.attn->pairs = pairs;
	for (size_t i = 0; i < cases.n; i++) {
		struct vfm_case *c = cases.v[i];

		if ((c->op != VFM_OP_attn && c->op != VFM_OP_attn_bwd) || !(c->flags & VFM_CASE_TEST) ||
			c->args.attn.q.dtype != VFM_BF16)
			continue;
		if ((sm != 90 && c->op == VFM_OP_attn) || !strstr(c->name, among))
			continue; /* the forward is the same on all devices */
		check_kind(c);
		check(c, &dev);
		n++;
	}
	print_message("%d cases with %zu plans\n", n, dev.attn->n);
	assert_true(n > 10);
	vfm_cuda_attn_free(dev.attn);
}

static void test_hopper(void **state)
{
	(void)state;
	all(90, false, "cudnn", 0);
}

static void test_packed(void **state)
{
	(void)state;
	all(90, false, "cudnn-packed", 0);
}

static void test_apart(void **state)
{
	(void)state;
	among = "/fixed";
	all(90, false, "cudnn-apart", 0);
	among = "";
}

static void test_ampere(void **state)
{
	(void)state;
	all(80, false, "cudnn", 0);
}

static void test_blackwell(void **state)
{
	(void)state;
	all(100, false, "cudnn", 0);
}

/* With a limit so low that samples and heads are divided. */
static void test_deterministic(void **state)
{
	(void)state;
	all(90, true, "cudnn", 2 * 128 * 128);
	among = "attn_bwd/packed";
	all(90, true, "cudnn", 0);
	among = "";
}

static int n_warned;
static char warned[512];

static void warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void warn(const char *fmt, ...)
{
	va_list ap;

	n_warned++;
	va_start(ap, fmt);
	vsnprintf(warned, sizeof(warned), fmt, ap);
	va_end(ap);
}

/* Without a plan our own kernels compute bf16, with one warning for similar shapes; forcing cuDNN is an error. */
static void test_no_plan(void **state)
{
	struct vfm_cuda dev = {.sm = 90, .warn = warn};
	struct vfm_stream s = {.dev = &dev.dev};
	struct vfm_err err = {0};
	int64_t n = 0;

	(void)state;
	setenv("VFM_CUDA_ATTN", "", 1);
	dnn_ref_no_plans = true;
	for (int again = 0; again < 2; again++)
		for (size_t i = 0; i < cases.n; i++)
			if (strstr(cases.v[i]->name, "/packed-cross/") || strstr(cases.v[i]->name, "/packed-mixed/")) {
				check(cases.v[i], &dev);
				n += cases.v[i]->args.attn.q.dtype == VFM_BF16;
			}
	assert_true(n == 8 && dev.dev.slow_attn == n);
	assert_int_equal(n_warned, 4); /* of two cases, forward and backward */
	if (!strstr(warned, "attn_bwd of bf16, 5 samples, packed, 213 queries x 2 heads, 80 keys x 2 heads, of 40: ") ||
		!strstr(warned, "no engine takes it"))
		fail_msg("%s", warned);
	vfm_cuda_attn_free(dev.attn);
	dev.attn = NULL;
	setenv("VFM_CUDA_ATTN", "cudnn", 1);
	for (size_t i = 0; i < cases.n; i++)
		if (strstr(cases.v[i]->name, "attn/packed-mixed/bf16")) {
			assert_int_equal(vfm_case_alloc(cases.v[i], cpu_s, 1, &err), 0);
			assert_int_equal(vfm_cuda_attn(&s, &cases.v[i]->args.attn, &err), VFM_EENV);
			assert_non_null(strstr(err.msg, "no engine takes it"));
			vfm_case_free(cases.v[i], cpu_s);
		}
	vfm_cuda_attn_free(dev.attn);
	dnn_ref_no_plans = false;
}

/* Refused forms fall to the next one, at a refusal of the plan as of its run, with one warning that has the reason; our
 * own kernels come last. */
static void check_ladder(const char *name, int refuse, bool run, int ran, const char *says)
{
	struct vfm_cuda dev = {.sm = 90, .warn = warn};
	int n = 0;

	*(run ? &dnn_ref_refuse_run : &dnn_ref_refuse_build) = refuse;
	setenv("VFM_CUDA_ATTN", "", 1);
	for (int again = 0; again < 2; again++) {
		dnn_ref_ran = n_warned = 0;
		warned[0] = '\0';
		for (size_t i = 0; i < cases.n; i++)
			if (strncmp(cases.v[i]->name, name, strlen(name)) == 0 && strstr(cases.v[i]->name, "/d64")) {
				check(cases.v[i], &dev);
				n++;
				break;
			}
		if (dnn_ref_ran != ran ||
			(again == 0 && (n_warned != (says != NULL) || (says && !strstr(warned, says)))))
			fail_msg("%s without %d: ran %d, %d warnings: %s", name, refuse, dnn_ref_ran, n_warned, warned);
		assert_int_equal(again ? n_warned : 0, 0);
	}
	assert_int_equal(n, 2);
	assert_int_equal(dev.dev.slow_attn, ran ? 0 : 2);
	vfm_cuda_attn_free(dev.attn);
	dnn_ref_refuse_build = dnn_ref_refuse_run = 0;
}

static void test_ladder(void **state)
{
	static const char fixed[] = "fixed/bf16", packed[] = "packed-mixed/bf16";
	const int two = DNN_REF_PLAIN | DNN_REF_APART, four = two | DNN_REF_PACKED | DNN_REF_PACKED_APART;
	char name[80];

	(void)state;
	for (int run = 0; run < 2; run++) {
		for (int bwd = 0; bwd < 2; bwd++) {
			snprintf(name, sizeof(name), "%s/%s", bwd ? "attn_bwd" : "attn", fixed);
			check_ladder(name, 0, run, DNN_REF_PLAIN, NULL);
			check_ladder(name, DNN_REF_PLAIN, run, DNN_REF_APART,
				run ? "computed by cuDNN in another form: lse by samples (plain: no run of form 1)"
				    : "computed by cuDNN in another form: lse by samples (plain: no engine for form "
				      "1)");
			check_ladder(name, two, run, DNN_REF_PACKED, "in another form: packed (plain: ");
			check_ladder(
				name, two | DNN_REF_PACKED, run, DNN_REF_PACKED_APART, "form: packed, lse by samples");
			snprintf(name, sizeof(name), "%s/%s", bwd ? "attn_bwd" : "attn", packed);
			check_ladder(name, DNN_REF_PACKED, run, DNN_REF_PACKED_APART, "form: lse by samples (plain: ");
		}
		snprintf(name, sizeof(name), "attn/%s", fixed);
		check_ladder(name, four, run, DNN_REF_UNIFIED, "form: one operation");
		snprintf(name, sizeof(name), "attn/%s", packed);
		check_ladder(name, four, run, DNN_REF_UNIFIED, "form: one operation");
		snprintf(name, sizeof(name), "attn_bwd/%s", fixed);
		check_ladder(name, four, run, 0, "by our own kernels, which are slow (plain: ");
		snprintf(name, sizeof(name), "attn/%s", fixed);
		check_ladder(name, DNN_REF_FORMS, run, 0, "by our own kernels, which are slow (plain: ");
	}
}

/* ---- pieces ---- */

static void test_rounding(void **state)
{
	(void)state;
	assert_int_equal(vfm_attn_round_len(1), 128);
	assert_int_equal(vfm_attn_round_len(128), 128);
	assert_int_equal(vfm_attn_round_len(129), 256);
	assert_int_equal(vfm_attn_round_len(1024), 1024);
	assert_int_equal(vfm_attn_round_len(1025), 1280);
	assert_int_equal(vfm_attn_round_len(65536), 65536);
	assert_int_equal(vfm_attn_round_len(65537), 81920);
	assert_int_equal(vfm_attn_round_batch(1), 1);
	assert_int_equal(vfm_attn_round_batch(5), 8);
	for (int64_t n = 1; n < 200000; n += 7) {
		int64_t r = vfm_attn_round_len(n);

		assert_true(r >= n && r % 128 == 0 && (r == 128 || r <= n + n / 4 + 128) && vfm_attn_round_len(r) == r);
	}
}

/* Every sample with queries and keys is in one piece for each head, and fits it. */
static void test_pieces(void **state)
{
	struct vfm_rng rng = vfm_rng_stream(1, 2, 3, VFM_RNG_TEST);
	int32_t cq[301] = {0}, ck[301] = {0};
	int n_fixed = 0;

	(void)state;
	for (int round = 0; round < 200; round++) {
		int n = 1 + (int)(300 * vfm_rng_uniform(&rng, (uint64_t)round * 1000)), seen[300] = {0}, count;
		struct vfm_attn_limits lim = {.hkv = 1 + round % 5,
			.group = 1 + round % 3,
			.pairs = round % 4 ? 0 : 1 << (16 + round % 12),
			.rows = round % 3 ? 0 : 4096};
		struct vfm_seqs q = {.n = n, .cu = cq}, k = {.n = n, .cu = ck};
		struct vfm_attn_piece *v;
		bool equal = round % 7 > 4;

		for (int i = 0; i < n; i++) {
			double u = vfm_rng_uniform(&rng, (uint64_t)(round * 1000 + i * 2 + 1));
			double w = vfm_rng_uniform(&rng, (uint64_t)(round * 1000 + i * 2 + 2));

			cq[i + 1] = cq[i] + (equal ? 512 : u < 0.1 ? 0 : (int32_t)exp(9 * w));
			ck[i + 1] = ck[i] + (equal ? 128 : u > 0.9 ? 0 : (int32_t)exp(7 * w * u));
		}
		count = vfm_attn_pieces(&q, &k, &lim, &v);
		for (int p = 0; p < count; p++) {
			int in = 0;

			n_fixed += v[p].kind == VFM_ATTN_FIXED;
			assert_true(v[p].kind == VFM_ATTN_PACKED ||
				(count == 1 && v[p].b == n && cq[n] == n * v[p].sq && ck[n] == n * v[p].sk));
			assert_true(
				v[p].n > 0 && v[p].n <= v[p].b && v[p].heads > 0 && v[p].head + v[p].heads <= lim.hkv);
			assert_true(!lim.rows || v[p].b == 1 || v[p].b * v[p].sq <= lim.rows ||
				v[p].kind != VFM_ATTN_PACKED);
			if (lim.pairs && (v[p].b > 1 || v[p].heads > 1))
				assert_true(v[p].b * v[p].heads * lim.group * v[p].sq * v[p].sk <= lim.pairs);
			for (int i = 0; i < n; i++) {
				int64_t nq = vfm_seqs_len(&q, i), nk = vfm_seqs_len(&k, i);

				if (v[p].kind == VFM_ATTN_PACKED && (nq <= v[p].lo || nq > v[p].hi || nk == 0))
					continue;
				if (in >= v[p].first && in < v[p].first + v[p].n) {
					assert_true(nq <= v[p].sq && nk <= v[p].sk);
					seen[i] += (int)v[p].heads;
				}
				in++;
			}
		}
		for (int i = 0; i < n; i++)
			if (count != 1 || v[0].kind == VFM_ATTN_PACKED)
				assert_int_equal(seen[i], vfm_seqs_len(&q, i) && vfm_seqs_len(&k, i) ? lim.hkv : 0);
		free(v);
	}
	assert_true(n_fixed > 0);
}

/* Images of 256 tokens need no padding for four numbers of samples an octave. */
static void test_images(void **state)
{
	static const struct {
		int n;
		bool fixed;
	} packs[] = {{1, true}, {7, true}, {8, true}, {9, false}, {12, true}, {13, false}, {192, true}, {200, false},
		{224, true}, {256, true}};
	struct vfm_attn_limits lim = {.hkv = 16, .group = 1};
	int32_t cu[257];

	(void)state;
	for (int i = 0; i <= 256; i++)
		cu[i] = 256 * i;
	for (size_t i = 0; i < sizeof(packs) / sizeof(packs[0]); i++) {
		struct vfm_seqs q = {.n = packs[i].n, .total = 256 * packs[i].n, .cu = cu};
		struct vfm_attn_piece *v;

		assert_int_equal(vfm_attn_pieces(&q, &q, &lim, &v), 1);
		assert_int_equal(v[0].kind == VFM_ATTN_FIXED, packs[i].fixed);
		assert_true(!packs[i].fixed || (v[0].b == packs[i].n && v[0].sq == 256 && v[0].sk == 256));
		free(v);
	}
}

/* Packs with different samples share few plans, which is the purpose of rounding. */
static void test_few_shapes(void **state)
{
	struct vfm_rng rng = vfm_rng_stream(5, 2, 3, VFM_RNG_TEST);
	struct vfm_attn_limits lim = {.hkv = 8, .group = 1};
	int64_t shapes[256][3];
	int n_shapes = 0;

	(void)state;
	for (int round = 0; round < 1000; round++) {
		int32_t cu[200] = {0};
		int n = 0, count;
		struct vfm_attn_piece *v;
		struct vfm_seqs q;

		while (n < 199) { /* a pack of 64k tokens of clips of 1k to 16k */
			int32_t len = (int32_t)(1024 * exp(2.77 * vfm_rng_uniform(&rng, (uint64_t)(round * 1000 + n))));

			if (cu[n] + len > 65536)
				break;
			cu[n + 1] = cu[n] + len;
			n++;
		}
		q = (struct vfm_seqs){.n = n, .cu = cu};
		count = vfm_attn_pieces(&q, &q, &lim, &v);
		for (int p = 0; p < count; p++) {
			int i = 0;

			while (i < n_shapes &&
				(shapes[i][0] != v[p].b || shapes[i][1] != v[p].sq || shapes[i][2] != v[p].sk))
				i++;
			if (i == n_shapes) {
				assert_true(n_shapes < 256);
				shapes[n_shapes][0] = v[p].b, shapes[n_shapes][1] = v[p].sq,
				shapes[n_shapes++][2] = v[p].sk;
			}
		}
		free(v);
	}
	print_message("1000 packs: %d shapes\n", n_shapes);
	assert_true(n_shapes <= 32);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rounding),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_images),
		cmocka_unit_test(test_few_shapes),
		cmocka_unit_test(test_hopper),
		cmocka_unit_test(test_packed),
		cmocka_unit_test(test_apart),
		cmocka_unit_test(test_ampere),
		cmocka_unit_test(test_blackwell),
		cmocka_unit_test(test_deterministic),
		cmocka_unit_test(test_no_plan),
		cmocka_unit_test(test_ladder),
	};

	if (getenv("VFM_TEST_ONLY"))
		cmocka_set_test_filter(getenv("VFM_TEST_ONLY"));
	return cmocka_run_group_tests(tests, start, end);
}
