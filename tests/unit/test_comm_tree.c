/* What a rank needs as jobs grow, from 16 to 4,096 ranks of 8 on a node: connections, addresses fetched, messages after
 * one another.  The tree of monitors is that of comm/host/tree.c, the partners in collectives are those of
 * comm/host/net_coll.c, whose messages are recorded instead of sent.  test_comm_net measures the same on up to 64
 * processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "comm/host/host_impl.h"
#include "comm/host/monitor_impl.h"

enum { PER_NODE = 8, MOST = 4096 };

/* ---- the messages of a collective of one rank ---- */

static struct {
	bool peer[MOST]; /* ranks that it exchanged messages with */
	int messages;    /* one after another */
} did;

static int record_exchange(struct vfm_hcomm *g, const struct vfm_call_sig *sig_out, int to, const void *out,
	size_t n_out, const struct vfm_call_sig *sig_in, int from, void *in, size_t n_in, struct vfm_err *err)
{
	(void)g, (void)sig_out, (void)out, (void)n_out, (void)sig_in, (void)err;
	if (to >= 0)
		did.peer[to] = true;
	if (from >= 0) {
		did.peer[from] = true;
		if (n_in)
			memset(in, 0, n_in);
	}
	did.messages++;
	return 0;
}

int recorded_coll(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err);
#define vfm_net_exchange record_exchange
#define vfm_net_coll     recorded_coll
#include "comm/host/net_coll.c"

/* ---- counts ---- */

static int log2_up(int n)
{
	int log = 0;

	while (1 << log < n)
		log++;
	return log;
}

struct counts { /* the most of any rank */
	int ranks, children, connections, gets, hops_up, messages;
};

static void collective(struct vfm_hcomm *g, struct vfm_coll c, struct counts *k)
{
	struct vfm_err err;

	c.to = -1;
	did.messages = 0;
	assert_int_equal(recorded_coll(g, &c, &err), 0);
	if (did.messages > k->messages)
		k->messages = did.messages;
}

/* The small collectives of set-up and of each step, over the world: splits, barriers, sums and broadcasts. */
static void small_collectives(struct vfm_hcomm *g, char *buf, struct counts *k)
{
	int64_t n = g->c.size;

	memset(&did, 0, sizeof(did));
	collective(g, (struct vfm_coll){.kind = VFM_C_BARRIER, .dtype = VFM_U8, .from = -1}, k);
	collective(g,
		(struct vfm_coll){.kind = VFM_C_ALL_GATHER,
			.dtype = VFM_I64,
			.in = buf + 16 * g->c.rank,
			.out = buf,
			.n_in = 2,
			.n_out = 2 * n,
			.from = -1},
		k);
	for (int elements = 30; elements <= 1000; elements += 970)
		collective(g,
			(struct vfm_coll){.kind = VFM_C_ALL_REDUCE,
				.dtype = VFM_F64,
				.in = buf,
				.out = buf,
				.n_in = elements,
				.n_out = elements,
				.from = -1},
			k);
	collective(g,
		(struct vfm_coll){
			.kind = VFM_C_BROADCAST, .dtype = VFM_F64, .in = buf, .out = buf, .n_in = 9, .n_out = 9},
		k);
}

static void count_rank(int rank, const int *node_of, int n, char *buf, struct counts *k)
{
	struct vfm_hcomm g = {.c = {.rank = rank, .size = n}};
	int connections, gets, hops = 0;
	struct vfm_rank_tree t;

	vfm_tree_init(&t, node_of, n, rank);
	small_collectives(&g, buf, k);
	connections = t.n + (t.parent >= 0);
	/* until it has the memory of its node, a rank has a second connection to the first one of the node */
	connections += t.first[node_of[rank]] == rank ? PER_NODE - 1 : 1;
	gets = rank != 0 && t.parent != 0; /* rank 0 gives the key */
	gets += rank != 0;
	for (int r = 0; r < n; r++) {
		connections += did.peer[r];
		gets += did.peer[r] && r > rank; /* the lower rank connects */
	}
	for (int r = rank; r > 0; r = vfm_tree_parent(&t, r))
		hops++;
	k->children = t.n > k->children ? t.n : k->children;
	k->connections = connections > k->connections ? connections : k->connections;
	k->gets = gets > k->gets ? gets : k->gets;
	k->hops_up = hops > k->hops_up ? hops : k->hops_up;
	vfm_big_free(g.tmp, g.tmp_bytes);
	vfm_tree_release(&t);
}

static struct counts count_job(int n)
{
	struct counts k = {.ranks = n};
	int node_of[MOST];
	char *buf = vfm_calloc((size_t)n + 1000, 16);

