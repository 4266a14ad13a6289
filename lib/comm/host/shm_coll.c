/* Collectives of ranks on one node through slots of shared memory, in epochs (host_impl.h). */
#include "comm/host/host_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "base/mem.h"
#include "spec/model/dtype.h"

enum {
	SMALL = 4096,
	DIRECT = 64 << 10, /* blocks of at least this size are read from the memory of the rank that owns them */
	STREAM = 8 << 20,  /* results of at least this size bypass the caches */
};

static void copy_bytes(void *to, const void *from, size_t n)
{
	if (n)
		memcpy(to, from, n);
}

/* Copies a part of a result of `whole` bytes. */
static void copy_part(void *to, const void *from, size_t n, size_t whole)
{
	if (whole >= STREAM)
		vfm_copy_streaming(to, from, n);
	else
		copy_bytes(to, from, n);
}

/* Returns this rank's slot of the next epoch; `first` writes the signature of the call to it. */
static char *next_slot(struct vfm_hcomm *g, const struct vfm_coll *c, bool first)
{
	struct vfm_shm *s = &g->shm;

	if (first)
		vfm_slot_meta(s, s->epoch + 1, s->me)->sig = vfm_coll_sig(g, c);
	return vfm_slot(s, s->epoch + 1, s->me);
}

static const char *peer_slot(struct vfm_hcomm *g, int rank)
{
	return vfm_slot(&g->shm, g->shm.epoch, rank);
}

static const struct shm_meta *peer_meta(struct vfm_hcomm *g, int rank)
{
	return vfm_slot_meta(&g->shm, g->shm.epoch, rank);
}

/* The first barrier of a call: the signatures of all ranks must agree. */
static int first_barrier(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	struct vfm_shm *s = &g->shm;
	struct vfm_call_sig mine = vfm_coll_sig(g, c);

	TRY(vfm_shm_barrier(g, err));
	for (int i = 0; i < s->n; i++)
		if (memcmp(&peer_meta(g, i)->sig, &mine, sizeof(mine)) != 0)
			return vfm_hjob_mismatch(g, i, &mine, &peer_meta(g, i)->sig, err);
	return 0;
}

static int pass_barrier(struct vfm_hcomm *g, const struct vfm_coll *c, bool first, struct vfm_err *err)
{
	return first ? first_barrier(g, c, err) : vfm_shm_barrier(g, err);
}

/* Sums n elements from byte `at` of the slots on; this rank's own operand is at `own`. */
static void sum_slots(struct vfm_hcomm *g, const struct vfm_coll *c, void *out, const void *own, size_t at, size_t n)
{
	struct vfm_shm *s = &g->shm;
	const void *in[VFM_NODE_RANKS];

	for (int i = 0; i < s->n; i++)
		in[i] = i == s->me ? own : peer_slot(g, i) + at;
	vfm_comm_sum(c->dtype, out, in, s->n, n);
}

/* Returns where rank i's part of a chunk of n elements begins; parts are aligned to cache lines of f32. */
static size_t part_offset(size_t n, int ranks, int i)
{
	size_t each = (n + (size_t)ranks - 1) / (size_t)ranks;

	each = (each + 15) / 16 * 16;
	return vfm_min_size(n, each * (size_t)i);
}

static int shm_all_reduce(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	struct vfm_shm *s = &g->shm;
	size_t es = vfm_dtype_size(c->dtype), n = (size_t)c->n_out, chunk = s->slot / es;

	if (n * es <= SMALL) {
		copy_bytes(next_slot(g, c, true), c->in, n * es);
		TRY(first_barrier(g, c, err));
		sum_slots(g, c, c->out, c->in, 0, n);
		return 0;
	}
	for (size_t at = 0; at < n; at += chunk) {
		size_t m = vfm_min_size(chunk, n - at), lo = part_offset(m, s->n, s->me),
		       hi = part_offset(m, s->n, s->me + 1);

		char *slot = next_slot(g, c, at == 0);

		copy_bytes(slot, c->in + at * es, lo * es);
		copy_bytes(slot + hi * es, c->in + (at + hi) * es, (m - hi) * es);
		TRY(pass_barrier(g, c, at == 0, err));
		slot = next_slot(g, c, false);
		sum_slots(g, c, slot + lo * es, c->in + (at + lo) * es, lo * es, hi - lo);
		copy_bytes(c->out + (at + lo) * es, slot + lo * es, (hi - lo) * es); /* still in the cache */
		TRY(vfm_shm_barrier(g, err));
		for (int k = 0; k < s->n; k++) {
			lo = part_offset(m, s->n, k), hi = part_offset(m, s->n, k + 1);
			if (k != s->me)
				copy_bytes(c->out + (at + lo) * es, peer_slot(g, k) + lo * es, (hi - lo) * es);
		}
	}
	return 0;
}

