/* pixels.h - decoded frames as packed pixels: scaled, cropped, upright. */
#ifndef VFM_MEDIA_AV_PIXELS_H
#define VFM_MEDIA_AV_PIXELS_H

#include <stdbool.h>
#include <stdint.h>

#include "media/av/av.h"
#include "media/av/layout.h"

/* A rotation and mirroring: the dst pixel (x, y) is the src pixel (x0 + a x + b y, y0 + c x + d y), where x0 and y0
 * place the start inside. */
struct vfm_orient {
	int a, b, c, d;
};
/* Returns the orientation of a display matrix (NULL: upright); angles are rounded to quarter turns. */
struct vfm_orient vfm_orient_of(const int32_t *matrix);
/* Returns the clockwise degrees after an optional left-to-right mirroring. */
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
	bool luma;            /* one byte per pixel; else a picture of this layout */
	enum vfm_layout layout;
	bool sdr; /* convert HDR and BT.2020 to BT.709 (sdr.h) */
	uint8_t *dst;
};
int vfm_pixels_run(struct vfm_pixels *p, const struct vfm_pixels_job *job, struct vfm_err *err);
/* Returns the layout of Y'CbCr 4:2:0 that is nearest to a frame. */
enum vfm_layout vfm_pixels_layout(const AVFrame *frame, bool sdr);
/* Scales the whole frame like vfm_video_thumb; uses frame, orient, shown_w and shown_h of the job. */
struct vfm_thumb;
int vfm_pixels_thumb(struct vfm_pixels *p, const struct vfm_pixels_job *job, struct vfm_thumb *t, struct vfm_err *err);
/* Copies rows of luma like vfm_video_coded_rows. */
int vfm_pixels_rows(
	struct vfm_pixels *p, const AVFrame *frame, const int *rows, int n, uint8_t *dst, struct vfm_err *err);

#endif
