/* ops_attn.c - attention: merged blocks of keys, and scores far below 0. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/philox.h"
#include "ops_test.h"

enum { MQ = 37, MK = 90, MH = 2, MD = 40 };

/* Attention over blocks of keys, merged, equals attention over all keys.  The running state starts undefined; a block,
 * or all of them, may be empty. */
void test_merged_blocks(void **state)
{
	static const int32_t cuts[] = {0, 0, 30, 30, 71, MK};
	static float q[MQ * MH * MD], k[MK * MH * MD], v[MK * MH * MD], o[MQ * MH * MD], lse[MQ * MH];
	static float part[MQ * MH * MD], part_lse[MQ * MH], all[MQ * MH * MD], all_lse[MQ * MH];
	int32_t cu_q[] = {0, 20, 30, MQ}, cu_k[4] = {0, 50, 50, MK};
	struct vfm_rng rng = vfm_rng_stream(4, 5, 6, VFM_RNG_TEST);
	struct vfm_seqs sq = {.n = 3, .total = MQ, .max_len = 20, .cu = cu_q, .dev_cu = vfm_t1(cu_q, VFM_I32, 4)};
	struct vfm_seqs sk = {.n = 3, .total = MK, .max_len = 50, .cu = cu_k, .dev_cu = vfm_t1(cu_k, VFM_I32, 4)};
	struct vfm_err err = {0};

	(void)state;
	for (int i = 0; i < MK * MH * MD; i++) {
		k[i] = 2 * vfm_rng_normal(&rng, (uint64_t)i);
		v[i] = vfm_rng_normal(&rng, (uint64_t)i + (1 << 20));
		if (i < MQ * MH * MD)
			q[i] = vfm_rng_normal(&rng, (uint64_t)i + (2 << 20));
	}
	for (int l = 0; l < n_full; l++) {
		struct vfm_attn a = {.q = vfm_t3(q, VFM_F32, MQ, MH, MD),
			.k = vfm_t3(k, VFM_F32, MK, MH, MD),
			.v = vfm_t3(v, VFM_F32, MK, MH, MD),
			.o = vfm_t3(all, VFM_F32, MQ, MH, MD),
			.lse = vfm_t2(all_lse, VFM_F32, MQ, MH),
			.seqs_q = &sq,
			.seqs_k = &sk,
			.scale = 0.16f};
		struct vfm_attn_merge m = {.o = vfm_t3(o, VFM_F32, MQ, MH, MD),
			.lse = vfm_t2(lse, VFM_F32, MQ, MH),
			.o_b = vfm_t3(part, VFM_F32, MQ, MH, MD),
			.lse_b = vfm_t2(part_lse, VFM_F32, MQ, MH)};

		memset(o, 0xff, sizeof(o));
		memset(lse, 0xff, sizeof(lse));
		assert_int_equal(vfm_op_attn(levels[l].s, &a, &err), 0);
		for (int b = 0; b < 5; b++) { /* keys [cuts[b], cuts[b + 1]); two blocks are empty */
			int32_t n = cuts[b + 1] - cuts[b], cu[4];
			struct vfm_seqs sb = {
				.n = 3, .total = n, .max_len = n, .cu = cu, .dev_cu = vfm_t1(cu, VFM_I32, 4)};
			struct vfm_attn p = a;

			for (int i = 0; i < 4; i++) {
				cu[i] = cu_k[i] - cuts[b];
				cu[i] = cu[i] < 0 ? 0 : cu[i] > n ? n : cu[i];
			}
			p.k = vfm_t3(k + cuts[b] * MH * MD, VFM_F32, n, MH, MD);
			p.v = vfm_t3(v + cuts[b] * MH * MD, VFM_F32, n, MH, MD);
			p.o = m.o_b, p.lse = m.lse_b, p.seqs_k = &sb;
			m.first = b == 0;
			assert_int_equal(vfm_op_attn(levels[l].s, &p, &err), 0);
			assert_int_equal(vfm_op_attn_merge(levels[l].s, &m, &err), 0);
		}
		for (int i = 0; i < MQ * MH; i++) {
			bool keys = i / MH < 20 || i / MH >= 30; /* the second sample has no keys */

			if (keys ? !(fabsf(lse[i] - all_lse[i]) < 1e-5f) : lse[i] != -INFINITY)
				fail_msg("%s: lse[%d] is %g, not %g", levels[l].name, i, (double)lse[i],
					(double)all_lse[i]);
			for (int j = i * MD; j < (i + 1) * MD; j++)
				if (!(fabsf(o[j] - all[j]) < 1e-5f))
					fail_msg("%s: o[%d] is %g, not %g", levels[l].name, j, (double)o[j],
						(double)all[j]);
		}
	}
}

