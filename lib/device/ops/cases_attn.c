/* cases_attn.c - attention: the cases of cases.h for attn and attn_bwd. */
#include "device/ops/cases_impl.h"

#include <math.h>

static void add_attn_seqs(struct vfm_cases *l, struct vfm_case *c, int n, const int *lq, const int *lk)
{
	vfm_case_seqs(l, c, 0, n, lq);
	vfm_case_seqs(l, c, 1, n, lk);
}

struct vfm_case *vfm_case_attn(struct vfm_cases *l, unsigned flags, const char *what, enum vfm_dtype t,
	enum vfm_dtype gt, int n, const int *lq, const int *lk, int64_t h, int64_t hkv, int64_t d)
{
	int64_t tq = sum_lengths(n, lq), tk = sum_lengths(n, lk);
	struct vfm_tensor q = heads(t, tq, h, d, 2 * h * d), k = heads(t, tk, hkv, d, h * d), o = heads(t, tq, h, d, 0);
	struct vfm_tensor dq = heads(gt, tq, h, d, h * d), dk = heads(gt, tk, hkv, d, 0), lse = mat(VFM_F32, tq, h, 0);
	struct vfm_case *c;
	float scale = 1.0f / sqrtf((float)d);

	if (!(flags & VFM_CASE_AS_FILLED)) {
		c = vfm_case_add(l, VFM_OP_attn, flags, "%s/%s/%dx%d/h%d-%d/d%d", what, vfm_dtype_name(t), (int)tq,
			(int)tk, (int)h, (int)hkv, (int)d);
		c->args.attn = (struct vfm_attn){.q = q, .k = k, .v = k, .o = o, .lse = lse, .scale = scale};
		add_attn_seqs(l, c, n, lq, lk);
	}
	c = vfm_case_add(l, VFM_OP_attn_bwd, flags, "%s/%s-%s/%dx%d/h%d-%d/d%d", what, vfm_dtype_name(t),
		vfm_dtype_name(gt), (int)tq, (int)tk, (int)h, (int)hkv, (int)d);
	c->args.attn_bwd = (struct vfm_attn_bwd){
		.q = q, .k = k, .v = k, .o = o, .lse = lse, .dout = o, .dq = dq, .dk = dk, .dv = dk, .scale = scale};
	add_attn_seqs(l, c, n, lq, lk);
	c->tol = 1e-4;
	return c;
}

/* The kinds of plans that cuDNN has for attention (device/cuda/attn_pack.h), each under its name, at every head
 * dimension. */
static void attn_kinds(struct vfm_cases *l, enum vfm_dtype t)
{
	enum { N = 4 };
	static const int fixed[2] = {128, 128}, len_q[N] = {37, 0, 100, 1}, len_k[N] = {9, 64, 100, 33};
	static const int64_t dims[] = {64, 72, 80, 96, 128};
	const unsigned ring = VFM_CASE_TEST | VFM_CASE_AS_FILLED;

	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
		int64_t d = dims[i], group = 1 + (int64_t)i % 2;

		vfm_case_attn(l, VFM_CASE_TEST, "fixed", t, t, 2, fixed, fixed, 2, 2 / group, d);
		vfm_case_attn(l, VFM_CASE_TEST, "packed", t, t, N, len_q, len_k, 2 * group, 2, d);
	}
	for (int64_t d = 64; d <= 128; d += 64) {
		vfm_case_attn(l, ring, "fixed-ring", t, VFM_F32, 2, fixed, fixed, 2, 2, d);
		vfm_case_attn(l, ring, "packed-ring", t, VFM_F32, N, len_q, len_k, 4, 2, d);
	}
}

/* Lengths that one may forget: no rows at all, single rows, samples without rows, and random ones.  max_len, which is a
 * hint, is wrong. */
