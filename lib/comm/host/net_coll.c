/* Collectives of ranks on several nodes, and exchanges, by messages between pairs of ranks.
 *
 * Messages that a rank sends and receives one after another, for n ranks and L = log2(n), rounded up:
 *
 *     barrier, broadcast (a tree)            L
 *     all_gather of at most GATHER bytes     L
 *     all_gather of more                     n - 1     a ring
 *     all_reduce of at most GATHER / n       L         an all_gather, then each rank sums
 *     all_reduce of at most SMALL            2 L       a tree
 *     all_reduce of more                     2 (n - 1)
 *     reduce_scatter, all_to_all             n - 1
 *
 * In the reductions of the last two lines and those by an all_gather, every rank sums in rank order: the bits are those
 * of a communicator on one node.  The tree sums ranges of ranks, in an order that n determines.
 */
#include "comm/host/host_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/model/dtype.h"

enum {
	SMALL = 8192,
	GATHER = 256 << 10,
	CHUNK = 512 << 10,
};

/* Returns scratch of at least `bytes`, valid until the next call; NULL on failure. */
static char *reserve_scratch(struct vfm_hcomm *g, size_t bytes, struct vfm_err *err)
{
	if (g->tmp_bytes < bytes) {
		vfm_big_free(g->tmp, g->tmp_bytes);
		g->tmp_bytes = 0;
		g->tmp = vfm_big_alloc(bytes, "the buffers of a collective", err);
		if (!g->tmp)
			return NULL;
		g->tmp_bytes = bytes;
	}
	return g->tmp;
}

static void copy_unless_same(void *to, const void *from, size_t n)
{
	if (n && to != from)
		memmove(to, from, n);
}

static int exchange_bytes(struct vfm_hcomm *g, const struct vfm_coll *c, int to, const void *out, size_t n_out,
	int from, void *in, size_t n_in, struct vfm_err *err)
{
	struct vfm_call_sig sig = vfm_coll_sig(g, c);

	return vfm_net_exchange(g, &sig, to, out, n_out, &sig, from, in, n_in, err);
}

/* Gathers the blocks at off[0..n] on a ring; this rank's block is in its place. */
static int gather_on_ring(
	struct vfm_hcomm *g, const struct vfm_coll *c, char *all, const size_t *off, struct vfm_err *err)
{
	int n = g->c.size, me = g->c.rank, next = (me + 1) % n, prev = (me + n - 1) % n;

	for (int k = 0; k < n - 1; k++) {
		int s = (me + n - k) % n, r = (me + n - k - 1) % n;

		TRY(exchange_bytes(
			g, c, next, all + off[s], off[s + 1] - off[s], prev, all + off[r], off[r + 1] - off[r], err));
	}
	return 0;
}

/* The same in log2(n) messages (Bruck): before round k this rank has the blocks of the 2^k ranks from itself on, and
 * it receives as many more.  They lie in this order in a buffer. */
static int gather_by_doubling(
	struct vfm_hcomm *g, const struct vfm_coll *c, char *all, const size_t *off, struct vfm_err *err)
{
	int n = g->c.size, me = g->c.rank;
	size_t *at = vfm_calloc((size_t)n + 1, sizeof(*at));
	char *tmp = vfm_malloc(off[n] + 1);
	int rc = 0;

	for (int i = 0; i < n; i++) {
		int r = (me + i) % n;

		at[i + 1] = at[i] + off[r + 1] - off[r];
	}
	copy_unless_same(tmp, all + off[me], at[1]);
	for (int have = 1; have < n; have *= 2) {
		int more = have < n - have ? have : n - have, to = (me + n - have) % n, from = (me + have) % n;

		TRY_OUT(exchange_bytes(g, c, to, tmp, at[more], from, tmp + at[have], at[have + more] - at[have], err));
	}
	for (int i = 1; i < n; i++)
		copy_unless_same(all + off[(me + i) % n], tmp + at[i], at[i + 1] - at[i]);
out:
	free(at);
	free(tmp);
	return rc;
}

static int gather_blocks_in_place(
	struct vfm_hcomm *g, const struct vfm_coll *c, char *all, const size_t *off, struct vfm_err *err)
{
	return off[g->c.size] <= GATHER ? gather_by_doubling(g, c, all, off, err) : gather_on_ring(g, c, all, off, err);
}

