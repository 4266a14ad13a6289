/* The shared memory of the ranks of a node: one file (base/shared.h), which the first rank of the node makes and passes
 * to the others over a local socket.  Each communicator has a segment of it.
 */
#include "comm/host/host_impl.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "spec/model/dtype.h"

enum {
	PAGE = VFM_SHARED_PAGE,
	SLOT_MIN = 32 << 10,
	SLOT_MAX = 1 << 20,
	SLOTS_ALL = 4 << 20, /* of all ranks together: they stay in the cache */
};

struct shm_cell { /* of one rank */
	_Alignas(128) _Atomic uint64_t epoch;
};

struct shm_head {
	_Atomic uint32_t refs; /* counts maps and unmaps; 2n: all ranks have unmapped it */
	_Alignas(128) _Atomic uint64_t arrived;
	_Alignas(128) _Atomic uint32_t epoch, sleepers;
	struct shm_cell cell[]; /* [n], then slots [2][n] */
};

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

/* The bytes of a slot with its header. */
static size_t shm_slot_stride(int n)
{
	return align_size(shm_meta_bytes(n) + shm_slot_bytes(n), PAGE);
}

static size_t shm_segment_bytes(int n)
{
	return shm_head_bytes(n) + 2 * (size_t)n * shm_slot_stride(n);
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
	return (struct shm_meta *)((char *)s->head + shm_head_bytes(s->n) +
		((epoch & 1) * (size_t)s->n + (size_t)rank) * shm_slot_stride(s->n));
}

char *vfm_slot(struct vfm_shm *s, uint64_t epoch, int rank)
{
	return (char *)vfm_slot_meta(s, epoch, rank) + shm_meta_bytes(s->n);
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
		vfm_pause();
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