/* Reads n bytes of another rank's memory, which that rank does not change before the next barrier. */
static int read_peer_memory(struct vfm_hcomm *g, int peer, char *to, uint64_t addr, size_t n, struct vfm_err *err)
{
	pid_t pid = g->job->pid[g->world[peer]];

	while (n) {
		struct iovec here = {to, n}, there = {(void *)(uintptr_t)addr, n};
		ssize_t k = process_vm_readv(pid, &here, 1, &there, 1, 0);

		if (k <= 0)
			return vfm_hjob_lost(g, peer, k < 0 ? strerror(errno) : "its memory cannot be read", err);
		to += k;
		addr += (size_t)k;
		n -= (size_t)k;
	}
	return 0;
}

/* With more ranks than processors, the barrier after direct reads costs more than a copy in the cache. */
static bool uses_direct_reads(const struct vfm_hcomm *g, size_t block)
{
	const struct vfm_hjob *j = g->job;

	return j->pid && j->spin && block >= DIRECT;
}

static int shm_all_gather_direct(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	struct vfm_shm *s = &g->shm;
	char *own = c->out + vfm_coll_offset_of(g, c, c->send, s->me);

	next_slot(g, c, true);
	vfm_slot_meta(s, s->epoch + 1, s->me)->addr = (uintptr_t)c->in;
	TRY(first_barrier(g, c, err));
	for (int k = 1; k < s->n; k++) {
		int i = (s->me + k) % s->n;

		TRY(read_peer_memory(g, i, c->out + vfm_coll_offset_of(g, c, c->send, i), peer_meta(g, i)->addr,
			vfm_coll_bytes_of(g, c, c->send, i), err));
	}
	if (own != c->in)
		copy_bytes(own, c->in, vfm_coll_bytes_of(g, c, c->send, s->me));
	return vfm_shm_barrier(g, err);
}

static size_t largest_block(const struct vfm_hcomm *g, const struct vfm_coll *c)
{
	size_t most = 0;

	for (int i = 0; i < g->c.size; i++)
		if (vfm_coll_bytes_of(g, c, c->send, i) > most)
			most = vfm_coll_bytes_of(g, c, c->send, i);
	return most;
}

static int shm_all_gather(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	struct vfm_shm *s = &g->shm;
	size_t mine = vfm_coll_bytes_of(g, c, c->send, s->me), most = largest_block(g, c), at = 0;
	char *own = c->out + vfm_coll_offset_of(g, c, c->send, s->me);

	if (uses_direct_reads(g, most))
		return shm_all_gather_direct(g, c, err);
	do {
		if (at < mine)
			copy_bytes(next_slot(g, c, at == 0), c->in + at, vfm_min_size(s->slot, mine - at));
		else
			next_slot(g, c, at == 0);
		TRY(pass_barrier(g, c, at == 0, err));
		for (int i = 0; i < s->n; i++) {
			size_t n = vfm_coll_bytes_of(g, c, c->send, i);

			if (i != s->me && at < n)
				copy_part(c->out + vfm_coll_offset_of(g, c, c->send, i) + at, peer_slot(g, i),
					vfm_min_size(s->slot, n - at), (size_t)c->n_out * vfm_dtype_size(c->dtype));
		}
		at += s->slot;
	} while (at < most);
	if (mine && own != c->in)
		memmove(own, c->in, mine);
	return 0;
}

static int shm_reduce_scatter(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	struct vfm_shm *s = &g->shm;
	size_t sub = s->slot / (size_t)s->n / 64 * 64, es = vfm_dtype_size(c->dtype),
	       mine = vfm_coll_bytes_of(g, c, c->send, s->me), most = largest_block(g, c), at = 0;
	const char *own = c->in + vfm_coll_offset_of(g, c, c->send, s->me);

	do {
		char *slot = next_slot(g, c, at == 0);

		for (int i = 0; i < s->n; i++) {
			size_t n = vfm_coll_bytes_of(g, c, c->send, i);

			if (i != s->me && at < n)
				copy_bytes(slot + (size_t)i * sub, c->in + vfm_coll_offset_of(g, c, c->send, i) + at,
					vfm_min_size(sub, n - at));
		}
		TRY(pass_barrier(g, c, at == 0, err));
		if (at < mine)
			sum_slots(g, c, c->out + at, own + at, (size_t)s->me * sub, vfm_min_size(sub, mine - at) / es);
		at += sub;
	} while (at < most);
	return 0;
}