/* out = sum of the ranks' bytes [off[me], off[me + 1]) of in; out may be in + off[me]. */
static int reduce_pairwise(struct vfm_hcomm *g, const struct vfm_coll *c, const char *in, char *out, const size_t *off,
	struct vfm_err *err)
{
	int n = g->c.size, me = g->c.rank;
	size_t es = vfm_dtype_size(c->dtype), most = 0, chunk = CHUNK;
	char *tmp = reserve_scratch(g, chunk * (size_t)n, err);
	const void **x;
	int rc = 0;

	if (!tmp)
		return err->code;
	x = vfm_calloc((size_t)n, sizeof(*x));
	for (int i = 0; i < n; i++)
		if (off[i + 1] - off[i] > most)
			most = off[i + 1] - off[i];
	for (size_t at = 0; at < most; at += chunk) {
		size_t mine = off[me + 1] - off[me], m = at < mine ? vfm_min_size(chunk, mine - at) : 0;

		for (int k = 1; k < n; k++) {
			int to = (me + k) % n, from = (me + n - k) % n;
			size_t theirs = off[to + 1] - off[to], q = at < theirs ? vfm_min_size(chunk, theirs - at) : 0;

			TRY_OUT(exchange_bytes(
				g, c, to, in + off[to] + at, q, from, tmp + (size_t)from * chunk, m, err));
		}
		for (int i = 0; i < n; i++)
			x[i] = i == me ? in + off[me] + at : tmp + (size_t)i * chunk;
		if (m)
			vfm_comm_sum(c->dtype, out + at, x, n, m / es);
	}
out:
	free(x);
	return rc;
}

static size_t *make_block_offsets(const struct vfm_hcomm *g, const struct vfm_coll *c)
{
	int n = g->c.size;
	size_t *off = vfm_calloc((size_t)n + 1, sizeof(*off));

	for (int i = 0; i < n; i++)
		off[i + 1] = off[i] + vfm_coll_bytes_of(g, c, c->send, i);
	return off;
}

static int all_reduce_small(struct vfm_hcomm *g, const struct vfm_coll *c, size_t *off, struct vfm_err *err)
{
	int n = g->c.size;
	size_t bytes = (size_t)c->n_out * vfm_dtype_size(c->dtype);
	char *tmp = reserve_scratch(g, bytes * (size_t)n, err);
	const void **x;

	if (!tmp)
		return err->code;
	for (int i = 0; i <= n; i++)
		off[i] = bytes * (size_t)i;
	copy_unless_same(tmp + off[g->c.rank], c->in, bytes);
	TRY(gather_blocks_in_place(g, c, tmp, off, err));
	x = vfm_calloc((size_t)n, sizeof(*x));
	for (int i = 0; i < n; i++)
		x[i] = tmp + off[i];
	vfm_comm_sum(c->dtype, c->out, x, n, (size_t)c->n_out);
	free(x);
	return 0;
}

static int broadcast_from(struct vfm_hcomm *g, const struct vfm_coll *c, int root, struct vfm_err *err);

/* Sums up a binomial tree and sends the sum down again.  Before round k, rank r has the sum of ranks r to r + 2^k -
 * 1. */
static int all_reduce_on_tree(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	int n = g->c.size, me = g->c.rank;
	size_t bytes = (size_t)c->n_out * vfm_dtype_size(c->dtype);
	char *tmp = reserve_scratch(g, bytes, err);

	if (!tmp)
		return err->code;
	copy_unless_same(c->out, c->in, bytes);
	for (int bit = 1; bit < n; bit <<= 1) {
		if (me & bit) {
			TRY(exchange_bytes(g, c, me - bit, c->out, bytes, -1, NULL, 0, err));
			break;
		}
		if (me + bit < n) {
			TRY(exchange_bytes(g, c, -1, NULL, 0, me + bit, tmp, bytes, err));
			vfm_comm_sum(c->dtype, c->out, (const void *const[]){c->out, tmp}, 2, (size_t)c->n_out);
		}
	}
	return broadcast_from(g, c, 0, err);
}

