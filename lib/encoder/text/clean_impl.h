/* clean_impl.h - text as code points, and the parts of clean.c. */
#ifndef VFM_ENCODER_TEXT_CLEAN_IMPL_H
#define VFM_ENCODER_TEXT_CLEAN_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct clean_text { /* `= {0}`: empty */
	int32_t *c;
	size_t n, cap;
};
void clean_put(struct clean_text *t, int32_t c);
void clean_add(struct clean_text *t, const int32_t *c, size_t n);
bool clean_equal(const struct clean_text *a, const struct clean_text *b);

/* The functions below replace the contents of *out. */

/* strict: only what ends with a semicolon, and upper-case names, as ftfy does; else html.unescape of Python. */
void clean_entities(const struct clean_text *in, bool strict, struct clean_text *out);
/* Undoes mojibake until nothing changes. */
void clean_mojibake(const struct clean_text *in, struct clean_text *out);

/* Returns the character that a byte is in Windows-1252; bytes that it does not assign stay. */
int32_t clean_from_cp1252(uint8_t byte);
bool clean_is_word(int32_t c);  /* \w of Python */
bool clean_is_space(int32_t c); /* \s of Python */

#endif
