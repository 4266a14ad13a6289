/* finite.h - NaN and infinities in arrays of floating-point numbers of any format. */
#ifndef VFM_BASE_FINITE_H
#define VFM_BASE_FINITE_H

#include <stddef.h>
#include <stdint.h>

/* Counts the elements of `size` bytes (1, 2, 4 or 8) in which all bits of `mask` are set.  The mask is that of the
 * exponent and excludes the sign, the highest bit; an exponent of ones means NaN or infinity.  Sets *first, unless
 * first is NULL, to the offset in bytes of the first such element.  data may have any alignment. */
size_t vfm_count_nonfinite(const void *data, size_t bytes, size_t size, uint64_t mask, size_t *first);

#endif