static int net_all_reduce(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	int n = g->c.size, me = g->c.rank, rc;
	size_t es = vfm_dtype_size(c->dtype), *off = vfm_calloc((size_t)n + 1, sizeof(*off));

	if ((size_t)c->n_out * es <= SMALL) {
		/* the tree would round sums of bf16 in every round */
		rc = (size_t)c->n_out * es * (size_t)n <= GATHER || c->dtype == VFM_BF16
			? all_reduce_small(g, c, off, err)
			: all_reduce_on_tree(g, c, err);
		goto out;
	}
	for (int i = 0; i <= n; i++)
		off[i] = (size_t)(c->n_out * i / n) * es;
	TRY_OUT(reduce_pairwise(g, c, c->in, c->out + off[me], off, err));
	rc = gather_on_ring(g, c, c->out, off, err);
out:
	free(off);
	return rc;
}

static int net_all_gather(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	size_t *off = make_block_offsets(g, c);
	int me = g->c.rank, rc;

	copy_unless_same(c->out + off[me], c->in, off[me + 1] - off[me]);
	rc = gather_blocks_in_place(g, c, c->out, off, err);
	free(off);
	return rc;
}

static int net_reduce_scatter(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	size_t *off = make_block_offsets(g, c);
	int rc = reduce_pairwise(g, c, c->in, c->out, off, err);

	free(off);
	return rc;
}

static int net_all_to_all(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	int n = g->c.size, me = g->c.rank;

	copy_unless_same(c->out + vfm_coll_offset_of(g, c, c->recv, me), c->in + vfm_coll_offset_of(g, c, c->send, me),
		vfm_coll_bytes_of(g, c, c->send, me));
	for (int k = 1; k < n; k++) {
		int to = (me + k) % n, from = (me + n - k) % n;

		TRY(exchange_bytes(g, c, to, c->in + vfm_coll_offset_of(g, c, c->send, to),
			vfm_coll_bytes_of(g, c, c->send, to), from, c->out + vfm_coll_offset_of(g, c, c->recv, from),
			vfm_coll_bytes_of(g, c, c->recv, from), err));
	}
	return 0;
}

/* A binomial tree, numbered from the root, in chunks, so that its levels overlap.  The largest subtree comes first. */
static int broadcast_from(struct vfm_hcomm *g, const struct vfm_coll *c, int root, struct vfm_err *err)
{
	int n = g->c.size, me = (g->c.rank + n - root) % n, low = me ? me & -me : 1 << 30, top = 1;
	size_t bytes = (size_t)c->n_out * vfm_dtype_size(c->dtype), at = 0;

	while (2 * top < n)
		top *= 2;
	do {
		size_t m = vfm_min_size(CHUNK, bytes - at);

		if (me)
			TRY(exchange_bytes(g, c, -1, NULL, 0, (me - low + root) % n, c->out + at, m, err));
		for (int bit = top; bit; bit >>= 1)
			if (bit < low && me + bit < n)
				TRY(exchange_bytes(g, c, (me + bit + root) % n, c->out + at, m, -1, NULL, 0, err));
		at += m;
	} while (at < bytes);
	return 0;
}

/* A dissemination barrier: after round k each rank has heard of 2^(k+1) ranks. */
static int net_barrier(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	int n = g->c.size, me = g->c.rank;

	for (int k = 1; k < n; k <<= 1)
		TRY(exchange_bytes(g, c, (me + k) % n, NULL, 0, (me + n - k) % n, NULL, 0, err));
	return 0;
}

static int net_exchange(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	size_t n_out = (size_t)c->n_in, n_in = (size_t)c->n_out;
	int to = n_out ? c->to : -1, from = n_in ? c->from : -1;
	struct vfm_call_sig a = {.kind = VFM_C_EXCHANGE}, b = a;

	if (to == g->c.rank && from == to) { /* a message to this rank itself */
		copy_unless_same(c->out, c->in, n_in);
		return 0;
	}
	if (to >= 0)
		a.number = ++g->sent[to];
	if (from >= 0)
		b.number = ++g->got[from];
	return vfm_net_exchange(g, &a, to, c->in, n_out, &b, from, c->out, n_in, err);
}

int vfm_net_coll(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	switch (c->kind) {
	case VFM_C_ALL_REDUCE:
		return net_all_reduce(g, c, err);
	case VFM_C_ALL_GATHER:
		return net_all_gather(g, c, err);
	case VFM_C_REDUCE_SCATTER:
		return net_reduce_scatter(g, c, err);
	case VFM_C_ALL_TO_ALL:
		return net_all_to_all(g, c, err);
	case VFM_C_BROADCAST:
		return broadcast_from(g, c, c->from, err);
	case VFM_C_EXCHANGE:
		return net_exchange(g, c, err);
	default:
		return net_barrier(g, c, err);
	}
}
