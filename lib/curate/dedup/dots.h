/* dots.h - inner products of many vectors in float32, on the calling thread.
 *
 * The order of each sum depends only on dim, so a product has the same bits in every call.  Thread-safe.
 */
#ifndef VFM_CURATE_DEDUP_DOTS_H
#define VFM_CURATE_DEDUP_DOTS_H

#include <stddef.h>
#include <stdint.h>

#define VFM_DOTS_PANEL 16 /* vectors per panel */

/* Returns the number of elements of n packed vectors. */
static inline size_t vfm_dots_packed(int64_t n, int64_t dim)
{
	return (size_t)((n + VFM_DOTS_PANEL - 1) / VFM_DOTS_PANEL * VFM_DOTS_PANEL * dim);
}

/* Stores vector i of b in packed [vfm_dots_packed(n, dim)], which must be zeroed first. */
void vfm_dots_pack(float *packed, int64_t i, int64_t dim, const float *b);

/* out [na, ld]: out[i][j] = a[i] . b[j] for j < nb rounded up to VFM_DOTS_PANEL, which ld must reach.  a [na, dim]. */
void vfm_dots(const float *a, int64_t na, const float *packed, int64_t nb, int64_t dim, float *out, int64_t ld);

/* Returns x . y, and sets *xx to x . x. */
float vfm_dots_pair(const float *x, const float *y, int64_t dim, float *xx);

/* Scales x [dim] to length 1 and returns its previous length.  If that is 0 or not finite, x stays unchanged. */
double vfm_dots_normalize(float *x, int64_t dim);

#endif
