/* cases_optim.c - the optimizer: AdamW, split master weights, norm and clipping; random fills; frozen weights. */
#include <stdio.h>

#include "device/ops/cases_impl.h"

/* The operands of adamw that a case has. */
struct adamw_has {
	bool split; /* split masters instead of p */
	enum vfm_dtype m, g;
	bool grad_scale, w, ema;
};

static void add_adamw(struct vfm_cases *l, unsigned flags, const char *name, int64_t n, int bound, struct adamw_has has)
{
	struct vfm_case *c = vfm_case_add(l, VFM_OP_adamw, flags, "%s/%d", name, (int)n);
	struct vfm_tensor x = vec(VFM_F32, n);

	c->bound[0] = bound;
	c->args.adamw = (struct vfm_adamw){.lr = 1e-2f,
		.beta1 = 0.9f,
		.beta2 = 0.95f,
		.eps = 1e-8f,
		.wd = 0.1f,
		.c1 = 0.4f,
		.c2 = 0.2f,
		.ema_decay = 0.99f,
		.p = has.split ? none : x,
		.m = vec(has.m, n),
		.v = x,
		.g = vec(has.g, n),
		.grad_scale = has.grad_scale ? vec(VFM_F32, 1) : none,
		.w = has.w ? vec(VFM_BF16, n) : none,
		.p_lo = has.split ? vec(VFM_I16, n) : none,
		.ema = has.ema ? x : none};
}

/* Steps whose gradient is NaN or infinite: clip says so, adamw changes nothing. */
static void nonfinite_cases(struct vfm_cases *l)
{
	for (int i = 0; i < 8; i++) {
		const char *step = i & 1 ? "inf" : "nan";
		enum vfm_dtype t = types[i >= 4];
		bool split = i & 2;
		struct vfm_case *c;
		char name[32];

		snprintf(name, sizeof(name), "%s-%s", step, split ? "split" : "w-ema");
		add_adamw(l, VFM_CASE_TEST, name, i >= 4 ? 1000 : 4003, 1 + (i & 1),
			(struct adamw_has){split, t, t, true, true, !split});
		if (i >= 4)
			continue;
		c = vfm_case_add(l, VFM_OP_clip, VFM_CASE_TEST, "%s-max%d", step, i / 2);
		c->bound[0] = 1 + (i & 1);
		c->args.clip = (struct vfm_clip){.sum = vec(VFM_F64, 1),
			.norm = vec(VFM_F32, 1),
			.scale = vec(VFM_F32, 1),
			.max_norm = (float)(i / 2)};
	}
}

static void block8_cases(struct vfm_cases *l)
{
	static const int sizes[] = {1, 1000, 70003, 16 << 20};

	for (int i = 0; i < 16; i++) {
		bool back = i & 1, is_signed = i & 2;
		int64_t n = sizes[i / 4], first = back && n == 1000 ? 37 : 0;
		struct vfm_case *c = vfm_case_add(l, VFM_OP_block8, i / 4 == 3 ? VFM_CASE_BENCH : VFM_CASE_TEST,
			"%s-%s/%d", back ? "back" : "to", is_signed ? "signed" : "unsigned", (int)n);

		c->bound[0] = c->bound[1] = c->bound[2] = 256;
		c->args.block8 = (struct vfm_block8){.back = back,
			.is_signed = is_signed,
			.first = first,
			.x = vec(VFM_F32, n),
			.code = vec(VFM_U8, n),
			.scale = vec(VFM_F32, (first + n + 255) / 256)};
	}
}

/* Shards of a weight, one after another with their scales after them. */
static void add_mxfp8(struct vfm_cases *l, unsigned flags, enum vfm_dtype t, int64_t rows, int64_t n, int64_t pad)
{
	for (int back = 0; back < 2; back++) {
		struct vfm_case *c = vfm_case_add(l, VFM_OP_mxfp8, flags, "%s/%s/%dx%d", back ? "back" : "to",
			vfm_dtype_name(t), (int)rows, (int)n);

		c->bound[0] = 120, c->bound[1] = 127, c->bound[2] = 130;
		c->args.mxfp8 = (struct vfm_mxfp8){.back = back,
			.x = mat(t, rows, n, 0),
			.code = mat(VFM_F8E4M3, rows, n, pad),
			.scale = mat(VFM_U8, rows, n / VFM_MX_BLOCK, pad ? pad + n - n / VFM_MX_BLOCK : 0)};
	}
}

