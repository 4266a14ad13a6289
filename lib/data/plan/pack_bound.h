/* pack_bound.h - a lower bound of the number of bins, with which the fill of a packing can be compared. */
#ifndef VFM_DATA_PLAN_PACK_BOUND_H
#define VFM_DATA_PLAN_PACK_BOUND_H

#include <stdint.h>

/* Returns a number of bins below which no packing of these items exists; count [context + 1] is the number of items of
 * each length.  It is the largest of
 *   - the total over R, the largest sum <= context of any of the lengths, each as often as one likes; items over
 *     context / 2, each of which has a bin of its own, count with the room that no sum of lengths can fill beside them;
 *   - L2 of Martello and Toth, "Lower bounds and reduction procedures for the bin packing problem", 1990, with R as the
 *     capacity;
 *   - the dual feasible functions u(k), k <= 64, of Fekete and Schepers, "New classes of fast lower bounds for bin
 *     packing problems", 2001;
 *   - with few lengths, the linear relaxation of cutting stock (pack_lp.h).
 * Takes milliseconds, or a second with many different lengths in a long context. */
int64_t vfm_bins_bound(const int64_t *count, int32_t context);
/* Of bins of parts, of which a bin has as many as its longest item needs (vfm_pack_parts): returns a number of parts
 * below which no packing exists.  count [context x max_parts + 1].  It is the largest of the total over
 * the context and, for each number k > 1 of parts, k for each item that needs k: a bin of s parts has at most s / k of
 * these. */
int64_t vfm_parts_bound(const int64_t *count, int32_t context, int32_t max_parts);

#endif
