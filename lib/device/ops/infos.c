/* infos.c - the operands of every op. */
#include "device/ops/cases.h"

/* ---- the ops and their operands ------------------------------------------------------- */

#define IN(op, f, c)                                                                                                   \
	{                                                                                                              \
#f, offsetof(struct vfm_##op, f), VFM_IN, VFM_C_##c                                                    \
	}
#define OUT(op, f)                                                                                                     \
	{                                                                                                              \
#f, offsetof(struct vfm_##op, f), VFM_OUT, VFM_C_NORMAL                                                \
	}
#define IO(op, f, c)                                                                                                   \
	{                                                                                                              \
#f, offsetof(struct vfm_##op, f), VFM_INOUT, VFM_C_##c                                                 \
	}

/* Roles of the general case.  Accumulating and in-place variants read outputs too, so every output is initialized. */
static const struct vfm_operand o_gemm[] = {IN(gemm, a, NORMAL), IN(gemm, b, SMALL), IO(gemm, c, NORMAL),
	IN(gemm, bias, NORMAL), IO(gemm, aux, NORMAL), IO(gemm, a_rowsum, NORMAL), IN(gemm, scale_a, POWER),
	IN(gemm, scale_b, POWER), {0}};
static const struct vfm_operand o_quant[] = {IN(quant, x, NORMAL), OUT(quant, y), OUT(quant, yt),
	IN(quant, history, PAST), IO(quant, amax, POSITIVE), OUT(quant, inv), IO(quant, colsum, NORMAL), {0}};
static const struct vfm_operand o_amax_push[] = {
	IN(amax_push, parts, POSITIVE), IO(amax_push, past, POSITIVE), IN(amax_push, grad_scale, SCALE), {0}};
static const struct vfm_operand o_conv3d[] = {IN(conv3d, x, NORMAL), IN(conv3d, past, NORMAL),
	IN(conv3d, weight, SMALL), IN(conv3d, bias, NORMAL), IN(conv3d, add, NORMAL), OUT(conv3d, y), {0}};
static const struct vfm_operand o_transpose8[] = {IN(transpose8, x, NORMAL), OUT(transpose8, y), {0}};
static const struct vfm_operand o_norm[] = {IN(norm, x, NORMAL), OUT(norm, y), IN(norm, weight, POSITIVE),
	IN(norm, bias, NORMAL), IN(norm, shift, NORMAL), IN(norm, scale, SMALL), IN(norm, h, NORMAL),
	IN(norm, gate, NORMAL), OUT(norm, sum), OUT(norm, mean), OUT(norm, rstd), IN(norm, history, PAST),
	OUT(norm, inv), IO(norm, amax, POSITIVE), {0}};
static const struct vfm_operand o_norm_bwd[] = {IN(norm_bwd, x, NORMAL), IN(norm_bwd, dy, NORMAL),
	IN(norm_bwd, weight, POSITIVE), IN(norm_bwd, scale, SMALL), IN(norm_bwd, mean, SMALL),
	IN(norm_bwd, rstd, POSITIVE), IO(norm_bwd, dx, NORMAL), IO(norm_bwd, dweight, NORMAL),
	IO(norm_bwd, dbias, NORMAL), OUT(norm_bwd, dshift), OUT(norm_bwd, dscale), IN(norm_bwd, h, NORMAL),
	IN(norm_bwd, gate, NORMAL), OUT(norm_bwd, dh), OUT(norm_bwd, dgate), IO(norm_bwd, dh_sum, NORMAL), {0}};
static const struct vfm_operand o_gate[] = {
	IN(gate, x, NORMAL), IN(gate, h, NORMAL), IN(gate, gate, NORMAL), OUT(gate, y), {0}};
static const struct vfm_operand o_gate_bwd[] = {IN(gate_bwd, dy, NORMAL), IN(gate_bwd, h, NORMAL),
	IN(gate_bwd, gate, NORMAL), OUT(gate_bwd, dh), OUT(gate_bwd, dgate), IO(gate_bwd, dh_sum, NORMAL), {0}};
static const struct vfm_operand o_add_row[] = {IN(add_row, x, NORMAL), IN(add_row, row, NORMAL), OUT(add_row, y), {0}};
static const struct vfm_operand o_add_row_bwd[] = {IN(add_row_bwd, dy, NORMAL), IO(add_row_bwd, drow, NORMAL), {0}};
static const struct vfm_operand o_qk_norm_rope[] = {IN(qk_norm_rope, x, NORMAL), OUT(qk_norm_rope, y),
	IN(qk_norm_rope, weight, POSITIVE), IN(qk_norm_rope, rope, NORMAL), OUT(qk_norm_rope, rstd),
	IN(qk_norm_rope, x2, NORMAL), OUT(qk_norm_rope, y2), IN(qk_norm_rope, weight2, POSITIVE),
	IN(qk_norm_rope, rope2, NORMAL), OUT(qk_norm_rope, rstd2), {0}};
