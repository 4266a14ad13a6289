/* artifacts.h - faults of the picture at the resolution of the file: blur, blocking, interlacing.
 *
 * man/vfm-scores.7 defines them.  Takes 32 bands of 8 rows of luma of a frame, as coded (all rows of a frame of less
 * than 256).
 *
 * Local; one thread at a time.  Memory does not depend on the length of the clip.
 */
#ifndef VFM_MEDIA_SCORE_ARTIFACTS_H
#define VFM_MEDIA_SCORE_ARTIFACTS_H

#include "base/err.h"
#include "media/av/video_in.h"

struct vfm_artifacts_result {
	double blur; /* pixels, 1 and more; 0: no edges */
	double blockiness;
	double interlace; /* 0 to 1; 0 without two neighbouring frames */
};

struct vfm_artifacts;

struct vfm_artifacts *vfm_artifacts_new(void);
void vfm_artifacts_free(struct vfm_artifacts *a); /* NULL is fine */

/* Takes the frame that `v` decoded last. */
int vfm_artifacts_add(struct vfm_artifacts *a, struct vfm_video *v, struct vfm_err *err);

/* Compares the frame that `v` decoded last with that of vfm_artifacts_add, which must be the one before it. */
int vfm_artifacts_next(struct vfm_artifacts *a, struct vfm_video *v, struct vfm_err *err);

/* Means over the frames. */
struct vfm_artifacts_result vfm_artifacts_result(const struct vfm_artifacts *a);

#endif
