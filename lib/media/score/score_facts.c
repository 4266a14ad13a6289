/* score_facts.c - one row for each score; the words follow vfm-scores(7). */
#include "media/score/score_facts.h"

#include <math.h>
#include <string.h>

#include "media/score/score.h"

#define MOTION   "Motion"
#define LIGHT    "Light and colour"
#define FAULTS   "Faults of the picture"
#define CHANGE   "Change in time"
#define OVERLAYS "Overlays"
#define SPEED    "% of the longer side per second"

enum {
#define SCORE_ROW(name) ROW_##name,
	VFM_SCORE_LIST(SCORE_ROW)
#undef SCORE_ROW
		N_ROWS
};

#define ROW(name, ...) [ROW_##name] = {#name, __VA_ARGS__}
static const struct vfm_score_fact facts[N_ROWS] = {
	ROW(motion, MOTION, "Mean speed of the picture: people and objects have 1 to 5, fast action more than 10.",
		SPEED, 0.01, NAN),
	ROW(camera_motion, MOTION, "The part of the speed that is due to the camera.", SPEED, NAN, NAN),
	ROW(object_motion, MOTION, "Mean speed relative to the camera.", SPEED, NAN, NAN),
	ROW(shake, MOTION, "Jitter of the camera: 0 for a tripod or a steady pan, below 0.5 for a hand.",
		"% of the longer side", NAN, 1),
	ROW(luma, LIGHT, "Mean brightness, from 0 (black) to 1 (white).", "", NAN, NAN),
	ROW(contrast, LIGHT, "Standard deviation of brightness within a frame, 0 to 0.5.", "", 0.02, NAN),
	ROW(overexposed, LIGHT, "Share of pixels that are nearly white.", "", NAN, NAN),
	ROW(underexposed, LIGHT, "Share of the frame that is dark, if the frame has no highlights.", "", NAN, 0.3),
	ROW(colorfulness, LIGHT, "Strength of colours: 0 for grey, 45 on average, above 80 strong.", "", NAN, NAN),
	ROW(oversaturated, LIGHT, "Share of pixels whose colour is clipped.", "", NAN, 0.02),
	ROW(sharpness, FAULTS, "Variance of the Laplacian; it grows with contrast and detail, too.", "", 50, NAN),
	ROW(blur, FAULTS, "Width of edges; 1 is a sharp step.", "pixels of the file", NAN, 3),
	ROW(blockiness, FAULTS, "Strength of the 8 × 8 grid that coding leaves, 0 to 2.6.", "", NAN, 0.25),
	ROW(interlace, FAULTS, "Combing of frames with two fields, 0 to 1.", "", NAN, 0.05),
	ROW(static_ratio, CHANGE, "Share of frozen frames, in runs of a quarter of a second or more.", "", NAN, NAN),
	ROW(duplicate_ratio, CHANGE, "Share of repeated frames in shorter runs; 0.2 for a film of 24 frames in 30.", "",
		NAN, NAN),
	ROW(black_ratio, CHANGE, "Share of black frames.", "", NAN, 0.5),
	ROW(flicker, CHANGE, "Oscillation of brightness, 0 to 0.125.", "", NAN, 0.01),
	ROW(bar_ratio, OVERLAYS, "Share of the frame that black bars cover.", "", NAN, NAN),
	ROW(text_ratio, OVERLAYS, "Share of the frame that text covers: 0.01 for a logo, 0.04 for a subtitle.", "", NAN,
		0.1),
};

const struct vfm_score_fact *vfm_score_fact(int i)
{
	return i >= 0 && i < N_ROWS ? &facts[i] : NULL;
}

const struct vfm_score_fact *vfm_score_fact_of(const char *name)
{
	for (int i = 0; i < N_ROWS; i++)
		if (!strcmp(facts[i].name, name))
			return &facts[i];
	return NULL;
}
