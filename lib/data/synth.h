/* synth.h - small captioned videos of moving shapes, as a function of (seed, number).
 *
 * "a red square moves left": one of 3 shapes, 4 colours and 4 directions on a dark grey background.
 * The shape is 0.30 to 0.42 of the shorter side wide, moves at constant speed by 0.30 to 0.45 of the side in
 * its direction, and is always wholly visible.  Sizes, places, speeds and shades come from the Philox stream
 * (seed, step = number, id 0, VFM_RNG_DATA).
 *
 * Local and thread-safe.
 */
#ifndef VFM_DATA_SYNTH_H
#define VFM_DATA_SYNTH_H

#include <stdint.h>

#include "base/err.h"

struct vfm_synth { /* plain data */
	int width, height, frames;
	const char *shape;     /* "square", "circle", "triangle" */
	const char *color;     /* "red", "green", "blue", "yellow" */
	const char *direction; /* "left", "right", "up", "down" */
	char caption[64];
	double size;         /* of the box around the shape, in pixels */
	double x, y, dx, dy; /* its centre in the first frame; how far it moves until the last */
	double rgb[3];       /* of the shape, 0 to 255 */
	double back, slope;  /* grey of the background at the top; and how much brighter the bottom is */
};

/* VFM_EUSAGE: sides outside of 32..4096 or odd, or frames outside of 2..10000. */
int vfm_synth_init(
	struct vfm_synth *s, int width, int height, int frames, uint64_t seed, uint64_t number, struct vfm_err *err);
/* Frame `frame` as rgb [height, width, 3], antialiased. */
void vfm_synth_frame(const struct vfm_synth *s, int frame, uint8_t *rgb);

#endif
