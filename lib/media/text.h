/* text.h - text in a frame (subtitles, captions, watermarks), found without a model.
 *
 * A stroke is a run of at most 12 pixels along a row that is brighter, or darker, than both sides by a quarter of the
 * range (morphological top-hat).  Connected blocks of 8 x 8 pixels with many strokes of similar brightness form a line.
 * A line is at least five blocks wide.  Its strokes change from row to row, but less often than along the rows, which
 * excludes stripes and noise.  Letters of less than 8 pixels of height, or of low contrast, are missed.
 */
#ifndef VFM_MEDIA_TEXT_H
#define VFM_MEDIA_TEXT_H

#include <stdint.h>

/* Returns the share of the blocks of 8 x 8 pixels of luma [h, w] that text covers, 0 to 1. */
double vfm_text_ratio(const uint8_t *luma, int w, int h);

#endif
