/* ops_encoder.c - checks and costs of the ops that only encoders use. */
#include "device/ops/check.h"

static int check_channel_norm(const struct vfm_channel_norm *a, struct vfm_err *err)
{
	bool group = a->kind == VFM_CHANNEL_NORM_GROUP;
	int64_t t, n, c;

	CHECK("channel_norm", x, ACT, -1, -1, -1);
	t = a->x.shape[0], n = a->x.shape[1], c = a->x.shape[2];
	CHECK("channel_norm", y, 1u << a->x.dtype, t, n, c);
	CHECK("channel_norm", weight, F32, c);
	CHECK("channel_norm", bias, F32 | OPT, c);
	REQUIRE("channel_norm", c > 0, "operand 'x' has no channels");
	REQUIRE("channel_norm", group || a->kind == VFM_CHANNEL_NORM_RMS, "unknown kind of norm");
	REQUIRE("channel_norm", a->act == VFM_ACT_NONE || a->act == VFM_ACT_SILU,
		"the activation must be none or SiLU");
	REQUIRE("channel_norm", group ? a->groups > 0 && c % a->groups == 0 : a->groups == 0,
		"'groups' must divide the channels of a group norm, and be 0 for others");
	return 0;
}

struct vfm_cost vfm_cost_channel_norm(const struct vfm_channel_norm *a)
{
	int reads = a->kind == VFM_CHANNEL_NORM_GROUP ? 2 : 1; /* the statistics of a frame need a pass of their own */

	return (struct vfm_cost){
		0, reads * op_bytes(&a->x) + op_bytes(&a->y) + op_bytes(&a->weight) + op_bytes(&a->bias)};
}

OP(channel_norm, NO_SEQS, IN(x, NORMAL), IN(weight, POSITIVE), IN(bias, NORMAL), OUT_OVER(y, x))

static int check_upsample(const struct vfm_upsample *a, struct vfm_err *err)
{
	const int64_t *s = a->x.shape;

	CHECK("upsample", x, ACT, -1, -1, -1, -1);
	CHECK("upsample", y, 1u << a->x.dtype, s[0], 2 * s[1], 2 * s[2], s[3]);
	return 0;
}

COST_OF_BYTES(upsample)
OP(upsample, NO_SEQS, IN(x, NORMAL), OUT(y))

static int check_attn_bias(const struct vfm_attn_bias *a, struct vfm_err *err)
{
	unsigned dt = 1u << a->q.dtype;
	const int64_t *s = a->q.shape;

	CHECK("attn_bias", q, ACT | STRIDED, -1, -1, -1);
	CHECK("attn_bias", k, dt | STRIDED, s[0], s[1], s[2]);
	CHECK("attn_bias", v, dt | STRIDED, s[0], s[1], s[2]);
	CHECK("attn_bias", o, dt | STRIDED, s[0], s[1], s[2]);
	CHECK("attn_bias", bias, F32, s[1], -1);
	REQUIRE("attn_bias", s[2] > 0 && s[2] <= 128 && s[2] % 8 == 0,
		"the head dim must be a multiple of 8, at most 128");
	REQUIRE("attn_bias", a->bias.shape[1] % 2 == 1, "operand 'bias' has an even number of distances");
	TRY(vfm_op_check_seqs("attn_bias", "seqs", a->seqs, s[0], -1, err));
	for (int i = 0; i < a->seqs->n; i++)
		if (vfm_seqs_len(a->seqs, i) > (a->bias.shape[1] + 1) / 2)
			return vfm_fail(err, VFM_EUSAGE,
				"attn_bias: sample %d has %lld tokens, but operand 'bias' has distances for %lld", i,
				(long long)vfm_seqs_len(a->seqs, i), (long long)(a->bias.shape[1] + 1) / 2);
	return 0;
}

struct vfm_cost vfm_cost_attn_bias(const struct vfm_attn_bias *a)
{
	double pairs = 0;

	for (int i = 0; i < a->seqs->n; i++)
		pairs += (double)vfm_seqs_len(a->seqs, i) * (double)vfm_seqs_len(a->seqs, i);
	return (struct vfm_cost){
		4.0 * pairs * (double)(a->q.shape[1] * a->q.shape[2]),
		op_bytes(&a->q) + op_bytes(&a->k) + op_bytes(&a->v) + op_bytes(&a->o) + op_bytes(&a->bias),
	};
}

OP(attn_bias, SEQS(seqs), IN(q, NORMAL), IN(k, NORMAL), IN(v, NORMAL), IN(bias, NORMAL), OUT(o))
