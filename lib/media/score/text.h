/* text.h - text that stays in place (subtitles, captions, logos, watermarks), found without a neural network.
 *
 * man/vfm-scores.7 describes the method and its sources.  Strokes are the difference of the picture and its
 * morphological opening.  A logistic model distinguishes lines of text from texture by the features below
 * (bench/text-calibrate).
 *
 * Local; one thread at a time.  Memory does not depend on the number of frames.
 */
#ifndef VFM_MEDIA_SCORE_TEXT_H
#define VFM_MEDIA_SCORE_TEXT_H

#include <stdint.h>

struct vfm_text;

/* For frames of luma [h, w], whose shorter side should be 240 pixels. */
struct vfm_text *vfm_text_new(int w, int h);
void vfm_text_free(struct vfm_text *t); /* no-op for NULL */

void vfm_text_add(struct vfm_text *t, const uint8_t *luma);

/* Call after the last frame.  Returns the fraction of the picture that the bounding boxes of lines cover, 0 to 1: the
 * mean over groups of 8 frames.  The last group counts if it has at least 4 frames, or is the only one.  Returns 0
 * without frames. */
double vfm_text_end(struct vfm_text *t);

/* The features of a line:
 *
 * - logs of the number of sets, of the number of letters (a set wider than high counts as several), and of their mean
 *   height in pixels
 * - stroke width in heights; standard deviation of the stroke width over its mean
 * - fragments other than letters, per letter
 * - standard deviation of the tops or of the bottoms, whichever is smaller, in heights
 * - log2 of the contrast over 20 */
#define VFM_TEXT_FEATURES 8

struct vfm_text_line {
	int left, right, top, bottom; /* inclusive, in the examined picture */
	double f[VFM_TEXT_FEATURES];
};

/* Called with each line that the model examines, text or not, before vfm_text_add or vfm_text_end returns. */
typedef void vfm_text_watcher(void *ctx, const struct vfm_text_line *line);
void vfm_text_watch(struct vfm_text *t, vfm_text_watcher *watch, void *ctx);

#endif
