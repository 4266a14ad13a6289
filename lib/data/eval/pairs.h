/* pairs.h - pairs of clips and their reconstructions, and their similarity.
 *
 * A source is one of
 *
 * - a folder, with a clip for each video or image, also in subfolders.  A clip's name is its path within the folder
 *   without extension.
 * - JSON Lines, with a clip for each record: the frame range of `src`.  A clip's name is `id`.  Headers, and records
 *   with "error" or "drop", are left out.
 * - a single video or image.
 */
#ifndef VFM_DATA_EVAL_PAIRS_H
#define VFM_DATA_EVAL_PAIRS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* The pictures of an original that its reconstruction shows, as `vfm-curate decode` records them. */
struct vfm_pair_view {
	int width, height; /* scaled to cover this size and cropped; 0: as they are */
	int64_t frames;    /* the first frames; 0: all */
	double fps;        /* pictures a second; 0: every frame */
};

struct vfm_pair {
	const char *name;
	json_t *original, *reconstruction; /* records, with "src" */
	struct vfm_pair_view view;
};

struct vfm_pairs { /* `= {0}`; release in any case */
	struct vfm_pair *v;
	size_t n, cap;
	int64_t left_out; /* records with "error" or "drop" */
	int64_t lossy;    /* reconstructions whose records name a lossy codec */
};

/* Pairs the clip of each record with the file that `key` names: a path, or an object with `path` and, optionally,
 * width, height, frames, fps (struct vfm_pair_view) and codec.  VFM_EUSAGE names the record. */
int vfm_pairs_of_records(struct vfm_pairs *p, const char *path, const char *key, struct vfm_err *err);
/* Pairs the clips of two sources by name, in the order of the originals; two single files form a pair.  VFM_EUSAGE: a
 * clip has no partner, or two clips of a source have the same name. */
int vfm_pairs_match(struct vfm_pairs *p, const char *originals, const char *reconstructions, struct vfm_err *err);
void vfm_pairs_release(struct vfm_pairs *p);

struct vfm_pair_opts {
	/* scales originals to cover this size and crops them, as `vfm-curate encode` does; 0: the view's size */
	int width, height;
	/* compares this many first frames of both; 0: the view's number, and all of the reconstruction */
	int64_t frames;
	int threads; /* of a decoder; 0 = 1 */
};

struct vfm_pair_quality {
	int64_t frames;
	int width, height;
	double mse;  /* mean over frames, pixels and R, G, B of the squared error, in levels of 8 bits */
	double psnr; /* dB, of mse; infinite if all pixels are equal */
	double ssim; /* mean over the frames (media/score/quality.h) */
};

/* Reads both clips and compares them.  VFM_EINPUT: sizes or numbers of frames differ, there are fewer frames than
 * requested, or a file is bad; err names the pair. */
int vfm_pair_compare(
	struct vfm_pair_quality *q, const struct vfm_pair *p, const struct vfm_pair_opts *o, struct vfm_err *err);

#endif
