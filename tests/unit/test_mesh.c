/* Meshes and collectives as ops on forked ranks, compared with a single rank. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/par.h"
#include "comm/host/comm_host.h"
#include "comm/launch/launch_impl.h"
#include "device/open/open.h"
#include "net/mesh/attn.h"
#include "net/mesh/tp_linear.h"
#include "net/tape/node.h"
#include "net/tape/region.h"

/* ---- ranks ---- */

static struct vfm_device dev;
static struct vfm_comm *world;
static struct vfm_err err;
static struct vfm_tape *t;

/* In a rank: prints the failure and exits, which fails the test in the parent. */
#define MUST(condition, ...)                                                                                           \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "rank %d: %s:%d: ", world ? world->rank : -1, __FILE__, __LINE__);             \
			fprintf(stderr, __VA_ARGS__);                                                                  \
			fputc('\n', stderr);                                                                           \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)
#define OK(call) MUST((call) >= 0, "%s", err.msg)

/* Runs fn on n forked ranks on `nodes` synthetic nodes.  Checks that the job exits with `status`. */
static void run_ranks(int status, int n, int nodes, void (*fn)(const void *arg), const void *arg)
{
	struct vfm_host_comm_opts o = {.timeout_s = 20};
	struct vfm_launch l;
	int rc;

	setenv("VFM_BIND", "none", 1);
	rc = vfm_launch_init(&l, n, &err);
	if (rc == 1) {
		assert_int_equal(l.status, status);
		return;
	}
	if (rc < 0)
		fail_msg("%s", err.msg);
	for (int r = 0; r < n; r++)
		l.node_of[r] = r * nodes / n;
	vfm_launch_place(&l);
	vfm_par_set_threads(1);
	OK(vfm_comm_host_new(&l, &o, &world, &err));
	OK(vfm_device_open(&dev, "cpu", &err));
	t = vfm_tape_new(dev.stream);
	fn(arg);
	vfm_tape_free(t);
	MUST(dev.dev->mem_now == 0, "%lld bytes of device memory leaked", (long long)dev.dev->mem_now);
	vfm_device_close(&dev);
	vfm_comm_free(world);
	vfm_launch_end(&l);
	_exit(0);
}

static void on_ranks(int n, int nodes, void (*fn)(const void *arg), const void *arg)
{
	run_ranks(0, n, nodes, fn, arg);
}

static struct vfm_model_spec any_model(void)
{
	struct vfm_model_spec m;

	vfm_model_defaults(&m);
	strcpy(m.arch, "moe");
	m.layers = m.heads = m.kv_heads = m.experts = 24;
	m.shared_experts = 0;
	return m;
}

static void mesh_new(struct vfm_mesh *m, struct vfm_parallel *p, const struct vfm_model_spec *spec)
{
	OK(vfm_parallel_check(p, spec, world->size, &err));
	OK(vfm_mesh_init(m, p, world, dev.dev, &err));
}

/* ---- groups ---- */

static void check_members(const struct vfm_mesh *m, struct vfm_comm *c, enum vfm_group g)
{
	struct vfm_place at = vfm_parallel_place(&m->p, m->rank, g);
	int64_t all[64], me = m->rank;

	MUST(c->size == at.size && c->rank == at.key, "%s: rank %d of %d", vfm_group_name(g), c->rank, c->size);
	OK(vfm_all_gather(c, dev.stream, vfm_t1(&me, VFM_I64, 1), vfm_t1(all, VFM_I64, c->size), NULL, &err));
	for (int i = 0; i < c->size; i++) {
		struct vfm_place q = vfm_parallel_place(&m->p, (int)all[i], g);

		MUST(q.color == at.color && q.key == i, "%s: %d is rank %lld", vfm_group_name(g), i, (long long)all[i]);
	}
}