static const struct vfm_operand o_qk_norm_rope_bwd[] = {IN(qk_norm_rope_bwd, x, NORMAL),
	IN(qk_norm_rope_bwd, dy, NORMAL), IN(qk_norm_rope_bwd, weight, POSITIVE), IN(qk_norm_rope_bwd, rope, NORMAL),
	IN(qk_norm_rope_bwd, rstd, POSITIVE), OUT(qk_norm_rope_bwd, dx), IO(qk_norm_rope_bwd, dweight, NORMAL),
	IN(qk_norm_rope_bwd, x2, NORMAL), IN(qk_norm_rope_bwd, dy2, NORMAL), IN(qk_norm_rope_bwd, weight2, POSITIVE),
	IN(qk_norm_rope_bwd, rope2, NORMAL), IN(qk_norm_rope_bwd, rstd2, POSITIVE), OUT(qk_norm_rope_bwd, dx2),
	IO(qk_norm_rope_bwd, dweight2, NORMAL), {0}};
static const struct vfm_operand o_row_dot[] = {IN(row_dot, x, NORMAL), IN(row_dot, y, NORMAL), OUT(row_dot, out), {0}};
static const struct vfm_operand o_row_norm_rope[] = {IN(row_norm_rope, x, NORMAL), OUT(row_norm_rope, y),
	IN(row_norm_rope, weight, POSITIVE), IN(row_norm_rope, rope, NORMAL), IN(row_norm_rope, sumsq, POSITIVE), {0}};
static const struct vfm_operand o_row_norm_rope_bwd[] = {IN(row_norm_rope_bwd, x, NORMAL),
	IN(row_norm_rope_bwd, dy, NORMAL), IN(row_norm_rope_bwd, weight, POSITIVE), IN(row_norm_rope_bwd, rope, NORMAL),
	IN(row_norm_rope_bwd, sumsq, POSITIVE), IN(row_norm_rope_bwd, dot, NORMAL), OUT(row_norm_rope_bwd, dx),
	IO(row_norm_rope_bwd, dweight, NORMAL), {0}};
static const struct vfm_operand o_attn[] = {
	IN(attn, q, NORMAL), IN(attn, k, NORMAL), IN(attn, v, NORMAL), OUT(attn, o), OUT(attn, lse), {0}};
static const struct vfm_operand o_attn_bwd[] = {IN(attn_bwd, q, NORMAL), IN(attn_bwd, k, NORMAL),
	IN(attn_bwd, v, NORMAL), IN(attn_bwd, o, NORMAL), IN(attn_bwd, lse, LSE), IN(attn_bwd, dout, NORMAL),
	OUT(attn_bwd, dq), OUT(attn_bwd, dk), OUT(attn_bwd, dv), {0}};
static const struct vfm_operand o_unary[] = {IN(unary, x, NORMAL), IN(unary, dy, NORMAL), OUT(unary, y), {0}};
static const struct vfm_operand o_axpby[] = {IN(axpby, x, NORMAL), IO(axpby, y, NORMAL), {0}};
static const struct vfm_operand o_sum_parts[] = {
	IN(sum_parts, x, NORMAL), IN(sum_parts, own, NORMAL), OUT(sum_parts, y), {0}};
static const struct vfm_operand o_timestep[] = {IN(timestep, t, TIME), OUT(timestep, out), {0}};
static const struct vfm_operand o_diffuse[] = {IN(diffuse, x0, NORMAL), IN(diffuse, id, ID), IN(diffuse, idx, IDX),
	IN(diffuse, coef, NORMAL), OUT(diffuse, input), OUT(diffuse, target), {0}};
static const struct vfm_operand o_mse[] = {IN(mse, pred, NORMAL), IN(mse, target, NORMAL), IN(mse, w, POSITIVE),
	IO(mse, loss, POSITIVE), IO(mse, unweighted, POSITIVE), OUT(mse, sample_loss), OUT(mse, dpred), {0}};
static const struct vfm_operand o_adamw[] = {IO(adamw, p, NORMAL), IO(adamw, m, SMALL), IO(adamw, v, POSITIVE),
	IN(adamw, g, NORMAL), IN(adamw, grad_scale, SCALE), IO(adamw, w, NORMAL), IO(adamw, p_lo, LOW),
	IO(adamw, ema, NORMAL), {0}};
