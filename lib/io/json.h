/* json.h - JSON through libjansson, with errors that name the path of the key.  A getter fails with VFM_EUSAGE:
 * "<path>: expected an integer, got a string".  If a key is missing or null and `required` is false, it returns 0 and
 * leaves *out unchanged.  Parsers reject an object with a duplicate key.
 */
#ifndef VFM_IO_JSON_H
#define VFM_IO_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

/* Makes jansson allocate with vfm_malloc, so that constructors of values never return NULL for lack of memory.  Call
 * once, before the first value; vfm_cmd_init does. */
void vfm_json_init(void);

/* Parses a file of at most max_bytes, or a string.  Returns NULL on failure, with VFM_EUSAGE or VFM_EENV in err->code;
 * the message names the file (or `what`), line and column.  The caller owns the result (json_decref). */
json_t *vfm_json_load(const char *path, size_t max_bytes, struct vfm_err *err);
/* As vfm_json_load for a regular file (input.h). */
json_t *vfm_json_load_regular(const char *path, size_t max_bytes, struct vfm_err *err);
json_t *vfm_json_parse(const char *text, size_t len, const char *what, struct vfm_err *err);

/* ---- strings and documents of other programs ---- */

/* Returns a string that vfm_json_parse accepts in a document.  Fails with NULL and VFM_EINPUT: "<what> has a zero byte"
 * or "<what> is not UTF-8".  Every string that another program wrote enters a record through this function. */
json_t *vfm_json_string(const char *s, size_t len, const char *what, struct vfm_err *err);

/* Returns whether vfm_json_string accepts a string. */
bool vfm_json_takes(const char *text);

/* Returns a message or name for display.  If it is not UTF-8, each byte outside ASCII becomes "?". */
json_t *vfm_json_shown(const char *text);

/* Parses a document of Python's json or another lenient writer, like vfm_json_parse.  Skips a byte order mark.  NaN,
 * Infinity, -Infinity and numbers beyond a double become null; integers beyond 64 bits become reals.  A document deeper
 * than VFM_JSON_DEPTH is an error, since a record could not hold it. */
#define VFM_JSON_DEPTH 1000
json_t *vfm_json_parse_foreign(const char *text, size_t len, const char *what, struct vfm_err *err);

/* `where` is the path of `obj` itself, "" for the top level.  Integers may be written as 4.0 or 1e6. */
int vfm_json_i64(const json_t *obj, const char *where, const char *key, bool required, int64_t min, int64_t max,
	int64_t *out, struct vfm_err *err);
int vfm_json_i32(const json_t *obj, const char *where, const char *key, bool required, int32_t min, int32_t max,
	int32_t *out, struct vfm_err *err);

int vfm_json_f64(
	const json_t *obj, const char *where, const char *key, bool required, double *out, struct vfm_err *err);
int vfm_json_str(const json_t *obj, const char *where, const char *key, bool required, const char **out,
	struct vfm_err *err); /* *out is valid as long as obj */

/* Fails with "<path>: unknown key (did you mean 'x'?)" if obj has a key that is not in the NULL-terminated list. */
int vfm_json_only_keys(const json_t *obj, const char *where, const char *const *keys, struct vfm_err *err);

/* Writes x with the fewest digits that read back equal ("0.1"), for messages that compare numbers.  Returns `text`. */
#define VFM_REAL_TEXT 32
const char *vfm_real_text(char text[VFM_REAL_TEXT], double x);

/* Returns a JSON number, or null for NaN and infinities. */
json_t *vfm_json_real(double x);

/* Appends `v` as JSON: compact if indent is 0, otherwise indented by that many blanks per level.  Reals have the fewest
 * digits that read back equal.  Keys keep their insertion order. */
struct vfm_buf;
void vfm_json_text(struct vfm_buf *b, const json_t *v, int indent);
/* Writes `v` as JSON and a newline to the file dir/name (to `name` if dir is NULL) atomically. */
int vfm_json_save(const char *dir, const char *name, const json_t *v, int indent, struct vfm_err *err);

/* ---- JSON Lines ---- */
#define VFM_JSONL_LINE ((size_t)16 << 20)
struct vfm_jsonl { /* a reader; `= {0}` before open */
	FILE *f;
	const char *name; /* for errors; "<stdin>" */
	int64_t line;     /* of the last record, from 1 */
	char *buf;
	size_t cap;
	size_t max_line; /* default VFM_JSONL_LINE; the reader skips a longer line with an error */
	bool is_foreign; /* lines are read as vfm_json_parse_foreign does */
	bool owns_file;
	size_t rest; /* private to vfm_jsonl_block_read: bytes of buf that belong to the next block */
};
int vfm_jsonl_open(struct vfm_jsonl *r, const char *path, struct vfm_err *err); /* "-": stdin */
/* Reads the next record and skips blank lines.  Returns 1 with an object in *out, which the caller owns, or 0 at the
 * end.  VFM_EINPUT names a bad line; the next call continues after it.  VFM_EENV: a read error. */
int vfm_jsonl_next(struct vfm_jsonl *r, json_t **out, struct vfm_err *err);
/* vfm_jsonl_next in two steps.  text sets *text to the line, zero-terminated and valid until the next call.  parse
 * parses it, or returns VFM_EINPUT. */
int vfm_jsonl_text(struct vfm_jsonl *r, const char **text, size_t *len, struct vfm_err *err);
int vfm_jsonl_parse(const struct vfm_jsonl *r, const char *text, size_t len, json_t **out, struct vfm_err *err);
void vfm_jsonl_close(struct vfm_jsonl *r);

/* Calls `take` on all records of a file ("-": stdin).  A bad line or a negative result of `take` ends the call; err
 * then names file and line. */
int vfm_jsonl_each(const char *path, int (*take)(void *ctx, const json_t *rec, struct vfm_err *err), void *ctx,
	struct vfm_err *err);

/* A block of whole lines of a regular file, which several threads can parse.  `= {0}` before the first read; reusable;
 * release in any case. */
struct vfm_jsonl_block {
	const char *name; /* of the file; belongs to the reader */
	size_t max_line;
	int64_t first_line; /* lines of the file before the block */
	char *text;
	size_t len, cap;
	struct vfm_jsonl_line { /* [n] lines that are not blank, as vfm_jsonl_text returns them */
		char *text;
		size_t len;
		int64_t line;
		bool too_long; /* len is that of the line; text is not stored */
	} * lines;
	size_t n, cap_lines;
};
/* Reads about `bytes` bytes, up to the end of a line.  Returns 1, 0 at the end, or VFM_EENV for a read error.  Do not
 * mix with the functions above.  vfm_jsonl_block_split, which is thread-safe, then finds the lines. */
int vfm_jsonl_block_read(struct vfm_jsonl *r, struct vfm_jsonl_block *b, size_t bytes, struct vfm_err *err);
void vfm_jsonl_block_split(struct vfm_jsonl_block *b);
void vfm_jsonl_block_release(struct vfm_jsonl_block *b);
/* Returns VFM_EINPUT with the message of vfm_jsonl_text for a line that is too long. */
int vfm_jsonl_too_long(const struct vfm_jsonl *r, int64_t line, size_t len, struct vfm_err *err);

/* Writes a compact object and a newline.  VFM_EENV: the write failed; VFM_EPIPE: the reader closed the pipe.  Since
 * stdio buffers, a later call or vfm_cmd_exit may report the failure. */
int vfm_jsonl_write(FILE *f, const json_t *obj, struct vfm_err *err);

#endif
