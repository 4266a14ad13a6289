/* steer.h - the windows of a plan whose mix changes over its steps (steered blends, blend.h).
 *
 * The samples of a window are spread over all its steps.  A window therefore ends when a share has changed by 0.01, and
 * at each stop.  A stop is a step at which weights have a point, or the end of the sets with passes; no sample waits
 * past it.  The number of parts in a window is known only once the window is packed.  Windows before a stop get
 * shorter, so that the last one has few parts.  A part is a pack, or with cp a part of it (pack.h).
 */
#ifndef VFM_DATA_PLAN_STEER_H
#define VFM_DATA_PLAN_STEER_H

#include <stdbool.h>
#include <stdint.h>

#include "data/plan/blend.h"

struct vfm_steering {
	struct vfm_blend *blend; /* borrowed */
	double batch;            /* parts per step */
	double total;            /* parts of the plan */
	double window;           /* maximum samples per window */
	bool by_samples;         /* each part has one sample */
	double tokens;           /* tokens per part; before the first window, the context */
	/* private */
	double end, passed; /* end of the sets with passes; the last stop */
	double samples;     /* samples per part */
	double measured;    /* number of parts behind tokens and samples */
};

struct vfm_steered_window {
	double parts, stop; /* estimated number of parts; the next stop, in parts from the beginning */
	double budget;      /* tokens to draw; samples with by_samples */
	bool flush;         /* the window ends at the stop, and no sample waits for the next one */
	bool takes_passes;  /* the window takes the rest of the sets with passes */
};

/* Initialises a steering whose public fields are set.  VFM_EUSAGE: the plan has no room for the sets with passes. */
int vfm_steering_init(struct vfm_steering *s, struct vfm_err *err);
/* Begins a window and steers the blend.  made: parts so far; waiting: tokens of samples that were drawn but not
 * packed. */
struct vfm_steered_window vfm_steering_begin(struct vfm_steering *s, double made, double waiting);
/* Ends the window; made, tokens and samples are those of its parts. */
void vfm_steering_measure(struct vfm_steering *s, double made, double tokens, double samples);
/* Returns whether the stop of the window is passed; made and waiting as in begin. */
bool vfm_steering_passes(struct vfm_steering *s, const struct vfm_steered_window *w, double made, double waiting);

#endif
