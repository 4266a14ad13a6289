/* charsmap.h - the compiled normalization of a sentencepiece model, applied as in the `tokenizers` library.
 *
 * The map is a double-array trie (Darts: Aoe, IEEE Trans.  Software Eng.  15(9), 1989) from UTF-8 prefixes to offsets
 * in a block of NUL-terminated replacements.  sentencepiece replaces the longest prefix.  `tokenizers` instead cuts the
 * text into grapheme clusters (Unicode UAX #29).  A cluster below 6 bytes becomes the replacement of its shortest
 * prefix in the map.  In all other clusters, characters are replaced one by one.
 */
#ifndef VFM_ENCODER_TEXT_CHARSMAP_H
#define VFM_ENCODER_TEXT_CHARSMAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

struct vfm_charsmap { /* `= {0}`: absent, changes nothing */
	uint32_t *unit;
	size_t n_units;
	char *text;
	size_t text_len;
};

/* Copies a precompiled_charsmap.  VFM_EUSAGE: its sizes are impossible; `what` names it.  Any other content is read
 * within its bounds. */
int vfm_charsmap_init(struct vfm_charsmap *m, const void *blob, size_t len, const char *what, struct vfm_err *err);
void vfm_charsmap_release(struct vfm_charsmap *m);

/* Appends the normalized form of valid UTF-8 to *out. */
void vfm_charsmap_apply(const struct vfm_charsmap *m, const char *s, size_t len, struct vfm_buf *out);

#endif
