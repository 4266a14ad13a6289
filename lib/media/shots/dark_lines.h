/* dark_lines.h - counts dark lines at the side of a picture, which form bars. */
#ifndef VFM_MEDIA_SHOTS_DARK_LINES_H
#define VFM_MEDIA_SHOTS_DARK_LINES_H

#include <stddef.h>
#include <stdint.h>

/* Returns how many of `lines` lines, starting at `first` and `step` apart, are dark: all of their `length` pixels,
 * `along` apart, are below `limit`. */
static inline int vfm_dark_lines(
	const uint8_t *first, ptrdiff_t step, int lines, ptrdiff_t along, int length, int limit)
{
	for (int n = 0; n < lines; n++)
		for (int i = 0; i < length; i++)
			if (first[n * step + i * along] >= limit)
				return n;
	return lines;
}

#endif
