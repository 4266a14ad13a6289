/* thumbnail.h - the middle frame of a record, for pages. */
#ifndef VFM_DATA_RECORD_THUMBNAIL_H
#define VFM_DATA_RECORD_THUMBNAIL_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"

/* Decodes the middle frame of a record (src, start_frame, end_frame) into the largest picture of its shape within
 * width x height: *rgb [*h, *w, 3], which the caller frees also after a failure.  VFM_EINPUT: it cannot be decoded. */
int vfm_thumbnail(
	const json_t *rec, int width, int height, double timeout_s, uint8_t **rgb, int *w, int *h, struct vfm_err *err);

#endif