/* Each stage sends its rank in both directions before it waits. */
static void check_links(const struct vfm_mesh *m)
{
	int inner = m->world_size / m->size[VFM_AX_PP];
	int64_t me = m->rank, n = m->world_size, before = -1, next = -1;

	OK(vfm_send(m->fwd_out, m->send_stream, vfm_t1(&me, VFM_I64, 1), 1, &err));
	OK(vfm_send(m->bwd_out, m->send_stream, vfm_t1(&me, VFM_I64, 1), 1, &err));
	OK(vfm_recv(m->bwd_in, dev.stream, vfm_t1(&next, VFM_I64, 1), 0, &err));
	OK(vfm_recv(m->fwd_in, dev.stream, vfm_t1(&before, VFM_I64, 1), 0, &err));
	OK(dev.dev->t->stream_sync(m->send_stream, &err));
	MUST(before == (me + n - inner) % n && next == (me + inner) % n, "between %lld and %lld", (long long)before,
		(long long)next);
}

/* `made` communicators of more than one rank; those of gathers and sums differ with fsdp, and the ring is separate. */
static void check_sharing(const struct vfm_mesh *m, int made)
{
	struct vfm_comm *all[] = {m->group[VFM_AX_PP], m->group[VFM_AX_EP], m->group[VFM_AX_CP], m->group[VFM_AX_TP],
		m->ring, m->a2a, m->seq, m->shard, m->replica, m->gather, m->eshard, m->ereplica, m->egather,
		m->tp_param};
	int n = 0;

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		bool seen = all[i]->size == 1;

		for (size_t k = 0; k < i; k++)
			seen |= all[k] == all[i];
		n += !seen;
	}
	MUST(n == made, "%d communicators, expected %d", n, made);
	MUST(m->shard->size == 1 || (m->shard == m->gather) == !m->p.fsdp, "gather and shard");
	MUST(m->ring->size == 1 || (m->ring != m->group[VFM_AX_CP] && m->ring != m->a2a), "ring");
	MUST(m->tp_param->size == 1 || m->tp_param != m->group[VFM_AX_TP], "tp and tp_param");
}

static void check_mesh(struct vfm_parallel p, int made)
{
	struct vfm_model_spec spec = any_model();
	struct vfm_mesh m;

	mesh_new(&m, &p, &spec);
	for (int a = 0; a < VFM_AXES; a++)
		if (a != VFM_AX_DP)
			check_members(&m, m.group[a], (enum vfm_group)a);
	check_members(&m, m.ring, VFM_GR_RING);
	check_members(&m, m.a2a, VFM_GR_A2A);
	check_members(&m, m.seq, VFM_GR_SEQ);
	check_members(&m, m.shard, VFM_GR_SHARD);
	check_members(&m, m.replica, VFM_GR_REPLICA);
	check_members(&m, m.eshard, VFM_GR_ESHARD);
	check_members(&m, m.ereplica, VFM_GR_EREPLICA);
	check_members(&m, m.gather, VFM_GR_SHARD);
	check_members(&m, m.egather, VFM_GR_ESHARD);
	check_members(&m, m.tp_param, VFM_GR_TP);
	check_sharing(&m, made);
	MUST(!m.gather_stream == !(p.fsdp && m.shard->size > 1), "gather_stream");
	MUST(m.save->size == world->size && m.save->rank == world->rank, "save");
	MUST(!m.ring_stream == (m.ring->size == 1), "ring_stream");
	MUST(!m.send_stream == (m.size[VFM_AX_PP] == 1), "send_stream");
	if (m.size[VFM_AX_PP] > 1)
		check_links(&m);
	else
		MUST(!m.fwd_in && !m.bwd_out, "links of one stage");
	vfm_mesh_release(&m);
}

