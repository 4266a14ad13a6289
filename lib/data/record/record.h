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
/* Returns what identifies a record: its string under `key` (NULL: none), else "id", else "src"; or NULL. */
const char *vfm_rec_key(const json_t *rec, const char *key);
/* Returns a value by dotted path ("latent.path"), or NULL. */
const json_t *vfm_rec_at(const json_t *rec, const char *path);
/* A number by dotted path ("score.motion", "width"); a path without a dot that the
 * record lacks is looked up in "score" too.  Returns false when there is none (or it is null). */
bool vfm_rec_num(const json_t *rec, const char *path, double *out);
/* Turns a failure rc of the getters of JSON, which report VFM_EUSAGE, into VFM_EINPUT: the record is to blame.  Returns
 * 0 if there was none. */
int vfm_rec_blame(int rc, struct vfm_err *err);
/* VFM_EINPUT: "v" is there and is not 1. */
int vfm_rec_check_version(const json_t *rec, struct vfm_err *err);
/* The frames of a record: all of `src`, or after split, before clip, a range of it. */
struct vfm_rec_media {
	const char *src; /* belongs to the record */
	bool is_image;
	int64_t start_frame, end_frame; /* end exclusive; -1: to the end */
	int64_t start_pts;              /* for vfm_video_seek; INT64_MIN: unknown */
};
/* VFM_EINPUT: "src" is missing, or another of these keys is no frame or time; err names the key. */
int vfm_rec_media(const json_t *rec, struct vfm_rec_media *m, struct vfm_err *err);
/* Whether the record has "error" or "drop". */
bool vfm_rec_is_out(const json_t *rec);
/* Writes `why` [len] with numbers (12.5, 0x1be2) as "#", and quoted names and ids (words of 8 letters and digits or
 * more) as "'...'", so that similar reasons are equal.  A text that is too long is cut between characters. */
void vfm_reason_mask(char *text, size_t size, const char *why, size_t len);

/* The sha256 of `head` and of the record without the keys of the NULL-terminated list `without`.  Neither the order of
 * keys matters nor whether a whole number is written as 2 or 2.0. */
void vfm_rec_digest(const char *head, const json_t *rec, const char *const *without, char hex[VFM_SHA256_HEX]);

#endif
