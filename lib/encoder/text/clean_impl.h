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

/* Replaces the contents of *out.  strict: like ftfy, decodes only entities that end with a semicolon, and upper-case
 * names; else decodes like html.unescape of Python. */
void clean_entities(const struct clean_text *in, bool strict, struct clean_text *out);

/* Returns the character of a byte in Windows-1252; unassigned bytes stay unchanged. */
int32_t clean_from_cp1252(uint8_t byte);

#endif
