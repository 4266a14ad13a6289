/* recompute.h - train.recompute=auto: counts the memory of a step and plans what the blocks of this rank keep
 * (spec/cost/keep_plan.h), once before the first step.  With train.offload_weights=auto it also plans how many blocks
 * have their base weights in host memory.
 *
 * The plan is the same on all ranks of a pp stage: for the least free memory of the job and for the same pack.  The pp
 * stages differ in packs, messages (spec/layout/in_flight.h) and blocks.  No call allocates device memory.
 */
#ifndef VFM_TRAIN_STEP_RECOMPUTE_H
#define VFM_TRAIN_STEP_RECOMPUTE_H

#include "net/mesh/mesh.h"
#include "net/nn/param.h"
#include "spec/cost/keep_plan.h"
#include "train/job/config.h"

/* The steps of a run as a rank sees them; equal on all ranks. */
struct vfm_load {
	struct vfm_pack_sums largest; /* the pack with the most tokens, over all ranks that share it */
	int64_t packs;                /* packs of a rank in a step */
	double host_bytes;            /* host memory of a rank for offloaded activations; may differ between ranks */
	const struct vfm_keep_plan_rates *rates; /* NULL: those of an H200, and the host link of this machine */
};

struct vfm_recompute_plan {
	bool made; /* false: the device's capacity is unknown, or train.recompute is not auto; all blocks keep
		    * everything
		    */
	struct vfm_keep_plan blocks;
	double capacity; /* device bytes that the run may use */
	double host;     /* host bytes for offloaded activations and weights; 0: no offloading */
	double state;    /* bytes other than activations: parameters, gradients, moments, buffers of the blocks */
	double peak;     /* predicted bytes */
	/* number of blocks, among those that keep everything, that also keep the rows that tp gathers */
	int64_t gathered;
	/* blocks of this pp stage with base weights (net/nn/param.h), and how many of them are in host memory */
	int64_t stores, offloaded;
	double weights; /* host bytes of these */
	double copy_s;  /* predicted seconds of a pack that wait for their copies */
};

/* Plans and fills keeps [layers of the model] for the layers of this pp stage.  Leaves keeps unchanged if no plan is
 * made.  Collective over the world. */
int vfm_recompute_plan(const struct vfm_config *c, const struct vfm_params *ps, const struct vfm_load *load,
	struct vfm_recompute_plan *p, struct vfm_keeps *keeps, struct vfm_err *err);
/* Returns the device bytes that a run may use, of a device with known capacity; at most 0 if it is unknown. */
double vfm_recompute_capacity(const struct vfm_mesh *m, const struct vfm_dev *d);
/* Returns the device bytes that a forward over a pack needs at most on a rank, without a backward and besides weights:
 * the running block, and what a pack needs around it.  all: the pack, over all ranks that share it. */
double vfm_recompute_forward_bytes(
	const struct vfm_config *c, const struct vfm_mesh *m, const struct vfm_dev *d, const struct vfm_pack_sums *all);
enum { VFM_RECOMPUTE_TEXT = 512 }; /* maximum bytes of a plan as text */
/* Writes one line: "14 of the blocks keep everything, 14 light (input offloaded); 0.9 of 24.0 GiB on the host", and if
 * it does not fit, "; the step needs more memory than there is". */
void vfm_recompute_keeps_text(const struct vfm_recompute_plan *p, char *buf, size_t size);
/* Writes one line: "14 of the blocks keep everything, 14 light (input offloaded); 0.9 of 24.0 GiB on the host;
 * predicted peak 121.3 of 139.8 GiB". */
void vfm_recompute_text(const struct vfm_recompute_plan *p, char *buf, size_t size);

#endif
