/* cases_norm.c - norms, gated residuals, sums with a row, heads. */
#include <stdio.h>
#include <string.h>

#include "device/ops/cases_impl.h"

static const int few[] = {2, 0, 3};

/* The op before a norm: none, or the residual sum without or with a gate. */
enum branch { ALONE, ADDED, GATED };

/* Forward; backward as the first contribution to dx, and as a later one.  yt: of h, too. */
static void add_norm_cases_of(struct vfm_cases *l, unsigned flags, enum vfm_norm_kind kind, int mode,
	enum branch branch, enum vfm_dtype xt, enum vfm_dtype yt, enum vfm_dtype st, int n, const int *len, int64_t d)
{
	static const char *const modes[] = {"plain", "weight", "weight-bias", "modulate"};
	static const char *const branches[] = {"", "add-", "gate-"};
	const bool gated = branch == GATED, modulated = mode == NORM_MOD;
	int64_t t = sum_lengths(n, len);
	struct vfm_tensor x = mat(xt, t, d, 0), y = mat(yt, t, d, 0), stat = vec(VFM_F32, t);
	struct vfm_tensor mod = modulated ? mat(st, n, d, 5 * d) : none,
			  dmod = modulated ? mat(VFM_F32, n, d, 3 * d) : none;
	struct vfm_tensor w = mode == NORM_WEIGHT || mode == NORM_WEIGHT_BIAS ? vec(VFM_F32, d) : none;
	struct vfm_tensor bias = mode == NORM_WEIGHT_BIAS ? w : none, mean = kind == VFM_NORM_LAYER ? stat : none;
	struct vfm_tensor h = branch ? y : none, gate = gated ? mat(st, n, d, 5 * d) : none;
	struct vfm_case *c;
	char name[80];

	snprintf(name, sizeof(name), "%s%s-%s/%s-%s-%s/%dx%d", branches[branch], kind ? "rms" : "layer", modes[mode],
		vfm_dtype_name(xt), vfm_dtype_name(yt), vfm_dtype_name(st), (int)t, (int)d);
	for (int i = 0; i < 3; i++) {
		bool acc = i == 2;

		c = vfm_case_add(l, i ? VFM_OP_norm_bwd : VFM_OP_norm, flags, "%s%s", name, acc ? "/accumulate" : "");
		if (i == 0)
			c->args.norm = (struct vfm_norm){.kind = kind,
				.eps = 1e-6f,
				.x = x,
				.y = y,
				.weight = w,
				.bias = bias,
				.shift = mod,
				.scale = mod,
				.h = h,
				.gate = gate,
				.sum = branch ? x : none,
				.mean = mean,
				.rstd = stat};
		else
			c->args.norm_bwd = (struct vfm_norm_bwd){.kind = kind,
				.x = x,
				.dy = y,
				.weight = w,
				.scale = mod,
				.h = gated ? h : none,
				.gate = gate,
				.mean = mean,
				.rstd = stat,
				.dx = branch || acc ? x : y,
				.dx_accumulate = acc,
				.dweight = w,
				.dbias = bias,
				.dshift = dmod,
				.dscale = dmod,
				.dh = h,
				.dgate = gated ? mat(VFM_F32, n, d, 5 * d) : none,
				/* with a bias, unless it is the first contribution */
				.dh_sum = branch && (acc || !gated) ? vec(VFM_F32, d) : none};
		if (gated || modulated)
			vfm_case_seqs(l, c, 0, n, len);
	}
}

void vfm_case_norm(struct vfm_cases *l, unsigned flags, enum vfm_norm_kind kind, int mode, enum vfm_dtype xt,
	enum vfm_dtype yt, enum vfm_dtype st, int n, const int *len, int64_t d)
{
	add_norm_cases_of(l, flags, kind, mode, ALONE, xt, yt, st, n, len, d);
}

