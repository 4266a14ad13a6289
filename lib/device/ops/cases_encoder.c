/* cases_encoder.c - ops of encoders: norms over channels, upsampling, attention with a bias, gated GELU. */
#include "device/ops/cases_impl.h"

#include <stdio.h>

static struct vfm_tensor frames(enum vfm_dtype t, int64_t n, int64_t pixels, int64_t c)
{
	return vfm_t3(NULL, t, n, pixels, c);
}

/* groups 0: RMS; -1: MEAN_SQUARE. */
static void add_channel_norm(struct vfm_cases *l, unsigned flags, enum vfm_dtype t, int64_t n, int64_t pixels,
	int64_t c, int groups, bool bias, enum vfm_act act)
{
	const enum vfm_channel_norm_kind of = groups > 0 ? VFM_CHANNEL_NORM_GROUP
		: groups                                 ? VFM_CHANNEL_NORM_MEAN_SQUARE
							 : VFM_CHANNEL_NORM_RMS;
	static const float eps[] = {[VFM_CHANNEL_NORM_RMS] = 1e-12f,
		[VFM_CHANNEL_NORM_GROUP] = 1e-6f,
		[VFM_CHANNEL_NORM_MEAN_SQUARE] = 0.25f}; /* large, so that it changes results */
	char kind[16] = "rms";
	struct vfm_case *k;

	if (groups > 0)
		snprintf(kind, sizeof(kind), "group%d", groups);
	else if (groups)
		snprintf(kind, sizeof(kind), "mean_square");
	k = vfm_case_add(l, VFM_OP_channel_norm, flags, "%s/%s/%dx%dx%d%s%s", kind, vfm_dtype_name(t), (int)n,
		(int)pixels, (int)c, bias ? "/bias" : "", act ? "/silu" : "");
	k->args.channel_norm = (struct vfm_channel_norm){.kind = of,
		.groups = groups > 0 ? groups : 0,
		.eps = eps[of],
		.act = act,
		.x = frames(t, n, pixels, c),
		.weight = vec(VFM_F32, c),
		.bias = bias ? vec(VFM_F32, c) : none,
		.y = frames(t, n, pixels, c)};
}

static void channel_norm_cases(struct vfm_cases *l, enum vfm_dtype t)
{
	enum { T = VFM_CASE_TEST, B = VFM_CASE_BENCH, L = VFM_CASE_LARGE };

	for (int i = 0; i < 4; i++) {
		enum vfm_act act = i & 1 ? VFM_ACT_SILU : VFM_ACT_NONE;
		bool bias = i & 2;

		add_channel_norm(l, T, t, 2, 35, 96, 0, bias, act);
		add_channel_norm(l, T, t, 1, 7, 20, 0, bias, act);
		add_channel_norm(l, T, t, 3, 19, 77, 0, bias, act);
		add_channel_norm(l, T, t, 2, 35, 96, -1, bias, act);
		add_channel_norm(l, T, t, 1, 9, 21, -1, bias, act);
		add_channel_norm(l, T, t, 2, 301, 48, 8, bias, act);
		add_channel_norm(l, T, t, 3, 70, 21, 7, bias, act);
	}
	add_channel_norm(l, T, t, 1, 5, 1100, 0, true, VFM_ACT_SILU);
	add_channel_norm(l, T, t, 4, 2, 1, 0, false, VFM_ACT_NONE);
	add_channel_norm(l, T, t, 1, 3, 2304, 32, true, VFM_ACT_SILU);
	add_channel_norm(l, T, t, 2, 1030, 8, 1, true, VFM_ACT_NONE);
	add_channel_norm(l, T, t, 3, 5, 6, 6, true, VFM_ACT_NONE);
	add_channel_norm(l, T, t, 5, 1, 64, 4, false, VFM_ACT_SILU);
	for (int groups = 0; groups <= 4; groups += 4) {
		add_channel_norm(l, T, t, 0, 9, 16, groups, true, VFM_ACT_SILU);
		add_channel_norm(l, T, t, 3, 0, 16, groups, true, VFM_ACT_SILU);
	}
	/* a decoder of Wan at 480 x 832, one frame; a group norm of a 2D autoencoder at 512 x 512 */
	add_channel_norm(l, B, t, 1, 480 * 832, 96, 0, false, VFM_ACT_SILU);
	add_channel_norm(l, B, t, 4, 120 * 208, 384, 0, false, VFM_ACT_SILU);
	add_channel_norm(l, B, t, 1, 512 * 512, 128, 32, true, VFM_ACT_SILU);
	if (t == VFM_F32)
		return;
	add_channel_norm(l, L, t, 4, 480 * 832, 96, 0, false, VFM_ACT_SILU);
	add_channel_norm(l, L, t, 4, 240 * 416, 384, 0, false, VFM_ACT_SILU);
	add_channel_norm(l, L, t, 4, 512 * 512, 128, 32, true, VFM_ACT_SILU);
}

static void add_upsample(
	struct vfm_cases *l, unsigned flags, enum vfm_dtype t, int64_t n, int64_t h, int64_t w, int64_t c)
{
	struct vfm_case *k = vfm_case_add(
		l, VFM_OP_upsample, flags, "%s/%dx%dx%dx%d", vfm_dtype_name(t), (int)n, (int)h, (int)w, (int)c);

	k->args.upsample = (struct vfm_upsample){vfm_t4(NULL, t, n, h, w, c), vfm_t4(NULL, t, n, 2 * h, 2 * w, c)};
}

