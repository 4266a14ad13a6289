/* trainer.h - one rank's part of a training step, from packs to updated weights.
 *
 * 	vfm_trainer_step(tr, step, n_packs, &source, lr, err);  // enqueues forward, backward, clip, update
 * 	vfm_trainer_stats(tr, &stats, err);                     // waits for the device
 *
 * A step does not wait for the device, so the caller may enqueue the next step before it reads the statistics of the
 * last.  Exception: experts that need message sizes (net/nn/moe.h).
 *
 * The loss is the mean over the tokens of the global step.  Its denominator comes from the plan, so the loss does not
 * depend on packing, ranks or accumulation. */
#ifndef VFM_TRAIN_STEP_TRAINER_H
#define VFM_TRAIN_STEP_TRAINER_H

#include "net/diffusion/model.h"
#include "net/mesh/mesh.h"
#include "train/job/config.h"
#include "train/step/optim.h"
#include "train/step/pipeline.h"
#include "train/step/recompute.h"
#include "train/step/stats.h"

struct vfm_trainer;

struct vfm_step_stats {
	/* of the global step, identical on every rank */
	int64_t step; /* as in vfm_trainer_step */
	int network;  /* of two, set by the caller: the one that was trained (train/run/experts.h) */
	double loss, grad_norm;
	double mse;   /* mean squared error without weights and auxiliary losses; with diffusion.weighting=none 0 */
	double flops; /* of forward and backward (spec/model/linears.h) */
	int64_t tokens, samples;
	/* Of this rank.  The trainer measures comm_s, bubble_s, copy_s, host_s, step_s and mem_peak_bytes, and the
	 * caller sets the others.  A step lasts from the end of the previous one, or from its start on the host if
	 * later, until the host observes its end. */
	struct vfm_rank_stats rank;
	/* of this rank, set by the caller: the exchange of two networks before the step, which becomes a part of
	 * rank.copy_s and rank.step_s */
	double exchange_s;
};

/* Collective.  Builds the model on the device and fills its weights from the seed.  Returns NULL on failure.  The mesh
 * must outlive the trainer. */
struct vfm_trainer *vfm_trainer_new(
	const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_stream *s, struct vfm_err *err);
/* Accepts NULL.  After a failed step it blocks until sends to other ranks complete.  If these ranks may no longer
 * receive, call vfm_comm_abort first. */
void vfm_trainer_free(struct vfm_trainer *tr);

/* Collective.  Plans what blocks keep for their backward if train.recompute is auto; else a no-op.  Call it once,
 * before the first step; without it, auto recomputes nothing. */
int vfm_trainer_plan(struct vfm_trainer *tr, const struct vfm_load *load, struct vfm_err *err);
/* Returns the plan; `made` is false without one. */
const struct vfm_recompute_plan *vfm_trainer_recompute(const struct vfm_trainer *tr);

/* For a trainer that trains two networks in turn (idle.h): takes the range of t and the settings of the optimizer from
 * c, and counts `others` of the steps before the next one as those of the other network, which are no updates of this
 * one.  Local. */
void vfm_trainer_set_network(struct vfm_trainer *tr, const struct vfm_config *c, int64_t others);

/* Enqueues a step.  Collective.  n_packs: packs of this rank, equal on all ranks.  The ranks of a cp x tp group, and
 * all pp stages, must get the same packs.  A pack with fewer cp ranks needs a view of the mesh (vfm_mesh_for); the
 * ranks of the group in this view get it.  After a failure the caller may only read the steps in flight and free the
 * trainer. */
int vfm_trainer_step(struct vfm_trainer *tr, int64_t step, int64_t n_packs, const struct vfm_pack_source *src,
	double lr, struct vfm_err *err);

/* A step is in flight from vfm_trainer_step until the caller drops it.  The calls are local. */
enum { VFM_STEPS_IN_FLIGHT = 2 }; /* maximum; one more drops the oldest */
int vfm_trainer_in_flight(const struct vfm_trainer *tr);
/* Returns the number of steps in flight that have been read; these are the oldest. */
int vfm_trainer_have_read(const struct vfm_trainer *tr);
/* Returns the statistics of step k in flight; 0 is the oldest.  Until the step is read, only `step` and values set by
 * the caller are valid.  The pointer is valid until the step is dropped. */
struct vfm_step_stats *vfm_trainer_stats_of(struct vfm_trainer *tr, int k);
/* Blocks until the oldest unread step completes, and adds the trainer's measurements to its statistics. */
int vfm_trainer_read(struct vfm_trainer *tr, struct vfm_err *err);
/* Returns whether the oldest unread step is complete, so that vfm_trainer_read would not block.  Also returns true if
 * the device has failed. */
bool vfm_trainer_done(const struct vfm_trainer *tr);
/* Drops the n oldest steps in flight, which must have been read or are not needed. */
void vfm_trainer_drop(struct vfm_trainer *tr, int n);
/* Reads the oldest unread step, copies its statistics to *out and drops it. */
int vfm_trainer_stats(struct vfm_trainer *tr, struct vfm_step_stats *out, struct vfm_err *err);

/* Returns whether the step was applied: the device skips the update of a step whose loss or gradient norm is not finite
 * (vfm_optim_step). */
bool vfm_step_is_finite(const struct vfm_step_stats *s);
/* Returns the packs of this rank in step k in flight. */
int64_t vfm_trainer_packs(const struct vfm_trainer *tr, int k);
/* Copies the losses of the samples of pack `pack` of this rank in step k in flight, over the tokens of this rank, to
 * *loss, which the caller frees.  *index: of the pack within the step (spec/layout/pack.h).  Returns their number, or 0
 * if this rank computes no loss.  Local; blocks. */
int vfm_trainer_sample_losses(
	struct vfm_trainer *tr, int k, int64_t pack, int64_t *index, float **loss, struct vfm_err *err);

/* Makes the next update of weights and moments wait for the event, which follows a copy that reads them; NULL: no
 * wait. */
void vfm_trainer_hold(struct vfm_trainer *tr, struct vfm_event *e);
/* Makes the compute stream wait for it now.  Local. */
int vfm_trainer_wait_held(struct vfm_trainer *tr, struct vfm_err *err);

/* A source that cycles through packs in memory; the position persists across steps. */
struct vfm_pack_array {
	struct vfm_pack *p;
	int64_t n, at;
};
struct vfm_pack_source vfm_pack_array_source(struct vfm_pack_array *a);

/* Returns the number of packs launched as a graph (capture.h). */
int64_t vfm_trainer_graphs(const struct vfm_trainer *tr);
struct vfm_model *vfm_trainer_model(struct vfm_trainer *tr);
struct vfm_params *vfm_trainer_params(struct vfm_trainer *tr);
struct vfm_optim *vfm_trainer_optim(struct vfm_trainer *tr);

#endif
