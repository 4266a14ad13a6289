/* clean.h - the clean-up of prompts in front of a tokenizer, as the text encoder of Wan applies it:
 *
 *	fix_text (ftfy 6.3, Speer 2019), html.unescape twice, runs of white space to one space, none at the ends
 *
 * fix_text works on lines and repeats these steps until nothing changes, at most 64 times:
 *   1. HTML entities with a semicolon, also upper-case ones (&EACUTE;), while no line has had a "<"
 *   2. mojibake: UTF-8 that was read as Latin-1 or Windows-1252, in whole lines or in parts, and C1 control characters
 *   3. Latin ligatures; full-width and half-width forms; curly quotes to ' and "; line breaks to \n
 *   4. terminal escapes and control characters removed; NFC
 * html.unescape decodes what HTML5 decodes, without a semicolon, too.
 *
 * Not implemented is mojibake by the other encodings that ftfy tries (Windows-1250, -1251, -1253, -1254, -1257,
 * ISO 8859-2, MacRoman, code page 437): such text stays as it is.  The Unicode data is that of utf8proc.
 */
#ifndef VFM_ENCODER_TEXT_CLEAN_H
#define VFM_ENCODER_TEXT_CLEAN_H

#include "base/err.h"
#include "base/mem.h"

/* Raised when the result for any text changes; part of the identity of a text encoder. */
enum { VFM_CLEAN_VERSION = 1 };

/* Replaces the contents of *out with the cleaned text; out->data is not NULL.  VFM_EINPUT: the text is no valid UTF-8.
 */
int vfm_clean_text(const char *text, struct vfm_buf *out, struct vfm_err *err);

#endif
