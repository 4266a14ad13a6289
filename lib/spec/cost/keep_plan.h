/* keep_plan.h - chooses, from the free memory, what each block keeps for its backward (train.recompute=auto).  Pure
 * arithmetic, no device.
 *
 * The blocks of a pp stage are equal, or count as their mean (saved.h), so a plan is a short list "n blocks of this
 * kind".  A kind is a set of kept groups (saved.h) and the subset that is offloaded to host memory.  The planner
 * minimizes the time of recompute within the bytes on the device and on the host.  It offloads only as much as the
 * device's memory requires, and the forward of the following block must hide the copies to the host.
 */
#ifndef VFM_SPEC_COST_KEEP_PLAN_H
#define VFM_SPEC_COST_KEEP_PLAN_H

#include "spec/cost/saved.h"

/* Rates of a device.  Only their ratios matter. */
struct vfm_keep_plan_rates {
	double flops; /* FLOP/s of products and attention */
	double mem;   /* bytes/s of device memory, read + written */
	double host;  /* bytes/s of a copy to or from pinned host memory */
};
/* Rates measured on an H200 in a virtual machine with a slow link to the host. */
extern const struct vfm_keep_plan_rates vfm_keep_plan_h200;

struct vfm_keep_plan_in {
	const struct vfm_model_spec *model; /* must have passed the check */
	struct vfm_saved_how how;           /* pack: this rank's share of the largest pack; keep: 0 */
	int64_t blocks;                     /* of this pp stage */
	double copies;      /* how many times a block's tensors are saved: packs in flight (spec/layout/schedule.h) */
	double room;        /* bytes of device memory for activations */
	double host_room;   /* bytes of host memory for offloaded tensors; 0: no offloading */
	int64_t offloading; /* number of blocks that may offload */
	double staged;      /* number of blocks whose offloaded tensors are on the device at the peak */
	struct vfm_keep_plan_rates rates;
};

enum { VFM_KEEP_PARTS = 8 };
struct vfm_keep_plan {
	int n;
	struct vfm_keep_plan_part {
		struct vfm_keeps keeps;
		int64_t blocks;
	} part[VFM_KEEP_PARTS]; /* by the memory that a block keeps on the device, most first */
	bool fits;              /* false: even the plan with the least memory, returned here, does not fit */
	double device, host;    /* bytes of activations: the peak on the device, and offloaded */
	double again_s;         /* predicted seconds that the backwards of all blocks spend on recomputing */
};
/* Returns the predicted seconds of the forward of a block. */
double vfm_keep_plan_forward_s(const struct vfm_keep_plan_in *in);
void vfm_keep_plan_make(const struct vfm_keep_plan_in *in, struct vfm_keep_plan *out);

/* Sets how [blocks of the pp stage] to the choice of each block; the kinds are evenly spaced. */
void vfm_keep_plan_spread(const struct vfm_keep_plan *p, struct vfm_keeps *how);

/* Returns the bytes that the running block needs on the device in addition to kept tensors: tensors that `how` does not
 * keep, gradients, and scratch memory of its backward. */
double vfm_keep_plan_running(const struct vfm_model_spec *m, const struct vfm_saved_how *how);

/* Writes the kept groups of a kind: "everything", "light", "attention+mlp", "attention (input+attention offloaded)". */
void vfm_keeps_text(struct vfm_keeps k, char *buf, size_t size);

#endif
