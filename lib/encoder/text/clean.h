/* clean.h - the clean-up of prompts in front of a tokenizer, as the text encoder of Wan applies it: fix_text of ftfy
 * 6.3 (Speer 2019) with fix_encoding=False, html.unescape twice, runs of white space to one space, none at the ends.
 * vfm-text(7) describes the steps and what differs.  fix_text repeats them on each line until nothing changes, at
 * most 64 times.  html.unescape decodes what HTML5 decodes, without a semicolon, too.  The Unicode data is that of
 * utf8proc. */
#ifndef VFM_ENCODER_TEXT_CLEAN_H
#define VFM_ENCODER_TEXT_CLEAN_H

#include "base/err.h"
#include "base/mem.h"

/* Raised when the result for any text changes; part of the identity of a text encoder. */
enum { VFM_CLEAN_VERSION = 2 };

/* Replaces the contents of *out with the cleaned text; out->data is not NULL.  VFM_EINPUT: the text is no valid UTF-8.
 */
int vfm_clean_text(const char *text, struct vfm_buf *out, struct vfm_err *err);

#endif