enum { LT = 256, LH = 2, LD = 64, LN = LT * LH * LD };
struct low {
	uint16_t q[LN], k[LN], v[LN], dout[LN], o[LN], dq[LN], dk[LN], dv[LN];
	float lse[LT * LH];
};

/* Runs forward and backward of one sample.  The first column of q is 1, that of k is `first`. */
static void low_run(struct op_level *l, struct low *x, int nq, int nk, float first)
{
	int32_t cu_q[2] = {0, nq}, cu_k[2] = {0, nk};
	struct vfm_seqs sq = {.n = 1, .total = nq, .max_len = nq, .cu = cu_q, .dev_cu = vfm_t1(cu_q, VFM_I32, 2)};
	struct vfm_seqs sk = {.n = 1, .total = nk, .max_len = nk, .cu = cu_k, .dev_cu = vfm_t1(cu_k, VFM_I32, 2)};
	struct vfm_tensor q = vfm_t3(x->q, VFM_BF16, nq, LH, LD), k = vfm_t3(x->k, VFM_BF16, nk, LH, LD);
	struct vfm_attn f = {.q = q,
		.k = k,
		.v = k,
		.o = q,
		.lse = vfm_t2(x->lse, VFM_F32, nq, LH),
		.seqs_q = &sq,
		.seqs_k = &sk,
		.scale = 0.125f};
	struct vfm_attn_bwd b = {.q = q,
		.k = k,
		.v = k,
		.o = q,
		.lse = f.lse,
		.dout = q,
		.dq = q,
		.dk = k,
		.dv = k,
		.seqs_q = &sq,
		.seqs_k = &sk,
		.scale = 0.125f};
	struct vfm_rng rng = vfm_rng_stream(4, 5, 7, VFM_RNG_TEST);
	struct vfm_err err = {0};

	for (uint64_t i = 0; i < LN; i++) {
		x->q[i] = vfm_f32_to_bf16(i % LD ? vfm_rng_normal(&rng, i) : 1);
		x->k[i] = vfm_f32_to_bf16(i % LD ? vfm_rng_normal(&rng, i + LN) : first);
		x->v[i] = vfm_f32_to_bf16(vfm_rng_normal(&rng, i + 2 * LN));
		x->dout[i] = vfm_f32_to_bf16(vfm_rng_normal(&rng, i + 3 * LN));
	}
	f.v.data = b.v.data = x->v;
	f.o.data = b.o.data = x->o;
	b.dout.data = x->dout, b.dq.data = x->dq, b.dk.data = x->dk, b.dv.data = x->dv;
	assert_int_equal(vfm_op_attn(l->s, &f, &err), 0);
	assert_int_equal(vfm_op_attn_bwd(l->s, &b, &err), 0);
}

static void low_compare(const struct op_level *l, const char *what, const uint16_t *want, const uint16_t *got, int rows)
{
	double rms = 0;

	for (int i = 0; i < rows * LH * LD; i++)
		rms += pow((double)vfm_bf16_to_f32(want[i]), 2) / (rows * LH * LD);
	rms = sqrt(rms);
	for (int i = 0; i < rows * LH * LD; i++) {
		double x = (double)vfm_bf16_to_f32(want[i]), y = (double)vfm_bf16_to_f32(got[i]);

		if (what[1] == 'q' && i % LD == 0)
			continue; /* a sum of rounding errors times the first column */
		if (!(fabs(x - y) <= 0.06 * rms + 0.02 * fabs(x)))
			fail_msg("%s: %s[%d] of %d rows is %g, not %g", l->name, what, i, rows, y, x);
	}
}

