/* caption_value.h - captions as other programs store them: texts, and values of JSON.
 *
 * A caption becomes a string without white space at its ends.  Several captions of one file become an object with the
 * names "1", "2", … (data/record/caption.h), and an object of strings stays one.  All functions are thread-safe.
 */
#ifndef VFM_CURATE_TABLE_CAPTION_VALUE_H
#define VFM_CURATE_TABLE_CAPTION_VALUE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* The keys under which a row or object has its caption, and the columns with the name of its file; both end in NULL.
 * The first that a row has counts. */
extern const char *const vfm_caption_keys[], *const vfm_caption_file_keys[];

/* Returns the value of the first of the keys that a row has and that is not null, or NULL. */
const json_t *vfm_caption_at(const json_t *row, const char *const *keys);

/* Sets *caption, which the caller owns, to the content of a text file.  Skips a byte order mark; CRLF and CR become LF.
 * `by_line`: each line that is not blank is a caption; one such line is the only caption.  VFM_EINPUT: the text is not
 * UTF-8, has a zero byte, or too many lines; err begins with `what`. */
int vfm_caption_of_text(
	json_t **caption, const char *text, size_t len, bool by_line, const char *what, struct vfm_err *err);

/* Sets *caption to a value of JSON: a string, a list of strings, or an object of strings; NULL for null and an empty
 * list.  VFM_EINPUT: another type, too many captions, or a name that no caption may have. */
int vfm_caption_of_json(json_t **caption, const json_t *value, const char *what, struct vfm_err *err);

/* Returns whether all captions are empty. */
bool vfm_caption_is_empty(const json_t *caption);

#endif
