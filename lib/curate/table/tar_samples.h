/* tar_samples.h - the samples of a tar of another program, by WebDataset's rules.
 *
 * Consecutive regular members with the same key are a sample (vfm_tar_split_name, io/tar.h).  A sample gives a record
 * for each member with the extension of a video or image (media/av/probe.h):
 *
 *	{"v":1,"src":"a.tar@1536+48211/x/0001.mp4","kind":"video","key":"x/0001","caption":"…","cls":3,"meta":{…}}
 *
 * src         the member (io/input.h)
 * kind        "video" or "image", by the extension
 * caption     the txt without byte order mark and last newline, or else the string "caption" of the json
 * cls         the cls as an integer if it is one, else as text
 * meta        the json, an object, as read by vfm_json_parse_foreign
 * meta_error  the reason why the json is not read
 *
 * A txt or cls that no record can hold is an error of the record.  A sample bounds the memory: VFM_TAR_SAMPLE_MEDIA
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

struct vfm_tar_samples_left {     /* content that is not in any record */
	struct vfm_named members; /* regular members that are neither media nor their metadata */
	/* hard and symbolic links with the name of a sample's member, which WebDataset skips, too */
	struct vfm_named links;
	struct vfm_named samples; /* keys of samples without media */
	struct vfm_named json;    /* members behind "meta_error" */
};

/* Opens a tar.  Adds to *left, unless it is NULL.  VFM_EINPUT: the tar cannot be read, is compressed (its members
 * cannot be read by offset), or none of its members can be named. */
int vfm_tar_samples_open(
	struct vfm_tar_samples **out, const char *path, struct vfm_tar_samples_left *left, struct vfm_err *err);

/* Returns 1 with the next record in *rec, which the caller owns, in the order of the tar; 0 at the end; VFM_EINPUT if a
 * sample, or everything that follows, is damaged: err names the damage.  The next call continues. */
int vfm_tar_samples_next(struct vfm_tar_samples *s, json_t **rec, struct vfm_err *err);

void vfm_tar_samples_close(struct vfm_tar_samples *s); /* accepts NULL */

#endif