static void meshes(const void *arg)
{
	struct vfm_parallel base, p;

	(void)arg;
	vfm_parallel_defaults(&base);
	if (world->size == 6) {
		p = base, p.pp = 3, p.tp = 2, check_mesh(p, 3);
		p = base, p.cp = 3, p.distopt = true, p.ep = 2, check_mesh(p, 5);
		return;
	}
	p = base, p.pp = 2, p.tp = 2, p.cp = 2, p.ep = 2, check_mesh(p, 7);
	p = base, p.fsdp = true, p.shard = 2, p.ep = 4, check_mesh(p, 6);
	p = base, p.cp = 4, p.cp_mode = VFM_CP_HYBRID, p.cp_a2a = 2, p.distopt = true, check_mesh(p, 4);
	p = base, p.pp = 8, check_mesh(p, 1);
}

static void test_groups(void **state)
{
	(void)state;
	on_ranks(6, 1, meshes, NULL);
	on_ranks(8, 2, meshes, NULL);
}

/* ---- attention ---- */

static float value(uint64_t i, int salt)
{
	uint64_t x = (i * 64 + (uint64_t)salt) * 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
	return (float)(x >> 40) / (float)(1 << 23) - 1.0f;
}

static float get(struct vfm_tensor x, int64_t i)
{
	return x.dtype == VFM_BF16 ? vfm_bf16_to_f32(((uint16_t *)x.data)[i]) : ((float *)x.data)[i];
}

static void set(struct vfm_tensor x, int64_t i, float v)
{
	if (x.dtype == VFM_BF16)
		((uint16_t *)x.data)[i] = vfm_f32_to_bf16(v);
	else
		((float *)x.data)[i] = v;
}

enum { D = 16 };

struct attn_case {
	int cp, mode, a2a, tp, heads, kv_heads;
	enum vfm_dtype dt;
	enum vfm_recompute recompute;
	bool fault;
};

struct attn_run {
	const struct vfm_attn_layout *l;
	struct vfm_var *qkv;
	int64_t h, hkv;
};

static struct vfm_var *part(struct vfm_var *x, int64_t first, int64_t heads)
{
	struct vfm_tensor v = vfm_cols(&x->v, first * D, heads * D);

	return vfm_view(t, x, vfm_heads(&v, 0, heads, D));
}

static struct vfm_var *attend(struct vfm_tape *tape, void *arg)
{
	const struct attn_run *r = arg;

	return vfm_m_attn(tape, part(r->qkv, 0, r->h), part(r->qkv, r->h, r->hkv), part(r->qkv, r->h + r->hkv, r->hkv),
		r->l, 0.7f);
}

/* Returns o and the gradient of qkv, for the rows `row` and the heads of tp rank tp_i.  The caller frees both. */
static void run_attn(const struct attn_case *c, const struct vfm_attn_layout *l, const int32_t *row, int64_t rows,
	int tp_i, int tp, float **o, float **g)
{
	int64_t h = c->heads / tp, hkv = c->kv_heads / tp, w = (h + 2 * hkv) * D, all = c->heads + 2 * c->kv_heads;
	int64_t head[64] = {0}, n = 0;
	struct vfm_tensor x = vfm_t2(calloc((size_t)(rows * w) + 1, 4), c->dt, rows, w),
			  dout = vfm_t2(calloc((size_t)(rows * h * D) + 1, 4), c->dt, rows, h * D);
	struct attn_run run = {.l = l, .h = h, .hkv = hkv};
	struct vfm_var *y;

	for (int64_t i = 0; i < h; i++)
		head[n++] = tp_i * h + i;
	for (int64_t i = 0; i < 2 * hkv; i++)
		head[n++] = c->heads + i / hkv * c->kv_heads + tp_i * hkv + i % hkv;
	for (int64_t i = 0; i < rows * w; i++)
		set(x, i, value((uint64_t)((row[i / w] * all + head[i % w / D]) * D + i % D), 1));
	for (int64_t i = 0; i < rows * h * D; i++)
		set(dout, i, value((uint64_t)((row[i / (h * D)] * all + head[i % (h * D) / D]) * D + i % D), 2));
	run.qkv = vfm_leaf(t, x);
	y = vfm_region(t, (struct vfm_keeps){vfm_recompute_keeps(c->recompute), 0}, attend, &run, &run.qkv, 1);
	OK(vfm_tape_status(t, &err));
	*o = malloc((size_t)(rows * h * D) * 4 + 4);
	for (int64_t i = 0; i < rows * h * D; i++)
		(*o)[i] = get(y->v, i);
	OK(vfm_tape_seed(t, y, dout, &err));
	OK(vfm_tape_backward(t, &err));
	*g = malloc((size_t)(rows * w) * 4 + 4);
	for (int64_t i = 0; i < rows * w; i++)
		(*g)[i] = get(vfm_leaf_grad(run.qkv), i);
	vfm_tape_reset(t);
	free(x.data);
	free(dout.data);
}

