/* Degrees: what is refused and with which words; coordinates and groups against brute force. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "net/mesh/mesh.h"

static struct vfm_model_spec model(void)
{
	struct vfm_model_spec m;

	vfm_model_defaults(&m);
	m.heads = m.kv_heads = 6;
	m.layers = 12;
	m.hidden = 384;
	m.ffn = 1536;
	return m;
}

static struct vfm_parallel degrees(int64_t tp, int64_t cp, int64_t pp)
{
	struct vfm_parallel p;

	vfm_parallel_defaults(&p);
	p.tp = tp;
	p.cp = cp;
	p.pp = pp;
	return p;
}

#define REFUSED(message, world, ...)                                                                                   \
	do {                                                                                                           \
		struct vfm_parallel p_;                                                                                \
		struct vfm_model_spec m = model();                                                                     \
		struct vfm_err err_ = {0};                                                                             \
		vfm_parallel_defaults(&p_);                                                                            \
		{                                                                                                      \
			struct vfm_parallel *p = &p_;                                                                  \
			__VA_ARGS__;                                                                                   \
		}                                                                                                      \
		assert_int_equal(vfm_parallel_check(&p_, &m, world, &err_), VFM_EUSAGE);                               \
		assert_string_equal(err_.msg, message);                                                                \
	} while (0)

static void test_refused(void **state)
{
	(void)state;
	REFUSED("parallel.tp: 4 does not divide model.heads 6; 1, 2, 3, 6 would fit", 4, p->tp = 4);
	REFUSED("parallel.tp: 3 does not divide model.kv_heads 2; 1, 2 would fit", 3, p->tp = 3; m.kv_heads = 2);
	REFUSED("parallel.tp: 6 does not divide model.ffn 1000; 1, 2 would fit", 6, p->tp = 6; m.ffn = 1000);
	REFUSED("parallel.tp: 2 does not divide model.shared_experts x model.expert_ffn = 99; 1, 3 would fit", 2,
		p->tp = 2;
		strcpy(m.arch, "moe"); m.shared_experts = 1; m.expert_ffn = 99);
	REFUSED("parallel.cp: expected 1 to 1024, got 0", 4, p->cp = 0);
	REFUSED("parallel.dp: expected 0 to 1048576, got -1", 4, p->dp = -1);
	REFUSED("parallel: tp 2 x cp 2 x pp 1 does not divide the number of ranks, 6 (-n or srun)", 6, p->tp = 2;
		p->cp = 2);
	REFUSED("parallel: tp 2 x cp 1024 x pp 1024 does not divide the number of ranks, 8 (-n or srun)", 8, p->tp = 2;
		p->cp = p->pp = 1024);
	REFUSED("parallel.dp: tp 2 x cp 1 x pp 1 x dp 3 is not the number of ranks, 8; dp 4 (or 0) would fit", 8,
		p->tp = 2;
		p->dp = 3);
	REFUSED("parallel.cp (cp_mode a2a): 4 does not divide the heads of a tp rank, 6; 1, 2, 3, 6 would fit", 4,
		p->cp = 4;
		p->cp_mode = VFM_CP_A2A);
	REFUSED("parallel.cp (cp_mode a2a): 2 does not divide the heads of a tp rank, 3; 1, 3 would fit", 4,
		p->tp = p->cp = 2;
		p->cp_mode = VFM_CP_A2A);
	REFUSED("parallel.cp_a2a: 3 does not divide the key and value heads of a tp rank, 2; 1, 2 would fit", 12,
		p->cp = 12;
		p->cp_mode = VFM_CP_HYBRID; p->cp_a2a = 3; m.kv_heads = 2);
	REFUSED("parallel.cp_a2a: 6 does not divide parallel.cp 4; 1, 2 would fit", 4, p->cp = 4;
		p->cp_mode = VFM_CP_HYBRID; p->cp_a2a = 6);
	REFUSED("parallel.pp: pp 4 x vpp 4 is more than model.layers 12; pp 3 or less would fit", 4, p->pp = 4;
		p->vpp = 4);
	REFUSED("parallel.vpp: 2 needs pp > 1; 1 would fit", 1, p->vpp = 2);
	REFUSED("parallel.ep: 2, but model.arch dit has no experts; 1 would fit", 2, p->ep = 2);
	REFUSED("parallel.ep: 3 does not divide model.experts 8; 1, 2, 4 would fit", 12, p->ep = 3; m.experts = 8;
		strcpy(m.arch, "moe"));
	REFUSED("parallel.ep: 8 does not divide dp x cp x tp = 12; 1, 2, 4 would fit", 12, p->ep = 8; m.experts = 8;
		strcpy(m.arch, "moe"));
	REFUSED("parallel.distopt: fsdp shards the optimizer state already; set one of the two", 2,
		p->fsdp = p->distopt = true);
	REFUSED("parallel.shard: 4 does not divide dp x cp = 6; 1, 2, 3, 6 would fit", 12, p->tp = 2; p->cp = 2;
		p->shard = 4; p->fsdp = true);
}

static void test_filled_in(void **state)
{
	struct vfm_model_spec m = model();
	struct vfm_parallel p = degrees(2, 4, 2);
	struct vfm_err err = {0};

	(void)state;
	assert_int_equal(vfm_parallel_check(&p, &m, 48, &err), 0);
	assert_int_equal(p.dp, 3);
	assert_int_equal(p.shard, 12);
	assert_int_equal(p.cp_a2a, 1);
	/* Once more with what it filled in. */
	assert_int_equal(vfm_parallel_check(&p, &m, 48, &err), 0);
	p = degrees(1, 12, 1);
	p.cp_mode = VFM_CP_HYBRID;
	assert_int_equal(vfm_parallel_check(&p, &m, 12, &err), 0);
	assert_int_equal(p.cp_a2a, 6);
	m.kv_heads = 2;
	p.cp_a2a = 0;
	assert_int_equal(vfm_parallel_check(&p, &m, 12, &err), 0);
	assert_int_equal(p.cp_a2a, 2);
	p = degrees(1, 2, 1);
	p.cp_mode = VFM_CP_A2A;
	assert_int_equal(vfm_parallel_check(&p, &m, 2, &err), 0);
	assert_int_equal(p.cp_a2a, 2);
}

