/* The shared memory of the ranks of a node.
 *
 * It is one file (base/shared.h) per node.  The first rank of the node makes it and passes it to the others over a
 * local socket.  Each communicator has a segment of it.
 */
#include "comm/host/host_impl.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "spec/model/dtype.h"

enum {
	PAGE = VFM_SHARED_PAGE,
	MAIL = 512 << 10, /* bytes of a mailbox */
	SLOT_MIN = 32 << 10,
	SLOT_MAX = 1 << 20,
	SLOTS_ALL = 4 << 20, /* of all ranks together: they stay in the cache */
};

struct shm_cell { /* of one rank */
	_Alignas(128) _Atomic uint64_t epoch;
	_Atomic uint32_t doorbell, asleep;
};

struct mailbox {                             /* from one rank to another: a ring of bytes, in units of 64 */
	_Alignas(128) _Atomic uint64_t head; /* written */
	_Alignas(128) _Atomic uint64_t tail; /* read */
	_Alignas(64) char data[MAIL];
};

struct shm_head {
	_Atomic uint32_t refs; /* counts maps and unmaps; 2n: all ranks have unmapped it */
	_Alignas(128) _Atomic uint64_t arrived;
	_Alignas(128) _Atomic uint32_t epoch, sleepers;
	struct shm_cell cell[]; /* [n], then slots [2][n], then mailboxes [n][n] */
};

static inline void pause_cpu(void)
{
#ifdef __x86_64__
	__builtin_ia32_pause();
#endif
}

