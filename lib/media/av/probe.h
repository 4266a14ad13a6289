/* probe.h - properties of a media file, from decoding it or, with `fast`, from its header.  Thread-safe: no shared
 * state. */
#ifndef VFM_MEDIA_AV_PROBE_H
#define VFM_MEDIA_AV_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "media/av/times.h"
#include "media/av/video_in.h"

struct vfm_probe {
	struct vfm_video_info info;
	int fps_num, fps_den; /* of the timestamps (times.h); with `fast`, as the container claims */
	int64_t frames;       /* decoded; with `fast`, as the container claims, -1: unknown */
	/* of the timestamps; with `fast`, as the container claims, < 0: unknown; 0 for an image */
	double duration_s;
	int64_t decode_errors;
	bool vfr;        /* the rate varies: fps is the mean */
	bool bad_times;  /* timestamps repeat, go back or jump; times follow from the rate */
	bool resized;    /* the size changes within the stream */
	bool interlaced; /* frames are flagged as interlaced; with `fast`, the stream or its first frame */
};

/* Probes a file that the caller decodes from its first frame: begin, add each frame, end. */
struct vfm_prober {
	struct vfm_probe *p;
	struct vfm_times times;
};
void vfm_prober_begin(struct vfm_prober *b, struct vfm_probe *p, const struct vfm_video *v);
void vfm_prober_add(struct vfm_prober *b, const struct vfm_frame *f);
/* Completes *p.  Reads an MPEG-TS file once more for its faults; errors are those of vfm_ts_faults. */
int vfm_prober_end(struct vfm_prober *b, const struct vfm_video *v, const char *path, const struct vfm_limit *limit,
	struct vfm_err *err);

/* fast: decodes one frame and takes everything else from the container. */
int vfm_probe_file(
	struct vfm_probe *p, const char *path, const struct vfm_video_opts *opts, bool fast, struct vfm_err *err);

/* Returns whether the extension of a name is that of a video or image.  For walks over folders; files that are named
 * explicitly are always probed. */
bool vfm_media_name(const char *name);
/* Returns whether it is that of a still image, which an animation may also have (WebP, AVIF). */
bool vfm_image_name(const char *name);

#endif
