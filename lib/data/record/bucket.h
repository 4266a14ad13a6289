/* bucket.h - buckets: the shapes of training samples, and the choice of one for a clip or image.  vfm-curate-bucket(1)
 * defines the choice, which depends only on the source.
 *
 * A bucket is a width, a height and a number of frames that a tokenizer accepts in whole patches
 * (spec/model/geometry.h).  Batches of one bucket have equal shapes (as in Open-Sora, arXiv:2412.20404).  For a source
 * of w x h pixels and a size W x H,
 *
 *     scale = max(W / w, H / h)                     above 1: the source is enlarged
 *     keep  = min(W h, w H) / max(W h, w H)         fraction of the source's area that is not cropped
 *           = exp(-|ln(W / H) - ln(w / h)|)         so the nearest aspect ratio, by log distance, crops least
 *
 * Frames are counted after resampling.
 */
#ifndef VFM_DATA_RECORD_BUCKET_H
#define VFM_DATA_RECORD_BUCKET_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "spec/model/geometry.h"

#define VFM_BUCKET_NEAR 1.05 /* the tolerance of step 2 (vfm-curate-bucket(1)) */
#define VFM_BUCKET_NAME 64   /* bytes of a buffer for a name */
#define VFM_BUCKET_WHY  256  /* bytes of a buffer for a reason */

#define VFM_BUCKET_SIDE_MAX   16384
#define VFM_BUCKET_FRAMES_MAX 65536
#define VFM_BUCKET_ASPECTS    "16:9,4:3,1:1,3:4,9:16" /* the default */

struct vfm_bucket_opts {     /* options of the command; lists are separated by commas */
	const char *sizes;   /* "832x480,480x832"; NULL: none */
	const char *areas;   /* "480p,1280x720": see vfm_buckets_make; NULL: none */
	const char *aspects; /* width:height "16:9,1:1" or ranges "9:16..16:9/7"; NULL: the default */
	const char *frames;  /* "17,33,81"; NULL: all valid numbers from min_frames to max_frames */
	int64_t min_frames;  /* 0: 2 */
	int64_t max_frames;  /* 0: not given */
	double fps;          /* frames a second of the buckets; 0: every frame of the source */
	double max_upscale;  /* >= 1 */
	double max_crop;     /* 0 to 1 */
	struct vfm_geometry geometry;
	int32_t patch[3]; /* t, h, w */
};

struct vfm_bucket_size {
	int width, height;
};
struct vfm_buckets {                   /* `= {0}` before vfm_buckets_make; private but for tests */
	struct vfm_bucket_size *sizes; /* largest area first, then greatest width */
	int64_t *frames;               /* ascending */
	size_t n_sizes, sizes_cap, n_frames, frames_cap;
	double fps, max_upscale, max_crop;
	bool takes_images; /* the tokenizer accepts one frame */
};

/* Checks the options and makes the sizes and numbers of frames (vfm-curate-bucket(1), --area, --aspects).  A range
 * "A..B/N" has N >= 2 ratios.  A size does not exceed its area, unless a side has a single multiple of stride x patch.
 * VFM_EUSAGE: an option is wrong.  A size or number that the tokenizer does not accept is reported with the nearest
 * valid one.  The caller releases b in any case. */
int vfm_buckets_make(struct vfm_buckets *b, const struct vfm_bucket_opts *o, struct vfm_err *err);
void vfm_buckets_release(struct vfm_buckets *b);
/* Returns everything that determines the choice, as text; the caller frees it. */
char *vfm_buckets_text(const struct vfm_buckets *b);

struct vfm_bucket {
	int width, height;
	int64_t frames;
	double fps; /* 0: every frame of the source */
};
struct vfm_bucket_source {
	int64_t width, height; /* pixels as shown, >= 1 */
	int64_t frames;        /* after resampling, >= 1 */
	bool is_image;
};
/* Sets *out and returns true, or returns false with the reason, which names the option that excludes the source. */
bool vfm_buckets_choose(const struct vfm_buckets *b, const struct vfm_bucket_source *s, struct vfm_bucket *out,
	char why[VFM_BUCKET_WHY]);
/* Returns the minimum number of frames that remain of n frames at `rate` frames a second after resampling to `fps`.
 * Only the time from the first to the last frame counts: encode shows each picture from its time on, and requires a
 * frame at or after it. */
int64_t vfm_bucket_resampled(int64_t n, double rate, double fps);

/* Sets rec["bucket"] = {name, width, height, frames} and, with b->fps, `fps`; or removes it and sets "drop".
 * VFM_EINPUT: the record lacks width, height, frames or, with b->fps, fps. */
int vfm_bucket_assign(const struct vfm_buckets *b, json_t *rec, struct vfm_err *err);
/* Reads rec["bucket"].  VFM_EINPUT: it is missing or damaged; the message names the key. */
int vfm_bucket_read(struct vfm_bucket *b, const json_t *rec, struct vfm_err *err);
/* Sets *fps to the rate at which the bucket's frames were counted.  On entry *fps is the stage's option --fps (0: not
 * given).  VFM_EINPUT: they differ. */
int vfm_bucket_rate(const struct vfm_bucket *b, double *fps, struct vfm_err *err);
/* VFM_EINPUT: `frames`, of a clip or image in the bucket, is not the bucket's number. */
int vfm_bucket_check_frames(const struct vfm_bucket *b, int64_t frames, struct vfm_err *err);
/* Writes "832x480x81".  Returns name. */
const char *vfm_bucket_name(const struct vfm_bucket *b, char name[VFM_BUCKET_NAME]);

#endif
