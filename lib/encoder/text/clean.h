/* clean.h - cleans prompts for a tokenizer like Wan's text encoder: fix_text of ftfy 6.3 (Speer 2019) with
 * fix_encoding=False, html.unescape twice, then each run of white space becomes one space, and none remain at the ends.
 *
 * vfm-text(7) describes the steps and the differences.  fix_text repeats its steps on each line until nothing changes,
 * at most 64 times.  html.unescape decodes the same entities as HTML5, also without a semicolon.  The Unicode data is
 * that of utf8proc. */
#ifndef VFM_ENCODER_TEXT_CLEAN_H
#define VFM_ENCODER_TEXT_CLEAN_H

#include "base/err.h"
#include "base/mem.h"

/* Raised when the result for any text changes; part of a text encoder's identity. */
enum { VFM_CLEAN_VERSION = 2 };

/* Replaces the contents of *out with the cleaned text; out->data is not NULL.  VFM_EINPUT: the text is not valid
 * UTF-8. */
int vfm_clean_text(const char *text, struct vfm_buf *out, struct vfm_err *err);

#endif