/* ---- groups ---- */

struct at {
	int pp, dp, cp, tp, ring, a2a, stage_rank, ep, data, shard, replica, e, eshard, ereplica;
};

static int same(const struct at *a, const struct at *b, enum vfm_group g)
{
	switch (g) {
	case VFM_GR_PP:
		return a->dp == b->dp && a->cp == b->cp && a->tp == b->tp;
	case VFM_GR_DP:
		return a->pp == b->pp && a->cp == b->cp && a->tp == b->tp;
	case VFM_GR_CP:
		return a->pp == b->pp && a->dp == b->dp && a->tp == b->tp;
	case VFM_GR_TP:
		return a->pp == b->pp && a->dp == b->dp && a->cp == b->cp;
	case VFM_GR_EP:
		return a->pp == b->pp && a->e == b->e;
	case VFM_GR_RING:
		return a->pp == b->pp && a->dp == b->dp && a->tp == b->tp && a->a2a == b->a2a;
	case VFM_GR_A2A:
		return a->pp == b->pp && a->dp == b->dp && a->tp == b->tp && a->ring == b->ring;
	case VFM_GR_SEQ:
		return a->pp == b->pp && a->dp == b->dp;
	case VFM_GR_DATA:
		return a->pp == b->pp && a->tp == b->tp;
	case VFM_GR_SHARD:
		return a->pp == b->pp && a->tp == b->tp && a->replica == b->replica;
	case VFM_GR_REPLICA:
		return a->pp == b->pp && a->tp == b->tp && a->shard == b->shard;
	case VFM_GR_EDATA:
		return a->pp == b->pp && a->ep == b->ep;
	case VFM_GR_ESHARD:
		return a->pp == b->pp && a->ep == b->ep && a->ereplica == b->ereplica;
	case VFM_GR_EREPLICA:
		return a->pp == b->pp && a->ep == b->ep && a->eshard == b->eshard;
	default:
		return 0;
	}
}

/* Who stands where, by counting. */
static int enumerate(const struct vfm_parallel *p, struct at *at)
{
	int shard = p->fsdp || p->distopt ? (int)p->shard : 1, rank = 0;
	int n_e = (int)(p->dp * p->cp * p->tp / p->ep), eshard = 1;

	if (p->fsdp || p->distopt) {
		eshard = shard == p->dp * p->cp ? n_e : 1;
		for (int d = 1; d <= shard && eshard != n_e; d++)
			if (shard % d == 0 && n_e % d == 0)
				eshard = d;
	}
	for (int pp = 0; pp < p->pp; pp++) {
		int in_stage = 0;

		for (int dp = 0; dp < p->dp; dp++)
			for (int ring = 0; ring < p->cp / p->cp_a2a; ring++)
				for (int a2a = 0; a2a < p->cp_a2a; a2a++)
					for (int tp = 0; tp < p->tp; tp++, in_stage++) {
						struct at *x = &at[rank++];

						*x = (struct at){.pp = pp,
							.dp = dp,
							.tp = tp,
							.ring = ring,
							.a2a = a2a,
							.stage_rank = in_stage};
						x->cp = ring * (int)p->cp_a2a + a2a;
						x->data = dp * (int)p->cp + x->cp;
						x->shard = x->data % shard;
						x->replica = x->data / shard;
						x->ep = in_stage % (int)p->ep;
						x->e = in_stage / (int)p->ep;
						x->eshard = x->e % eshard;
						x->ereplica = x->e / eshard;
					}
	}
	return rank;
}