/* Returns the largest difference, relative to the largest value. */
static double relative_error(const struct attn_case *c, const float *mine, const float *all, const int32_t *row,
	int64_t rows, int tp_i, int groups)
{
	/* groups: 1 for o; 3 for q, k and v */
	int64_t h = c->heads / c->tp, hkv = c->kv_heads / c->tp, w = (groups == 1 ? h : h + 2 * hkv) * D;
	int64_t all_w = (groups == 1 ? c->heads : c->heads + 2 * c->kv_heads) * D;
	double most = 1e-3, worst = 0;

	for (int64_t i = 0; i < rows * w; i++) {
		int64_t head = i % w / D,
			from = head < h ? tp_i * h + head
					: c->heads + (head - h) / hkv * c->kv_heads + tp_i * hkv + (head - h) % hkv;
		double ref = all[row[i / w] * all_w + from * D + i % D], e = fabs(mine[i] - ref);

		MUST(!isnan(mine[i]), "not a number");
		worst = e > worst ? e : worst;
		most = fabs(ref) > most ? fabs(ref) : most;
	}
	return worst / most;
}

static double attn_pack(const struct attn_case *c, const struct vfm_mesh *m, int n, const int *len)
{
	int tp_i = m->coord[VFM_AX_TP], cp_i = m->coord[VFM_AX_CP];
	int32_t *cu = calloc((size_t)n + 1, 4), *row;
	struct vfm_tokens tok, whole;
	struct vfm_attn_layout l, ref;
	float *o, *g, *all_o, *all_g;
	double eo, eg;

	for (int i = 0; i < n; i++)
		cu[i + 1] = cu[i] + len[i];
	row = calloc((size_t)cu[n], 4);
	for (int i = 0; i < cu[n]; i++)
		row[i] = i;
	vfm_tokens_make(&tok, n, cu, c->cp, cp_i, (int)m->p.cp_a2a, c->tp, tp_i);
	vfm_tokens_make(&whole, n, cu, 1, 0, 1, 1, 0);
	OK(vfm_attn_layout_make(&l, m, &tok, dev.stream, &err));
	OK(vfm_attn_layout_make(&ref, vfm_mesh_one(), &whole, dev.stream, &err));
	if (c->fault && vfm_has(&l.order)) { /* mixes the rows of different samples */
		int32_t *order = l.order.data, last = order[l.order.shape[0] - 1];

		memmove(order + 1, order, (size_t)(l.order.shape[0] - 1) * 4);
		order[0] = last;
	}
	run_attn(c, &ref, row, cu[n], 0, 1, &all_o, &all_g);
	run_attn(c, &l, tok.pack_row, tok.rows_cp[cp_i], tp_i, c->tp, &o, &g);
	eo = relative_error(c, o, all_o, tok.pack_row, tok.rows_cp[cp_i], tp_i, 1);
	eg = relative_error(c, g, all_g, tok.pack_row, tok.rows_cp[cp_i], tp_i, 3);
	vfm_attn_layout_release(&l);
	vfm_attn_layout_release(&ref);
	vfm_tokens_release(&tok);
	vfm_tokens_release(&whole);
	free(o), free(g), free(all_o), free(all_g), free(cu), free(row);
	return eo > eg ? eo : eg;
}

