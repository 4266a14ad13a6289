/* synth.h - small captioned videos of moving shapes, as a function of (seed, number).
 *
 * "a red square moves left": a shape, a colour and a direction on a dark grey background, each drawn from the words
 * that the options allow.  The shape's width is 0.30 to 0.42 of the shorter side.  It moves in its direction at
 * constant speed, by 0.30 to 0.45 of the side, and is always fully visible.  Sizes, positions, speeds and shades come
 * from the Philox stream (seed, step = number, id 0, VFM_RNG_DATA).
 *
 * Local and thread-safe.
 */
#ifndef VFM_MEDIA_DRAW_SYNTH_H
#define VFM_MEDIA_DRAW_SYNTH_H

#include <stdint.h>

#include "base/err.h"

enum vfm_synth_word {
	VFM_SYNTH_SHAPE,     /* square, circle, triangle */
	VFM_SYNTH_COLOR,     /* red, green, blue, yellow; not by default: cyan, magenta */
	VFM_SYNTH_DIRECTION, /* left, right, up, down */
	VFM_SYNTH_WORDS
};

struct vfm_synth_opts {
	int width, height, frames;
	uint64_t seed;
	unsigned words[VFM_SYNTH_WORDS]; /* bit sets of words to draw from, with equal probabilities; 0: the default */
};

struct vfm_synth { /* plain data */
	int width, height, frames;
	const char *shape, *color, *direction; /* static */
	char caption[64];
	double size;         /* of the box around the shape, in pixels */
	double x, y, dx, dy; /* its centre in the first frame; its movement until the last */
	double rgb[3];       /* of the shape, 0 to 255 */
	double back, slope;  /* grey of the background at the top; increase in brightness towards the bottom */
};

/* Makes the bit set of a list of words, such as "red,blue".  VFM_EUSAGE: an unknown word, or none. */
int vfm_synth_parse(unsigned *set, enum vfm_synth_word kind, const char *list, struct vfm_err *err);
/* VFM_EUSAGE: the sides are outside of 32..4096 or odd, or frames is outside of 2..10000. */
int vfm_synth_init(struct vfm_synth *s, const struct vfm_synth_opts *o, uint64_t number, struct vfm_err *err);
/* Draws frame `frame` as rgb [height, width, 3], antialiased. */
void vfm_synth_frame(const struct vfm_synth *s, int frame, uint8_t *rgb);

#endif
