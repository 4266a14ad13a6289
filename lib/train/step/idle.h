/* idle.h - the state of a second network that one trainer trains in turn with its first: weights, moments, average and
 * fp8 histories, in pinned host memory or on the device.  An exchange swaps its contents with the trainer's; addresses,
 * captured graphs and registered buffers stay.
 *
 *	TRY(vfm_idle_new(&idle, tr, false, err)); // a copy of the trainer's state
 *	... load the first network into tr
 *	TRY(vfm_idle_exchange(&idle, err));       // tr has the copied state again
 *	... load the second network into tr
 */
#ifndef VFM_TRAIN_STEP_IDLE_H
#define VFM_TRAIN_STEP_IDLE_H

#include "train/step/trainer.h"

struct vfm_idle { /* `= {0}` may be released */
	struct vfm_trainer *tr;
	bool on_device;
	struct vfm_idle_array {
		void *own, *idle; /* of the trainer; the copy */
		size_t bytes;
	} * v; /* [n] */
	size_t n, cap;
	struct vfm_other_store *store; /* [units] base weights, if the trainer has stores of them (net/nn/param.h) */
	bool *filled;                  /* [scales->n] of the fp8 histories (net/nn/scales.h) */
	/* Blocks come in on the compute stream and leave on `out`, through two buffers on the device: written[i] after
	 * a block was copied to buffer i and replaced in the trainer, sent[i] after it was copied on. */
	void *scratch; /* both buffers */
	size_t block;  /* bytes of one */
	struct vfm_stream *out;
	struct vfm_event *written[2], *sent[2];
	int64_t blocks; /* exchanged so far */
	size_t bytes;   /* of all copies */
	size_t moved;   /* by the last exchange; base weights in host memory are not */
};

/* Local.  Allocates the copies and fills them.  VFM_EENV: out of memory.  Release *s in any case. */
int vfm_idle_new(struct vfm_idle *s, struct vfm_trainer *tr, bool on_device, struct vfm_err *err);
/* Collective.  All steps in flight have been read.  Waits for the copies of a save (vfm_trainer_hold), and until the
 * trainer has the other network. */
int vfm_idle_exchange(struct vfm_idle *s, struct vfm_err *err);
void vfm_idle_release(struct vfm_idle *s);

#endif