static void attn_one(const struct attn_case *c)
{
	static const struct {
		int n, len[8];
	} packs[] = {{1, {37}}, {3, {3, 1, 2}}, {5, {17, 33, 5, 64, 1}}, {1, {2}}, {2, {101, 302}},
		{8, {1, 1, 1, 1, 1, 1, 1, 1}}};
	struct vfm_model_spec spec = any_model();
	double tol = c->dt == VFM_BF16 ? 2e-2 : 1e-5, worst = 0;
	struct vfm_parallel p;
	struct vfm_mesh m;

	vfm_parallel_defaults(&p);
	p.tp = c->tp, p.cp = c->cp, p.cp_mode = c->mode, p.cp_a2a = c->a2a;
	mesh_new(&m, &p, &spec);
	for (size_t i = 0; i < sizeof(packs) / sizeof(packs[0]); i++) {
		double e = attn_pack(c, &m, packs[i].n, packs[i].len);

		worst = e > worst ? e : worst;
		MUST(c->fault || e <= tol, "cp %d (%s, a2a %d) tp %d heads %d/%d %s recompute %d, pack %zu: error %.3g",
			c->cp, (const char *[]){"ring", "a2a", "hybrid"}[c->mode], c->a2a, c->tp, c->heads, c->kv_heads,
			vfm_dtype_name(c->dt), c->recompute, i, e);
	}
	MUST(!c->fault || worst > 100 * tol, "a fault was not detected: error %.3g", worst);
	vfm_mesh_release(&m);
}

static void attn_cases(const void *arg)
{
	const struct attn_case *c = arg;

	for (; c->cp; c++)
		if (world->size % (c->cp * c->tp) == 0)
			attn_one(c);
}

#define RING      VFM_CP_RING, 1
#define A2A(n)    VFM_CP_A2A, n
#define HYBRID(n) VFM_CP_HYBRID, n

static void test_attention(void **state)
{
	static const struct attn_case two[] = {
		{2, RING, 1, 2, 2, VFM_F32, VFM_RECOMPUTE_NONE, false},
		{2, A2A(2), 1, 4, 2, VFM_F32, VFM_RECOMPUTE_SELECTIVE, false},
		{2, RING, 1, 2, 1, VFM_BF16, VFM_RECOMPUTE_NONE, false},
		{2, A2A(2), 1, 2, 2, VFM_BF16, VFM_RECOMPUTE_FULL, false},
		{0},
	};
	static const struct attn_case four[] = {
		{4, RING, 1, 2, 2, VFM_F32, VFM_RECOMPUTE_NONE, false},
		{4, RING, 1, 6, 2, VFM_F32, VFM_RECOMPUTE_SELECTIVE, false},
		{4, RING, 1, 3, 1, VFM_BF16, VFM_RECOMPUTE_FULL, false},
		{4, A2A(4), 1, 4, 4, VFM_F32, VFM_RECOMPUTE_FULL, false},
		{4, A2A(4), 1, 8, 4, VFM_BF16, VFM_RECOMPUTE_SELECTIVE, false},
		{4, HYBRID(2), 1, 4, 2, VFM_F32, VFM_RECOMPUTE_NONE, false},
		{4, HYBRID(2), 1, 2, 2, VFM_F32, VFM_RECOMPUTE_SELECTIVE, false},
		{4, HYBRID(2), 1, 4, 2, VFM_BF16, VFM_RECOMPUTE_SELECTIVE, false},
		{2, RING, 2, 4, 4, VFM_F32, VFM_RECOMPUTE_FULL, false},
		{2, A2A(2), 2, 8, 4, VFM_F32, VFM_RECOMPUTE_NONE, false},
		{4, A2A(4), 1, 4, 4, VFM_F32, VFM_RECOMPUTE_NONE, true},
		{0},
	};

	(void)state;
	on_ranks(2, 1, attn_cases, two);
	on_ranks(4, 1, attn_cases, four);
}

