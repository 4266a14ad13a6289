/* reservoir.h - a uniform sample of the records that were offered (Vitter, "Random sampling with a reservoir", 1985),
 * with counter-based random numbers: the same records in the same order give the same sample. */
#ifndef VFM_CURATE_REPORT_RESERVOIR_H
#define VFM_CURATE_REPORT_RESERVOIR_H

#include <jansson.h>
#include <stdint.h>

#include "base/philox.h"

struct reservoir {
	json_t **rec; /* [n] */
	int n, most;
	int64_t offered;
	struct vfm_rng rng;
};

/* id: names the stream of random numbers. */
void reservoir_init(struct reservoir *s, int64_t most, uint64_t id);
void reservoir_release(struct reservoir *s);
/* Keeps a reference to the record if it is drawn. */
void reservoir_offer(struct reservoir *s, const json_t *rec);

#endif