static void mxfp8_cases(struct vfm_cases *l)
{
	for (int i = 0; i < 2; i++) {
		add_mxfp8(l, VFM_CASE_TEST, types[i], 1, 32, 0);
		add_mxfp8(l, VFM_CASE_TEST, types[i], 3, 1056, 48);
		add_mxfp8(l, VFM_CASE_TEST, types[i], 1, 70016, 0);
		add_mxfp8(l, VFM_CASE_TEST, types[i], 0, 64, 0);
		add_mxfp8(l, VFM_CASE_TEST, types[i], 2, 0, 0);
		add_mxfp8(l, VFM_CASE_BENCH, types[i], 1, 16 << 20, 0);
		add_mxfp8(l, VFM_CASE_LARGE, types[i], 4, 64 << 20, 2 << 20);
	}
}

/* Weights in two shards of n elements: the rows of a whole matrix; padding; two rows of a matrix of 320 columns whose
 * columns [64, 192) the rank has, with a block (NF4) or row (INT8) 1000 of the matrix as the first; to the end, rows
 * that begin in the middle of a matrix. */
static const struct vfm_weight_segment *mixed_segments(struct vfm_cases *l, int64_t n, int64_t scales)
{
	struct vfm_weight_segment *g = vfm_arena_alloc(&l->arena, 3 * sizeof(*g));

	g[0] = (struct vfm_weight_segment){.begin = 0, .rows = 5, .cols = 192, .pitch = 3};
	g[1] = (struct vfm_weight_segment){
		.begin = 1024, .rows = 2, .cols = 128, .first = 1001, .pitch = 5, .base = scales / 4};
	g[2] = (struct vfm_weight_segment){
		.begin = 1280, .rows = (2 * n - 1280) / 64, .cols = 64, .first = 250, .pitch = 1, .base = scales / 2};
	return g;
}

static void add_coded(struct vfm_cases *l, unsigned flags, int format, enum vfm_dtype t, int64_t shards, int64_t n,
	int64_t pad, const struct vfm_weight_segment *g, int segments, int64_t scales)
{
	bool nf4 = format == VFM_WEIGHTS_NF4;
	struct vfm_case *c = vfm_case_add(l, VFM_OP_decode_weights, flags, "%s/%s/%dx%d", nf4 ? "nf4" : "int8",
		vfm_dtype_name(t), (int)shards, (int)n);

	c->bound[0] = c->bound[1] = c->bound[2] = 256;
	c->list = (const int64_t *)g;
	c->args.decode_weights = (struct vfm_decode_weights){.format = format,
		.x = mat(t, shards, n, 0),
		.code = mat(VFM_U8, shards, nf4 ? n / 2 : n, pad),
		.absmax = nf4 ? mat(VFM_U8, shards, n / VFM_NF4_BLOCK, 3 * pad) : none,
		.segment = mat(VFM_I64, segments, 6, 0),
		.scale = vec(VFM_F32, scales),
		.offset = nf4 ? vec(VFM_F32, segments) : none};
}

/* A whole matrix of rows of 4096. */
static void add_coded_matrix(struct vfm_cases *l, unsigned flags, int format, enum vfm_dtype t, int64_t n)
{
	enum { COLS = 4096 };
	bool nf4 = format == VFM_WEIGHTS_NF4;
	struct vfm_weight_segment *g = vfm_arena_alloc(&l->arena, sizeof(*g));

	*g = (struct vfm_weight_segment){.rows = n / COLS, .cols = COLS, .pitch = nf4 ? COLS / VFM_NF4_BLOCK : 1};
	add_coded(l, flags, format, t, 1, n, 0, g, 1, nf4 ? n / VFM_NF4_BLOCK / VFM_NF4_GROUP : n / COLS);
}

