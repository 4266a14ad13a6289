/* loader_ring.h - the slots of a loader: packs on their way from the rank that reads them to the ranks that use them.
 *
 * Pack number `seq` uses slot seq % n_slots in lap seq / n_slots + 1, and rank seq % size of the group reads it.  A
 * slot has two counters: `filled`, the number of laps whose pack is complete, and `released`, the releases of all ranks
 * in all laps.  The reader of lap t waits until released is (t - 1) size; a user waits until filled is t.  So a reader
 * never waits for a later pack.
 *
 * With a group, the slots and their arrays are in shared memory, which each rank maps at its own addresses.
 */
#ifndef VFM_DATA_LOADER_LOADER_RING_H
#define VFM_DATA_LOADER_LOADER_RING_H

#include "data/loader/loader.h"

enum { VFM_LOAD_NAMED = 8 }; /* maximum replaced samples of a pack that are named */

/* Sent by the reader of a pack to the ranks that use it. */
struct vfm_load_facts {
	bool unused; /* no rank uses the pack, which has no samples */
	int64_t unlisted, replaced;
	struct vfm_plan_sample named[VFM_LOAD_NAMED]; /* the first replaced samples */
	double spent_s[VFM_LOAD_CAUSES];
};

struct vfm_ring_block { /* memory for the arrays of a pack */
	void *p;
	size_t bytes;
	uint64_t at; /* with a group: the offset in its memory */
};

struct vfm_ring {
	struct vfm_loader_group g; /* size 1: no group */
	struct vfm_ring_head *head;
	int32_t n_slots;
	struct vfm_ring_block *block; /* [n_slots] as mapped by this rank */
	_Atomic bool closing;
};

/* group is copied; NULL: none. */
int vfm_ring_open(struct vfm_ring *r, const struct vfm_loader_group *group, int32_t n_slots, struct vfm_err *err);
/* Ends the waits for slots, so that the threads that fill them can be joined. */
void vfm_ring_stop(struct vfm_ring *r);
void vfm_ring_close(struct vfm_ring *r); /* accepts `{0}` */

/* Returns whether this rank reads the pack. */
bool vfm_ring_reads(const struct vfm_ring *r, int64_t seq);

/* ---- for the reader, in any thread ---- */

/* Waits until all ranks have released the slot's previous pack.  Returns false if the group failed, or after
 * vfm_ring_stop.  Publish nothing then, since others may still use the previous pack. */
bool vfm_ring_wait_free(struct vfm_ring *r, int64_t seq);
/* Places the arrays of p in the slot, with sizes as for vfm_pack_alloc.  May be called again with other sizes. */
int vfm_ring_place(struct vfm_ring *r, int64_t seq, struct vfm_pack *p, struct vfm_err *err);
/* Publishes the pack, or with rc < 0 the error `why`. */
void vfm_ring_publish(struct vfm_ring *r, int64_t seq, const struct vfm_pack *p, const struct vfm_load_facts *facts,
	int rc, const struct vfm_err *why);

/* ---- for the user ---- */

/* Waits for the pack.  Returns its error, which is permanent, or VFM_EENV if the group failed. */
int vfm_ring_take(
	struct vfm_ring *r, int64_t seq, struct vfm_pack *p, struct vfm_load_facts *facts, struct vfm_err *err);
void vfm_ring_release(struct vfm_ring *r, int64_t seq);

#endif