void vfm_case_add_norm(struct vfm_cases *l, unsigned flags, enum vfm_norm_kind kind, int mode, bool gated,
	enum vfm_dtype xt, enum vfm_dtype ht, enum vfm_dtype st, int n, const int *len, int64_t d)
{
	add_norm_cases_of(l, flags, kind, mode, gated ? GATED : ADDED, xt, ht, st, n, len, d);
}

/* The backward of the last case for a gate that is frozen: without dgate. */
static void frozen_gate_case(struct vfm_cases *l, int n, const int *len)
{
	const struct vfm_case *last = l->v[l->n - 1];
	struct vfm_case *c =
		vfm_case_add(l, VFM_OP_norm_bwd, last->flags, "%s/frozen", last->name + strlen("norm_bwd/"));
	struct vfm_norm_bwd *a = &c->args.norm_bwd;

	*a = last->args.norm_bwd;
	a->h = a->dgate = none;
	a->dh_sum = a->x.shape[1] % 2 ? a->dh_sum : none;
	vfm_case_seqs(l, c, 0, n, len);
}

/* The same; the forward also computes amax, and with history also quantizes.  `first`: an empty history.  Adds no
 * backward. */
void vfm_case_norm8(struct vfm_cases *l, unsigned flags, int mode, bool branch, enum vfm_dtype xt, enum vfm_dtype st,
	int n, const int *len, int64_t d, bool history, bool first)
{
	struct vfm_case *c;
	size_t at;

	if (branch)
		vfm_case_add_norm(l, flags, d % 3 ? VFM_NORM_LAYER : VFM_NORM_RMS, mode, mode == NORM_MOD, xt, VFM_BF16,
			st, n, len, d);
	else
		vfm_case_norm(l, flags, d % 3 ? VFM_NORM_LAYER : VFM_NORM_RMS, mode, xt, VFM_BF16, st, n, len, d);
	l->n -= 2;
	c = l->v[l->n - 1];
	at = strlen(c->name);
	snprintf(c->name + at, sizeof(c->name) - at, "%s", first ? "/f8-first" : history ? "/f8" : "/amax");
	c->args.norm.amax = vec(VFM_F32, 1);
	c->bound[0] = first;
	if (!history)
		return;
	c->args.norm.y.dtype = VFM_F8E4M3;
	c->args.norm.history = vec(VFM_F32, flags & VFM_CASE_TEST ? d % 3 * 20 + 1 : 16);
	c->args.norm.inv = vec(VFM_F32, 1);
}

/* Rows of one warp, of several, of plain loops; no rows. */
static void norm8_cases(struct vfm_cases *l)
{
	static const int widths[] = {64, 77, 1152, 4096, 16392};

	for (int v = 0; v < 12; v++)
		for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
			bool big = widths[i] > 4000;
			int mode = v & 1 ? NORM_MOD : widths[i] % 2 ? NORM_WEIGHT : NORM_PLAIN;

			if (big && v > 6)
				continue;
			vfm_case_norm8(l, VFM_CASE_TEST, mode, v & 2, types[v / 2 & 1], types[v & 1], big ? 3 : N_MIXED,
				big ? few : mixed, widths[i], v % 3 < 2, v % 3 == 1);
		}
	for (int v = 0; v < 2; v++)
		vfm_case_norm8(l, VFM_CASE_TEST, NORM_MOD, v, VFM_BF16, VFM_F32, N_ABSENT, absent, 64, v, false);
}

static void norm_cases(struct vfm_cases *l)
{
	static const int s[] = {512, 1024, 256, 256};
	static const int widths[] = {64, 77, 384, 3};

	for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
		for (int kind = 0; kind < 2; kind++)
			for (int mode = NORM_PLAIN; mode <= NORM_MOD; mode++)
				for (int t = 0; t < 8; t++)
					if (widths[i] == 77 || t == 0 || t == 7)
						vfm_case_norm(l, VFM_CASE_TEST, kind, mode, types[t & 1],
							types[t >> 1 & 1], types[t >> 2], N_MIXED, mixed, widths[i]);
	for (int t = 0; t < 2; t++) {
		vfm_case_norm(l, VFM_CASE_BENCH, VFM_NORM_LAYER, NORM_MOD, types[t], types[t], types[t], 4, s, 384);
		vfm_case_norm(l, VFM_CASE_BENCH, VFM_NORM_LAYER, NORM_MOD, types[t], types[t], types[t], 4, s, 768);
	}
	vfm_case_norm(l, VFM_CASE_BENCH, VFM_NORM_LAYER, NORM_MOD, VFM_F32, VFM_BF16, VFM_BF16, 4, s, 768);
	vfm_case_norm(l, VFM_CASE_BENCH, VFM_NORM_RMS, NORM_WEIGHT, VFM_F32, VFM_F32, VFM_F32, 4, s, 768);
}

