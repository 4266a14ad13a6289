/* cases_rows.c - rows by index, sums of parts, merged attention, SwiGLU, table embeddings. */
#include "device/ops/cases_impl.h"

static void set_bounds(struct vfm_case *c, int64_t a, int64_t b, int64_t d)
{
	c->bound[0] = a, c->bound[1] = b, c->bound[2] = d;
}

/* n indices into m rows; h > 0: heads of width d within longer rows. */
static void add_rows(struct vfm_cases *l, unsigned flags, enum vfm_dtype xt, enum vfm_dtype yt, int64_t n, int64_t m,
	int64_t h, int64_t d, bool weight)
{
	struct vfm_tensor one = h ? heads(xt, 1, h, d, 2 * h * d) : mat(xt, 1, d, flags & VFM_CASE_TEST ? 3 : 0);
	struct vfm_tensor two = h ? heads(yt, 1, h, d, 0) : mat(yt, 1, d, flags & VFM_CASE_TEST ? 5 : 0);
	struct vfm_tensor w = weight ? vec(VFM_F32, n) : none, index = vec(VFM_I32, n);
	const char *x = vfm_dtype_name(xt), *y = vfm_dtype_name(yt);
	struct vfm_case *c;

	for (int keep = 0; keep < 2; keep++) {
		c = vfm_case_add(l, VFM_OP_index_select, flags, "%s-%s/%d-of-%dx%dx%d%s%s", x, y, (int)n, (int)m,
			(int)h, (int)d, weight ? "/weight" : "", keep ? "/keep" : "");
		c->args.index_select =
			(struct vfm_index_select){.x = one, .index = index, .weight = w, .y = two, .keep = keep};
		c->args.index_select.x.shape[0] = m;
		c->args.index_select.y.shape[0] = n;
		set_bounds(c, m, m, m);
	}
	for (int acc = 0; acc < 2; acc++) {
		c = vfm_case_add(l, VFM_OP_index_add, flags, "%s-%s/%d-to-%dx%dx%d%s%s", x, y, (int)n, (int)m, (int)h,
			(int)d, weight ? "/weight" : "", acc ? "/accumulate" : "");
		c->args.index_add =
			(struct vfm_index_add){.x = one, .index = index, .weight = w, .y = two, .accumulate = acc};
		c->args.index_add.x.shape[0] = n;
		c->args.index_add.y.shape[0] = m;
		set_bounds(c, m, m, m);
	}
	if (h)
		return;
	c = vfm_case_add(l, VFM_OP_index_dot, flags, "%s-%s/%d-of-%dx%d%s", x, y, (int)n, (int)m, (int)d,
		weight ? "/again" : "");
	c->args.index_dot = (struct vfm_index_dot){.x = one, .y = two, .index = index, .dot = vec(VFM_F32, n)};
	c->args.index_dot.x.shape[0] = n;
	c->args.index_dot.y.shape[0] = m;
	set_bounds(c, m, m, m);
}

static void rows_cases(struct vfm_cases *l)
{
	for (int t = 0; t < 4; t++) {
		enum vfm_dtype x = types[t & 1], y = types[t >> 1];

		add_rows(l, VFM_CASE_TEST, x, y, 143, 90, 0, 77, t & 1);
		add_rows(l, VFM_CASE_TEST, x, y, 50, 7, 3, 40, !(t & 1));
		add_rows(l, VFM_CASE_TEST, x, y, 700, 3, 0, 1100, true);
		add_rows(l, VFM_CASE_TEST, x, y, 300, 200, 0, 1, false);
		/* more rows than values of a sort digit */
		add_rows(l, VFM_CASE_TEST, x, y, 450, 600, 2, 24, t & 1);
		add_rows(l, VFM_CASE_TEST, x, y, 900, 5, 1, 72, !(t & 1));
		add_rows(l, VFM_CASE_TEST, x, y, 0, 5, 0, 33, true);
		add_rows(l, VFM_CASE_TEST, x, y, 0, 0, 2, 8, false);
		add_rows(l, VFM_CASE_TEST, x, y, 6, 4, 0, 0, true);
	}
	for (int t = 0; t < 2; t++)
		add_rows(l, VFM_CASE_BENCH, types[t], types[t], 8192, 2048, 0, 768, false);
}

