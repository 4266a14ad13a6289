/* levers.h - the settings that make a predicted run fit its device: what each saves and costs, and the fastest
 * combination that fits.
 *
 * A lever is a key of the configuration.  Each is tried alone, and all combinations of those that do not change values.
 * Combinations with one that rounds (a dtype of weights or moments) are a separate result, since it may not be allowed.
 */
#ifndef VFM_TRAIN_PREDICT_LEVERS_H
#define VFM_TRAIN_PREDICT_LEVERS_H

#include "train/predict/dry_run.h"

enum { VFM_LEVER_TEXT = 256 };

struct vfm_lever_row {
	char set[VFM_LEVER_TEXT]; /* "train.offload=activations train.offload_weights=auto"; "": none */
	bool rounds;              /* stores weights or moments with fewer bits */
	int ranks;
	bool refused;          /* such a run is refused, or needs more than 8 times the memory; `why` says so */
	char why[VFM_ERR_MAX]; /* of a refused run, which has no other results */
	bool fits;
	int64_t bytes; /* of the fullest device, as in struct vfm_dry_run */
	double host;   /* bytes of pinned host memory of a rank */
	double s;      /* of the step, at the middle rates, if the device had the memory */
	double speed;  /* relative to enough memory for everything on the same GPUs, per GPU; NAN: unknown */
};

struct vfm_levers {
	struct vfm_lever_row *v; /* [n]: as given, each lever, the best without and with rounding, more ranks */
	int n;
};

/* The run of *o, whose timeline, memory and trace are unused.  The caller releases *out. */
void vfm_levers_find(const struct vfm_dry_run_opts *o, struct vfm_levers *out);
void vfm_levers_release(struct vfm_levers *l);

#endif
