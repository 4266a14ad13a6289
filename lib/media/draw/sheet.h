/* sheet.h - a contact sheet: a few frames of each clip side by side, with lines of text below. */
#ifndef VFM_MEDIA_DRAW_SHEET_H
#define VFM_MEDIA_DRAW_SHEET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "media/av/video_in.h"

struct vfm_sheet_opts {
	struct vfm_video_opts video; /* each clip has a limit of its own */
	double timeout_s;            /* of a clip; 0 = 600 */
	int columns;                 /* clips in a row; 0 = 3 */
	int frames;                  /* of a clip; 0 = 3 */
	int width, height;           /* box of a frame, in which it is fitted; 0 = 160 x 120 */
};

struct vfm_sheet;
struct vfm_sheet *vfm_sheet_new(const struct vfm_sheet_opts *opts);

struct vfm_sheet_clip {
	const char *path;
	int64_t start, end; /* frames, end exclusive; -1 = to the end */
	int64_t start_pts;  /* INT64_MIN unknown */
	const char *text;   /* lines, clipped to the width of the cell; NULL none */
	bool marked;        /* a red frame: dropped or failed */
};
int vfm_sheet_add(struct vfm_sheet *s, const struct vfm_sheet_clip *clip, struct vfm_err *err);
int64_t vfm_sheet_count(const struct vfm_sheet *s);
int vfm_sheet_write(struct vfm_sheet *s, const char *path, const char *title, struct vfm_err *err); /* PNG, atomic */
void vfm_sheet_free(struct vfm_sheet *s);

#endif
