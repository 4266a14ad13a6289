/* keep_plan.h - chooses what each block keeps for its backward from the free memory (train.recompute=auto).  Pure
 * arithmetic, no device.
 *
 * The blocks of a pp stage are equal, so a plan is a short list "n blocks of this kind".  A kind is a set of kept
 * groups (saved.h) and the part of it that is offloaded to host memory.  The planner minimizes the time of recompute
 * within the bytes on the device and on the host.  The forward of the following block must hide the copies to the host.
 * It offloads no more than the device's room demands.
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
/* Rates measured on an H200 of a virtual machine, whose link to the host is slow. */
extern const struct vfm_keep_plan_rates vfm_keep_plan_h200;

struct vfm_keep_plan_in {
	const struct vfm_model_spec *model; /* must have passed the check */
	struct vfm_saved_how how;           /* pack: this rank's share of the largest; keep: 0 */
	int64_t blocks;                     /* of this pp stage */
	double copies;      /* how often the tensors of a block are saved: packs in flight (spec/layout/schedule.h) */
	double room;        /* bytes of device memory for activations */
	double host_room;   /* bytes of host memory for offloaded tensors; 0: nothing is offloaded */
	int64_t offloading; /* so many blocks may offload */
	double staged;      /* of so many blocks what they offload is on the device at the peak */
	struct vfm_keep_plan_rates rates;
};

enum { VFM_KEEP_PARTS = 8 };
struct vfm_keep_plan {
	int n;
	struct vfm_keep_plan_part {
		struct vfm_keeps keeps;
		int64_t blocks;
	} part[VFM_KEEP_PARTS]; /* in the order of the memory that a block keeps on the device, most first */
	bool fits;              /* false: even the plan with the least memory does not fit; this is that plan */
	double device, host;    /* bytes of activations: peak on the device, and offloaded */
	double again_s;         /* predicted seconds that the backwards of all blocks spend on recomputing */
};
void vfm_keep_plan_make(const struct vfm_keep_plan_in *in, struct vfm_keep_plan *out);

/* Writes the choice of every block of the pp stage to how [blocks of the pp stage]: the kinds are evenly spaced. */
void vfm_keep_plan_spread(const struct vfm_keep_plan *p, struct vfm_keeps *how);

/* Returns the bytes that the running block needs on the device in addition to kept tensors: the tensors that `how` does
 * not keep, gradients and scratch memory of its backward. */
double vfm_keep_plan_running(const struct vfm_model_spec *m, const struct vfm_saved_how *how);

/* Writes the kept groups of a kind, as in "everything", "light", "attention+mlp" or
 * "attention (input+attention offloaded)". */
void vfm_keeps_text(struct vfm_keeps k, char *buf, size_t size);

#endif
