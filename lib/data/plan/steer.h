/* steer.h - the windows of a plan whose mix changes over its steps (steered blends, blend.h).
 *
 * The samples of a window are spread over all its steps.  So a window ends where a share has changed by 0.01, and at
 * each stop.  A stop is a step that the weights name, or the end of the sets with passes; no sample waits past it.  How
 * many parts the samples of a window make is known when it is packed; windows before a stop get shorter, so that a few
 * parts are the last.  A part is a pack, or with cp a part of it (pack.h).
 */
#ifndef VFM_DATA_PLAN_STEER_H
#define VFM_DATA_PLAN_STEER_H

#include <stdbool.h>
#include <stdint.h>

#include "data/plan/blend.h"

struct vfm_steering {
	struct vfm_blend *blend; /* borrowed */
	double batch;            /* parts of a step */
	double total;            /* parts of the plan */
	double window;           /* most samples of a window */
	bool by_samples;         /* a part has one sample */
	double tokens;           /* of a part: before the first window the context */
	/* private */
	double end, passed; /* of the sets with passes; the last stop */
	double samples;     /* of a part */
	double measured;    /* parts that tokens and samples were measured with */
};

struct vfm_steered_window {
	double parts, stop; /* about how many; the next stop, in parts from the beginning */
	double budget;      /* tokens to draw, or with by_samples samples */
	bool flush;         /* it ends at the stop, and nothing waits for the next one */
	bool takes_passes;  /* it takes all that is left of the sets with passes */
};

/* Completes a steering with the public fields.  VFM_EUSAGE: the plan has no room for the sets with passes. */
int vfm_steering_init(struct vfm_steering *s, struct vfm_err *err);
/* Begins a window and steers the blend.  made: parts so far; waiting: tokens of samples that were drawn and not packed.
 */
struct vfm_steered_window vfm_steering_begin(struct vfm_steering *s, double made, double waiting);
/* Ends it: made, tokens and samples of its parts. */
void vfm_steering_measure(struct vfm_steering *s, double made, double tokens, double samples);
/* Returns whether its stop is passed; made and waiting as in begin. */
bool vfm_steering_passes(struct vfm_steering *s, const struct vfm_steered_window *w, double made, double waiting);

#endif
