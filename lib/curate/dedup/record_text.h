/* record_text.h - reads a record from the text of its line, without building values.
 *
 * It accepts only text as vfm_json_text writes it: no blanks between tokens, canonical numbers, and only two-character
 * escapes.  Such text can be copied unchanged.  It refuses all other lines, including those that are not JSON;
 * vfm_jsonl_next reads them.
 *
 * Not thread-safe: use one struct per thread.
 */
#ifndef VFM_CURATE_DEDUP_RECORD_TEXT_H
#define VFM_CURATE_DEDUP_RECORD_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "io/hash.h"

enum vfm_text_type { VFM_TEXT_OBJECT, VFM_TEXT_ARRAY, VFM_TEXT_STRING, VFM_TEXT_INTEGER, VFM_TEXT_REAL, VFM_TEXT_WORD };

struct vfm_text_value {
	/* offset in the text, without quotes; 0, 0 for the record or for elements of an array */
	uint32_t key, key_len;
	uint32_t at, len; /* including the quotes of a string */
	uint32_t next;    /* index of the value after this one and everything that it contains */
	uint8_t type;     /* enum vfm_text_type; a word is true, false or null */
	bool escaped;     /* a string that contains escapes */
};

struct vfm_record_text {  /* `= {0}` before; release in any case */
	const char *text; /* belongs to the caller, and must stay unchanged */
	size_t len;
	struct vfm_text_value *v; /* [n]: the record, followed by everything that it contains, in order */
	uint32_t n;
	/* private */
	size_t cap;
	struct vfm_buf sorted; /* the members of the record, in the form of vfm_rec_digest */
	struct sorted_member {
		uint32_t value; /* in v */
		size_t at, len; /* in sorted */
	} * members;
	size_t n_members, cap_members;
	bool is_sorted;
};

/* Reads the object in a line that ends in a zero byte instead of its newline.  Returns whether the text is accepted. */
bool vfm_record_text_read(struct vfm_record_text *t, const char *text, size_t len);
void vfm_record_text_release(struct vfm_record_text *t);

/* Return a value by key, or by dotted path like vfm_rec_at; NULL: none. */
const struct vfm_text_value *vfm_record_text_get(const struct vfm_record_text *t, const char *key);
const struct vfm_text_value *vfm_record_text_in(
	const struct vfm_record_text *t, const struct vfm_text_value *object, const char *key);
const struct vfm_text_value *vfm_record_text_at(const struct vfm_record_text *t, const char *path);
/* Like vfm_rec_num. */
bool vfm_record_text_num(const struct vfm_record_text *t, const char *path, double *out);
/* Returns the bytes of a string without escapes, and sets *len; NULL for any other value.  No zero byte follows. */
const char *vfm_record_text_str(const struct vfm_record_text *t, const struct vfm_text_value *v, size_t *len);

/* Like vfm_rec_digest. */
void vfm_record_text_digest(
	struct vfm_record_text *t, const char *head, const char *const *without, char hex[VFM_SHA256_HEX]);

#endif
