/* cases_attn.c - attention: the cases of cases.h for attn and attn_bwd. */
#include "ops/cases_int.h"

#include <math.h>

/* Padded: at[i] rows from sample i to the next. */
static void slots(struct vfm_cases *l, struct vfm_case *c, int which, int n, const int *len, const int *at)
{
	struct vfm_seqs *q = &c->seqs[which];
	int32_t *copy = vfm_arena_alloc(&l->arena, (size_t)(n + 1) * sizeof(*copy));

	vfm_case_seqs(l, c, which, n, at);
	for (int i = 0; i < n; i++)
		copy[i] = len[i];
	q->len = copy;
	q->dev_len = vfm_t1(NULL, VFM_I32, n);
}

static void attn_seqs(
	struct vfm_cases *l, struct vfm_case *c, const struct vfm_case_lens *q, const struct vfm_case_lens *k)
{
	for (int i = 0; i < 2; i++) {
		const struct vfm_case_lens *x = i ? k : q;

		if (x->at)
			slots(l, c, i, x->n, x->len, x->at);
		else
			vfm_case_seqs(l, c, i, x->n, x->len);
	}
}

struct vfm_case *vfm_case_slots(struct vfm_cases *l, unsigned flags, const char *what, enum vfm_dtype t,
	enum vfm_dtype gt, struct vfm_case_lens lq, struct vfm_case_lens lk, int64_t h, int64_t hkv, int64_t d)
{
	int64_t tq = total(lq.n, lq.at ? lq.at : lq.len), tk = total(lk.n, lk.at ? lk.at : lk.len);
	struct vfm_tensor q = heads(t, tq, h, d, 2 * h * d), k = heads(t, tk, hkv, d, h * d), o = heads(t, tq, h, d, 0);
	struct vfm_tensor dq = heads(gt, tq, h, d, h * d), dk = heads(gt, tk, hkv, d, 0), lse = mat(VFM_F32, tq, h, 0);
	struct vfm_case *c;
	float scale = 1.0f / sqrtf((float)d);

	if (!(flags & VFM_CASE_AS_FILLED)) {
		c = vfm_case_add(l, VFM_OP_attn, flags, "%s/%s/%dx%d/h%d-%d/d%d", what, vfm_dtype_name(t), (int)tq,
			(int)tk, (int)h, (int)hkv, (int)d);
		c->args.attn = (struct vfm_attn){.q = q, .k = k, .v = k, .o = o, .lse = lse, .scale = scale};
		attn_seqs(l, c, &lq, &lk);
	}
	c = vfm_case_add(l, VFM_OP_attn_bwd, flags, "%s/%s-%s/%dx%d/h%d-%d/d%d", what, vfm_dtype_name(t),
		vfm_dtype_name(gt), (int)tq, (int)tk, (int)h, (int)hkv, (int)d);
	c->args.attn_bwd = (struct vfm_attn_bwd){
		.q = q, .k = k, .v = k, .o = o, .lse = lse, .dout = o, .dq = dq, .dk = dk, .dv = dk, .scale = scale};
	attn_seqs(l, c, &lq, &lk);
	c->tol = 1e-4;
	return c;
}

void vfm_case_attn(struct vfm_cases *l, unsigned flags, const char *what, enum vfm_dtype t, enum vfm_dtype gt, int n,
	const int *lq, const int *lk, int64_t h, int64_t hkv, int64_t d)
{
	vfm_case_slots(l, flags, what, t, gt, (struct vfm_case_lens){n, lq, NULL}, (struct vfm_case_lens){n, lk, NULL},
		h, hkv, d);
}