static void add_norm_cases(struct vfm_cases *l)
{
	static const int s[] = {512, 1024, 256, 256};
	static const int widths[] = {77, 128, 3};

	for (int t = 0; t < 8; t++)
		for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
			for (int mode = NORM_PLAIN; mode <= NORM_MOD; mode++)
				for (int gated = 0; gated < 2; gated++)
					if (widths[i] != 3 || t == 7) {
						vfm_case_add_norm(l, VFM_CASE_TEST, (t + mode) % 2, mode, gated,
							types[t & 1], types[t >> 1 & 1], types[t >> 2], N_MIXED, mixed,
							widths[i]);
						if (gated)
							frozen_gate_case(l, N_MIXED, mixed);
					}
	for (int t = 0; t < 4; t++)
		for (int gated = 0; gated < 2; gated++)
			vfm_case_add_norm(l, VFM_CASE_BENCH, VFM_NORM_LAYER, gated ? NORM_WEIGHT_BIAS : NORM_MOD, gated,
				types[t & 1], types[t >> 1], VFM_F32, 4, s, 768);
}

void vfm_case_gate(struct vfm_cases *l, unsigned flags, enum vfm_dtype xt, enum vfm_dtype ht, enum vfm_dtype gt, int n,
	const int *len, int64_t d)
{
	int64_t t = sum_lengths(n, len);
	struct vfm_case *frozen,
		*c = vfm_case_add(l, VFM_OP_gate, flags, "%s-%s-%s/%dx%d", vfm_dtype_name(xt), vfm_dtype_name(ht),
			vfm_dtype_name(gt), (int)t, (int)d);

	c->args.gate = (struct vfm_gate){
		.x = mat(xt, t, d, 0), .y = mat(xt, t, d, 0), .h = mat(ht, t, d, 0), .gate = mat(gt, n, d, 5 * d)};
	vfm_case_seqs(l, c, 0, n, len);
	c = vfm_case_add(l, VFM_OP_gate_bwd, flags, "%s-%s-%s/%dx%d", vfm_dtype_name(xt), vfm_dtype_name(ht),
		vfm_dtype_name(gt), (int)t, (int)d);
	c->args.gate_bwd = (struct vfm_gate_bwd){.dy = mat(xt, t, d, 0),
		.h = mat(ht, t, d, 0),
		.gate = mat(gt, n, d, 5 * d),
		.dh = mat(ht, t, d, 0),
		.dgate = mat(VFM_F32, n, d, 5 * d),
		.dh_sum = d % 2 ? none : vec(VFM_F32, d)};
	vfm_case_seqs(l, c, 0, n, len);
	frozen = vfm_case_add(l, VFM_OP_gate_bwd, flags, "%s-%s-%s/%dx%d/frozen", vfm_dtype_name(xt),
		vfm_dtype_name(ht), vfm_dtype_name(gt), (int)t, (int)d);
	frozen->args.gate_bwd = c->args.gate_bwd;
	frozen->args.gate_bwd.h = frozen->args.gate_bwd.dgate = none;
	frozen->args.gate_bwd.dh_sum = d % 2 ? vec(VFM_F32, d) : none;
	vfm_case_seqs(l, frozen, 0, n, len);
}

