/* cases_moe.c - mixtures of experts. */
#include "device/ops/cases_impl.h"

static void choice_cases(struct vfm_cases *l, unsigned flags, int n, const int *len, int64_t e, int64_t k)
{
	int64_t t = sum_lengths(n, len), all;
	struct vfm_tensor ids = mat(VFM_I32, t, k, 0), w = mat(VFM_F32, t, k, 0), p = mat(VFM_F32, t, e, 0);
	struct vfm_case *c;

	c = vfm_case_add(l, VFM_OP_softmax, flags, "%dx%d", (int)t, (int)e);
	c->args.softmax = (struct vfm_softmax){.x = p, .y = p};
	c = vfm_case_add(l, VFM_OP_softmax_bwd, flags, "%dx%d", (int)t, (int)e);
	c->args.softmax_bwd = (struct vfm_softmax_bwd){.y = p, .dy = p, .dx = p};

	c = vfm_case_add(l, VFM_OP_moe_topk_expert, flags, "%d-samples/%dx%d/%d", n, (int)t, (int)e, (int)k);
	vfm_case_seqs(l, c, 0, n, len);
	c->args.moe_topk_expert.capacity = (double)k * 0.7;
	all = vfm_moe_pack_capacity(&c->seqs[0], e, c->args.moe_topk_expert.capacity);
	c->args.moe_topk_expert.score = p;
	c->args.moe_topk_expert.index = mat(VFM_I32, e, all, 0);
	c->args.moe_topk_expert.weight = k == 1 ? none : mat(VFM_F32, e, all, 0);

	for (int part = 0; part < 2; part++) {
		c = vfm_case_add(
			l, VFM_OP_moe_own, flags, "%dx%d/%d/%s", (int)t, (int)e, (int)k, part ? "part" : "all");
		c->args.moe_own = (struct vfm_moe_own){.index = mat(VFM_I32, e, t ? all : 0, 0),
			.own = part && t ? vec(VFM_I32, t) : none,
			.row = vec(VFM_I32, e * (t ? all : 0)),
			.place = vec(VFM_I32, e * (t ? all : 0)),
			.count = vec(VFM_I32, e)};
		c->bound[0] = c->bound[1] = c->bound[2] = t ? t : 1;
	}

	c = vfm_case_add(l, VFM_OP_moe_topk_token, flags, "%dx%d/%d", (int)t, (int)e, (int)k);
	c->args.moe_topk_token = (struct vfm_moe_topk_token){.score = p, .expert = ids, .weight = w};
	c = vfm_case_add(l, VFM_OP_moe_topk_token_bwd, flags, "%dx%d/%d", (int)t, (int)e, (int)k);
	c->args.moe_topk_token_bwd =
		(struct vfm_moe_topk_token_bwd){.score = p, .expert = ids, .dweight = w, .dscore = p};
	c->bound[0] = e, c->bound[1] = k;

	c = vfm_case_add(l, VFM_OP_moe_sort, flags, "%dx%d/%d", (int)t, (int)e, (int)k);
	c->args.moe_sort = (struct vfm_moe_sort){.buckets = e,
		.div = k,
		.key = vec(VFM_I32, t * k),
		.order = vec(VFM_I32, t * k),
		.source = vec(VFM_I32, t * k),
		.inverse = k == 1 ? none : vec(VFM_I32, t * k),
		.count = vec(VFM_I32, e)};
	c->bound[0] = c->bound[1] = c->bound[2] = e;

	c = vfm_case_add(l, VFM_OP_moe_count, flags, "%d-samples/%dx%d/%d", n, (int)t, (int)e, (int)k);
	c->args.moe_count = (struct vfm_moe_count){.expert = ids, .count = mat(VFM_F32, n, e, 0)};
	c->bound[0] = c->bound[1] = c->bound[2] = e;
	vfm_case_seqs(l, c, 0, n, len);
	for (int v = 0; v < 3; v++) {
		c = vfm_case_add(l, VFM_OP_moe_balance, flags, "%d-samples/%dx%d/%s", n, (int)t, (int)e,
			v == 0           ? "loss"
				: v == 1 ? "gradient"
					 : "accumulate");
		c->args.moe_balance = (struct vfm_moe_balance){.score = p,
			.count = mat(VFM_F32, n, e, 0),
			.coef = vec(VFM_F32, n),
			.loss = v == 1 ? none : vec(VFM_F64, 1),
			.dscore = v == 0 ? none : p,
			.accumulate = v == 2};
		vfm_case_seqs(l, c, 0, n, len);
	}
}