/* Scores far below 0, for which exp(0 - lse) of a masked key would overflow: scores that are all 120 lower give the
 * same results.  Shapes: keys that do not fill a tile of 128, a single query, whole tiles. */
void test_low_scores(void **state)
{
	static const int shapes[][2] = {{192, 192}, {1, 128}, {100, 65}, {256, 256}, {192, 200}};
	static struct low a, b;

	(void)state;
	for (int l = 0; l < n_full; l++)
		for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
			int nq = shapes[i][0], nk = shapes[i][1];

			low_run(&levels[l], &a, nq, nk, 0);
			low_run(&levels[l], &b, nq, nk, -960);
			for (int r = 0; r < nq * LH; r++)
				if (!(fabsf(a.lse[r] - b.lse[r] - 120) < 0.02f))
					fail_msg("%s: lse[%d] of %dx%d is %g, not %g", levels[l].name, r, nq, nk,
						(double)b.lse[r], (double)a.lse[r] - 120);
			low_compare(&levels[l], "o", a.o, b.o, nq);
			low_compare(&levels[l], "dq", a.dq, b.dq, nq);
			low_compare(&levels[l], "dk", a.dk, b.dk, nk);
			low_compare(&levels[l], "dv", a.dv, b.dv, nk);
		}
}

enum { BS = 5, BH = 2, BD = 40, BT = 70 + 33 + 0 + 200 + 1, BL = 201 };

/* Runs attn_bias of samples first to first + n - 1 alone: o has the rows of all. */
static void run_bias(
	const struct op_level *l, enum vfm_dtype t, char *q, char *bias, char *o, const int32_t *cu, int first, int n)
{
	size_t part = (size_t)BT * BH * BD * vfm_dtype_size(t), from = (size_t)cu[first] * BH * BD * vfm_dtype_size(t);
	int64_t rows = cu[first + n] - cu[first];
	int32_t own[BS + 1];
	struct vfm_seqs seqs;
	struct vfm_attn_bias a = {.q = vfm_t3(q + from, t, rows, BH, BD),
		.k = vfm_t3(q + part + from, t, rows, BH, BD),
		.v = vfm_t3(q + 2 * part + from, t, rows, BH, BD),
		.o = vfm_t3(o + from, t, rows, BH, BD),
		.bias = vfm_t2(bias, VFM_F32, BH, 2 * BL - 1),
		.seqs = &seqs,
		.scale = 0.5f};
	struct vfm_err err = {0};

	for (int i = 0; i <= n; i++)
		own[i] = cu[first + i] - cu[first];
	vfm_seqs_init(&seqs, n, own);
	seqs.dev_cu = vfm_t1(own, VFM_I32, n + 1);
	assert_int_equal(vfm_op_attn_bias(l->s, &a, &err), 0);
}

/* The bits of a sample do not depend on the other samples of its pack, nor on its place. */
void test_bias_alone(void **state)
{
	static const int32_t cu[BS + 1] = {0, 70, 103, 103, 303, 304};
	static float q[3 * BT * BH * BD], bias[BH * (2 * BL - 1)], together[BT * BH * BD], alone[BT * BH * BD];
	struct vfm_rng rng = vfm_rng_stream(4, 5, 8, VFM_RNG_TEST);

	(void)state;
	for (int i = 0; i < BH * (2 * BL - 1); i++)
		bias[i] = vfm_rng_normal(&rng, (uint64_t)i);
	for (int l = 0; l < n_full; l++)
		for (int t = 0; t < 2; t++) {
			for (int i = 0; i < 3 * BT * BH * BD; i++) {
				float x = vfm_rng_normal(&rng, (uint64_t)i + 1000);

				if (t)
					((uint16_t *)q)[i] = vfm_f32_to_bf16(x);
				else
					q[i] = x;
			}
			memset(alone, 0, sizeof(alone));
			memset(together, 0, sizeof(together));
			run_bias(&levels[l], t ? VFM_BF16 : VFM_F32, (char *)q, (char *)bias, (char *)together, cu, 0,
				BS);
			for (int s = 0; s < BS; s++)
				run_bias(&levels[l], t ? VFM_BF16 : VFM_F32, (char *)q, (char *)bias, (char *)alone, cu,
					s, 1);
			assert_memory_equal(alone, together, sizeof(alone));
		}
}