/* A residual without a gate. */
static void plain_gate(struct vfm_cases *l, enum vfm_dtype xt, enum vfm_dtype ht, int64_t t, int64_t d)
{
	struct vfm_case *c = vfm_case_add(l, VFM_OP_gate, VFM_CASE_TEST, "residual/%s-%s/%dx%d", vfm_dtype_name(xt),
		vfm_dtype_name(ht), (int)t, (int)d);

	c->args.gate = (struct vfm_gate){.x = mat(xt, t, d, 0), .y = mat(xt, t, d, 0), .h = mat(ht, t, d, 0)};
}

static void gate_cases(struct vfm_cases *l)
{
	static const int s[] = {512, 1024, 256, 256};

	for (int t = 0; t < 8; t++) {
		vfm_case_gate(l, VFM_CASE_TEST, types[t & 1], types[t >> 1 & 1], types[t >> 2], N_MIXED, mixed, 77);
		vfm_case_gate(l, VFM_CASE_TEST, types[t & 1], types[t >> 1 & 1], types[t >> 2], N_MIXED, mixed, 128);
		if (t < 4)
			plain_gate(l, types[t & 1], types[t >> 1], 29, 50);
	}
	vfm_case_gate(l, VFM_CASE_BENCH, VFM_F32, VFM_F32, VFM_F32, 4, s, 768);
	vfm_case_gate(l, VFM_CASE_BENCH, VFM_F32, VFM_BF16, VFM_BF16, 4, s, 768);
	vfm_case_gate(l, VFM_CASE_BENCH, VFM_BF16, VFM_BF16, VFM_BF16, 4, s, 768);
}

void vfm_case_add_row(struct vfm_cases *l, unsigned flags, enum vfm_dtype xt, enum vfm_dtype rt, int64_t t, int64_t d)
{
	struct vfm_case *c = vfm_case_add(
		l, VFM_OP_add_row, flags, "%s-%s/%dx%d", vfm_dtype_name(xt), vfm_dtype_name(rt), (int)t, (int)d);

	c->args.add_row = (struct vfm_add_row){.x = mat(xt, t, d, 0), .row = vec(rt, d), .y = mat(xt, t, d, 0)};
	if (rt != VFM_F32)
		return;
	c = vfm_case_add(l, VFM_OP_add_row_bwd, flags, "%s/%dx%d", vfm_dtype_name(xt), (int)t, (int)d);
	c->args.add_row_bwd = (struct vfm_add_row_bwd){.dy = mat(xt, t, d, 0), .drow = vec(VFM_F32, d)};
}

static void add_row_cases(struct vfm_cases *l)
{
	/* one column; several tiles of tokens; columns in slabs, whole vectors or not; no columns */
	static const int shapes[][2] = {
		{300, 1}, {1, 301}, {29, 77}, {143, 128}, {700, 40}, {9, 2568}, {11, 1155}, {5, 0}};

	for (int t = 0; t < 4; t++)
		for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
			vfm_case_add_row(l, VFM_CASE_TEST, types[t & 1], types[t >> 1], shapes[i][0], shapes[i][1]);
	for (int t = 0; t < 2; t++)
		vfm_case_add_row(l, VFM_CASE_BENCH, types[t], VFM_F32, 2048, 768);
}

void vfm_case_qk(
	struct vfm_cases *l, unsigned flags, enum vfm_dtype t, int64_t n, int64_t h, int64_t d, bool norm, bool rope)
{
	struct vfm_tensor x = heads(t, n, h, d, 2 * h * d), y = heads(t, n, h, d, 0), w = vec(VFM_F32, d);
	struct vfm_tensor table = mat(VFM_F32, n, d, 0), rstd = mat(VFM_F32, n, h, 0);
	struct vfm_case *c = vfm_case_add(l, VFM_OP_qk_norm_rope, flags, "%s%s%s/%dx%dx%d", vfm_dtype_name(t),
		norm ? "/norm" : "", rope ? "/rope" : "", (int)n, (int)h, (int)d);

