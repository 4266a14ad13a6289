/* loader_ring.c - a ring of packs in memory shared by ranks, with futex words for full and free slots. */
#include "data/loader/loader_ring.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
	POLL_MS = 100,
	GRAIN = 2 << 20, /* blocks are multiples of it */
};

struct ring_slot {
	_Alignas(128) _Atomic uint32_t filled;
	_Alignas(128) _Atomic uint32_t released;
	int32_t rc;
	uint64_t at, bytes; /* with a group: the block */
	struct vfm_pack p;  /* its arrays are elsewhere in other ranks */
	struct vfm_load_facts facts;
	struct vfm_err err;
};

struct vfm_ring_head {
	_Atomic uint32_t closed; /* ranks that have closed the ring */
	struct ring_slot slot[];
};

static bool is_shared(const struct vfm_ring *r)
{
	return r->g.size > 1;
}

static size_t head_bytes(int32_t n_slots)
{
	return sizeof(struct vfm_ring_head) + (size_t)n_slots * sizeof(struct ring_slot);
}

size_t vfm_loader_group_bytes(void)
{
	return head_bytes(VFM_LOADER_SLOTS_MAX);
}

static struct ring_slot *slot_of(const struct vfm_ring *r, int64_t seq)
{
	return &r->head->slot[seq % r->n_slots];
}

static uint32_t lap_of(const struct vfm_ring *r, int64_t seq)
{
	return (uint32_t)(seq / r->n_slots + 1);
}

int vfm_ring_open(struct vfm_ring *r, const struct vfm_loader_group *group, int32_t n_slots, struct vfm_err *err)
{
	void *p;

	*r = (struct vfm_ring){.g = {.size = 1}, .n_slots = n_slots};
	if (group)
		r->g = *group;
	r->block = vfm_calloc((size_t)n_slots, sizeof(*r->block));
	if (is_shared(r)) {
		vfm_shared_map(r->g.mem, r->g.at, head_bytes(n_slots), "the slots of the loader", &p, err);
	} else {
		p = vfm_big_alloc(head_bytes(n_slots), "the slots of the loader", err);
		if (p)
			memset(p, 0, head_bytes(n_slots));
	}
	r->head = p;
	return p ? 0 : VFM_EENV;
}

void vfm_ring_stop(struct vfm_ring *r)
{
	atomic_store(&r->closing, true);
	for (int32_t i = 0; r->head && i < r->n_slots; i++)
		vfm_word_wake(&r->head->slot[i].released);
}

/* The last rank gives the memory back. */
static void close_shared(struct vfm_ring *r)
{
	bool last = atomic_fetch_add(&r->head->closed, 1) + 1 == (uint32_t)r->g.size;

	for (int32_t i = 0; i < r->n_slots; i++) {
		vfm_shared_unmap(r->block[i].p, r->block[i].bytes);
		if (last && r->head->slot[i].bytes)
			vfm_shared_discard(r->g.mem, r->head->slot[i].at, r->head->slot[i].bytes);
	}
	vfm_shared_unmap(r->head, head_bytes(r->n_slots));
	if (last)
		vfm_shared_discard(r->g.mem, r->g.at, vfm_loader_group_bytes());
}

void vfm_ring_close(struct vfm_ring *r)
{
	if (r->head && is_shared(r)) {
		close_shared(r);
	} else if (r->head) {
		for (int32_t i = 0; i < r->n_slots; i++)
			vfm_big_free(r->block[i].p, r->block[i].bytes);
		vfm_big_free(r->head, head_bytes(r->n_slots));
	}
	free(r->block);
	*r = (struct vfm_ring){0};
}

bool vfm_ring_reads(const struct vfm_ring *r, int64_t seq)
{
	return seq % r->g.size == r->g.rank;
}

bool vfm_ring_wait_free(struct vfm_ring *r, int64_t seq)
{
	struct ring_slot *s = slot_of(r, seq);
	uint32_t wanted = (lap_of(r, seq) - 1) * (uint32_t)r->g.size, now;

	while ((now = atomic_load(&s->released)) != wanted) {
		vfm_word_wait(&s->released, now, POLL_MS);
		if (atomic_load(&r->closing) || (r->g.check && r->g.check(r->g.ctx, NULL) < 0))
			return false;
	}
	return !atomic_load(&r->closing);
}

