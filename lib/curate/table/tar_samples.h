/* tar_samples.h - the samples of a tar of other programs, by WebDataset's rules.
 *
 * Consecutive regular members with the same key are a sample (vfm_tar_split_name, io/tar.h).  A sample gives a record
 * for each member whose type is that of a video or image (media/av/probe.h):
 *
 *	{"v":1,"src":"a.tar@1536+48211/x/0001.mp4","kind":"video","key":"x/0001","caption":"…","cls":3,"meta":{…}}
 *
 * src         the member (io/input.h)
 * kind        "video" or "image", by the type
 * caption     the txt without byte order mark and last newline, or else the string "caption" of the json
 * cls         the cls: an integer if it is one, else the text
 * meta        the json, an object, as vfm_json_parse_foreign reads it
 * meta_error  why the json is not read
 *
 * A txt or cls that no record can hold is an error of the record.  Memory is bounded by a sample: VFM_TAR_SAMPLE_MEDIA
 * media members and as many others, 1 MiB of text, 8 MiB of JSON.  Local; used by one thread.
 */
#ifndef VFM_CURATE_TABLE_TAR_SAMPLES_H
#define VFM_CURATE_TABLE_TAR_SAMPLES_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"

enum { VFM_TAR_SAMPLE_MEDIA = 256 };

struct vfm_tar_samples;

struct vfm_tar_samples_left {     /* what became no record, or no part of one */
	struct vfm_named members; /* regular ones that are neither media nor metadata of one */
	struct vfm_named links;   /* hard and symbolic ones with the name of a member of a sample, as WebDataset does */
	struct vfm_named samples; /* without media: their keys */
	struct vfm_named json;    /* of "meta_error" */
};

/* Opens a tar.  VFM_EINPUT: it cannot be read, it is compressed (its members cannot be read by offset), or no member
 * of it can be named.  *left gets added to; NULL: not counted. */
int vfm_tar_samples_open(
	struct vfm_tar_samples **out, const char *path, struct vfm_tar_samples_left *left, struct vfm_err *err);

/* 1 = *rec is the next record, which the caller owns, in the order of the tar; 0 = the end; VFM_EINPUT = err names the
 * damage: a sample, or all that follows.  The next call continues. */
int vfm_tar_samples_next(struct vfm_tar_samples *s, json_t **rec, struct vfm_err *err);

void vfm_tar_samples_close(struct vfm_tar_samples *s); /* accepts NULL */

#endif