static void upsample_cases(struct vfm_cases *l, enum vfm_dtype t)
{
	add_upsample(l, VFM_CASE_TEST, t, 2, 5, 7, 16);
	add_upsample(l, VFM_CASE_TEST, t, 3, 4, 3, 5);
	add_upsample(l, VFM_CASE_TEST, t, 1, 1, 1, 1);
	add_upsample(l, VFM_CASE_TEST, t, 2, 33, 18, 3);
	add_upsample(l, VFM_CASE_TEST, t, 1, 9, 21, 384);
	add_upsample(l, VFM_CASE_TEST, t, 0, 3, 4, 8);
	add_upsample(l, VFM_CASE_TEST, t, 2, 3, 0, 8);
	add_upsample(l, VFM_CASE_TEST, t, 2, 3, 4, 0);
	add_upsample(l, VFM_CASE_BENCH, t, 2, 120, 208, 192);
	if (t == VFM_BF16)
		add_upsample(l, VFM_CASE_LARGE, t, 4, 240, 416, 192);
}

/* Attention of n samples; `more` distances than the longest sample needs, on each side. */
static void add_attn_bias(struct vfm_cases *l, unsigned flags, enum vfm_dtype t, int n, const int *len, int64_t h,
	int64_t d, int64_t more, float scale)
{
	int64_t rows = sum_lengths(n, len), most = 1, pad = flags & VFM_CASE_TEST ? 2 * h * d : 0;
	struct vfm_case *c;

	for (int i = 0; i < n; i++)
		most = len[i] > most ? len[i] : most;
	c = vfm_case_add(l, VFM_OP_attn_bias, flags, "%s/%dx%d/h%d/d%d/%d%s", vfm_dtype_name(t), n, (int)rows, (int)h,
		(int)d, (int)(most + more), scale == 1 ? "" : "/scaled");
	c->args.attn_bias = (struct vfm_attn_bias){.q = heads(t, rows, h, d, pad),
		.k = heads(t, rows, h, d, pad),
		.v = heads(t, rows, h, d, pad / 2),
		.o = heads(t, rows, h, d, 0),
		.bias = mat(VFM_F32, h, 2 * (most + more) - 1, 0),
		.scale = scale};
	vfm_case_seqs(l, c, 0, n, len);
	c->tol = 1e-4;
}

static void attn_bias_cases(struct vfm_cases *l, enum vfm_dtype t)
{
	static const int one[] = {1}, longer[] = {200, 129}, whole[] = {64, 128, 64}, tiles[] = {257};
	static const int texts[8] = {12, 77, 31, 120, 9, 48, 226, 64}, full[] = {512}, two[] = {512, 512};

	add_attn_bias(l, VFM_CASE_TEST, t, N_MIXED, mixed, 3, 64, 0, 1);
	add_attn_bias(l, VFM_CASE_TEST, t, N_MIXED, mixed, 2, 40, 13, 0.3f);
	add_attn_bias(l, VFM_CASE_TEST, t, N_MIXED, mixed, 2, 8, 1, -0.5f);
	add_attn_bias(l, VFM_CASE_TEST, t, 2, longer, 2, 128, 0, 0.2f);
	add_attn_bias(l, VFM_CASE_TEST, t, 3, whole, 1, 64, 0, 1);
	add_attn_bias(l, VFM_CASE_TEST, t, 1, tiles, 2, 72, 2, 0);
	add_attn_bias(l, VFM_CASE_TEST, t, 1, one, 4, 16, 0, 1);
	add_attn_bias(l, VFM_CASE_TEST, t, N_ABSENT, absent, 2, 64, 3, 1);
	add_attn_bias(l, VFM_CASE_TEST, t, 0, absent, 2, 64, 3, 1);
	add_attn_bias(l, VFM_CASE_TEST, t, N_MIXED, mixed, 0, 64, 3, 1);
	add_attn_bias(l, VFM_CASE_BENCH, t, 1, full, 64, 64, 0, 1);
	add_attn_bias(l, VFM_CASE_BENCH, t, 8, texts, 64, 64, 0, 1);
	if (t == VFM_BF16)
		add_attn_bias(l, VFM_CASE_LARGE, t, 2, two, 64, 64, 0, 1);
}

static void add_geglu(
	struct vfm_cases *l, unsigned flags, enum vfm_dtype xt, enum vfm_dtype yt, int64_t n, int64_t f, int64_t pad)
{
	struct vfm_case *c = vfm_case_add(
		l, VFM_OP_geglu, flags, "%s-%s/%dx%d", vfm_dtype_name(xt), vfm_dtype_name(yt), (int)n, (int)f);

	c->args.geglu = (struct vfm_geglu){mat(xt, n, 2 * f, pad), mat(yt, n, f, 3 * pad)};
}

void vfm_cases_encoder(struct vfm_cases *l)
{
	for (int t = 0; t < 2; t++) {
		channel_norm_cases(l, types[t]);
		upsample_cases(l, types[t]);
		attn_bias_cases(l, types[t]);
		add_geglu(l, VFM_CASE_BENCH, types[t], types[t], 512, 10240, 0);
	}
	for (int t = 0; t < 4; t++) {
		enum vfm_dtype x = types[t & 1], y = types[t >> 1];

		add_geglu(l, VFM_CASE_TEST, x, y, 29, 77, 3);
		add_geglu(l, VFM_CASE_TEST, x, y, 70, 64, 0);
		add_geglu(l, VFM_CASE_TEST, x, y, 9, 2600, 8);
		add_geglu(l, VFM_CASE_TEST, x, y, 0, 64, 4);
	}
	add_geglu(l, VFM_CASE_LARGE, VFM_BF16, VFM_BF16, 8192, 10240, 0);
}
