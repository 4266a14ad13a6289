/* clip_order.h - the order of the clips of a set: those that are fixed first, as they are, then the others by quality,
 * the highest first, then by name. */
#ifndef VFM_CURATE_DEDUP_CLIP_ORDER_H
#define VFM_CURATE_DEDUP_CLIP_ORDER_H

#include <stdint.h>

#include "base/err.h"
#include "curate/dedup/clip_set.h"

/* Sets clip [s->n] to the clip of each rank, and rank [s->n] to the rank of each clip, on the compute threads.  fixed:
 * the first clips of the set.  VFM_EENV: not enough memory, 64 bytes for each of the others. */
int vfm_clip_order_find(
	uint32_t *clip, uint32_t *rank, const struct vfm_clip_set *s, int64_t fixed, struct vfm_err *err);

#endif