static const struct vfm_operand o_block8[] = {
	IO(block8, x, NORMAL), IO(block8, code, INDEX), IO(block8, scale, POSITIVE), {0}};
static const struct vfm_operand o_mxfp8[] = {
	IO(mxfp8, x, NORMAL), IO(mxfp8, code, NORMAL), IO(mxfp8, scale, INDEX), {0}};
static const struct vfm_operand o_split_master[] = {
	IO(split_master, x, NORMAL), IO(split_master, hi, NORMAL), IO(split_master, lo, INDEX), {0}};
static const struct vfm_operand o_sumsq[] = {IN(sumsq, x, NORMAL), IO(sumsq, sum, POSITIVE), {0}};
static const struct vfm_operand o_clip[] = {
	IN(clip, sum, SCALE), IN(clip, loss, POSITIVE), OUT(clip, norm), OUT(clip, scale), {0}};
static const struct vfm_operand o_fill[] = {OUT(fill, x), {0}};

static const struct vfm_operand o_index_select[] = {IN(index_select, x, NORMAL), IN(index_select, index, INDEX_OR_NONE),
	IN(index_select, weight, NORMAL), OUT(index_select, y), {0}};
static const struct vfm_operand o_index_add[] = {IN(index_add, x, NORMAL), IN(index_add, index, INDEX_OR_NONE),
	IN(index_add, weight, NORMAL), IO(index_add, y, NORMAL), {0}};
static const struct vfm_operand o_index_dot[] = {IN(index_dot, x, NORMAL), IN(index_dot, y, NORMAL),
	IN(index_dot, index, INDEX_OR_NONE), OUT(index_dot, dot), {0}};
static const struct vfm_operand o_attn_merge[] = {IO(attn_merge, o, NORMAL), IO(attn_merge, lse, LSE_OR_NONE),
	IN(attn_merge, o_b, NORMAL), IN(attn_merge, lse_b, LSE_OR_NONE), {0}};
static const struct vfm_operand o_swiglu[] = {IN(swiglu, x, NORMAL), OUT(swiglu, y), {0}};
static const struct vfm_operand o_swiglu_bwd[] = {
	IN(swiglu_bwd, x, NORMAL), IN(swiglu_bwd, dy, NORMAL), OUT(swiglu_bwd, dx), {0}};
static const struct vfm_operand o_geglu[] = {IN(geglu, x, NORMAL), OUT(geglu, y), {0}};
static const struct vfm_operand o_embed3[] = {IN(embed3, table_t, NORMAL), IN(embed3, table_h, NORMAL),
	IN(embed3, table_w, NORMAL), IN(embed3, pos, INDEX), OUT(embed3, out), {0}};
static const struct vfm_operand o_embed3_bwd[] = {IN(embed3_bwd, dy, NORMAL), IN(embed3_bwd, pos, INDEX),
	IO(embed3_bwd, dtable_t, NORMAL), IO(embed3_bwd, dtable_h, NORMAL), IO(embed3_bwd, dtable_w, NORMAL), {0}};
static const struct vfm_operand o_channel_norm[] = {IN(channel_norm, x, NORMAL), IN(channel_norm, weight, POSITIVE),
	IN(channel_norm, bias, NORMAL), OUT(channel_norm, y), {0}};
static const struct vfm_operand o_upsample[] = {IN(upsample, x, NORMAL), OUT(upsample, y), {0}};
static const struct vfm_operand o_attn_bias[] = {IN(attn_bias, q, NORMAL), IN(attn_bias, k, NORMAL),
	IN(attn_bias, v, NORMAL), IN(attn_bias, bias, NORMAL), OUT(attn_bias, o), {0}};
static const struct vfm_operand o_softmax[] = {IN(softmax, x, NORMAL), OUT(softmax, y), {0}};
static const struct vfm_operand o_softmax_bwd[] = {
	IN(softmax_bwd, y, POSITIVE), IN(softmax_bwd, dy, NORMAL), OUT(softmax_bwd, dx), {0}};
static const struct vfm_operand o_moe_topk_expert[] = {
	IN(moe_topk_expert, score, COARSE), OUT(moe_topk_expert, index), OUT(moe_topk_expert, weight), {0}};
static const struct vfm_operand o_moe_own[] = {IN(moe_own, index, INDEX), IN(moe_own, own, INDEX_OR_NONE),
	OUT(moe_own, row), OUT(moe_own, place), OUT(moe_own, count), {0}};
static const struct vfm_operand o_moe_topk_token[] = {
	IN(moe_topk_token, score, COARSE), OUT(moe_topk_token, expert), OUT(moe_topk_token, weight), {0}};