static void test_attention_on_nodes(void **state)
{
	static const struct attn_case cases[] = {
		{4, RING, 1, 2, 1, VFM_F32, VFM_RECOMPUTE_SELECTIVE, false},
		{4, HYBRID(2), 1, 4, 2, VFM_F32, VFM_RECOMPUTE_NONE, false},
		{4, A2A(4), 1, 4, 4, VFM_BF16, VFM_RECOMPUTE_NONE, false},
		{0},
	};
	static const struct attn_case three[] = {
		{3, RING, 1, 2, 2, VFM_F32, VFM_RECOMPUTE_NONE, false},
		{3, A2A(3), 1, 6, 3, VFM_F32, VFM_RECOMPUTE_NONE, false},
		{0},
	};

	(void)state;
	on_ranks(4, 2, attn_cases, cases);
	on_ranks(3, 3, attn_cases, three);
}

/* The last rank dies while the others compute attention.  Each of them soon fails with a message that names a rank, and
 * no memory leaks. */
static void last_rank_dies(const void *arg)
{
	const struct attn_case *c = arg;
	struct vfm_model_spec spec = any_model();
	int32_t cu[] = {0, 50, 90};
	double t0 = vfm_now();
	struct vfm_parallel p;
	struct vfm_mesh m;
	struct vfm_tokens tok;
	struct vfm_attn_layout l;
	struct attn_run run = {.l = &l, .h = c->heads, .hkv = c->kv_heads};
	struct vfm_tensor x;

	vfm_parallel_defaults(&p);
	p.cp = c->cp, p.cp_mode = c->mode, p.cp_a2a = c->a2a;
	mesh_new(&m, &p, &spec);
	vfm_tokens_make(&tok, 2, cu, c->cp, m.coord[VFM_AX_CP], (int)m.p.cp_a2a, 1, 0);
	OK(vfm_attn_layout_make(&l, &m, &tok, dev.stream, &err));
	x = vfm_t2(calloc((size_t)(l.own.total * (c->heads + 2 * c->kv_heads) * D), 4), VFM_F32, l.own.total,
		(c->heads + 2 * c->kv_heads) * D);
	run.qkv = vfm_leaf(t, x);
	for (int i = 0; i < 1000 && !vfm_tape_failed(t); i++) {
		if (i == 3 && world->rank == world->size - 1)
			_exit(3);
		attend(t, &run);
	}
	MUST(vfm_tape_status(t, &err) == VFM_EENV, "the death of a rank was not detected");
	MUST(strstr(err.msg, "rank 3") || strstr(err.msg, "rank 2"), "%s", err.msg);
	vfm_tape_reset(t);
	vfm_attn_layout_release(&l);
	vfm_tokens_release(&tok);
	vfm_mesh_release(&m);
	free(x.data);
	MUST(vfm_now() - t0 < 10, "detection took %.1f s", vfm_now() - t0);
}

static void test_death(void **state)
{
	static const struct attn_case ring = {4, RING, 1, 2, 2, VFM_F32, VFM_RECOMPUTE_NONE, false};
	static const struct attn_case both = {4, HYBRID(2), 1, 4, 2, VFM_F32, VFM_RECOMPUTE_NONE, false};

	(void)state;
	run_ranks(3, 4, 1, last_rank_dies, &ring);
	run_ranks(3, 4, 2, last_rank_dies, &both);
}

/* ---- rows ---- */

enum { COLS = 24 };

static struct vfm_tensor filled(int64_t rows, int64_t first, int salt)
{
	struct vfm_tensor x = vfm_t2(malloc((size_t)(rows * COLS) * 4 + 4), VFM_F32, rows, COLS);

	for (int64_t i = 0; i < rows * COLS; i++)
		set(x, i, value((uint64_t)(first * COLS + i), salt));
	return x;
}

