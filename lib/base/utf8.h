/* utf8.h - texts by their characters: code points of UTF-8. */
#ifndef VFM_BASE_UTF8_H
#define VFM_BASE_UTF8_H

#include <stddef.h>

/* Returns the characters that begin in the first n bytes of s. */
int vfm_utf8_width(const char *s, size_t n);
/* Returns the bytes of the first `width` characters of s, or of all if it has no more. */
size_t vfm_utf8_cut(const char *s, int width);

#endif
