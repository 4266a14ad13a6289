/* ops_index.c - an index outside its tensor: the CPU returns an error, kernels report it later. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "emu_dev.h"
#include "ops_test.h"

/* Expects an error.  The CPU returns it at once.  Kernels treat a bad index as "no row", and the next wait for the
 * device returns the error. */
static void refused_later(struct vfm_stream *s, int rc, struct vfm_err *err, const char *words)
{
	if (!device) {
		assert_int_equal(rc, 0);
		rc = s->dev->t->stream_sync(s, err);
		vfm_emu_forget_faults();
		assert_int_equal(s->dev->t->stream_sync(s, NULL), 0);
	}
	assert_int_equal(rc, VFM_EUSAGE);
	if (!strstr(err->msg, words))
		fail_msg("'%s' does not say '%s'", err->msg, words);
	*err = (struct vfm_err){0};
}

enum { BAD_D = 16 };

/* Rows of d elements: by vectors (d 16) and element by element. */
static void bad_rows(struct vfm_stream *s, int64_t d)
{
	float x[3 * BAD_D], y[3 * BAD_D], sum[3 * BAD_D], dot[3], out[BAD_D], want[2] = {0};
	int32_t index[3] = {0, 3, 1};
	struct vfm_err err = {0};
	struct vfm_index_select r = {
		.x = vfm_t2(x, VFM_F32, 3, d), .y = vfm_t2(y, VFM_F32, 3, d), .index = vfm_t1(index, VFM_I32, 3)};
	struct vfm_index_add a = {.x = r.x, .y = vfm_t2(sum, VFM_F32, 3, d), .index = r.index};
	struct vfm_index_dot p = {.x = r.x, .y = r.x, .index = r.index, .dot = vfm_t1(dot, VFM_F32, 3)};
	struct vfm_embed3 e = {.table_t = r.x,
		.table_h = r.x,
		.table_w = r.x,
		.pos = vfm_t2(index, VFM_I32, 1, 3),
		.out = vfm_t2(out, VFM_F32, 1, d)};
	struct vfm_embed3_bwd eb = {.dy = vfm_t2(x, VFM_F32, 1, d), .pos = e.pos, .dtable_h = a.y};

	for (int i = 0; i < 3 * d; i++)
		x[i] = (float)(i + 1);
	refused_later(s, vfm_op_index_select(s, &r, &err), &err, "index_select: an index is 3, but there are 3 rows");
	refused_later(s, vfm_op_index_add(s, &a, &err), &err, "index_add: an index is 3, but there are 3 rows");
	refused_later(s, vfm_op_index_dot(s, &p, &err), &err, "index_dot: an index is 3, but there are 3 rows");
	refused_later(s, vfm_op_embed3(s, &e, &err), &err, "embed3: an index is 3, but there are 3 rows");
	for (int64_t i = 0; i < d; i++) {
		assert_true(y[i] == x[i] && y[d + i] == 0 && y[2 * d + i] == x[d + i]);
		assert_true(sum[i] == x[i] && sum[d + i] == x[2 * d + i] && sum[2 * d + i] == 0);
		assert_true(out[i] == x[i] + x[d + i]);
		want[0] += x[i] * x[i], want[1] += x[2 * d + i] * x[d + i];
	}
	assert_true(dot[0] == want[0] && dot[1] == 0 && dot[2] == want[1]);
	refused_later(s, vfm_op_embed3_bwd(s, &eb, &err), &err, "embed3_bwd: an index is 3, but there are 3 rows");
	for (int64_t i = 0; i < d; i++)
		assert_true(sum[i] == x[i] && sum[d + i] == x[2 * d + i] && sum[2 * d + i] == 0);
	index[1] = INT32_MAX;
	refused_later(s, vfm_op_index_select(s, &r, &err), &err, "index_select: an index is 2147483647, but");
	index[1] = -7; /* "no row" for ops that allow it, else an error */
	if (!device) {
		assert_int_equal(vfm_op_index_select(s, &r, &err) | vfm_op_index_add(s, &a, &err) |
				vfm_op_index_dot(s, &p, &err),
			0);
		assert_int_equal(s->dev->t->stream_sync(s, &err), 0);
	}
	refused_later(s, vfm_op_embed3_bwd(s, &eb, &err), &err, "embed3_bwd: an index is -7, but there are 3 rows");
	refused_later(s, vfm_op_embed3(s, &e, &err), &err, "embed3: an index is -7, but there are 3 rows");
}