	c->args.qk_norm_rope = (struct vfm_qk_norm_rope){.x = x,
		.y = y,
		.weight = norm ? w : none,
		.rope = rope ? table : none,
		.rstd = norm ? rstd : none,
		.eps = 1e-6f};
	c = vfm_case_add(l, VFM_OP_qk_norm_rope_bwd, flags, "%s%s%s/%dx%dx%d", vfm_dtype_name(t), norm ? "/norm" : "",
		rope ? "/rope" : "", (int)n, (int)h, (int)d);
	c->args.qk_norm_rope_bwd = (struct vfm_qk_norm_rope_bwd){.x = norm ? x : none,
		.dy = y,
		.weight = norm ? w : none,
		.rope = rope ? table : none,
		.rstd = norm ? rstd : none,
		.dx = x,
		.dweight = norm ? w : none};
}

/* Gives the last two cases, a forward and its backward, a second tensor [n,h,d]. */
static void add_second(struct vfm_cases *l, int64_t n, int64_t h)
{
	struct vfm_case *f = l->v[l->n - 2], *b = l->v[l->n - 1];
	struct vfm_qk_norm_rope *a = &f->args.qk_norm_rope;
	struct vfm_qk_norm_rope_bwd *g = &b->args.qk_norm_rope_bwd;
	enum vfm_dtype t = a->x.dtype;
	int64_t d = a->x.shape[2];
	size_t len = strlen(f->name);

	a->x2 = heads(t, n, h, d, 2 * h * d);
	a->y2 = g->dy2 = heads(t, n, h, d, 0);
	g->dx2 = a->x2;
	if (vfm_has(&a->weight)) {
		g->x2 = a->x2;
		a->weight2 = g->weight2 = g->dweight2 = a->weight;
		a->rstd2 = g->rstd2 = mat(VFM_F32, n, h, 0);
	}
	if (vfm_has(&a->rope))
		a->rope2 = g->rope2 = mat(VFM_F32, n, d, 0);
	snprintf(f->name + len, sizeof(f->name) - len, "+%dx%d", (int)n, (int)h);
	snprintf(b->name + len, sizeof(b->name) - len, "+%dx%d", (int)n, (int)h);
}

void vfm_case_qk_pair(
	struct vfm_cases *l, unsigned flags, enum vfm_dtype t, int64_t n, int64_t h, int64_t d, int64_t n2, int64_t h2)
{
	vfm_case_qk(l, flags, t, n, h, d, true, true);
	add_second(l, n2, h2);
}

static void qk_pair_cases(struct vfm_cases *l)
{
	static const struct {
		int t, h, d, t2, h2;
	} shapes[] = {{19, 16, 72, 19, 16}, {45, 3, 64, 45, 1}, {9, 2, 128, 31, 2}, {0, 2, 64, 5, 2}, {5, 2, 64, 0, 2},
		{7, 2, 22, 7, 3}, {300, 1, 8, 40, 9}};

	for (int t = 0; t < 2; t++)
		for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
			for (int v = 1; v < 4; v++) {
				vfm_case_qk(l, VFM_CASE_TEST, types[t], shapes[i].t, shapes[i].h, shapes[i].d, v & 1,
					v & 2);
				add_second(l, shapes[i].t2, shapes[i].h2);
			}
	/* k that no vector fits */
	vfm_case_qk(l, VFM_CASE_TEST, VFM_BF16, 6, 3, 48, true, true);
	add_second(l, 6, 3);
	l->v[l->n - 2]->args.qk_norm_rope.x2.stride[0] += 3;
	l->v[l->n - 1]->args.qk_norm_rope_bwd.x2.stride[0] += 4;
}

static void qk_cases(struct vfm_cases *l)
{
	for (int t = 0; t < 2; t++) {
		for (int v = 0; v < 4; v++) {
			vfm_case_qk(l, VFM_CASE_TEST, types[t], 45, 3, 64, v & 1, v & 2);
			vfm_case_qk(l, VFM_CASE_TEST, types[t], 70, 2, 22, v & 1, v & 2);
			vfm_case_qk(l, VFM_CASE_TEST, types[t], 3, 5, 128, v & 1, v & 2);
		}
		vfm_case_qk(l, VFM_CASE_BENCH, types[t], 2048, 12, 64, true, true);
	}
}

