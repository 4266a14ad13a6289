/* kernels.c - the kernels that device/cuda launches for each op.  A change of a launch there changes this file;
 * tests/ops/test_launches compares the two. */
#include "device/sim/kernels.h"

#include "device/ops/info.h"

/* ---- GEMM: the product of the library, and our kernels around it (gemm.cu) ---- */

/* Our kernels: the bias converted to the dtype of the result, which the library requires; sums of rows, in two
 * steps along a transposed operand; an epilogue that the library lacks. */
static int count_gemm(const struct vfm_gemm *a)
{
	bool f8 = a->a.dtype == VFM_F8E4M3 || a->a.dtype == VFM_F8E5M2;
	bool silu = a->act == VFM_ACT_SILU || a->dact == VFM_ACT_SILU;
	int64_t m = a->c.shape[0], n = a->c.shape[1], k = a->a.shape[a->trans_a ? 0 : 1];
	int sums = !vfm_has(&a->a_rowsum) ? 0 : a->trans_a ? 2 : 1;

	if (m == 0)
		return 0;
	if (k == 0)
		return n && (!a->accumulate || vfm_has(&a->bias)) ? 1 : 0;
	if (n == 0)
		return sums;
	if (silu)
		return 2 + sums;
	return 1 + sums + (vfm_has(&a->bias) && a->bias.dtype != (f8 ? VFM_BF16 : a->c.dtype) ? 1 : 0);
}

/* Equal groups are one batch; others follow one another. */
static int count_grouped(const struct vfm_grouped_gemm *a)
{
	bool wgrad = a->what == VFM_GROUPED_WGRAD, equal = a->groups->n > 1;
	int own = (vfm_has(&a->bias) && a->bias.dtype != a->c.dtype ? 1 : 0) + (vfm_has(&a->a_colsum) ? 2 : 0),
	    groups = 0;

	for (int g = 0; g < a->groups->n; g++) {
		equal = equal && vfm_seqs_len(a->groups, g) == vfm_seqs_len(a->groups, 0);
		groups += wgrad || vfm_seqs_len(a->groups, g) > 0;
	}
	if (a->groups->total == 0 && !wgrad)
		return 0;
	return (equal ? 1 : groups) * (1 + own);
}

/* ---- attention: cuDNN's kernels, and the lists of a packed piece (device/cuda/attn.c) ---- */

/* The lengths and batches that a plan is made for (attn_pack.h). */
static bool is_planned(int64_t n, int64_t least, int64_t steps)
{
	int64_t octave = least;

	while (2 * octave <= n)
		octave *= 2;
	return n >= least && n % (octave >= steps * least ? octave / steps : least) == 0;
}

static bool has_equal_samples(const struct vfm_seqs *q)
{
	for (int i = 1; i < q->n; i++)
		if (vfm_seqs_len(q, i) != vfm_seqs_len(q, 0))
			return false;
	return true;
}

/* The backward of cuDNN has three kernels: dsum, the gradients, and the conversion of dq. */
static int count_attention(const struct vfm_seqs *q, const struct vfm_seqs *k, bool backward)
{
	int main = backward ? 3 : 1;
	bool fixed = has_equal_samples(q) && has_equal_samples(k);

	if (q->total == 0 && (!backward || k->total == 0))
		return 0;
	fixed = fixed && (q->n & (q->n - 1)) == 0 && is_planned(q->max_len, 128, 4) && is_planned(k->max_len, 128, 4);
	return fixed ? main : main + 1;
}

/* ---- our kernels ---- */

/* As in kern.h: 16-byte vectors of 8 elements. */
static bool is_wide(const struct vfm_tensor *t)
{
	bool ok = !vfm_has(t) || t->shape[t->ndim - 1] % 8 == 0;

	for (int i = 0; i + 1 < t->ndim; i++)
		ok = ok && t->stride[i] % 8 == 0;
	return ok && (uintptr_t)t->data % 16 == 0;
}

static int count_norm_bwd(const struct vfm_norm_bwd *a)
{
	bool mod = vfm_has(&a->scale), rows = a->x.shape[0] > 0;
	bool by_sample = vfm_has(&a->dscale) || vfm_has(&a->dshift) || vfm_has(&a->dgate);
	bool sums = by_sample || vfm_has(&a->dweight) || vfm_has(&a->dbias) || vfm_has(&a->dh_sum);
	bool wide = is_wide(&a->x) && is_wide(&a->dy) && is_wide(&a->dx) && is_wide(mod ? &a->scale : &a->weight) &&
		is_wide(&a->h) && is_wide(&a->gate) && is_wide(&a->dh) && a->x.shape[1] <= 6144 &&
		!(a->dx_accumulate && a->dx.dtype != a->x.dtype) && !(vfm_has(&a->h) && a->h.dtype != a->dy.dtype);

	return (rows ? wide || !sums ? 1 : 2 : 0) + (sums && (rows || by_sample) ? 1 : 0);
}

