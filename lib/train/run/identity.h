/* identity.h - the identity of a run: its plan, the encoders of its data, its configuration and its initial weights.
 *
 * A checkpoint's `state` holds it (vfm-checkpoint(5)), and a run that resumes compares it with its own.  A change that
 * would have affected completed steps, or the meaning of the weights, is refused unless the user allowed it.  Every
 * other change is logged on a line of its own.  All calls are local.
 */
#ifndef VFM_TRAIN_RUN_IDENTITY_H
#define VFM_TRAIN_RUN_IDENTITY_H

#include "ckpt/ckpt.h"
#include "data/record/encoder_id.h"
#include "io/hash.h"
#include "train/job/config.h"

enum vfm_run_difference {         /* bits: changes that the user may allow */
	VFM_CHANGE_MODEL = 1,     /* keys in sections model and lora, and train.freeze */
	VFM_CHANGE_DIFFUSION = 2, /* keys in section diffusion */
	VFM_CHANGE_SCHEDULE = 4,  /* learning rate of a completed step */
	VFM_CHANGE_PLAN = 8,      /* the sha256 of the plan */
	VFM_CHANGE_ENCODERS = 16, /* tokenizer or text encoder of the data */
	VFM_CHANGE_CAPTIONS = 32, /* data.captions */
};
/* Parses a list such as "plan,schedule".  On VFM_EUSAGE the message lists the valid words. */
int vfm_change_parse(unsigned *changes, const char *list, struct vfm_err *err);

struct vfm_identity { /* a specification; all pointers are borrowed */
	const struct vfm_config *config;
	const json_t *config_json; /* from vfm_config_to_json */
	const char *plan_path;
	char plan_sha256[VFM_SHA256_HEX]; /* from vfm_plan_sha256 */
	int64_t plan_steps;
	int64_t last; /* total steps of the run, the horizon of the learning rate schedule */
	struct vfm_encoder_ids encoders;
	const char *held_out_path, *held_out_sha256; /* NULL: no held-out data */
	const json_t *init;   /* {"path","sha256","layout","part","step"} of the initial weights; NULL: from the seed */
	const json_t *forced; /* from vfm_identity_forced; NULL: none */
};

/* Returns {"plan":{…},"encoders":{…},"held_out":{…},"forced":[…],"init":{…}}; the caller owns it. */
json_t *vfm_identity_json(const struct vfm_identity *id);

/* Compares a run that resumes from c.  Logs allowed changes.  A key that c lacks had its default value.  Ignores
 * sections and other properties that c does not record.  VFM_EUSAGE: changes are refused, and the message lists each
 * with both values, and `hint`; or c has completed more steps than the run has. */
int vfm_identity_resume(const struct vfm_identity *id, const struct vfm_ckpt *c, unsigned allowed, const char *hint,
	struct vfm_err *err);
/* Like vfm_identity_resume, for a run that uses only the weights of c: compares model and encoders, and for adapters
 * also the section lora. */
int vfm_identity_init(const struct vfm_identity *id, const struct vfm_ckpt *c, unsigned allowed, struct vfm_err *err);

/* Adds the encoders of c that the plan of the run does not name to id->encoders, since the weights were trained with
 * them.  VFM_EUSAGE: c->state is damaged. */
int vfm_identity_keep_encoders(struct vfm_identity *id, const struct vfm_ckpt *c, struct vfm_err *err);

/* Collects the accepted differences of encoders (data/record/encoder_id.h) from the checkpoint c whose weights the run
 * uses (NULL: none) and from the plan (NULL: none).  Adds the differences between c and the plan that the comparison
 * above allowed.  Sets *forced, which the caller owns, or NULL if there are none.  VFM_EUSAGE: c->state is damaged. */
int vfm_identity_forced(json_t **forced, const struct vfm_identity *id, const struct vfm_ckpt *c, const json_t *plan,
	struct vfm_err *err);

#endif