static void weights_cases(struct vfm_cases *l)
{
	static const struct vfm_weight_segment all = {.rows = 8, .cols = 64, .pitch = 1};

	for (int i = 0; i < 4; i++) {
		enum vfm_dtype t = types[i & 1];
		int format = i & 2 ? VFM_WEIGHTS_NF4 : VFM_WEIGHTS_INT8;
		int64_t n = 38912, scales = 2 * n;

		add_coded(l, VFM_CASE_TEST, format, t, 1, 512, 0, &all, 1, 8);
		add_coded(l, VFM_CASE_TEST, format, t, 2, n, 8, mixed_segments(l, n, scales), 3, scales);
		add_coded(l, VFM_CASE_TEST, format, t, 3, 1024, 16, NULL, 0, 0); /* only padding */
		add_coded(l, VFM_CASE_TEST, format, t, 0, 512, 0, NULL, 0, 1);
		add_coded(l, VFM_CASE_TEST, format, t, 2, 0, 0, NULL, 0, 1);
		add_coded_matrix(l, VFM_CASE_BENCH, format, t, 16 << 20);
		add_coded_matrix(l, VFM_CASE_LARGE, format, t, 256 << 20);
	}
}

void vfm_cases_optim(struct vfm_cases *l)
{
	static const int sizes[] = {1, 1000, 70003};
	struct vfm_case *c;
	char name[32];

	for (int i = 0; i < 4; i++)
		for (int bench = 0; bench < 2; bench++) {
			snprintf(name, sizeof(name), "%s%s", i & 1 ? "w" : "plain", i & 2 ? "-ema" : "");
			add_adamw(l, bench ? VFM_CASE_BENCH : VFM_CASE_TEST, name, bench ? 8 << 20 : sizes[i % 3], 0,
				(struct adamw_has){false, VFM_F32, VFM_F32, i & 1, i & 1, i & 2});
		}
	for (int i = 0; i < 8; i++) {
		int64_t n = i / 2 == 3 ? 16 << 20 : sizes[i / 2];

		c = vfm_case_add(l, VFM_OP_split_master, i / 2 == 3 ? VFM_CASE_BENCH : VFM_CASE_TEST, "%s/%d",
			i & 1 ? "join" : "split", (int)n);
		c->args.split_master = (struct vfm_split_master){
			.join = i & 1, .x = vec(VFM_F32, n), .hi = vec(VFM_BF16, n), .lo = vec(VFM_I16, n)};
		c->bound[0] = c->bound[1] = c->bound[2] = 32768;
	}
	for (int i = 0; i < 6; i++) { /* bf16 moments and gradients, split master */
		bool split = i >= 2;
		enum vfm_dtype m = types[i != 1 && i != 2], g = types[i != 0 && i != 2];

		snprintf(name, sizeof(name), "%s-m-%s-g-%s", split ? "split" : "w", vfm_dtype_name(m),
			vfm_dtype_name(g));
		add_adamw(l, i == 5 ? VFM_CASE_BENCH : VFM_CASE_TEST, name,
			i == 5          ? 8 << 20
				: i & 1 ? 1000
					: 4003,
			0, (struct adamw_has){split, m, g, i & 1, true, i == 3});
	}
	for (int i = 0; i < 5; i++) {
		int64_t n = i == 3 ? 16 << 20 : sizes[i % 3] * 3;

		c = vfm_case_add(l, VFM_OP_sumsq, i == 3 ? VFM_CASE_BENCH : VFM_CASE_TEST, "%s/%d",
			vfm_dtype_name(types[i == 4]), (int)n);
		c->args.sumsq = (struct vfm_sumsq){vec(types[i == 4], n), vec(VFM_F64, 1)};
		c = vfm_case_add(l, VFM_OP_clip, VFM_CASE_TEST, "max%d", i);
		c->args.clip = (struct vfm_clip){.sum = vec(VFM_F64, 1),
			.loss = i & 1 ? vec(VFM_F64, 1) : none,
			.norm = vec(VFM_F32, 1),
			.scale = vec(VFM_F32, 1),
			.max_norm = 0.4f * (float)i};
	}
	for (int t = 0; t < 2; t++)
		for (int i = 0; i < 4; i++) {
			int64_t n = i == 3 ? 16 << 20 : sizes[i];

			c = vfm_case_add(l, VFM_OP_fill, i == 3 ? VFM_CASE_BENCH : VFM_CASE_TEST, "%s/%d",
				vfm_dtype_name(types[t]), (int)n);
			c->args.fill = (struct vfm_fill){.x = vec(types[t], n),
				.rng = vfm_rng_stream(1, 0, 99, VFM_RNG_TEST),
				.first = i == 3 ? 0 : 3 + 4 * i,
				.mean = 0.5f,
				.std = i == 1 ? 0 : 0.02f};
		}
	nonfinite_cases(l);
	block8_cases(l);
	mxfp8_cases(l);
	weights_cases(l);
}