static struct vfm_case *add_grouped(struct vfm_cases *l, unsigned flags, enum vfm_grouped what, const char *name,
	enum vfm_dtype t, enum vfm_dtype ct, int n, const int *len, int64_t in, int64_t out, int64_t pad)
{
	int64_t rows = sum_lengths(n, len);
	struct vfm_case *c = vfm_case_add(l, VFM_OP_grouped_gemm, flags, "%s/%s-%s/%dx%dx%dx%d", name,
		vfm_dtype_name(t), vfm_dtype_name(ct), n, (int)rows, (int)in, (int)out);
	struct vfm_tensor x = mat(t, rows, in, pad), dy = mat(t, rows, out, 3 * pad), w = vfm_t3(NULL, t, n, out, in);

	vfm_case_seqs(l, c, 0, n, len);
	c->args.grouped_gemm.what = what;
	c->args.grouped_gemm.a = what == VFM_GROUPED_FWD ? x : dy;
	c->args.grouped_gemm.b = what == VFM_GROUPED_WGRAD ? x : w;
	c->args.grouped_gemm.c = what == VFM_GROUPED_FWD ? mat(ct, rows, out, 5 * pad)
		: what == VFM_GROUPED_DGRAD              ? mat(ct, rows, in, 5 * pad)
							 : vfm_t3(NULL, ct, n, out, in);
	return c;
}

static void grouped_cases(struct vfm_cases *l, int n, const int *len, int64_t in, int64_t out, enum vfm_dtype t,
	enum vfm_dtype ct, int64_t pad)
{
	static const char *const act[] = {"none", "gelu", "silu"};
	struct vfm_case *c;

	add_grouped(l, VFM_CASE_TEST, VFM_GROUPED_FWD, "fwd", t, ct, n, len, in, out, pad);
	add_grouped(l, VFM_CASE_TEST, VFM_GROUPED_DGRAD, "dgrad", t, ct, n, len, in, out, pad);
	add_grouped(l, VFM_CASE_TEST, VFM_GROUPED_WGRAD, "wgrad", t, ct, n, len, in, out, pad);
	c = add_grouped(l, VFM_CASE_TEST, VFM_GROUPED_DGRAD, "dgrad-accumulate", t, ct, n, len, in, out, pad);
	c->args.grouped_gemm.accumulate = true;
	c = add_grouped(l, VFM_CASE_TEST, VFM_GROUPED_WGRAD, "wgrad-accumulate", t, ct, n, len, in, out, pad);
	c->args.grouped_gemm.accumulate = true;
	c->args.grouped_gemm.a_colsum = mat(VFM_F32, n, out, 0);
	for (int a = VFM_ACT_GELU_TANH; a <= VFM_ACT_SILU; a++) {
		c = add_grouped(l, VFM_CASE_TEST, VFM_GROUPED_FWD, act[a], t, ct, n, len, in, out, pad);
		c->args.grouped_gemm.act = (enum vfm_act)a;
		c->args.grouped_gemm.bias = mat(VFM_F32, n, out, 0);
		c->args.grouped_gemm.aux = mat(ct, c->args.grouped_gemm.c.shape[0], out, pad);
		c = add_grouped(l, VFM_CASE_TEST, VFM_GROUPED_DGRAD, act[a], t, ct, n, len, in, out, pad);
		c->args.grouped_gemm.dact = (enum vfm_act)a;
		c->args.grouped_gemm.aux = mat(ct, c->args.grouped_gemm.c.shape[0], in, pad);
	}
}

