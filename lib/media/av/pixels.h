/* pixels.h - decoded frames as packed pixels: scaled, cropped, upright. */
#ifndef VFM_MEDIA_AV_PIXELS_H
#define VFM_MEDIA_AV_PIXELS_H

#include <stdbool.h>
#include <stdint.h>

#include "media/av/av.h"

/* A rotation and mirroring: a dst pixel (x, y) is the src pixel
 * (x0 + a x + b y, y0 + c x + d y), where x0, y0 make it start inside. */
struct vfm_orient {
	int a, b, c, d;
};
/* From a display matrix (NULL = as it is); angles are rounded to quarter turns. */
struct vfm_orient vfm_orient_of(const int32_t *matrix);
/* Clockwise degrees after an optional mirroring left to right. */
int vfm_orient_degrees(struct vfm_orient o, bool *mirrored);

/* Scales, crops and rotates frames into packed pixels; keeps its contexts.  One thread at a time. */
struct vfm_pixels;
struct vfm_pixels *vfm_pixels_new(void);
void vfm_pixels_free(struct vfm_pixels *p);

struct vfm_pixels_job {
	const AVFrame *frame;
	struct vfm_orient orient;
	int shown_w, shown_h; /* of the whole frame, upright and with square pixels */
	int width, height;    /* wanted */
	bool cover;           /* keep the aspect ratio, crop the middle */
	bool luma;            /* one byte a pixel, else three */
	bool sdr;             /* convert HDR and BT.2020 to BT.709 (sdr.h) */
	uint8_t *dst;
};
int vfm_pixels_run(struct vfm_pixels *p, const struct vfm_pixels_job *job, struct vfm_err *err);
/* Scales the whole frame as vfm_video_thumb does; uses frame, orient, shown_w and shown_h of the job. */
struct vfm_thumb;
int vfm_pixels_thumb(struct vfm_pixels *p, const struct vfm_pixels_job *job, struct vfm_thumb *t, struct vfm_err *err);
/* Copies rows of luma as vfm_video_coded_rows does. */
int vfm_pixels_rows(
	struct vfm_pixels *p, const AVFrame *frame, const int *rows, int n, uint8_t *dst, struct vfm_err *err);

#endif