void vfm_case_row_norm(
	struct vfm_cases *l, unsigned flags, enum vfm_dtype t, int64_t n, int64_t h, int64_t d, enum vfm_case_rope rope)
{
	static const char *const names[] = {"", "/rope", "/rope-head"};
	struct vfm_tensor x = heads(t, n, h, d, 2 * h * d), y = heads(t, n, h, d, 0), w = vec(VFM_F32, h * d);
	struct vfm_tensor table = rope == VFM_ROPE_HEAD ? heads(VFM_F32, n, h, d, 0)
		: rope                                  ? mat(VFM_F32, n, d, 0)
							: none;
	struct vfm_tensor sum = vec(VFM_F32, n);
	struct vfm_case *c;

	if (rope != VFM_ROPE_HEAD) {
		c = vfm_case_add(l, VFM_OP_row_dot, flags, "%s/%dx%dx%d%s", vfm_dtype_name(t), (int)n, (int)h, (int)d,
			rope ? "/two" : "");
		c->args.row_dot = (struct vfm_row_dot){.x = x, .y = rope ? y : none, .out = sum};
	}
	c = vfm_case_add(l, VFM_OP_row_norm_rope, flags, "%s%s/%dx%dx%d", vfm_dtype_name(t), names[rope], (int)n,
		(int)h, (int)d);
	c->args.row_norm_rope = (struct vfm_row_norm_rope){
		.x = x, .y = y, .weight = w, .rope = table, .sumsq = sum, .width = 2 * h * d, .eps = 1e-6f};
	c = vfm_case_add(l, VFM_OP_row_norm_rope_bwd, flags, "%s%s/%dx%dx%d", vfm_dtype_name(t), names[rope], (int)n,
		(int)h, (int)d);
	c->args.row_norm_rope_bwd = (struct vfm_row_norm_rope_bwd){.x = x,
		.dy = y,
		.weight = w,
		.rope = table,
		.sumsq = sum,
		.dot = sum,
		.dx = x,
		.dweight = w,
		.width = 2 * h * d,
		.eps = 1e-6f};
}

static void row_norm_cases(struct vfm_cases *l)
{
	/* several tiles of tokens; heads that no vector fits; rows longer than a block; no tokens; no heads */
	static const int shapes[][3] = {{45, 3, 64}, {70, 2, 22}, {3, 5, 128}, {300, 1, 8}, {9, 24, 128}, {5, 33, 72},
		{143, 12, 40}, {0, 2, 64}, {6, 0, 64}};

	for (int t = 0; t < 2; t++) {
		for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
			for (int rope = VFM_ROPE_NONE; rope <= VFM_ROPE_HEAD; rope++)
				vfm_case_row_norm(
					l, VFM_CASE_TEST, types[t], shapes[i][0], shapes[i][1], shapes[i][2], rope);
		vfm_case_row_norm(l, VFM_CASE_TEST, types[t], 11, 3, 33, VFM_ROPE_NONE);
		vfm_case_row_norm(l, VFM_CASE_BENCH, types[t], 2048, 12, 64, VFM_ROPE_TOKEN);
		vfm_case_row_norm(l, VFM_CASE_BENCH, types[t], 2048, 12, 64, VFM_ROPE_HEAD);
	}
	/* rows that no vector fits */
	for (int rope = VFM_ROPE_TOKEN; rope <= VFM_ROPE_HEAD; rope++) {
		vfm_case_row_norm(l, VFM_CASE_TEST, VFM_BF16, 11, 3, 48, rope);
		if (rope == VFM_ROPE_TOKEN)
			l->v[l->n - 3]->args.row_dot.x.stride[0] += 3;
		l->v[l->n - 2]->args.row_norm_rope.x.stride[0] += 3;
		l->v[l->n - 1]->args.row_norm_rope_bwd.x.stride[0] += 4;
	}
}