/* Few destinations with long lists, which are summed in pieces. */
static void bad_long_lists(struct vfm_stream *s)
{
	enum { N = 640, D = 8 };
	static float x[N * D];
	static int32_t index[N];
	float y[2 * D];
	struct vfm_err err = {0};
	struct vfm_index_add a = {
		.x = vfm_t2(x, VFM_F32, N, D), .y = vfm_t2(y, VFM_F32, 2, D), .index = vfm_t1(index, VFM_I32, N)};

	for (int i = 0; i < N; i++) {
		index[i] = i == 333 ? 1 << 30 : i % 2;
		for (int k = 0; k < D; k++)
			x[i * D + k] = 1;
	}
	refused_later(
		s, vfm_op_index_add(s, &a, &err), &err, "index_add: an index is 1073741824, but there are 2 rows");
	for (int k = 0; k < D; k++)
		assert_true(y[k] == N / 2 && y[D + k] == N / 2 - 1);
}

static void bad_experts(struct vfm_stream *s)
{
	int32_t key[3] = {0, 3, 1}, order[3], count[2], expert[4] = {0, 7, -5, 2}, cu[2] = {0, 2}, seg[2] = {0, 0},
		own[2] = {0, 1}, row[3], place[3], n[1];
	float score[6] = {0.5f, 0.25f, 0.25f, 0.1f, 0.2f, 0.7f}, ds[6], dw[4] = {1, 2, 3, 4}, counted[3];
	struct vfm_err err = {0};
	struct vfm_seqs seqs = {.n = 1,
		.total = 2,
		.max_len = 2,
		.cu = cu,
		.dev_cu = vfm_t1(cu, VFM_I32, 2),
		.seg = vfm_t1(seg, VFM_I32, 2)};
	struct vfm_moe_sort ms = {.buckets = 2,
		.div = 1,
		.key = vfm_t1(key, VFM_I32, 3),
		.order = vfm_t1(order, VFM_I32, 3),
		.count = vfm_t1(count, VFM_I32, 2)};
	struct vfm_moe_topk_token_bwd tb = {.score = vfm_t2(score, VFM_F32, 2, 3),
		.expert = vfm_t2(expert, VFM_I32, 2, 2),
		.dweight = vfm_t2(dw, VFM_F32, 2, 2),
		.dscore = vfm_t2(ds, VFM_F32, 2, 3)};
	struct vfm_moe_count mc = {.expert = tb.expert, .seqs = &seqs, .count = vfm_t2(counted, VFM_F32, 1, 3)};
	struct vfm_moe_own mo = {.index = vfm_t2(key, VFM_I32, 1, 3),
		.own = vfm_t1(own, VFM_I32, 2),
		.row = vfm_t1(row, VFM_I32, 3),
		.place = vfm_t1(place, VFM_I32, 3),
		.count = vfm_t1(n, VFM_I32, 1)};

	refused_later(s, vfm_op_moe_sort(s, &ms, &err), &err, "moe_sort: an element is 3, but there are 2 experts");
	assert_true(order[0] == 0 && order[1] == 2 && order[2] == 1 && count[0] == 1 && count[1] == 1);
	refused_later(s, vfm_op_moe_topk_token_bwd(s, &tb, &err), &err, "moe_topk_token_bwd: an element is ");
	assert_true(ds[0] == 0 && ds[1] == 0 && ds[2] == 0 && ds[3] == 0 && ds[4] == 0 && ds[5] == 0);
	refused_later(s, vfm_op_moe_count(s, &mc, &err), &err, "moe_count: an element is 7, but there are 3 experts");
	assert_true(counted[0] == 1 && counted[1] == 0 && counted[2] == 1);
	refused_later(s, vfm_op_moe_own(s, &mo, &err), &err, "moe_own: an element is 3, but there are 2 tokens");
	assert_true(row[0] == 0 && row[1] == 1 && row[2] == -1 && n[0] == 2);
}

