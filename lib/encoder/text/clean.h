/* clean.h - the clean-up of prompts in front of a tokenizer, as the text encoder of Wan applies it to text that is not
 * mojibake:
 *
 *	fix_text of ftfy 6.3 (Speer 2019) with fix_encoding=False, html.unescape twice, runs of white space to one
 *	space, none at the ends
 *
 * fix_text works on lines and repeats these steps until nothing changes, at most 64 times:
 *   1. HTML entities with a semicolon, also upper-case ones (&EACUTE;), while no line has had a "<"
 *   2. C1 control characters as Windows-1252; Latin ligatures; full-width and half-width forms; curly quotes to ' and ";
 *      line breaks to \n
 *   3. terminal escapes and control characters removed; NFC
 * html.unescape decodes what HTML5 decodes, without a semicolon, too.  The Unicode data is that of utf8proc.
 */
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