/* The kinds of plans that cuDNN has for attention (cuda/attn_pack.h), each under its name, at every head dimension. */
static void attn_kinds(struct vfm_cases *l, enum vfm_dtype t)
{
	enum { N = 4 };
	static const int fixed[N] = {128, 128, 128, 128}, len_q[N] = {37, 0, 100, 1}, len_k[N] = {9, 64, 100, 33},
			 full[N] = {96, 96, 96, 96};
	static const int at_q[N] = {100, 100, 100, 100}, at_k[N] = {104, 104, 104, 104}, uneven[N] = {40, 8, 120, 1};
	static const int64_t dims[] = {64, 72, 80, 96, 128};
	const unsigned ring = VFM_CASE_TEST | VFM_CASE_AS_FILLED;
	const struct vfm_case_lens fix = {2, fixed, NULL}, pack_q = {N, len_q, NULL}, pack_k = {N, len_k, NULL},
				   pad_q = {N, len_q, at_q}, pad_k = {N, len_k, at_k}, even = {N, full, NULL},
				   all = {3, full, full}, ragged = {N, len_q, uneven};

	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
		int64_t d = dims[i], group = 1 + (int64_t)i % 2;

		vfm_case_slots(l, VFM_CASE_TEST, "fixed", t, t, fix, fix, 2, 2 / group, d);
		vfm_case_slots(l, VFM_CASE_TEST, "padded", t, t, pad_q, pad_q, 2 * group, 2, d);
		vfm_case_slots(l, VFM_CASE_TEST, "packed", t, t, pack_q, pack_q, 2, 2 / group, d);
	}
	vfm_case_slots(l, VFM_CASE_TEST, "padded-cross", t, VFM_F32, pad_q, pad_k, 2, 2, 64);
	vfm_case_slots(l, VFM_CASE_TEST, "padded-text", t, t, even, pad_k, 4, 2, 128);
	vfm_case_slots(l, VFM_CASE_TEST, "padded-full", t, t, all, all, 2, 2, 72);
	vfm_case_slots(l, VFM_CASE_TEST, "padded-uneven", t, t, ragged, pad_k, 2, 2, 80);
	for (int64_t d = 64; d <= 128; d += 64) {
		vfm_case_slots(l, ring, "fixed-ring", t, VFM_F32, fix, fix, 2, 2, d);
		vfm_case_slots(l, ring, "padded-ring", t, VFM_F32, pad_q, pad_k, 2, 2, d);
		vfm_case_slots(l, ring, "packed-ring", t, VFM_F32, pack_q, pack_k, 4, 2, d);
	}
}

/* Lengths that one may forget: nothing at all, single rows, slots without rows, and whatever comes; max_len, which
 * nobody may rely on, is wrong. */
static void attn_odd(struct vfm_cases *l, enum vfm_dtype t)
{
	enum { N = 6, ROUNDS = 4 };
	static const int nothing[N] = {0}, slots_of[N] = {17, 17, 17, 17, 17, 17}, last[N] = {0, 0, 0, 0, 0, 3},
			 few[N] = {1, 2, 1, 2, 1, 2};
	struct vfm_case_lens of[] = {{N, nothing, slots_of}, {N, last, slots_of}, {N, few, slots_of}, {N, few, NULL},
		{N, last, last}, {1, last + N - 1, slots_of}};

	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		vfm_case_slots(l, VFM_CASE_TEST, of[i].at ? "padded-odd" : "packed-odd", t, t, of[i], of[i], 2, 1, 64)
			->seqs[0]
			.max_len = i % 2 ? 0 : 1 << 30;
	vfm_case_slots(l, VFM_CASE_TEST, "padded-no-keys", t, t, of[1], of[0], 2, 2, 64);
	vfm_case_slots(l, VFM_CASE_TEST, "padded-no-queries", t, t, of[0], of[1], 2, 2, 64);
	for (int round = 0; round < ROUNDS; round++) {
		struct vfm_rng rng = vfm_rng_stream(round, 7, 7, VFM_RNG_TEST);
		int len[2][N], at[2][N];
		struct vfm_case_lens q = {N, len[0], at[0]}, k = {N, len[1], at[1]};

		for (int i = 0; i < 2 * N; i++) {
			double u = vfm_rng_uniform(&rng, (uint64_t)(2 * i)),
			       v = vfm_rng_uniform(&rng, (uint64_t)(2 * i + 1));
			int which = i / N, room = round % 2 ? 40 : u < 0.2 ? 0 : (int)(60 * u);

			at[which][i % N] = room;
			len[which][i % N] = v < 0.2 ? 0 : (int)(v * (1 + room));
		}
		vfm_case_slots(l, VFM_CASE_TEST, "padded-any", t, t, q, k, 3, 1, 8 << round);
	}
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
}