/* A segment with a valid index, then one of a row with an invalid one. */
static void bad_scales(struct vfm_stream *s, bool nf4)
{
	enum { N = 512 };
	static _Alignas(8) uint8_t code[N], absmax[N / VFM_NF4_BLOCK];
	static const int64_t bases[] = {2, -1, INT64_MAX / 2};
	static const char *const words[] = {"decode_weights: an index is 2, but there are 2 scales",
		"decode_weights: an index is -1, but there are 2 scales",
		"decode_weights: an index is 2147483647, but there are 2 scales"};
	float x[N], scale[2] = {1, 1}, offset[2] = {1, 1};
	struct vfm_weight_segment g[2] = {{.rows = 1, .cols = 64}, {.begin = 64, .rows = 1, .cols = 64}};
	struct vfm_err err = {0};
	struct vfm_decode_weights a = {.format = nf4 ? VFM_WEIGHTS_NF4 : VFM_WEIGHTS_INT8,
		.x = vfm_t2(x, VFM_F32, 1, N),
		.code = vfm_t2(code, VFM_U8, 1, nf4 ? N / 2 : N),
		.segment = vfm_t2(g, VFM_I64, 2, 6),
		.scale = vfm_t1(scale, VFM_F32, 2)};

	if (nf4) {
		a.absmax = vfm_t2(absmax, VFM_U8, 1, N / VFM_NF4_BLOCK);
		a.offset = vfm_t1(offset, VFM_F32, 2);
	}
	memset(code, 1, sizeof(code));
	for (int k = 0; k < 3; k++) {
		g[1].base = bases[k];
		refused_later(s, vfm_op_decode_weights(s, &a, &err), &err, words[k]);
		for (int i = 0; i < N; i++)
			assert_true(i < 64 ? x[i] != 0 : x[i] == 0);
	}
	g[1].base = 0;
	g[1].first = -1;
	refused_later(s, vfm_op_decode_weights(s, &a, &err), &err, words[1]);
	g[1].cols = 0; /* no division by it */
	assert_int_equal(vfm_op_decode_weights(s, &a, &err), 0);
	assert_int_equal(s->dev->t->stream_sync(s, &err), 0);
}

void test_bad_indices_of_kernels(void **state)
{
	struct vfm_stream *s = levels[device ? 0 : n_isa].s;

	(void)state;
	if (device && !strcmp(device, "cpu"))
		skip();
	bad_rows(s, 4);
	bad_rows(s, BAD_D);
	bad_long_lists(s);
	bad_experts(s);
	bad_scales(s, false);
	bad_scales(s, true);
}