/* Shapes at which vectorized kernels branch: several warps per row; several rows per block; rows too long for
 * registers; columns in slabs; heads whose number of vectors is not a power of two; misaligned rows; many samples, some
 * empty. */
enum { N_MANY = 40 };
static const int many[N_MANY] = {5, 0, 9, 1, 0, 0, 16, 2, 3, 8, 0, 7, 1, 1, 12, 4, 0, 6, 31, 2, 0, 0, 0, 10, 3, 5, 5, 8,
	1, 0, 20, 2, 2, 9, 0, 1, 4, 17, 3, 0};

/* The first gradient of a residual stream: "=", dx has the dtype of x and dy another one. */
static void first_dx(struct vfm_cases *l, enum vfm_dtype xt, enum vfm_dtype yt, int64_t t, int64_t d)
{
	struct vfm_case *c = vfm_case_add(l, VFM_OP_norm_bwd, VFM_CASE_TEST, "rms-weight/%s-%s/dx-%s/%dx%d",
		vfm_dtype_name(xt), vfm_dtype_name(yt), vfm_dtype_name(xt), (int)t, (int)d);

	c->args.norm_bwd = (struct vfm_norm_bwd){.kind = VFM_NORM_RMS,
		.x = mat(xt, t, d, 0),
		.dy = mat(yt, t, d, 0),
		.weight = vec(VFM_F32, d),
		.rstd = vec(VFM_F32, t),
		.dx = mat(xt, t, d, 0),
		.dweight = vec(VFM_F32, d)};
}

static void wide_norm_cases(struct vfm_cases *l)
{
	static const int widths[] = {264, 768, 1152, 2048, 4096, 4104, 6144}, long_sample[] = {700};
	struct vfm_case *c;

	for (int t = 0; t < 4; t++) { /* training uses x f32 and y bf16 */
		enum vfm_dtype xt = types[t & 1], yt = types[t >> 1];

		for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
			if (widths[i] < 2048 || i % 2 == 0 || t == 1)
				vfm_case_norm(l, VFM_CASE_TEST, i % 2 ? VFM_NORM_RMS : VFM_NORM_LAYER,
					i % 3 ? NORM_MOD : NORM_WEIGHT_BIAS, xt, yt, types[i / 2 % 2], 3, few,
					widths[i]);
		first_dx(l, xt, yt, 37, 77);
		first_dx(l, xt, yt, 9, 1152);
		plain_gate(l, xt, yt, 11, 384);
		vfm_case_norm(l, VFM_CASE_TEST, VFM_NORM_LAYER, NORM_MOD, xt, yt, VFM_F32, N_MANY, many, 64);
		vfm_case_norm(l, VFM_CASE_TEST, VFM_NORM_LAYER, NORM_MOD, xt, yt, xt, N_MANY, many, 200);
		vfm_case_norm(l, VFM_CASE_TEST, VFM_NORM_LAYER, NORM_WEIGHT_BIAS, xt, yt, VFM_F32, 1, long_sample, 40);
		/* rows of scale and shift at addresses that are not multiples of 16 bytes */
		vfm_case_norm(l, VFM_CASE_TEST, VFM_NORM_LAYER, NORM_MOD, xt, yt, xt, N_MIXED, mixed, 72);
		for (size_t k = l->n - 3; k < l->n; k++) {
			c = l->v[k];
			if (c->op == VFM_OP_norm)
				c->args.norm.scale.stride[0]++, c->args.norm.shift.stride[0]++;
			else
				c->args.norm_bwd.scale.stride[0]++;
		}
	}
	vfm_case_norm(l, VFM_CASE_TEST, VFM_NORM_LAYER, NORM_WEIGHT_BIAS, VFM_F32, VFM_F32, VFM_F32, 3, few, 16392);
}

/* Rows of one and of several warps; several rows per block; several vectors per thread; rows too long for registers;
 * misaligned rows; many samples, some empty. */
