/* finite.h - NaN and infinities in arrays of floating-point numbers of any format. */
#ifndef VFM_BASE_FINITE_H
#define VFM_BASE_FINITE_H

#include <stddef.h>
#include <stdint.h>

/* Returns how many elements of `size` bytes (1, 2, 4 or 8) have all bits of `mask`: those of the exponent, where all of
 * them mean NaN or infinity.  The sign is the highest bit and not in the mask.  Sets *first to the first of them, in
 * bytes from data; first may be NULL.  data may have any alignment. */
size_t vfm_count_nonfinite(const void *data, size_t bytes, size_t size, uint64_t mask, size_t *first);

#endif
