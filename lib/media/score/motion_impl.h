/* motion_impl.h - shared by motion.c and motion_codec.c. */
#ifndef VFM_MEDIA_SCORE_MOTION_IMPL_H
#define VFM_MEDIA_SCORE_MOTION_IMPL_H

#include "media/score/motion.h"

enum {
	MOTION_BLOCK = 8,
	MOTION_COLS = VFM_MOTION_W / MOTION_BLOCK,
	MOTION_ROWS = VFM_MOTION_MAX_H / MOTION_BLOCK,
	MOTION_CELLS = MOTION_COLS * MOTION_ROWS,
};

/* Sums of the codec's vectors since the frame of the last pair, for each block. */
struct codec_field {
	float dx[MOTION_CELLS], dy[MOTION_CELLS]; /* area x share of width, height per frame */
	float area[MOTION_CELLS];
	int frames, with_vectors;
	int since_anchor; /* frames since the last one that was not of type B */
	int rotation;     /* of the picture against the coded frame */
	bool mirrored;
};

/* Adds the vectors of the frame that `v` decoded last to a grid of `rows` rows. */
void vfm_codec_field_add(struct codec_field *c, int rows, const struct vfm_video *v, const struct vfm_frame *f);

#endif