static void check_value(struct vfm_tensor x, int64_t i, double want, const char *what)
{
	MUST(fabs(get(x, i) - want) < 1e-5, "%s: %g at %lld, not %g", what, get(x, i), (long long)i, want);
}

/* The op that gathers the rows of all ranks. */
enum gather_op { GATHER, COLUMN, BOTH_COLUMNS };

static struct vfm_var *all_rows(
	const struct vfm_attn_layout *l, struct vfm_var *x, struct vfm_var *one, enum gather_op gather_op)
{
	struct vfm_linear_args a[] = {{.w = one, .out = VFM_F32}, {.w = one, .out = VFM_F32}};
	struct vfm_var *y[2];

	if (gather_op == GATHER)
		return vfm_tp_gather(t, l, x);
	vfm_tp_column(t, l, x, a, gather_op == COLUMN ? 1 : 2, y);
	return gather_op == COLUMN ? y[0] : vfm_g_add(t, y[0], y[1]);
}

/* The weights are the identity matrix, so that products are exact. */
static void rows_over(const int64_t *rows, enum gather_op gather_op)
{
	int64_t total = 0, first = 0, mine = rows[world->rank];
	struct vfm_mesh m = {.group = {[VFM_AX_TP] = world}};
	struct vfm_tokens tok = {.rows_tp = (int64_t *)rows};
	struct vfm_attn_layout l = {.mesh = &m, .tok = &tok};
	double times = gather_op == BOTH_COLUMNS ? 2 : 1;
	float identity[COLS * COLS] = {0};
	struct vfm_tensor x, dy, y_part, dy_part;
	struct vfm_tensor one = vfm_t2(identity, VFM_F32, COLS, COLS);
	struct vfm_var *in, *y;

	for (int i = 0; i < COLS; i++)
		identity[i * COLS + i] = 1;

	for (int r = 0; r < world->size; r++) {
		first += r < world->rank ? rows[r] : 0;
		total += rows[r];
	}
	/* Gather: every rank has all rows, and its gradient differs from that of the other ranks. */
	x = filled(mine, first, 3);
	dy = filled(total, 0, 10 + world->rank);
	in = vfm_leaf(t, x);
	y = all_rows(&l, in, vfm_leaf(t, one), gather_op);
	OK(vfm_tape_status(t, &err));
	for (int64_t i = 0; i < total * COLS; i++)
		check_value(y->v, i, times * value((uint64_t)i, 3), "gathered");
	OK(vfm_tape_seed(t, y, dy, &err));
	OK(vfm_tape_backward(t, &err));
	for (int64_t i = 0; i < mine * COLS; i++) {
		double want = 0;

		for (int r = 0; r < world->size; r++)
			want += value((uint64_t)(first * COLS + i), 10 + r);
		check_value(vfm_leaf_grad(in), i, times * want, "gradient of gathered rows");
	}
	vfm_tape_reset(t);
	/* Reduce-scatter. */
	y_part = filled(total, 0, 20 + world->rank);
	dy_part = filled(mine, first, 4);
	in = vfm_leaf(t, y_part);
	y = vfm_tp_row(t, &l, in, &(struct vfm_linear_args){.w = vfm_leaf(t, one), .out = VFM_F32});
	OK(vfm_tape_status(t, &err));
	for (int64_t i = 0; i < mine * COLS; i++) {
		double want = 0;

		for (int r = 0; r < world->size; r++)
			want += value((uint64_t)(first * COLS + i), 20 + r);
		check_value(y->v, i, want, "scattered");
	}
	OK(vfm_tape_seed(t, y, dy_part, &err));
	OK(vfm_tape_backward(t, &err));
	for (int64_t i = 0; i < total * COLS; i++)
		check_value(vfm_leaf_grad(in), i, value((uint64_t)i, 4), "gradient of scattered rows");
	vfm_tape_reset(t);
	free(x.data), free(dy.data), free(y_part.data), free(dy_part.data);
}

