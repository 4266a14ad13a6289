/* in_flight.h - the packs and messages that a pp stage holds while it runs the backwards of its schedule
 * (schedule.h).  Counts only, no device; train/step/pipeline.c allocates and frees in this order.
 */
#ifndef VFM_SPEC_LAYOUT_IN_FLIGHT_H
#define VFM_SPEC_LAYOUT_IN_FLIGHT_H

#include <stdbool.h>
#include <stddef.h>

#include "spec/layout/schedule.h"

/* Maximum number of gradients that a pp stage has sent to the previous stage and that are not yet received; the stage
 * keeps them until then.  1 avoids deadlock in all schedules (tests/unit/test_schedule.c); 2 lets a stage run one
 * action ahead. */
enum { VFM_UNRECEIVED = 2 };

/* The packs and messages that a pp stage holds during a backward. */
struct vfm_in_flight {
	int chunk;         /* of the backward */
	int64_t *saved;    /* [vpp] forwards of each chunk whose backward has not ended, including the current one */
	int64_t *deferred; /* [vpp] backwards of each chunk whose weight gradients have not been computed */
	int64_t packs;     /* uploaded and not finished in all chunks */
	/* Residual streams and their gradients, each with the rows of a pack: outputs of chunks, received and sent
	 * messages.  Excludes the inputs of chunks in `saved` and the gradient that this backward received. */
	int64_t messages;
};

struct vfm_in_flights {
	struct vfm_in_flight *v; /* [n] all different */
	int n;
	size_t cap;
};

/* Fills *out from the schedule of a pp stage.  `early` means that the stage posts receives and uploads one action or
 * pack ahead.  The caller releases *out. */
int vfm_in_flight_list(struct vfm_in_flights *out, int schedule, int pp, int vpp, int pp_stage, int64_t packs,
	bool early, struct vfm_err *err);
void vfm_in_flight_release(struct vfm_in_flights *f);

#endif
