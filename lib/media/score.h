/* score.h - scores of a clip, computed without a model.
 *
 * motion        speed of motion, in percent of the frame's width per second: the mean
 *               over 8 x 8 blocks of a frame of 128 x 96, matched between frames a tenth of a
 *               second apart (SAD, +-12 pixels, refined below a pixel).  Blocks without texture count
 *               as still.  0 static, 1-5 people and objects, 10 and more fast.
 * luma          mean brightness, 0 black to 1 white
 * contrast      standard deviation of luma within a frame, 0 to 0.5
 * sharpness     variance of the Laplacian of luma (0..255) at 512 pixels of width (Pech-Pacheco et al.,
 *               "Diatom autofocusing in brightfield microscopy", 2000); below 50 blurred
 * colorfulness  Hasler, Süsstrunk, "Measuring colorfulness in natural images", 2003; 0 grey, 15 slight,
 *               45 average, 80 and more strong
 * static_ratio  share of pairs of frames, a tenth of a second apart, between which nothing changes
 * black_ratio   share of frames of which 98 % of the pixels are black (luma < 0.125)
 * letterbox     black bars at [top, bottom, left, right], as shares of height and width
 * flicker       oscillation of brightness between frames: mean |second difference| of luma, 0 to 1
 * text_ratio    share of the frame that lines of text cover (text.h), at 512 pixels of width; 0.03 a subtitle
 *
 * All but motion and static_ratio are means over the sampled frames: about 10 a second,
 * at most 300, evenly.  An image has motion 0 and static_ratio 1.  Thread-safe.
 */
#ifndef VFM_MEDIA_SCORE_H
#define VFM_MEDIA_SCORE_H

#include <stdint.h>

#include "base/err.h"
#include "media/video_in.h"

struct vfm_score {
	double motion, luma, contrast, sharpness, colorfulness, static_ratio, black_ratio, flicker, text_ratio;
	double letterbox[4];
	int64_t frames; /* examined */
};

struct vfm_score_opts {
	struct vfm_video_opts video;
	int64_t start, end; /* frames of the file, end exclusive; -1 = to the end */
	int64_t start_pts;  /* for seeking; INT64_MIN unknown */
	int64_t about;      /* approximate number of frames, for even sampling; 0 = unknown */
};

int vfm_score_file(struct vfm_score *s, const char *path, const struct vfm_score_opts *opts, struct vfm_err *err);

#endif