static void add_merge(
	struct vfm_cases *l, unsigned flags, enum vfm_dtype t, int64_t n, int64_t h, int64_t d, bool first)
{
	struct vfm_case *c = vfm_case_add(l, VFM_OP_attn_merge, flags, "%s/%dx%dx%d%s", vfm_dtype_name(t), (int)n,
		(int)h, (int)d, first ? "/first" : "");
	struct vfm_tensor lse = mat(VFM_F32, n, h, 0);

	c->args.attn_merge = (struct vfm_attn_merge){.o = heads(VFM_F32, n, h, d, 8),
		.lse = lse,
		.o_b = heads(t, n, h, d, h * d),
		.lse_b = lse,
		.first = first};
}

static void add_swiglu(
	struct vfm_cases *l, unsigned flags, enum vfm_dtype xt, enum vfm_dtype yt, int64_t n, int64_t f, int64_t pad)
{
	const char *x = vfm_dtype_name(xt), *y = vfm_dtype_name(yt);
	struct vfm_case *c = vfm_case_add(l, VFM_OP_swiglu, flags, "%s-%s/%dx%d", x, y, (int)n, (int)f);

	c->args.swiglu = (struct vfm_swiglu){.x = mat(xt, n, 2 * f, pad), .y = mat(yt, n, f, 3 * pad)};
	c = vfm_case_add(l, VFM_OP_swiglu_bwd, flags, "%s-%s/%dx%d", x, y, (int)n, (int)f);
	c->args.swiglu_bwd = (struct vfm_swiglu_bwd){
		.x = mat(xt, n, 2 * f, pad), .dy = mat(yt, n, f, 2 * pad), .dx = mat(xt, n, 2 * f, 5 * pad)};
}

static void add_embed3(struct vfm_cases *l, unsigned flags, enum vfm_dtype tt, enum vfm_dtype yt, int64_t n, int64_t d,
	int64_t nt, int64_t nh, int64_t nw)
{
	const char *t = vfm_dtype_name(tt), *y = vfm_dtype_name(yt);
	struct vfm_case *c = vfm_case_add(
		l, VFM_OP_embed3, flags, "%s-%s/%dx%d/%dx%dx%d", t, y, (int)n, (int)d, (int)nt, (int)nh, (int)nw);

	c->args.embed3 = (struct vfm_embed3){.table_t = mat(tt, nt, d, 0),
		.table_h = mat(tt, nh, d, 0),
		.table_w = mat(tt, nw, d, 0),
		.pos = mat(VFM_I32, n, 3, 0),
		.out = mat(yt, n, d, 0)};
	set_bounds(c, nt, nh, nw);
	if (tt != VFM_F32)
		return;
	c = vfm_case_add(
		l, VFM_OP_embed3_bwd, flags, "%s/%dx%d/%dx%dx%d", y, (int)n, (int)d, (int)nt, (int)nh, (int)nw);
	c->args.embed3_bwd = (struct vfm_embed3_bwd){.dy = mat(yt, n, d, 0),
		.pos = mat(VFM_I32, n, 3, 0),
		.dtable_t = mat(VFM_F32, nt, d, 0),
		.dtable_h = mat(VFM_F32, nh, d, 0),
		.dtable_w = n == 57 ? none : mat(VFM_F32, nw, d, 0)};
	set_bounds(c, nt, nh, nw);
}

/* own: the place of the part that is a separate operand; negative: none. */
static void add_sum_parts(struct vfm_cases *l, unsigned flags, enum vfm_dtype xt, enum vfm_dtype yt, int64_t parts,
	int64_t n, int64_t pad, int own)
{
	struct vfm_case *c = vfm_case_add(l, VFM_OP_sum_parts, flags, "%s-%s/%dx%d%s%s", vfm_dtype_name(xt),
		vfm_dtype_name(yt), (int)parts, (int)n, pad ? "/strided" : "", own >= 0 ? "/own" : "");

	c->args.sum_parts = (struct vfm_sum_parts){
		.x = mat(xt, parts, n, pad), .own = own >= 0 ? vec(xt, n) : none, .at = own, .y = vec(yt, n)};
}

