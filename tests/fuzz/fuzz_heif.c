/* Any bytes as a "meta" box: the orientation is one of the eight of quarter turns and mirrorings. */
#include <stdlib.h>

#include "media/av/heif.h"
#include "media/av/pixels.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_orient o = vfm_heif_orient(data, size);

	if (abs(o.a) + abs(o.b) != 1 || abs(o.c) + abs(o.d) != 1 || abs(o.a) != abs(o.d))
		abort();
	return 0;
}