static void wide_add_norm_cases(struct vfm_cases *l)
{
	static const int widths[] = {264, 1152, 4096, 4104, 6144, 8200}, long_sample[] = {700};

	for (int t = 0; t < 4; t++) {
		enum vfm_dtype xt = types[t & 1], ht = types[t >> 1];

		for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
			if (widths[i] < 2048 || i % 2 == 0 || t == 3)
				vfm_case_add_norm(l, VFM_CASE_TEST, i % 2 ? VFM_NORM_RMS : VFM_NORM_LAYER,
					i % 3 ? NORM_MOD : NORM_WEIGHT_BIAS, i != 1, xt, ht, types[i / 2 % 2], 3, few,
					widths[i]);
		vfm_case_add_norm(l, VFM_CASE_TEST, VFM_NORM_LAYER, NORM_MOD, true, xt, ht, VFM_F32, N_MANY, many, 64);
		vfm_case_add_norm(
			l, VFM_CASE_TEST, VFM_NORM_LAYER, NORM_WEIGHT_BIAS, true, xt, ht, xt, N_MANY, many, 200);
		vfm_case_add_norm(
			l, VFM_CASE_TEST, VFM_NORM_RMS, NORM_WEIGHT, true, xt, ht, VFM_F32, 1, long_sample, 40);
		vfm_case_add_norm(
			l, VFM_CASE_TEST, VFM_NORM_LAYER, NORM_MOD, false, xt, ht, VFM_F32, N_ABSENT, absent, 64);
		vfm_case_add_norm(
			l, VFM_CASE_TEST, VFM_NORM_LAYER, NORM_WEIGHT, true, xt, ht, VFM_F32, N_ABSENT, absent, 64);
		/* rows of the gate at addresses that are not multiples of 16 bytes */
		vfm_case_add_norm(l, VFM_CASE_TEST, VFM_NORM_LAYER, NORM_MOD, true, xt, ht, xt, N_MIXED, mixed, 72);
		for (size_t k = l->n - 3; k < l->n; k++)
			if (l->v[k]->op == VFM_OP_norm)
				l->v[k]->args.norm.gate.stride[0]++;
			else
				l->v[k]->args.norm_bwd.gate.stride[0]++;
	}
}

static void wide_head_cases(struct vfm_cases *l)
{
	static const struct {
		int t, h, d;
	} shapes[] = {{19, 16, 72}, {40, 6, 64}, {9, 33, 128}, {7, 3, 256}, {5, 2, 264}, {300, 1, 8}};

	for (int t = 0; t < 2; t++) {
		for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
			vfm_case_qk(l, VFM_CASE_TEST, types[t], shapes[i].t, shapes[i].h, shapes[i].d, true, i != 3);
		vfm_case_qk(l, VFM_CASE_TEST, types[t], 11, 5, 33, true, false);
		vfm_case_qk(l, VFM_CASE_TEST, types[t], 11, 3, 48, true, true);
		l->v[l->n - 2]->args.qk_norm_rope.x.stride[0] += 3;
		l->v[l->n - 1]->args.qk_norm_rope_bwd.x.stride[0] += 4;
	}
}

void vfm_cases_norm(struct vfm_cases *l)
{
	norm_cases(l);
	norm8_cases(l);
	add_norm_cases(l);
	gate_cases(l);
	add_row_cases(l);
	qk_cases(l);
	qk_pair_cases(l);
	row_norm_cases(l);
	wide_norm_cases(l);
	wide_add_norm_cases(l);
	for (int t = 0; t < 4; t++) {
		vfm_case_gate(l, VFM_CASE_TEST, types[t & 1], types[t >> 1], types[t & 1], N_MANY, many, 96);
		vfm_case_gate(l, VFM_CASE_TEST, types[t & 1], types[t >> 1], VFM_F32, 3, few, 301);
		vfm_case_gate(l, VFM_CASE_TEST, types[t & 1], types[t >> 1], VFM_F32, 3, few, 1152);
	}
	wide_head_cases(l);
}