/* q and k that vectors fit share a launch; others have one each. */
static int count_qk(const struct vfm_qk_norm_rope *a)
{
	const struct vfm_qk_norm_rope of[2] = {*a, vfm_qk_second(a)};
	int shared = 0, single = 0;

	for (int i = 0; i < 2; i++) {
		const struct vfm_qk_norm_rope *b = &of[i];

		if (!vfm_has(&b->x) || !vfm_numel(&b->x))
			continue;
		if (is_wide(&b->x) && is_wide(&b->y) && is_wide(&b->weight) && is_wide(&b->rope) &&
			b->x.shape[2] <= 256)
			shared = 1;
		else
			single++;
	}
	return shared + single;
}

/* One fold adds the partial sums of both weights. */
static int count_qk_bwd(const struct vfm_qk_norm_rope_bwd *a)
{
	const struct vfm_qk_norm_rope_bwd of[2] = {*a, vfm_qk_second_bwd(a)};
	int shared = 0, single = 0, fold = 0;

	for (int i = 0; i < 2; i++) {
		const struct vfm_qk_norm_rope_bwd *b = &of[i];
		bool sums = vfm_has(&b->dweight);

		if (!vfm_has(&b->dy) || !vfm_numel(&b->dy))
			continue;
		if (is_wide(&b->dy) && is_wide(&b->dx) && (!vfm_has(&b->weight) || is_wide(&b->x)) &&
			is_wide(&b->weight) && is_wide(&b->rope) && b->dy.shape[2] <= 256)
			shared = 1;
		else
			single += 1 + sums;
		fold |= sums;
	}
	return shared + single + fold;
}

/* Passes of a radix sort with digits of 8 bits, three kernels each (sort.h). */
static int count_sort(int64_t n, int64_t keys)
{
	int bits = 1;

	while (keys >> bits)
		bits++;
	return n > 0 ? (bits + 7) / 8 * 3 : 0;
}

/* Sums of n rows into m by index: a sort, the bounds of the lists, and the sums, many rows for few lists in pieces. */
static int count_row_sums(int64_t n, int64_t m, int64_t d)
{
	if (d == 0)
		return 0;
	return count_sort(n, m) + (m > 0 ? n > 64 && n / 32 > m ? 4 : 2 : 0);
}

static int64_t row_width(const struct vfm_tensor *t)
{
	return t->ndim == 3 ? t->shape[1] * t->shape[2] : t->shape[1];
}

static int count_embed3_bwd(const struct vfm_embed3_bwd *a)
{
	const struct vfm_tensor *table[] = {&a->dtable_t, &a->dtable_h, &a->dtable_w};
	int n = 0;

	for (int i = 0; i < 3; i++)
		if (vfm_has(table[i]) && a->dy.shape[0] > 0)
			n += count_row_sums(a->dy.shape[0], table[i]->shape[0], a->dy.shape[1]);
	return n;
}

static int count_quant(const struct vfm_quant *a)
{
	bool rows = a->x.shape[0] > 0, cols = a->x.shape[1] > 0;
	bool tiles = cols && (rows || (vfm_has(&a->yt) && a->yt.shape[1] > 0));

	return (rows && cols ? 1 : 0) + 1 + (tiles ? 1 : 0) + (tiles && vfm_has(&a->colsum) ? 1 : 0);
}

static int count_moe_count(const struct vfm_moe_count *a)
{
	return vfm_numel(&a->count) == 0 ? 0 : vfm_numel(&a->expert) == 0 ? 2 : 3;
}

static int count_moe_sort(const struct vfm_moe_sort *a)
{
	int64_t n = a->key.shape[0];

	return n == 0 && a->buckets == 0 ? 0 : count_sort(n, a->buckets) + 1;
}

/* One kernel if the tensor has elements. */
static int one_for(const struct vfm_tensor *t)
{
	return vfm_numel(t) > 0;
}

static int count_gate_bwd(const struct vfm_gate_bwd *a)
{
	bool rows = one_for(&a->dy), sums = vfm_has(&a->dgate) || (vfm_has(&a->dh_sum) && rows);

	return one_for(&a->gate) ? rows + sums : 0;
}

/* Elements of a row of im2col, in whole vectors of 16 bytes. */
static int64_t im2col_width(const struct vfm_conv3d *a)
{
	int64_t n = a->x.dtype == VFM_F32 ? 4 : 8;

	return (a->weight.shape[1] * a->weight.shape[2] + n - 1) / n * n;
}

bool vfm_sim_conv_direct(const struct vfm_conv3d *a)
{
	return vfm_conv3d_pixelwise(a) && a->x.shape[3] % (a->x.dtype == VFM_F32 ? 4 : 8) == 0;
}

int64_t vfm_sim_conv_rows(const struct vfm_conv3d *a)
{
	int64_t pixels = a->y.shape[1] * a->y.shape[2], blocks;
	int64_t row = im2col_width(a) * (int64_t)vfm_dtype_size(a->x.dtype), most = row ? (32 << 20) / row : pixels;

	blocks = most ? (pixels + most - 1) / most : pixels;
	if (vfm_sim_conv_direct(a) || blocks <= 1)
		return pixels;
	return ((pixels + blocks - 1) / blocks + 127) / 128 * 128;
}

