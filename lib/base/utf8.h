/* utf8.h - characters (code points) of UTF-8 strings. */
#ifndef VFM_BASE_UTF8_H
#define VFM_BASE_UTF8_H

#include <stddef.h>

/* Returns the number of characters that begin in the first n bytes of s. */
int vfm_utf8_width(const char *s, size_t n);
/* Returns the number of bytes of the first `width` characters of s, or of all of s if it is shorter. */
size_t vfm_utf8_cut(const char *s, int width);

#endif
