/* record.h - reads records of vfm-curate: JSON objects with "v":1. */
#ifndef VFM_DATA_RECORD_RECORD_H
#define VFM_DATA_RECORD_RECORD_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "io/hash.h"

/* Returns a record's string by key, or `otherwise`. */
const char *vfm_rec_str(const json_t *rec, const char *key, const char *otherwise);
/* Returns the key of a record: its string under `key` (NULL: none), else "id", else "src"; or NULL. */
const char *vfm_rec_key(const json_t *rec, const char *key);
/* Returns a value by dotted path ("latent.path"), or NULL. */
const json_t *vfm_rec_at(const json_t *rec, const char *path);
/* Gets a number by dotted path ("score.motion", "width").  A path without a dot that the record lacks is also looked up
 * in "score".  Returns false if there is none, or it is null. */
bool vfm_rec_num(const json_t *rec, const char *path, double *out);
/* Returns whether there is a null at the path instead: a score that the clip does not allow. */
bool vfm_rec_is_null(const json_t *rec, const char *path);
/* Turns a failure rc of the JSON getters, VFM_EUSAGE, into VFM_EINPUT, since the record is at fault.  Returns 0 for no
 * failure. */
int vfm_rec_blame(int rc, struct vfm_err *err);
/* VFM_EINPUT: "v" is present and not 1. */
int vfm_rec_check_version(const json_t *rec, struct vfm_err *err);
/* The frames of a record: all of `src`, or a range of it (after split, before clip). */
struct vfm_rec_media {
	const char *src; /* belongs to the record */
	bool is_image;
	int64_t start_frame, end_frame; /* end exclusive; -1: to the end */
	int64_t start_pts;              /* for vfm_video_seek; INT64_MIN: unknown */
};
/* VFM_EINPUT: "src" is missing, or one of the other keys is not a frame or time; err names the key. */
int vfm_rec_media(const json_t *rec, struct vfm_rec_media *m, struct vfm_err *err);
/* Returns whether the record has "error" or "drop". */
bool vfm_rec_is_out(const json_t *rec);
/* Returns "duration_s", or 0 if the record has none. */
double vfm_rec_duration(const json_t *rec);

/* Computes the sha256 of `head` and of the record without the keys of the NULL-terminated list `without`.  The order of
 * keys does not matter, nor whether a whole number is written as 2 or 2.0. */
void vfm_rec_digest(const char *head, const json_t *rec, const char *const *without, char hex[VFM_SHA256_HEX]);

#endif
