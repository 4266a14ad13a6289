/* text.h - text in a frame (subtitles, captions, watermarks), found without a model.
 *
 * A stroke is a run of at most 12 pixels along a row that is brighter, or darker, than both sides by a quarter of the
 * range (morphological top-hat).  Neighbouring blocks of 8 x 8 pixels with many strokes of similar brightness form a
 * line, at least five blocks wide, if the strokes change from row to row, but less often than those of noise.  The
 * result is an estimate: it counts the bounding boxes of lines, and misses letters that are small (below 8 pixels of
 * height), sparse or of low contrast.
 */
#ifndef VFM_MEDIA_TEXT_H
#define VFM_MEDIA_TEXT_H

#include <stdint.h>

/* Returns the share of the blocks of 8 x 8 pixels of luma [h, w] that lines of text cover, 0 to 1. */
double vfm_text_ratio(const uint8_t *luma, int w, int h);

#endif
