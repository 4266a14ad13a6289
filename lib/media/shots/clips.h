/* clips.h - the clips between cuts. */
#ifndef VFM_MEDIA_SHOTS_CLIPS_H
#define VFM_MEDIA_SHOTS_CLIPS_H

#include <stdint.h>

#include "media/shots/scene.h"

/* The clips of `frames` frames between `cuts`.  Frames inside of a transition are in no clip.  A single frame that is
 * longer than the maximum is a clip.  Leaves is_short false.  Returns their number; the caller frees *spans. */
int64_t vfm_clips_of(int64_t frames, const struct vfm_cut *cuts, int64_t n_cuts, const struct vfm_clip_rule *rule,
	struct vfm_span **spans);

#endif