static size_t align_size(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

/* ---- the segment of a communicator ---- */

static size_t shm_head_bytes(int n)
{
	return align_size(sizeof(struct shm_head) + (size_t)n * sizeof(struct shm_cell), PAGE);
}

static size_t shm_meta_bytes(int n)
{
	return align_size(sizeof(struct shm_meta) + (size_t)n * 8, 64);
}

static size_t shm_slot_bytes(int n)
{
	size_t s = SLOTS_ALL / (size_t)n / PAGE * PAGE;

	s = s < SLOT_MIN ? SLOT_MIN : s > SLOT_MAX ? SLOT_MAX : s;
	return s < (size_t)n * 64 ? align_size((size_t)n * 64, PAGE) : s;
}

static size_t shm_segment_bytes(int n)
{
	size_t k = (size_t)n;

	return align_size(shm_head_bytes(n) + 2 * k * align_size(shm_meta_bytes(n) + shm_slot_bytes(n), PAGE) +
			k * k * sizeof(struct mailbox),
		PAGE);
}

uint64_t vfm_shm_reserve(struct vfm_hjob *j, int n)
{
	return vfm_shared_reserve(&j->shared, shm_segment_bytes(n));
}

int vfm_shm_map(struct vfm_hcomm *g, uint64_t at, struct vfm_err *err)
{
	struct vfm_shm *s = &g->shm;
	size_t bytes = shm_segment_bytes(g->c.size);
	char what[sizeof(g->c.name) + 16];
	void *p;

	snprintf(what, sizeof(what), "the group '%s'", g->c.name);
	TRY(vfm_shared_map(&g->job->shared, at, bytes, what, &p, err));
	*s = (struct vfm_shm){.head = p,
		.bytes = bytes,
		.slot = shm_slot_bytes(g->c.size),
		.at = at,
		.n = g->c.size,
		.me = g->c.rank};
	atomic_fetch_add(&s->head->refs, 1);
	return 0;
}

void vfm_shm_unmap(struct vfm_hcomm *g)
{
	struct vfm_shm *s = &g->shm;
	bool last;

	if (!s->head)
		return;
	last = atomic_fetch_add(&s->head->refs, 1) + 1 == 2 * (uint32_t)s->n;
	vfm_shared_unmap(s->head, s->bytes);
	if (last)
		vfm_shared_discard(&g->job->shared, s->at, s->bytes);
	s->head = NULL;
}

struct shm_meta *vfm_slot_meta(struct vfm_shm *s, uint64_t epoch, int rank)
{
	size_t stride = align_size(shm_meta_bytes(s->n) + shm_slot_bytes(s->n), PAGE);

	return (struct shm_meta *)((char *)s->head + shm_head_bytes(s->n) +
		((epoch & 1) * (size_t)s->n + (size_t)rank) * stride);
}

char *vfm_slot(struct vfm_shm *s, uint64_t epoch, int rank)
{
	return (char *)vfm_slot_meta(s, epoch, rank) + shm_meta_bytes(s->n);
}

static struct mailbox *mailbox_at(struct vfm_shm *s, int from, int to)
{
	char *at = (char *)vfm_slot_meta(s, 0, 0) +
		2 * (size_t)s->n * align_size(shm_meta_bytes(s->n) + shm_slot_bytes(s->n), PAGE);

	return (struct mailbox *)at + (size_t)from * (size_t)s->n + (size_t)to;
}

/* ---- barriers ---- */

static bool barrier_passed(struct shm_head *h, uint32_t epoch)
{
	return (int32_t)(atomic_load(&h->epoch) - epoch) >= 0;
}

static int find_missing_rank(struct vfm_shm *s, uint64_t epoch)
{
	for (int i = 0; i < s->n; i++)
		if (atomic_load(&s->head->cell[i].epoch) < epoch)
			return i;
	return s->me;
}

int vfm_shm_barrier(struct vfm_hcomm *g, struct vfm_err *err)
{
	struct vfm_shm *s = &g->shm;
	struct shm_head *h = s->head;
	uint64_t epoch = ++s->epoch;
	int rc = 0;

	atomic_store_explicit(&h->cell[s->me].epoch, epoch, memory_order_release);
	if (atomic_fetch_add(&h->arrived, 1) + 1 == epoch * (uint64_t)s->n) {
		atomic_store(&h->epoch, (uint32_t)epoch);
		if (atomic_load(&h->sleepers))
			vfm_word_wake(&h->epoch);
		return 0;
	}
	for (int i = 0; i < g->job->spin; i++) {
		if (barrier_passed(h, (uint32_t)epoch))
			return 0;
		pause_cpu();
	}
	for (int i = 0; i < g->job->yields; i++) {
		if (barrier_passed(h, (uint32_t)epoch))
			return 0;
		sched_yield();
	}
	atomic_fetch_add(&h->sleepers, 1);
	while (!barrier_passed(h, (uint32_t)epoch)) {
		int peer = find_missing_rank(s, epoch);

		if (peer != s->me) /* else: the last rank is about to publish the epoch */
			vfm_wait_begin(g, peer);
		vfm_word_wait(&h->epoch, (uint32_t)epoch - 1, VFM_POLL_MS);
		if (!barrier_passed(h, (uint32_t)epoch) && (rc = vfm_wait_check(g, err)) < 0)
			break;
	}
	atomic_fetch_sub(&h->sleepers, 1);
	vfm_wait_end(g);
	return rc;
}

/* ---- mailboxes: messages between two ranks ---- */

struct message_header { /* precedes each message; 64 bytes */
	_Alignas(64) struct vfm_call_sig sig;
	uint64_t bytes;
};

struct mailbox_transfer { /* one direction of an exchange */
	struct mailbox *box;
	int peer;
	char *p;
	size_t n, done;
	bool begun;
	struct vfm_call_sig sig;
};

static bool mailbox_transfer_done(const struct mailbox_transfer *x)
{
	return !x->box || (x->begun && x->done == x->n);
}

static void ring_doorbell(struct vfm_shm *s, int peer)
{
	struct shm_cell *c = &s->head->cell[peer];

	atomic_fetch_add(&c->doorbell, 1);
	if (atomic_load(&c->asleep))
		vfm_word_wake(&c->doorbell);
}

/* Copies between a message and the ring, where `room` bytes are free (out) or filled at `pos`. */
static size_t copy_ring_bytes(struct mailbox_transfer *x, uint64_t pos, size_t room, bool out)
{
	size_t m = x->n - x->done < room ? x->n - x->done : room, at = pos % MAIL,
	       first = m < MAIL - at ? m : MAIL - at;

	if (out) {
		memcpy(x->box->data + at, x->p + x->done, first);
		memcpy(x->box->data, x->p + x->done + first, m - first);
	} else {
		memcpy(x->p + x->done, x->box->data + at, first);
		memcpy(x->p + x->done + first, x->box->data, m - first);
	}
	x->done += m;
	return align_size(m, 64);
}

static bool fill_mailbox(struct mailbox_transfer *x)
{
	uint64_t head = atomic_load_explicit(&x->box->head, memory_order_relaxed), was = head;
	size_t room = MAIL - (size_t)(head - atomic_load_explicit(&x->box->tail, memory_order_acquire));

	if (!x->begun && room >= sizeof(struct message_header)) {
		*(struct message_header *)(x->box->data + head % MAIL) =
			(struct message_header){.sig = x->sig, .bytes = x->n};
		x->begun = true;
		head += sizeof(struct message_header);
		room -= sizeof(struct message_header);
	}
	if (x->begun && room)
		head += copy_ring_bytes(x, head, room, true);
	atomic_store_explicit(&x->box->head, head, memory_order_release);
	return head != was;
}

static int drain_mailbox(struct vfm_hcomm *g, struct mailbox_transfer *x, bool *moved, struct vfm_err *err)
{
	uint64_t tail = atomic_load_explicit(&x->box->tail, memory_order_relaxed), was = tail;
	size_t there = (size_t)(atomic_load_explicit(&x->box->head, memory_order_acquire) - tail);

	if (!x->begun && there >= sizeof(struct message_header)) {
		struct message_header l = *(struct message_header *)(x->box->data + tail % MAIL);

		if (memcmp(&l.sig, &x->sig, sizeof(l.sig)) != 0 || l.bytes != x->n) {
			struct vfm_call_sig mine = x->sig, theirs = l.sig;

			mine.bytes = x->n;
			theirs.bytes = l.bytes;
			return vfm_hjob_mismatch(g, x->peer, &mine, &theirs, err);
		}
		x->begun = true;
		tail += sizeof(l);
		there -= sizeof(l);
	}
	if (x->begun && there)
		tail += copy_ring_bytes(x, tail, there, false);
	atomic_store_explicit(&x->box->tail, tail, memory_order_release);
	*moved = tail != was;
	return 0;
}

static int advance_transfers(struct vfm_hcomm *g, struct mailbox_transfer *out, struct mailbox_transfer *in,
	bool *moved, struct vfm_err *err)
{
	bool got = false;

	*moved = false;
	if (!mailbox_transfer_done(out) && fill_mailbox(out)) {
		ring_doorbell(&g->shm, out->peer);
		*moved = true;
	}
	if (!mailbox_transfer_done(in)) {
		TRY(drain_mailbox(g, in, &got, err));
		if (got) {
			ring_doorbell(&g->shm, in->peer);
			*moved = true;
		}
	}
	return 0;
}

static int wait_for_doorbell(struct vfm_hcomm *g, struct mailbox_transfer *out, struct mailbox_transfer *in,
	uint32_t doorbell, struct vfm_err *err)
{
	struct shm_cell *c = &g->shm.head->cell[g->shm.me];
	int rc;

	for (int i = 0; i < g->job->spin; i++) {
		if (atomic_load_explicit(&c->doorbell, memory_order_acquire) != doorbell)
			return 0;
		pause_cpu();
	}
	for (int i = 0; i < g->job->yields; i++) {
		if (atomic_load_explicit(&c->doorbell, memory_order_acquire) != doorbell)
			return 0;
		sched_yield();
	}
	vfm_wait_begin(g, !mailbox_transfer_done(in) ? in->peer : out->peer);
	atomic_store(&c->asleep, 1);
	vfm_word_wait(&c->doorbell, doorbell, VFM_POLL_MS);
	atomic_store(&c->asleep, 0);
	rc = vfm_wait_check(g, err);
	return rc;
}

int vfm_shm_exchange(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	struct vfm_shm *s = &g->shm;
	struct mailbox_transfer out = {.peer = c->to, .p = c->in, .n = (size_t)c->n_in},
				in = {.peer = c->from, .p = c->out, .n = (size_t)c->n_out};
	bool moved;
	int rc = 0;

	if (c->to >= 0 && out.n) {
		out.box = mailbox_at(s, s->me, c->to);
		out.sig = (struct vfm_call_sig){.number = ++g->sent[c->to], .kind = VFM_C_EXCHANGE};
	}
	if (c->from >= 0 && in.n) {
		in.box = mailbox_at(s, c->from, s->me);
		in.sig = (struct vfm_call_sig){.number = ++g->got[c->from], .kind = VFM_C_EXCHANGE};
	}
	while (rc >= 0 && (!mailbox_transfer_done(&out) || !mailbox_transfer_done(&in))) {
		uint32_t doorbell = atomic_load(&s->head->cell[s->me].doorbell);

		rc = advance_transfers(g, &out, &in, &moved, err);
		if (moved)
			vfm_wait_end(g);
		else if (rc >= 0)
			rc = wait_for_doorbell(g, &out, &in, doorbell, err);
	}
	vfm_wait_end(g);
	return rc;
}
