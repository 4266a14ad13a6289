/* thumbnail.h - evenly spaced frames of a record, for pages. */
#ifndef VFM_DATA_RECORD_THUMBNAIL_H
#define VFM_DATA_RECORD_THUMBNAIL_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_thumbnails {
	uint8_t *rgb; /* [n, height, width, 3]; the caller frees it, also after a failure */
	int n, width, height;
};

/* Decodes `frames` evenly spaced frames of a record (src, start_frame, end_frame), 1: the middle one, or
 * those that its file has, into the largest pictures of its shape within width x height.  VFM_EINPUT: there is none. */
int vfm_thumbnails(struct vfm_thumbnails *t, const json_t *rec, int frames, int width, int height, double timeout_s,
	struct vfm_err *err);

#endif