static void check_groups(const struct vfm_parallel *p)
{
	static struct at at[256];
	int n = enumerate(p, at);

	for (int r = 0; r < n; r++) {
		int c[VFM_AXES];

		vfm_parallel_coord(p, r, c);
		assert_int_equal(c[VFM_AX_PP], at[r].pp);
		assert_int_equal(c[VFM_AX_DP], at[r].dp);
		assert_int_equal(c[VFM_AX_CP], at[r].cp);
		assert_int_equal(c[VFM_AX_TP], at[r].tp);
		assert_int_equal(c[VFM_AX_EP], at[r].ep);
		for (enum vfm_group g = 0; g < VFM_GROUPS; g++) {
			struct vfm_place mine = vfm_parallel_place(p, r, g);
			int members = 0, before = 0;

			for (int q = 0; q < n; q++) {
				int together = same(&at[r], &at[q], g);

				members += together;
				before += together && q < r;
				if (together != (vfm_parallel_place(p, q, g).color == mine.color))
					fail_msg("group %s: ranks %d and %d", vfm_group_name(g), r, q);
			}
			assert_int_equal(mine.size, members);
			assert_int_equal(mine.key, before);
		}
	}
}

static void test_groups(void **state)
{
	struct vfm_model_spec m = model();
	struct vfm_err err = {0};
	int meshes = 0;

	(void)state;
	strcpy(m.arch, "moe");
	m.experts = 12;
	m.heads = m.kv_heads = 12;
	for (int tp = 1; tp <= 3; tp++)
		for (int cp = 1; cp <= 4; cp++)
			for (int pp = 1; pp <= 3; pp++)
				for (int dp = 1; dp <= 3; dp++)
					for (int ep = 1; ep <= 12; ep++)
						for (int mode = 0; mode < 12; mode++) {
							struct vfm_parallel p = degrees(tp, cp, pp);

							p.dp = dp;
							p.ep = ep;
							p.cp_mode = mode % 3;
							p.cp_a2a = mode % 3 == VFM_CP_HYBRID ? 2 : 0;
							p.fsdp = mode / 3 == 1;
							p.distopt = mode / 3 > 1;
							p.shard = mode / 3 == 3 ? 2 : 0;
							if (vfm_parallel_check(&p, &m, tp * cp * pp * dp, &err) < 0)
								continue;
							check_groups(&p);
							meshes++;
						}
	assert_true(meshes > 500);
}

static void test_print(void **state)
{
	struct vfm_parallel p = degrees(2, 1, 2);
	struct vfm_buf b = {0};

	(void)state;
	p.dp = p.shard = p.cp_a2a = 1;
	vfm_mesh_print(&b, &p, (int[]){0, 0, 1, 1});
	assert_string_equal(b.data,
		"rank node      pp      dp      cp      tp      ep    ring     a2a   shard replica\n"
		"  of            2       1       1       2       1       1       1       1       1\n"
		"   0    0       0       0       0       0       0       0       0       0       0\n"
		"   1    0       0       0       0       1       0       0       0       0       0\n"
		"   2    1       1       0       0       0       0       0       0       0       0\n"
		"   3    1       1       0       0       1       0       0       0       0       0\n");
	vfm_buf_release(&b);
}

static void test_one(void **state)
{
	const struct vfm_mesh *m = vfm_mesh_one();

	(void)state;
	assert_int_equal(m->world_size, 1);
	for (int i = 0; i < VFM_AXES; i++) {
		assert_int_equal(m->size[i], 1);
		assert_int_equal(m->coord[i], 0);
		assert_ptr_equal(m->group[i], vfm_comm_self());
	}
	assert_ptr_equal(m->eshard, vfm_comm_self());
	assert_ptr_equal(m->tp_param, vfm_comm_self());
	assert_null(m->fwd_out);
	assert_null(m->param_stream);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_filled_in),
		cmocka_unit_test(test_groups),
		cmocka_unit_test(test_print),
		cmocka_unit_test(test_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