static void sum_parts_cases(struct vfm_cases *l)
{
	for (int t = 0; t < 4; t++) {
		enum vfm_dtype x = types[t & 1], y = types[t >> 1];

		add_sum_parts(l, VFM_CASE_TEST, x, y, 2, 70003, 0, -1); /* rows that are not aligned */
		add_sum_parts(l, VFM_CASE_TEST, x, y, 4, 70003, 5, 2);
		add_sum_parts(l, VFM_CASE_TEST, x, y, 8, 20000, 0, 7);
		add_sum_parts(l, VFM_CASE_TEST, x, y, 7, 9001, 0, 0);
		add_sum_parts(l, VFM_CASE_TEST, x, y, 3, 1, 0, -1);
		add_sum_parts(l, VFM_CASE_TEST, x, y, 1, 4096, 0, -1);
		add_sum_parts(l, VFM_CASE_TEST, x, y, 1, 4096, 0, 1);
		add_sum_parts(l, VFM_CASE_TEST, x, y, 0, 77, 0, -1);
		add_sum_parts(l, VFM_CASE_TEST, x, y, 0, 770, 0, 0);
		add_sum_parts(l, VFM_CASE_TEST, x, y, 5, 0, 0, 3);
	}
	for (int t = 0; t < 2; t++)
		add_sum_parts(l, VFM_CASE_BENCH, types[t], types[t], 4, 1 << 20, 0, -1);
	for (int parts = 2; parts <= 8; parts *= 2) /* the shard of 8,192 tokens on one of so many ranks */
		add_sum_parts(l, VFM_CASE_LARGE, VFM_BF16, VFM_BF16, parts, (int64_t)8192 / parts * 4096, 0, -1);
	add_sum_parts(l, VFM_CASE_LARGE, VFM_F32, VFM_F32, 4, 8 << 20, 0, -1);
}

void vfm_cases_rows(struct vfm_cases *l)
{
	rows_cases(l);
	sum_parts_cases(l);
	for (int t = 0; t < 4; t++) {
		enum vfm_dtype x = types[t & 1], y = types[t >> 1];

		add_swiglu(l, VFM_CASE_TEST, x, y, 29, 77, 3);
		add_swiglu(l, VFM_CASE_TEST, x, y, 70, 64, 0);
		add_swiglu(l, VFM_CASE_TEST, x, y, 70, 64, 3);
		add_swiglu(l, VFM_CASE_TEST, x, y, 9, 2600, 8);
		add_swiglu(l, VFM_CASE_TEST, x, y, 0, 64, 4);
		add_embed3(l, VFM_CASE_TEST, x, y, 57, 77, 1, 9, 5);
		add_embed3(l, VFM_CASE_TEST, x, y, 500, 640, 3, 4, 40);
		add_embed3(l, VFM_CASE_TEST, x, y, 0, 64, 3, 4, 5);
	}
	for (int t = 0; t < 2; t++) {
		add_merge(l, VFM_CASE_TEST, types[t], 45, 3, 64, false);
		add_merge(l, VFM_CASE_TEST, types[t], 45, 3, 40, true);
		add_merge(l, VFM_CASE_TEST, types[t], 0, 3, 40, false);
		add_merge(l, VFM_CASE_BENCH, types[t], 2048, 12, 64, false);
		add_swiglu(l, VFM_CASE_BENCH, types[t], types[t], 2048, 2048, 0);
		add_embed3(l, VFM_CASE_BENCH, VFM_F32, types[t], 2048, 768, 8, 16, 16);
	}
	add_rows(l, VFM_CASE_LARGE, VFM_BF16, VFM_BF16, 65536, 8192, 0, 2048, true);
	add_merge(l, VFM_CASE_LARGE, VFM_BF16, 8192, 32, 128, false);
	add_swiglu(l, VFM_CASE_LARGE, VFM_BF16, VFM_BF16, 8192, 8192, 0);
	add_embed3(l, VFM_CASE_LARGE, VFM_F32, VFM_BF16, 8192, 2048, 32, 16, 16);
}
