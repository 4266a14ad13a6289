/* trainer.h - one rank's part of a training step, from packs to updated weights.
 *
 *	vfm_trainer_step(tr, step, n_packs, &source, lr, err);  // enqueues forward, backward, clip, update
 *	vfm_trainer_stats(tr, &stats, err);                     // waits for the device
 *
 * Nothing in a step waits for the device (but experts that need the sizes of messages: nn/moe.h), so that the next step
 * may be put on it before the last is read, one step late.  A device without a queue has done the step when the call
 * returns.
 *
 * The loss is the mean over the tokens of the global step; its denominator comes from the
 * manifest, so packs, ranks and accumulation do not change it.
 */
#ifndef VFM_TRAIN_TRAINER_H
#define VFM_TRAIN_TRAINER_H

#include "mesh/mesh.h"
#include "model/model.h"
#include "train/config.h"
#include "train/optim.h"
#include "train/pipeline.h"
#include "train/stats.h"

struct vfm_trainer;

struct vfm_step_stats {
	/* of the global step, the same on every rank */
	double loss, grad_norm;
	double flops; /* of the model: 3 x forward, recompute not counted */
	int64_t tokens, samples;
	/* of this rank; the trainer measures comm_s, bubble_s, copy_s and host_s */
	struct vfm_rank_stats rank;
};

/* Builds the model on the device and fills its weights from the seed (collective).  The mesh must outlive it. */
struct vfm_trainer *vfm_trainer_new(
	const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_stream *s, struct vfm_err *err);
/* NULL is fine.  After a failed step it waits for messages to other ranks: where these may not receive any more, the
 * world is to be told first (vfm_comm_host_abort). */
void vfm_trainer_free(struct vfm_trainer *tr);

/* Collective.  n_packs: this rank's, the same on all ranks; those of a cp x tp group, and all stages, get the same
 * packs.  After a failure the trainer can only be freed. */
int vfm_trainer_step(struct vfm_trainer *tr, int64_t step, int64_t n_packs, const struct vfm_pack_source *src,
	double lr, struct vfm_err *err);
/* Local: the oldest step that was not read yet; waits for it.  Of more than VFM_TRAINER_UNREAD the oldest are
 * forgotten. */
enum { VFM_TRAINER_UNREAD = 2 };
int vfm_trainer_stats(struct vfm_trainer *tr, struct vfm_step_stats *out, struct vfm_err *err);
bool vfm_trainer_done(
	const struct vfm_trainer *tr); /* whether stats would not wait (a failed device does not make it wait) */

/* The next update of weights and moments is put behind the event (of a copy that reads them); NULL: behind none. */
void vfm_trainer_hold(struct vfm_trainer *tr, struct vfm_event *e);

/* Packs that lie in memory, over and over: the place goes on from call to call. */
struct vfm_pack_array {
	struct vfm_pack *p;
	int64_t n, at;
};
struct vfm_pack_source vfm_pack_array_source(struct vfm_pack_array *a);

/* Returns the number of packs that were launched as a graph (train/capture.h). */
int64_t vfm_trainer_graphs(const struct vfm_trainer *tr);
struct vfm_model *vfm_trainer_model(struct vfm_trainer *tr);
struct vfm_params *vfm_trainer_params(struct vfm_trainer *tr);
struct vfm_optim *vfm_trainer_optim(struct vfm_trainer *tr);

#endif
