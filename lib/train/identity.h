/* identity.h - what a run is: its plan, the encoders of its data, its configuration, and the weights it began with.
 *
 * A checkpoint's `state` holds the identity of the run that wrote it (vfm-checkpoint(5)).  A run that goes on from a
 * checkpoint compares it with its own.  A change that would have changed the steps already done, or what the weights
 * mean, is refused unless it was requested; every other change is logged, one line each.  All calls are local.
 */
#ifndef VFM_TRAIN_IDENTITY_H
#define VFM_TRAIN_IDENTITY_H

#include "base/hash.h"
#include "ckpt/ckpt.h"
#include "data/maker.h"
#include "train/config.h"

enum vfm_change {                 /* bits: what may be requested to differ */
	VFM_CHANGE_MODEL = 1,     /* keys of the section model */
	VFM_CHANGE_DIFFUSION = 2, /* keys of the section diffusion */
	VFM_CHANGE_SCHEDULE = 4,  /* the learning rate of a step that is done */
	VFM_CHANGE_PLAN = 8,      /* the sha256 of the plan */
	VFM_CHANGE_ENCODERS = 16, /* tokenizer or text encoder of the data */
};
/* "plan,schedule" -> bits.  VFM_EUSAGE lists the words. */
int vfm_change_parse(unsigned *changes, const char *list, struct vfm_err *err);

struct vfm_identity { /* a specification; all pointers are borrowed */
	const struct vfm_config *config;
	const json_t *config_json; /* of vfm_config_to_json */
	const char *plan_path;
	char plan_sha256[VFM_SHA256_HEX]; /* of vfm_manifest_sha256 */
	int64_t plan_steps;
	int64_t last; /* steps of the run, the horizon of the learning rate */
	struct vfm_makers encoders;
	const json_t *init; /* {"path","sha256","part","step"} of the weights it began with; NULL: none */
};

/* {"plan":{…},"encoders":{…},"init":{…}}; the caller owns it. */
json_t *vfm_identity_json(const struct vfm_identity *id);

/* Compares a run that goes on from c.  VFM_EUSAGE names every change that is refused, both values, and `hint`; the
 * other changes are logged.  What c does not hold is not compared. */
int vfm_identity_resume(const struct vfm_identity *id, const struct vfm_ckpt *c, unsigned allowed, const char *hint,
	struct vfm_err *err);
/* The same for a run that takes only the weights of c: model and encoders must agree. */
int vfm_identity_init(const struct vfm_identity *id, const struct vfm_ckpt *c, unsigned allowed, struct vfm_err *err);

#endif