/* Compares the sizes that the ranks send, in the tables of their slots, with those that this rank expects. */
static int check_a2a_tables(struct vfm_hcomm *g, const struct vfm_coll *c, size_t *most, struct vfm_err *err)
{
	struct vfm_shm *s = &g->shm;

	TRY(first_barrier(g, c, err));
	for (int i = 0; i < s->n; i++) {
		const struct shm_meta *m = peer_meta(g, i);
		uint64_t want = vfm_coll_bytes_of(g, c, c->recv, i);

		if (m->table[s->me] != want) {
			struct vfm_call_sig mine = vfm_coll_sig(g, c), theirs = mine;

			mine.bytes = want;
			theirs.bytes = m->table[s->me];
			return vfm_hjob_mismatch(g, i, &mine, &theirs, err);
		}
		if (m->max > *most)
			*most = m->max;
	}
	return 0;
}

static int shm_all_to_all_direct(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	struct vfm_shm *s = &g->shm;

	for (int k = 1; k < s->n; k++) {
		int i = (s->me + k) % s->n;
		const struct shm_meta *m = peer_meta(g, i);
		uint64_t addr = m->addr;

		for (int q = 0; q < s->me; q++)
			addr += m->table[q];
		TRY(read_peer_memory(g, i, c->out + vfm_coll_offset_of(g, c, c->recv, i), addr,
			vfm_coll_bytes_of(g, c, c->recv, i), err));
	}
	copy_bytes(c->out + vfm_coll_offset_of(g, c, c->recv, s->me), c->in + vfm_coll_offset_of(g, c, c->send, s->me),
		vfm_coll_bytes_of(g, c, c->send, s->me));
	return vfm_shm_barrier(g, err);
}

static int shm_all_to_all(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	struct vfm_shm *s = &g->shm;
	size_t sub = s->slot / (size_t)s->n / 64 * 64, at = 0, most = 0;
	struct shm_meta *m = vfm_slot_meta(s, s->epoch + 1, s->me);
	bool direct;

	m->max = 0;
	m->addr = (uintptr_t)c->in;
	for (int i = 0; i < s->n; i++) {
		m->table[i] = vfm_coll_bytes_of(g, c, c->send, i);
		if (m->table[i] > m->max)
			m->max = m->table[i];
	}
	direct = uses_direct_reads(g, m->max); /* then all ranks use direct reads: the slots stay empty */
	do {
		char *slot = next_slot(g, c, at == 0);

		for (int i = 0; i < s->n; i++) {
			size_t n = vfm_coll_bytes_of(g, c, c->send, i);

			if (i != s->me && at < n && !direct)
				copy_bytes(slot + (size_t)i * sub, c->in + vfm_coll_offset_of(g, c, c->send, i) + at,
					vfm_min_size(sub, n - at));
		}
		if (at == 0)
			TRY(check_a2a_tables(g, c, &most, err));
		else
			TRY(vfm_shm_barrier(g, err));
		if (uses_direct_reads(g, most))
			return shm_all_to_all_direct(g, c, err);
		for (int i = 0; i < s->n; i++) {
			size_t n = vfm_coll_bytes_of(g, c, c->recv, i);

			if (i != s->me && at < n)
				copy_part(c->out + vfm_coll_offset_of(g, c, c->recv, i) + at,
					peer_slot(g, i) + (size_t)s->me * sub, vfm_min_size(sub, n - at),
					(size_t)c->n_out * vfm_dtype_size(c->dtype));
		}
		at += sub;
	} while (at < most);
	copy_bytes(c->out + vfm_coll_offset_of(g, c, c->recv, s->me), c->in + vfm_coll_offset_of(g, c, c->send, s->me),
		vfm_coll_bytes_of(g, c, c->send, s->me));
	return 0;
}

static int shm_broadcast(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	struct vfm_shm *s = &g->shm;
	size_t n = (size_t)c->n_out * vfm_dtype_size(c->dtype), at = 0;

	do {
		size_t m = vfm_min_size(s->slot, n - at);
		char *slot = next_slot(g, c, at == 0);

		if (s->me == c->from)
			copy_bytes(slot, c->in + at, m);
		TRY(pass_barrier(g, c, at == 0, err));
		if (s->me != c->from)
			copy_bytes(c->out + at, peer_slot(g, c->from), m);
		at += s->slot;
	} while (at < n);
	return 0;
}

static int shm_barrier(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	next_slot(g, c, true);
	return first_barrier(g, c, err);
}

int vfm_shm_coll(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	switch (c->kind) {
	case VFM_C_ALL_REDUCE:
		return shm_all_reduce(g, c, err);
	case VFM_C_ALL_GATHER:
		return shm_all_gather(g, c, err);
	case VFM_C_REDUCE_SCATTER:
		return shm_reduce_scatter(g, c, err);
	case VFM_C_ALL_TO_ALL:
		return shm_all_to_all(g, c, err);
	case VFM_C_BROADCAST:
		return shm_broadcast(g, c, err);
	default:
		return shm_barrier(g, c, err);
	}
}