	for (int r = 0; r < n; r++)
		node_of[r] = r / PER_NODE;
	for (int r = 0; r < n; r++)
		count_rank(r, node_of, n, buf, &k);
	free(buf);
	fprintf(stderr, "%d ranks: at most %d children, %d connections, %d gets, %d hops to rank 0, %d messages\n", n,
		k.children, k.connections, k.gets, k.hops_up, k.messages);
	return k;
}

/* Connections and gets may grow by two for each factor of two of the ranks, messages are at most two. */
static void growth(void **state)
{
	static const int sizes[] = {16, 64, 512, 4096};
	struct counts was = {0};

	(void)state;
	for (int i = 0; i < 4; i++) {
		struct counts k = count_job(sizes[i]);
		int log = log2_up(k.ranks);

		assert_in_range(k.children, PER_NODE, PER_NODE - 1 + VFM_TREE_FANOUT);
		/* the monitors, those of the node's memory, and two for each power of two */
		assert_in_range(k.connections, log, VFM_TREE_FANOUT + 2 * PER_NODE + 2 * log);
		assert_in_range(k.gets, 1, 2 + 2 * log);
		assert_in_range(k.hops_up, 1, 1 + (log + 2) / 3);
		assert_in_range(k.messages, log, 2 * log); /* a tree up and down */
		if (i > 1) {
			int factors = log - log2_up(was.ranks);

			/* at 64 ranks, rank 0 has not all its children yet, and ranks with children have no parent */
			assert_true(k.connections - was.connections <= 2 * factors + (i == 2 ? 2 : 0));
			assert_true(k.gets - was.gets <= 2 * factors);
		}
		was = k;
	}
}

/* A large reduction is the exception: each rank receives a share of every other one. */
static void large_reductions(void **state)
{
	struct vfm_hcomm g = {.c = {.rank = 3, .size = 64}};
	char *buf = vfm_calloc(64, 8192);
	struct counts k = {0};
	int peers = 0;

	(void)state;
	memset(&did, 0, sizeof(did));
	collective(&g,
		(struct vfm_coll){.kind = VFM_C_ALL_REDUCE,
			.dtype = VFM_F32,
			.in = buf,
			.out = buf,
			.n_in = 64 * 2048,
			.n_out = 64 * 2048,
			.from = -1},
		&k);
	for (int r = 0; r < 64; r++)
		peers += did.peer[r];
	assert_int_equal(peers, 63);
	assert_int_equal(did.messages, 2 * 63);
	vfm_big_free(g.tmp, g.tmp_bytes);
	free(buf);
}

/* ---- the tree ---- */

/* Each rank finds the children whose parent it is, and each rank leads to rank 0 by ever lower ranks. */
static void check_tree(const int *node_of, int n)
{
	int *children = vfm_calloc((size_t)n, sizeof(*children)), edges = 0;
	struct vfm_rank_tree t;

	for (int r = 0; r < n; r++) {
		vfm_tree_init(&t, node_of, n, r);
		assert_int_equal(t.parent, vfm_tree_parent(&t, r));
		assert_true(r == 0 ? t.parent == -1 : t.parent >= 0 && t.parent < r);
		assert_true(vfm_tree_is_above(&t, 0, r) && vfm_tree_is_above(&t, r, r));
		assert_false(r > 0 && vfm_tree_is_above(&t, r, 0));
		for (int i = 0; i < t.n; i++) {
			assert_int_equal(vfm_tree_parent(&t, t.child[i]), r);
			assert_true(vfm_tree_is_above(&t, r, t.child[i]));
			children[t.child[i]]++;
			edges++;
		}
		vfm_tree_release(&t);
	}
	assert_int_equal(edges, n - 1);
	for (int r = 1; r < n; r++)
		assert_int_equal(children[r], 1);
	free(children);
}

static void placements(void **state)
{
	int node_of[300];

	(void)state;
	for (int n = 1; n <= 300; n += n < 40 ? 1 : 37) {
		for (int each = 1; each <= 9; each += 4) {
			for (int r = 0; r < n; r++)
				node_of[r] = r / each;
			check_tree(node_of, n);
		}
		for (int r = 0; r < n; r++)
			node_of[r] = r % 11; /* cyclic */
		check_tree(node_of, n);
		for (int r = 0; r < n; r++) /* 1, 2, 3, 4, ... ranks on the nodes */
			node_of[r] =
				r == 0 ? 0 : node_of[r - 1] + (r == (node_of[r - 1] + 1) * (node_of[r - 1] + 2) / 2);
		check_tree(node_of, n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(growth), cmocka_unit_test(large_reductions), cmocka_unit_test(placements)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
