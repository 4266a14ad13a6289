/* artifacts.h - faults of the picture at the resolution of the file: blur, blocking, interlacing.
 *
 * man/vfm-scores.7 defines them.  They depend on the size of the file.  Reads 32 bands of 8 rows of a frame's luma, as
 * coded (all rows of a frame with fewer than 256).
 *
 * Local; one thread at a time.  Memory does not depend on the length of the clip.
 */
#ifndef VFM_MEDIA_SCORE_ARTIFACTS_H
#define VFM_MEDIA_SCORE_ARTIFACTS_H

#include "base/err.h"
#include "media/av/video_in.h"

struct vfm_artifacts_result {
	double blur;       /* pixels, 1 and more; NAN: no edges */
	double blockiness; /* NAN: no whole block */
	double interlace;  /* 0 to 1; NAN: no two consecutive frames */
};

struct vfm_artifacts;

struct vfm_artifacts *vfm_artifacts_new(void);
void vfm_artifacts_free(struct vfm_artifacts *a); /* no-op for NULL */

/* Adds the last frame that `v` decoded. */
int vfm_artifacts_add(struct vfm_artifacts *a, struct vfm_video *v, struct vfm_err *err);

/* Compares the last frame that `v` decoded with that of vfm_artifacts_add, which must be the previous frame. */
int vfm_artifacts_next(struct vfm_artifacts *a, struct vfm_video *v, struct vfm_err *err);

/* Returns the means over the frames. */
struct vfm_artifacts_result vfm_artifacts_result(const struct vfm_artifacts *a);

#endif