void vfm_cases_moe(struct vfm_cases *l)
{
	struct vfm_case *c;
	static const int one[] = {1}, many[] = {2500, 70}, long_[] = {3, 900, 0, 64}, pack[] = {1024, 1024},
			 experts[8] = {512, 400, 624, 512, 0, 1024, 480, 544}, all[] = {8192};
	int large[64];

	for (int i = 0; i < 64; i++)
		large[i] = 1024;
	choice_cases(l, VFM_CASE_TEST, N_MIXED, mixed, 8, 2);
	choice_cases(l, VFM_CASE_TEST, 4, long_, 5, 5);
	choice_cases(l, VFM_CASE_TEST, 4, long_, 64, 8);
	choice_cases(l, VFM_CASE_TEST, 1, one, 3, 1);
	choice_cases(l, VFM_CASE_TEST, N_MIXED, mixed, 1, 1);
	choice_cases(l, VFM_CASE_TEST, N_ABSENT, absent, 16, 2);
	choice_cases(l, VFM_CASE_TEST, 0, absent, 16, 2);
	c = vfm_case_add(l, VFM_OP_moe_sort, VFM_CASE_TEST, "70001x300"); /* two digits, long chunks */
	c->args.moe_sort = (struct vfm_moe_sort){.buckets = 300,
		.div = 7,
		.key = vec(VFM_I32, 70001),
		.order = vec(VFM_I32, 70001),
		.source = vec(VFM_I32, 70001),
		.inverse = vec(VFM_I32, 70001),
		.count = vec(VFM_I32, 300)};
	c->bound[0] = c->bound[1] = c->bound[2] = 300;
	c = vfm_case_add(l, VFM_OP_moe_topk_expert, VFM_CASE_TEST, "long/%dx3", many[0] + many[1]);
	vfm_case_seqs(l, c, 0, 2, many);
	c->args.moe_topk_expert.capacity = 1;
	c->args.moe_topk_expert.score = mat(VFM_F32, many[0] + many[1], 3, 0);
	c->args.moe_topk_expert.index = mat(VFM_I32, 3, vfm_moe_pack_capacity(&c->seqs[0], 3, 1), 0);
	c->args.moe_topk_expert.weight = mat(VFM_F32, 3, vfm_moe_pack_capacity(&c->seqs[0], 3, 1), 0);
	choice_cases(l, VFM_CASE_BENCH, 2, pack, 64, 8);
	for (int t = 0; t < 4; t++) {
		grouped_cases(l, N_MIXED, mixed, 33, 50, types[t & 1], types[t >> 1], 0);
		grouped_cases(l, N_MIXED, mixed, 64, 24, types[t & 1], types[t >> 1], 5);
		grouped_cases(l, N_ABSENT, absent, 16, 24, types[t & 1], types[t >> 1], 5);
		grouped_cases(l, 0, absent, 16, 24, types[t & 1], types[t >> 1], 0);
	}
	for (int t = 0; t < 2; t++) {
		add_grouped(l, VFM_CASE_BENCH, VFM_GROUPED_FWD, "fwd", types[t], types[t], 8, experts, 768, 512, 0);
		add_grouped(l, VFM_CASE_BENCH, VFM_GROUPED_DGRAD, "dgrad", types[t], types[t], 8, experts, 768, 512, 0);
		add_grouped(l, VFM_CASE_BENCH, VFM_GROUPED_WGRAD, "wgrad", types[t], VFM_F32, 8, experts, 768, 512, 0);
	}
	/* moe-1b: 64 experts of 1,024, capacity 8 */
	choice_cases(l, VFM_CASE_LARGE, 1, all, 64, 8);
	add_grouped(l, VFM_CASE_LARGE, VFM_GROUPED_FWD, "fwd", VFM_BF16, VFM_BF16, 64, large, 2048, 1024, 0);
	add_grouped(l, VFM_CASE_LARGE, VFM_GROUPED_DGRAD, "dgrad", VFM_BF16, VFM_BF16, 64, large, 2048, 1024, 0);
	add_grouped(l, VFM_CASE_LARGE, VFM_GROUPED_WGRAD, "wgrad", VFM_BF16, VFM_F32, 64, large, 2048, 1024, 0);
}