static const struct vfm_operand o_moe_topk_token_bwd[] = {IN(moe_topk_token_bwd, score, POSITIVE),
	IN(moe_topk_token_bwd, expert, DISTINCT), IN(moe_topk_token_bwd, dweight, NORMAL),
	OUT(moe_topk_token_bwd, dscore), {0}};
static const struct vfm_operand o_moe_sort[] = {IN(moe_sort, key, INDEX_OR_NONE), OUT(moe_sort, order),
	OUT(moe_sort, source), OUT(moe_sort, inverse), OUT(moe_sort, count), {0}};
static const struct vfm_operand o_moe_count[] = {IN(moe_count, expert, INDEX_OR_NONE), OUT(moe_count, count), {0}};
static const struct vfm_operand o_moe_balance[] = {IN(moe_balance, score, POSITIVE), IN(moe_balance, count, POSITIVE),
	IN(moe_balance, coef, POSITIVE), IO(moe_balance, loss, POSITIVE), IO(moe_balance, dscore, NORMAL), {0}};
static const struct vfm_operand o_grouped_gemm[] = {IN(grouped_gemm, a, NORMAL), IN(grouped_gemm, b, SMALL),
	IO(grouped_gemm, c, NORMAL), IN(grouped_gemm, bias, NORMAL), IO(grouped_gemm, aux, NORMAL),
	IO(grouped_gemm, a_colsum, NORMAL), {0}};

#define X(op)                                                                                                          \
	static int call_##op(struct vfm_stream *s, const void *a, struct vfm_err *err)                                 \
	{                                                                                                              \
		return vfm_op_##op(s, a, err);                                                                         \
	}                                                                                                              \
	static struct vfm_cost cost_##op(const void *a)                                                                \
	{                                                                                                              \
		return vfm_cost_##op(a);                                                                               \
	}
VFM_OP_LIST(X)
#undef X

#define INFO(op, ...) [VFM_OP_##op] = {#op, sizeof(struct vfm_##op), o_##op, {__VA_ARGS__}, call_##op, cost_##op}
#define SEQS(op, f)   offsetof(struct vfm_##op, f)
const struct vfm_op_info vfm_op_infos[VFM_OP_N] = {
	INFO(gemm, 0),
	INFO(norm, SEQS(norm, seqs)),
	INFO(norm_bwd, SEQS(norm_bwd, seqs)),
	INFO(gate, SEQS(gate, seqs)),
	INFO(gate_bwd, SEQS(gate_bwd, seqs)),
	INFO(add_row, 0),
	INFO(add_row_bwd, 0),
	INFO(qk_norm_rope, 0),
	INFO(qk_norm_rope_bwd, 0),
	INFO(row_dot, 0),
	INFO(row_norm_rope, 0),
	INFO(row_norm_rope_bwd, 0),
	INFO(attn, SEQS(attn, seqs_q), SEQS(attn, seqs_k)),
	INFO(attn_bwd, SEQS(attn_bwd, seqs_q), SEQS(attn_bwd, seqs_k)),
	INFO(unary, 0),
	INFO(axpby, 0),
	INFO(sum_parts, 0),
	INFO(timestep, 0),
	INFO(diffuse, SEQS(diffuse, seqs)),
	INFO(mse, SEQS(mse, seqs)),
	INFO(adamw, 0),
	INFO(split_master, 0),
	INFO(block8, 0),
	INFO(mxfp8, 0),
	INFO(sumsq, 0),
	INFO(clip, 0),
	INFO(fill, 0),
	INFO(index_select, 0),
	INFO(index_add, 0),
	INFO(index_dot, 0),
	INFO(attn_merge, 0),
	INFO(swiglu, 0),
	INFO(swiglu_bwd, 0),
	INFO(geglu, 0),
	INFO(embed3, 0),
	INFO(embed3_bwd, 0),
	INFO(channel_norm, 0),
	INFO(upsample, 0),
	INFO(attn_bias, SEQS(attn_bias, seqs)),
	INFO(softmax, 0),
	INFO(softmax_bwd, 0),
	INFO(moe_topk_expert, SEQS(moe_topk_expert, seqs)),
	INFO(moe_own, 0),
	INFO(moe_topk_token, 0),
	INFO(moe_topk_token_bwd, 0),
	INFO(moe_sort, 0),
	INFO(moe_count, SEQS(moe_count, seqs)),
	INFO(moe_balance, SEQS(moe_balance, seqs)),
	INFO(grouped_gemm, SEQS(grouped_gemm, groups)),
	INFO(quant, 0),
	INFO(transpose8, 0),
	INFO(amax_push, 0),
	INFO(conv3d, 0),
};