/* A product for each block, after its im2col; before them a copy of `add`, the weight padded, and the bias converted
 * (conv.cu). */
static int count_conv(const struct vfm_conv3d *a)
{
	int64_t pixels = a->y.shape[1] * a->y.shape[2], k = a->weight.shape[1] * a->weight.shape[2], rows;
	int before = vfm_has(&a->add) && a->add.data != a->y.data;

	if (!vfm_numel(&a->y))
		return 0;
	if (k == 0)
		return before + (vfm_has(&a->bias) || !vfm_has(&a->add));
	before += (im2col_width(a) > k) + (vfm_has(&a->bias) && a->x.dtype == VFM_BF16);
	rows = vfm_sim_conv_rows(a);
	return before + (int)(a->y.shape[0] * ((pixels + rows - 1) / rows)) * (vfm_sim_conv_direct(a) ? 1 : 2);
}

/* Returns the kernels of ops that launch others than one if they have results; -1: any other op. */
static int count_special(enum vfm_op_id op, const void *args)
{
	const struct vfm_attn *attn = args;
	const struct vfm_attn_bwd *attn_bwd = args;
	const struct vfm_norm *norm = args;
	const struct vfm_mse *mse = args;
	const struct vfm_moe_balance *balance = args;
	const struct vfm_index_add *add = args;
	const struct vfm_row_norm_rope_bwd *row_bwd = args;
	const struct vfm_channel_norm *channel = args;
	const struct vfm_add_row_bwd *add_row_bwd = args;
	const struct vfm_sumsq *sumsq = args;
	const struct vfm_attn_merge *merge = args;
	const struct vfm_moe_topk_expert *topk = args;
	const struct vfm_moe_own *own = args;

	switch (op) {
	case VFM_OP_gemm:
		return count_gemm(args);
	case VFM_OP_grouped_gemm:
		return count_grouped(args);
	case VFM_OP_attn:
		return count_attention(attn->seqs_q, attn->seqs_k, false);
	case VFM_OP_attn_bwd:
		return count_attention(attn_bwd->seqs_q, attn_bwd->seqs_k, true);
	case VFM_OP_norm:
		return one_for(&norm->x) || vfm_has(&norm->history);
	case VFM_OP_norm_bwd:
		return count_norm_bwd(args);
	case VFM_OP_gate_bwd:
		return count_gate_bwd(args);
	case VFM_OP_qk_norm_rope:
		return count_qk(args);
	case VFM_OP_qk_norm_rope_bwd:
		return count_qk_bwd(args);
	case VFM_OP_row_norm_rope_bwd:
		return one_for(&row_bwd->x) * (1 + vfm_has(&row_bwd->dweight));
	case VFM_OP_channel_norm: /* of groups: statistics of pieces, of frames, results */
		return one_for(&channel->x) * (channel->kind == VFM_CHANNEL_NORM_GROUP ? 3 : 1);
	case VFM_OP_mse:
		return (mse->pred.shape[0] > 0) + (mse->seqs->n > 0 ? 2 + vfm_has(&mse->unweighted) : 0);
	case VFM_OP_moe_balance:
		return (balance->score.shape[0] > 0) + (vfm_has(&balance->loss) && balance->seqs->n > 0 ? 2 : 0);
	case VFM_OP_index_add:
		return count_row_sums(add->x.shape[0], add->y.shape[0], row_width(&add->y));
	case VFM_OP_embed3_bwd:
		return count_embed3_bwd(args);
	case VFM_OP_quant:
		return count_quant(args);
	case VFM_OP_conv3d:
		return count_conv(args);
	case VFM_OP_moe_count:
		return count_moe_count(args);
	case VFM_OP_moe_sort:
		return count_moe_sort(args);
	case VFM_OP_moe_topk_expert:
		return one_for(&topk->index) * 3;
	case VFM_OP_moe_own:
		return one_for(&own->count) * 2;
	case VFM_OP_add_row_bwd:
		return one_for(&add_row_bwd->dy) * 2;
	case VFM_OP_sumsq:
		return one_for(&sumsq->x) * 2;
	case VFM_OP_attn_merge: /* o may have no columns */
		return one_for(&merge->lse);
	default:
		return -1;
	}
}

/* Returns whether the first operand that the op writes has elements: most ops then launch one kernel. */
static bool has_results(enum vfm_op_id op, const void *args)
{
	const struct vfm_operand *o = vfm_op_info(op)->operands;

	while (o->name && (o->role == VFM_IN || !vfm_has(vfm_operand_of((void *)args, o))))
		o++;
	return o->name && vfm_numel(vfm_operand_of((void *)args, o)) > 0;
}

int vfm_sim_kernels(enum vfm_op_id op, const void *args)
{
	int n = count_special(op, args);

	return n >= 0 ? n : has_results(op, args);
}
