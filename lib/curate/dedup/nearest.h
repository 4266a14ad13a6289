/* nearest.h - finds the vectors with the highest cosine similarity to a query, by comparison with all of them.
 *
 * Reads each vector once; for a set in the page cache, memory bandwidth is the limit.  Thread-safe.
 */
#ifndef VFM_CURATE_DEDUP_NEAREST_H
#define VFM_CURATE_DEDUP_NEAREST_H

#include <stdint.h>

#include "base/err.h"
#include "data/record/features.h"

#define VFM_NEAREST_MAX 100000

struct vfm_near_row {
	int64_t row;
	double similarity; /* -1 to 1 */
};

/* Sets near [k] to the k rows with the highest similarity to query [f->dim], highest first, equal ones by row.  Sets *n
 * to their number, which is below k if there are fewer rows.  Leaves out rows that are 0, which have no similarity.  1
 * <= k <= VFM_NEAREST_MAX.  VFM_EINPUT: the query is 0 or not finite. */
int vfm_nearest_find(const struct vfm_features *f, const float *query, int64_t k, struct vfm_near_row *near, int64_t *n,
	struct vfm_err *err);

#endif