static void rows_cases(const void *arg)
{
	static const int64_t rows[][4] = {{8, 8, 8, 8}, {5, 0, 7, 3}, {0, 0, 1, 0}, {0, 0, 0, 0}, {1000, 333, 2000, 1}};

	(void)arg;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (enum gather_op gather_op = GATHER; gather_op <= BOTH_COLUMNS; gather_op++)
			rows_over(rows[i], gather_op);
}

static void test_rows(void **state)
{
	(void)state;
	on_ranks(4, 1, rows_cases, NULL);
	on_ranks(3, 2, rows_cases, NULL);
}

/* Redistributes contiguous chunks of `rows` rows so that row g is on rank g % n, in descending order. */
static void redist_over(const int64_t *rows)
{
	int n = world->size, me = world->rank;
	int64_t send[8] = {0}, recv[8] = {0}, first = 0, total = 0, at = 0;
	int32_t index[4][512] = {{0}};
	struct vfm_redist r = {.send = send, .recv = recv};
	struct vfm_mesh m = {.group = {[VFM_AX_EP] = world}};
	struct vfm_tensor x, dy;
	struct vfm_var *in, *y;

	for (int i = 0; i < n; i++) {
		for (int64_t g = total; g < total + rows[i]; g++) {
			send[g % n] += i == me;
			recv[i] += g % n == me;
		}
		first += i < me ? rows[i] : 0;
		total += rows[i];
	}
	r.n_send = rows[me];
	for (int i = 0; i < n; i++) {
		r.n_recv += recv[i];
		for (int64_t g = first; g < first + rows[me]; g++)
			if (g % n == i) {
				index[0][at] = (int32_t)(g - first);
				index[1][g - first] = (int32_t)at++;
			}
	}
	for (int64_t p = 0; p < r.n_recv; p++) /* received in ascending order */
		index[2][p] = index[3][p] = (int32_t)(r.n_recv - 1 - p);
	r.gather = vfm_t1(index[0], VFM_I32, r.n_send), r.gather_inv = vfm_t1(index[1], VFM_I32, r.n_send);
	r.place = vfm_t1(index[2], VFM_I32, r.n_recv), r.place_inv = vfm_t1(index[3], VFM_I32, r.n_recv);
	x = filled(rows[me], first, 5);
	dy = filled(r.n_recv, 0, 6);
	for (int64_t i = 0; i < r.n_recv * COLS; i++) {
		int64_t g = (r.n_recv - 1 - i / COLS) * n + me;

		set(dy, i, value((uint64_t)(g * COLS + i % COLS), 6));
	}
	in = vfm_leaf(t, x);
	y = vfm_m_redist(t, &m, VFM_AX_EP, in, &r);
	OK(vfm_tape_status(t, &err));
	for (int64_t i = 0; i < r.n_recv * COLS; i++)
		check_value(y->v, i, value((uint64_t)(((r.n_recv - 1 - i / COLS) * n + me) * COLS + i % COLS), 5),
			"redistributed");
	OK(vfm_tape_seed(t, y, dy, &err));
	OK(vfm_tape_backward(t, &err));
	for (int64_t i = 0; i < rows[me] * COLS; i++)
		check_value(
			vfm_leaf_grad(in), i, value((uint64_t)(first * COLS + i), 6), "gradient of redistributed rows");
	vfm_tape_reset(t);
	free(x.data), free(dy.data);
}

static void redist_cases(const void *arg)
{
	static const int64_t rows[][4] = {{8, 8, 8, 8}, {5, 0, 7, 3}, {0, 1, 0, 0}, {100, 33, 200, 1}};

	(void)arg;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		redist_over(rows[i]);
}

static void test_redist(void **state)
{
	(void)state;
	on_ranks(4, 1, redist_cases, NULL);
	on_ranks(2, 2, redist_cases, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_groups),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_redist),
		cmocka_unit_test(test_attention),
		cmocka_unit_test(test_attention_on_nodes),
		cmocka_unit_test(test_death),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
