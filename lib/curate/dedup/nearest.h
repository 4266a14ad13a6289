/* nearest.h - the vectors of highest cosine similarity to another, by comparison with all of them.
 *
 * Reads each vector once; a set that the page cache holds is limited by the memory bandwidth.  Thread-safe.
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

/* Sets near [k] to the k rows of highest similarity to query [f->dim], highest first, equal ones by row.  Sets *n to
 * their number, which is less than k if there are fewer rows.  Rows that are 0 have no similarity and are left out.
 * VFM_EINPUT: the query is 0 or not finite.  1 <= k <= VFM_NEAREST_MAX. */
int vfm_nearest_find(const struct vfm_features *f, const float *query, int64_t k, struct vfm_near_row *near, int64_t *n,
	struct vfm_err *err);

#endif
