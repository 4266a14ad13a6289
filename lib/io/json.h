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

/* Lets jansson allocate with vfm_malloc, so that no constructor of a value returns NULL for want of memory.  Once,
 * before the first value; vfm_cmd_init does it. */
void vfm_json_init(void);

/* Parse a file of at most max_bytes, or a text.  Errors name file (or `what`), line and column.  Return NULL on
 * failure, with VFM_EUSAGE or VFM_EENV in err->code; the caller owns the result (json_decref). */
json_t *vfm_json_load(const char *path, size_t max_bytes, struct vfm_err *err);
/* As vfm_json_load, of a regular file (input.h). */
json_t *vfm_json_load_regular(const char *path, size_t max_bytes, struct vfm_err *err);
json_t *vfm_json_parse(const char *text, size_t len, const char *what, struct vfm_err *err);

/* ---- texts and documents of other programs ---- */

/* Returns a string, which vfm_json_parse accepts in a document; NULL with VFM_EINPUT, "<what> has a zero byte" or
 * "<what> is not UTF-8".  All texts of others enter records here. */
json_t *vfm_json_string(const char *s, size_t len, const char *what, struct vfm_err *err);

/* Returns whether vfm_json_string takes a text. */
bool vfm_json_takes(const char *text);

/* Returns a message or name for people: bytes that are no ASCII become "?" if the text is not UTF-8. */
json_t *vfm_json_shown(const char *text);

/* As vfm_json_parse, of a document that Python's json or another lenient writer made.  Skips a byte order mark.  NaN,
 * Infinity, -Infinity and numbers beyond a double are null; integers beyond 64 bits are reals.  Deeper than
 * VFM_JSON_DEPTH is an error, so that a record can hold the result. */
#define VFM_JSON_DEPTH 1000
json_t *vfm_json_parse_foreign(const char *text, size_t len, const char *what, struct vfm_err *err);

/* `where` is the path of `obj` itself, "" for the top level.  An integer may be written as 4.0 or 1e6. */
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

/* Writes x with the fewest digits that read back equal ("0.1"), for messages that compare numbers.  Returns text. */
#define VFM_REAL_TEXT 32
const char *vfm_real_text(char text[VFM_REAL_TEXT], double x);

/* Returns a number, or null for NaN and infinities. */
json_t *vfm_json_real(double x);

/* Appends the text of `v`: compact with indent 0, or else indented by that many blanks per level.  Real numbers have
 * the fewest digits that read back equal; keys keep the order of their addition. */
struct vfm_buf;
void vfm_json_text(struct vfm_buf *b, const json_t *v, int indent);
/* Writes the text of `v` and a newline as the file dir/name (dir NULL: name), which appears complete or not at all. */
int vfm_json_save(const char *dir, const char *name, const json_t *v, int indent, struct vfm_err *err);

/* ---- JSON Lines ---- */
#define VFM_JSONL_LINE ((size_t)16 << 20)
struct vfm_jsonl { /* a reader; `= {0}` before open */
	FILE *f;
	const char *name; /* for errors; "<stdin>" */
	int64_t line;     /* of the last record, from 1 */
	char *buf;
	size_t cap;
	size_t max_line; /* default VFM_JSONL_LINE; a longer line is skipped with an error */
	bool is_foreign; /* lines are read as vfm_json_parse_foreign does */
	bool owns_file;
	size_t rest; /* private to vfm_jsonl_block_read: bytes of buf that belong to the next block */
};
int vfm_jsonl_open(struct vfm_jsonl *r, const char *path, struct vfm_err *err); /* "-": stdin */
/* Reads the next record and skips blank lines.  Returns 1 with an object in *out, which the caller owns; 0 at the end;
 * VFM_EINPUT for a bad line, which err names (the next call continues); VFM_EENV for a read error. */
int vfm_jsonl_next(struct vfm_jsonl *r, json_t **out, struct vfm_err *err);
/* The same in two steps: text sets *text to the line, which ends in a zero byte and is valid until the next call; parse
 * takes it, or returns VFM_EINPUT. */
int vfm_jsonl_text(struct vfm_jsonl *r, const char **text, size_t *len, struct vfm_err *err);
int vfm_jsonl_parse(const struct vfm_jsonl *r, const char *text, size_t len, json_t **out, struct vfm_err *err);
void vfm_jsonl_close(struct vfm_jsonl *r);

/* Gives all records of a file ("-": stdin) to `take`, whose negative result ends the call; err then names file and
 * line.  A bad line ends it, too. */
int vfm_jsonl_each(const char *path, int (*take)(void *ctx, const json_t *rec, struct vfm_err *err), void *ctx,
	struct vfm_err *err);

/* Whole lines of a regular file, for threads that parse them.  `= {0}` before; may be used again; release in any
 * case. */
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
		bool too_long; /* len is that of the line, and no text is there */
	} * lines;
	size_t n, cap_lines;
};
/* Reads about `bytes` bytes, up to the end of a line.  Returns 1; 0 at the end; VFM_EENV for a read error.  Not
 * together with the functions above.  The lines are found by vfm_jsonl_block_split, which is thread-safe. */
int vfm_jsonl_block_read(struct vfm_jsonl *r, struct vfm_jsonl_block *b, size_t bytes, struct vfm_err *err);
void vfm_jsonl_block_split(struct vfm_jsonl_block *b);
void vfm_jsonl_block_release(struct vfm_jsonl_block *b);
/* Returns VFM_EINPUT with the message that vfm_jsonl_text has for a line that is too long. */
int vfm_jsonl_too_long(const struct vfm_jsonl *r, int64_t line, size_t len, struct vfm_err *err);

/* Writes a compact object and a newline.  Returns VFM_EENV if the write failed, VFM_EPIPE if the reader closed the
 * pipe. Since stdio buffers, a failure may appear in a later call or in vfm_cmd_exit. */
int vfm_jsonl_write(FILE *f, const json_t *obj, struct vfm_err *err);

#endif