/* Segments that the CPU refuses, and those that it accepts. */
static void bad_segments(struct vfm_stream *s)
{
	enum { N = 512 };
	static _Alignas(8) uint8_t code[N], absmax[N / VFM_NF4_BLOCK];
	static const struct {
		struct vfm_weight_segment g[2];
		const char *says; /* NULL: accepted */
	} tests[] = {
		{{{.rows = 4, .cols = 64}, {.begin = 256, .rows = 4, .cols = 64, .first = 1}}, NULL},
		{{{.begin = -640, .rows = 40, .cols = 64}, {.begin = 1920, .rows = 1, .cols = 64, .base = 9}}, NULL},
		{{{.cols = 64, .base = 9}, {.cols = 64}}, NULL},
		{{{.rows = 4, .cols = 64}, {.begin = 192, .rows = 4, .cols = 64}}, "segment 1 is invalid or overlaps"},
		{{{.begin = 64, .rows = 4, .cols = 64}, {.rows = 1, .cols = 64}}, "segment 1 is invalid or overlaps"},
		{{{.begin = 32, .rows = 4, .cols = 64}, {.begin = 512, .cols = 64}}, "segment 0 is invalid"},
		{{{.rows = 4, .cols = 96}, {.begin = 448, .cols = 64}}, "segment 0 is invalid"},
		{{{.rows = 4, .cols = 0}, {.begin = 448, .cols = 64}}, "segment 0 is invalid"},
		{{{.rows = -1, .cols = 64}, {.begin = 448, .cols = 64}}, "segment 0 is invalid"},
		{{{.rows = INT64_MAX / 2, .cols = 64}, {.begin = 448, .cols = 64}}, "segment 0 is invalid"},
		{{{.rows = 4, .cols = 64, .pitch = 200}, {.begin = 448, .cols = 64}},
			"an index of segment 0 is 2, but there are 2 scales"},
		{{{.rows = 4, .cols = 64, .first = 2, .pitch = -1}, {.begin = 448, .cols = 64}},
			"an index of segment 0 is -1, but there are 2 scales"},
		{{{.rows = 4, .cols = 64, .pitch = INT64_MAX / 2}, {.begin = 448, .cols = 64}},
			"an index of segment 0 is -1, but there are 2 scales"},
	};
	float x[N], scale[2] = {1, 1}, offset[2] = {0};
	struct vfm_decode_weights a = {.format = VFM_WEIGHTS_NF4,
		.x = vfm_t2(x, VFM_F32, 1, N),
		.code = vfm_t2(code, VFM_U8, 1, N / 2),
		.absmax = vfm_t2(absmax, VFM_U8, 1, N / VFM_NF4_BLOCK),
		.scale = vfm_t1(scale, VFM_F32, 2),
		.offset = vfm_t1(offset, VFM_F32, 2)};

	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		struct vfm_err err = {0};
		int rc;

		a.segment = vfm_t2((void *)(uintptr_t)tests[i].g, VFM_I64, 2, 6);
		rc = vfm_op_decode_weights(s, &a, &err);
		if (rc != (tests[i].says ? VFM_EUSAGE : 0) || (tests[i].says && !strstr(err.msg, tests[i].says)))
			fail_msg("segments %zu: %d, '%s'", i, rc, err.msg);
	}
}

void test_bad_indices(void **state)
{
	float x[12] = {0}, y[12] = {0};
	int32_t index[3] = {0, 3, 1};
	struct vfm_err err = {0};
	struct vfm_index_select r = {
		.x = vfm_t2(x, VFM_F32, 3, 4), .y = vfm_t2(y, VFM_F32, 3, 4), .index = vfm_t1(index, VFM_I32, 3)};
	struct vfm_index_add a = {.x = r.x, .y = r.y, .index = r.index};
	struct vfm_embed3 e = {.table_t = r.x,
		.table_h = r.x,
		.table_w = r.x,
		.pos = vfm_t2(index, VFM_I32, 1, 3),
		.out = vfm_t2(y, VFM_F32, 1, 4)};

	(void)state;
	assert_int_equal(vfm_op_index_select(levels[0].s, &r, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "index 1 is 3, but there are 3 rows"));
	assert_int_equal(vfm_op_index_add(levels[0].s, &a, &err), VFM_EUSAGE);
	assert_int_equal(vfm_op_embed3(levels[0].s, &e, &err), VFM_EUSAGE);
	index[1] = -1;
	assert_int_equal(vfm_op_index_select(levels[0].s, &r, &err), 0);
	assert_int_equal(vfm_op_embed3(levels[0].s, &e, &err), VFM_EUSAGE);
	bad_segments(levels[0].s);
}