static void attn_odd(struct vfm_cases *l, enum vfm_dtype t)
{
	enum { N = 6, ROUNDS = 4 };
	static const int nothing[N] = {0}, last[N] = {0, 0, 0, 0, 0, 3}, few[N] = {1, 2, 1, 2, 1, 2};
	static const int *const of[] = {nothing, last, few};

	for (int i = 0; i < 3; i++)
		vfm_case_attn(l, VFM_CASE_TEST, "packed-odd", t, t, N, of[i], of[i], 2, 1, 64)->seqs[0].max_len =
			i % 2 ? 0 : 1 << 30;
	vfm_case_attn(l, VFM_CASE_TEST, "packed-odd", t, t, 1, last + N - 1, last + N - 1, 2, 1, 64);
	vfm_case_attn(l, VFM_CASE_TEST, "packed-no-keys", t, t, N, last, nothing, 2, 2, 64);
	vfm_case_attn(l, VFM_CASE_TEST, "packed-no-queries", t, t, N, nothing, last, 2, 2, 64);
	for (int round = 0; round < ROUNDS; round++) {
		struct vfm_rng rng = vfm_rng_stream(round, 7, 7, VFM_RNG_TEST);
		int len[2][N];

		for (int i = 0; i < 2 * N; i++) {
			double u = vfm_rng_uniform(&rng, (uint64_t)i);

			len[i / N][i % N] = u < 0.2 ? 0 : (int)(60 * u);
		}
		vfm_case_attn(l, VFM_CASE_TEST, "packed-any", t, t, N, len[0], len[1], 3, 1, 8 << round);
	}
}

/* Many tiles of queries and keys, and the heads of dit-7b; only in bf16. */
static void attn_long(struct vfm_cases *l)
{
	static const int one[] = {1024}, two[] = {1024, 1024}, ragged[] = {1111, 64, 0, 385, 1};
	const enum vfm_dtype t = VFM_BF16;

	vfm_case_attn(l, VFM_CASE_TEST_GPU, "fixed-long", t, t, 1, one, one, 32, 32, 128);
	vfm_case_attn(l, VFM_CASE_TEST_GPU, "fixed-long", t, t, 2, two, two, 32, 8, 72);
	vfm_case_attn(l, VFM_CASE_TEST_GPU, "packed-long", t, t, 5, ragged, ragged, 32, 32, 128);
	vfm_case_attn(l, VFM_CASE_TEST_GPU, "packed-long", t, VFM_F32, 5, ragged, ragged, 32, 8, 72);
}

void vfm_cases_attn(struct vfm_cases *l)
{
	static const int lq[] = {65, 1, 0, 130, 17}, lk[] = {3, 9, 4, 0, 64};
	static const int s1[] = {1024, 1024}, s2[] = {2048}, s8[] = {256, 256, 256, 256, 256, 256, 256, 256};
	static const int one[] = {256}, odd[] = {72, 72, 72};
	static const int shorts[24] = {5, 1, 8, 13, 2, 7, 16, 3, 9, 1, 4, 11, 6, 2, 8, 8, 15, 1, 3, 10, 5, 7, 2, 12};
	static const int spread[20] = {300, 3, 1, 7, 0, 2, 5, 3, 4, 1, 6, 2, 9, 3, 1, 2, 8, 4, 3, 150};

	for (int t = 0; t < 2; t++) {
		attn_kinds(l, types[t]);
		attn_odd(l, types[t]);
		vfm_case_attn(l, VFM_CASE_TEST, "packed-mixed", types[t], types[t], N_MIXED, mixed, mixed, 3, 3, 64);
		vfm_case_attn(l, VFM_CASE_TEST, "fixed-one", types[t], VFM_F32, 1, one, one, 2, 1, 128);
		vfm_case_attn(l, VFM_CASE_TEST, "packed-equal", types[t], types[t], 3, odd, odd, 2, 2, 72);
		vfm_case_attn(l, VFM_CASE_TEST, "packed-shorts", types[t], types[t], 24, shorts, shorts, 2, 2, 80);
		vfm_case_attn(l, VFM_CASE_TEST, "packed-spread", types[t], VFM_F32, 20, spread, spread, 1, 1, 96);
		vfm_case_attn(l, VFM_CASE_TEST, "packed-spread-gqa", types[t], VFM_F32, 20, spread, spread, 4, 2, 64);
		vfm_case_attn(l, VFM_CASE_TEST, "packed-text", types[t], types[t], 5, mixed, shorts, 6, 2, 72);
		vfm_case_attn(l, VFM_CASE_TEST, "packed-cross", types[t], VFM_F32, N_MIXED, lq, lk, 2, 2, 40);
		vfm_case_attn(l, VFM_CASE_TEST, "packed-gqa", types[t], types[t], N_MIXED, lq, mixed, 4, 2, 128);
		vfm_case_attn(l, VFM_CASE_BENCH, "self", types[t], types[t], 2, s1, s1, 12, 12, 64);
		vfm_case_attn(l, VFM_CASE_BENCH, "self", types[t], types[t], 1, s2, s2, 12, 12, 64);
		vfm_case_attn(l, VFM_CASE_BENCH, "self-short", types[t], types[t], 8, s8, s8, 12, 12, 64);
	}
	attn_long(l);
}
