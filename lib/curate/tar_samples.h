/* tar_samples.h - the samples of a tar of other programs, by WebDataset's rules.
 *
 * Consecutive regular members with the same key are a sample.  The key is the name up to the first dot of its last
 * part; members without such a dot, and those whose name begins "__NAME__", belong to no sample.  A sample gives a
 * record for each member whose ending is that of a video or image (media/probe.h):
 *
 *	{"v":1,"src":"a.tar@1536+48211/x/0001.mp4","kind":"video","key":"x/0001","caption":"…","cls":3,"meta":{…}}
 *
 * src       the member (base/member.h)
 * kind      "video" or "image", by the ending
 * caption   the content of KEY.txt without the newline at its end, or else the string "caption" of KEY.json
 * cls       the content of KEY.cls: an integer if it is one, else the text
 * meta      KEY.json, an object
 *
 * Only headers and these three members are read.  Memory is bounded by a sample: VFM_TAR_SAMPLE_MEDIA media members,
 * 1 MiB of text, 16 MiB of JSON.  Local; used by one thread.
 */
#ifndef VFM_CURATE_TAR_SAMPLES_H
#define VFM_CURATE_TAR_SAMPLES_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"

enum { VFM_TAR_SAMPLE_MEDIA = 256 };

struct vfm_tar_samples;

struct vfm_tar_samples_left { /* what became no record */
	int64_t members;      /* regular ones that are neither media nor metadata */
	int64_t links; /* hard and symbolic ones with the name of a member of a sample; WebDataset leaves them out, too
			*/
	int64_t samples; /* without media */
};

/* Opens a tar.  VFM_EINPUT: it cannot be read, it is compressed (its members cannot be read by offset), or no member
 * of it can be named.  *left gets added to; NULL: not counted. */
int vfm_tar_samples_open(
	struct vfm_tar_samples **out, const char *path, struct vfm_tar_samples_left *left, struct vfm_err *err);

/* 1 = *rec is the next record, which the caller owns, in the order of the tar; 0 = the end; VFM_EINPUT = err says what
 * is damaged: a sample, or all that follows.  The next call goes on. */
int vfm_tar_samples_next(struct vfm_tar_samples *s, json_t **rec, struct vfm_err *err);

void vfm_tar_samples_close(struct vfm_tar_samples *s); /* accepts NULL */

#endif
