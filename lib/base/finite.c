/* finite.c - finds NaN and infinities by their exponent bits, eight bytes at a time. */
#include "base/finite.h"

#include <stdbool.h>
#include <string.h>

enum { BLOCK = 4096 }; /* bytes */

/* masks, ones: the mask, and 1 in its last place, of the elements in 8 bytes.  Their sum sets a sign bit only where all
 * bits of the mask are set, and never carries further. */
static bool block_is_finite(const uint8_t *block, uint64_t masks, uint64_t ones)
{
	typedef uint64_t words __attribute__((vector_size(16)));
	const words mask = {masks, masks}, one = {ones, ones};
	words sums = {0}, w;

	for (size_t i = 0; i < BLOCK; i += sizeof(w)) {
		memcpy(&w, block + i, sizeof(w));
		sums |= (w & mask) + one;
	}
	return !((sums[0] | sums[1]) & (masks + ones));
}

size_t vfm_count_nonfinite(const void *data, size_t bytes, size_t size, uint64_t mask, size_t *first)
{
	const uint8_t *p = data;
	uint64_t masks = 0, ones = 0;
	size_t count = 0;

	for (size_t i = 0; i < 8; i += size) {
		masks |= mask << 8 * i;
		ones |= (mask & -mask) << 8 * i;
	}
	for (size_t at = 0; at < bytes; at += BLOCK) {
		const size_t end = bytes - at < BLOCK ? bytes : at + BLOCK;

		if (end == at + BLOCK && block_is_finite(p + at, masks, ones))
			continue;
		for (size_t i = at; i < end; i += size) {
			uint64_t bits = 0;

			memcpy(&bits, p + i, size);
			if ((bits & mask) == mask && !count++ && first)
				*first = i;
		}
	}
	return count;
}
