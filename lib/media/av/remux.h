/* remux.h - copies the packets of a range of a video into a new file, without decoding.
 *
 * A range can be copied if
 *
 * - .mp4 supports its codec (H.264, HEVC, AV1, VP9, MPEG-4 Part 2),
 * - its first packet is a key frame,
 * - the packets of its frames are contiguous: no frame of the range refers to a frame after its end,
 * - each packet is a frame with a timestamp, and is shown.
 *
 * Leaves out frames that precede the key frame in display order (an open group of pictures).
 */
#ifndef VFM_MEDIA_AV_REMUX_H
#define VFM_MEDIA_AV_REMUX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/err.h"
#include "media/av/times.h"

struct vfm_remux_opts {
	int64_t start, end; /* frames, end exclusive; -1: to the end */
	int64_t start_pts;  /* of frame `start`; INT64_MIN: unknown, only valid if start is 0 */
	const struct vfm_limit *limit;
};

struct vfm_remux_result {
	int64_t frames;
	double duration_s;
	double start_s;         /* of the first frame in the source */
	struct vfm_times times; /* of the frames */
};

/* Returns whether the codec ("h264", …) allows a copy. */
bool vfm_remux_takes(const char *codec);

/* Writes `out` (.mp4) atomically.  Returns 1, or 0 without a file if the range cannot be copied.  VFM_EINPUT, VFM_EENV:
 * a read or write failed. */
int vfm_remux(const char *src, const char *out, const struct vfm_remux_opts *o, struct vfm_remux_result *r,
	struct vfm_err *err);

#endif