/* A new block in the shared memory.  No rank uses the old one, although some may still map it. */
static int grow_shared(struct vfm_ring *r, struct ring_slot *s, struct vfm_ring_block *b, struct vfm_err *err)
{
	uint64_t at = vfm_shared_reserve(r->g.mem, b->bytes);

	TRY(vfm_shared_map(r->g.mem, at, b->bytes, "a pack of samples", &b->p, err));
	if (s->bytes)
		vfm_shared_discard(r->g.mem, s->at, s->bytes);
	s->at = b->at = at;
	s->bytes = b->bytes;
	return 0;
}

/* Maps the block that the slot has now. */
static int follow_block(struct vfm_ring *r, const struct ring_slot *s, struct vfm_ring_block *b, struct vfm_err *err)
{
	if (!is_shared(r) || (b->at == s->at && b->bytes == s->bytes))
		return 0;
	vfm_shared_unmap(b->p, b->bytes);
	*b = (struct vfm_ring_block){.at = s->at, .bytes = s->bytes};
	return s->bytes ? vfm_shared_map(r->g.mem, s->at, s->bytes, "a pack of samples", &b->p, err) : 0;
}

int vfm_ring_place(struct vfm_ring *r, int64_t seq, struct vfm_pack *p, struct vfm_err *err)
{
	struct ring_slot *s = slot_of(r, seq);
	struct vfm_ring_block *b = &r->block[seq % r->n_slots];
	size_t bytes = vfm_pack_bytes(p);

	TRY(follow_block(r, s, b, err));
	if (b->bytes < bytes) {
		size_t old = b->bytes;
		int rc = 0;

		bytes += bytes / 4; /* packs have nearly equal sizes: the block fits most of those that follow */
		bytes = (bytes + GRAIN - 1) / GRAIN * GRAIN;
		if (is_shared(r)) {
			vfm_shared_unmap(b->p, old);
			*b = (struct vfm_ring_block){.bytes = bytes};
			rc = grow_shared(r, s, b, err);
		} else {
			vfm_big_free(b->p, old);
			*b = (struct vfm_ring_block){
				.p = vfm_big_alloc(bytes, "a pack of samples", err), .bytes = bytes};
			rc = b->p ? 0 : VFM_EENV;
		}
		if (rc < 0)
			*b = (struct vfm_ring_block){0};
		TRY(rc);
	}
	vfm_pack_place(p, b->p);
	p->cu_seqlens[0] = 0;
	p->cu_text[0] = 0;
	if (p->cu_text2)
		p->cu_text2[0] = 0;
	return 0;
}

void vfm_ring_publish(struct vfm_ring *r, int64_t seq, const struct vfm_pack *p, const struct vfm_load_facts *facts,
	int rc, const struct vfm_err *why)
{
	struct ring_slot *s = slot_of(r, seq);

	s->p = *p;
	s->facts = *facts;
	s->rc = rc;
	if (rc < 0)
		s->err = *why;
	atomic_store(&s->filled, lap_of(r, seq));
	vfm_word_wake(&s->filled);
}

int vfm_ring_take(
	struct vfm_ring *r, int64_t seq, struct vfm_pack *p, struct vfm_load_facts *facts, struct vfm_err *err)
{
	struct ring_slot *s = slot_of(r, seq);
	struct vfm_ring_block *b = &r->block[seq % r->n_slots];
	uint32_t lap = lap_of(r, seq), now;

	while ((now = atomic_load(&s->filled)) != lap) {
		vfm_word_wait(&s->filled, now, POLL_MS);
		if (r->g.check && atomic_load(&s->filled) != lap)
			TRY(r->g.check(r->g.ctx, err));
	}
	*facts = s->facts;
	if (s->rc < 0) {
		if (err)
			*err = s->err;
		return s->rc;
	}
	TRY(follow_block(r, s, b, err));
	*p = s->p;
	vfm_pack_place(p, b->p);
	return 0;
}

void vfm_ring_release(struct vfm_ring *r, int64_t seq)
{
	struct ring_slot *s = slot_of(r, seq);

	atomic_fetch_add(&s->released, 1);
	vfm_word_wake(&s->released);
}
