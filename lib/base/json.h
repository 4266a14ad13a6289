/* json.h - JSON through libjansson, with errors that name the key's path.
 *
 * Getters return VFM_EUSAGE with "<path>: expected an integer, got a string" and leave *out
 * alone when the key is missing (or null) and `required` is false.  Where a whole file or
 * line is parsed, an object that names a key twice is an error: one of the two would be lost.
 */
#ifndef VFM_BASE_JSON_H
#define VFM_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

/* Reads a whole file (at most max_bytes); the caller owns the result (json_decref).
 * Errors name file, line and column.  NULL on failure. */
json_t *vfm_json_load(const char *path, size_t max_bytes, struct vfm_err *err);
json_t *vfm_json_parse(const char *text, size_t len, const char *what, struct vfm_err *err);

/* `where` is the path of `obj` itself ("" at the top). */
int vfm_json_i64(const json_t *obj, const char *where, const char *key, bool required, int64_t min, int64_t max,
	int64_t *out, struct vfm_err *err);
/* (An integral number that is written as 4.0 or 1e6 counts as an integer.) */
int vfm_json_f64(
	const json_t *obj, const char *where, const char *key, bool required, double *out, struct vfm_err *err);
int vfm_json_str(const json_t *obj, const char *where, const char *key, bool required, const char **out,
	struct vfm_err *err); /* borrowed */

/* Every key of obj must be in the NULL-terminated list, else "<path>: unknown key (did you mean 'x'?)". */
int vfm_json_only_keys(const json_t *obj, const char *where, const char *const *keys, struct vfm_err *err);

/* NaN and infinities become null, which JSON has instead. */
json_t *vfm_json_real(double x);

/* Appends the text of `v`: compact (indent 0) or indented by so many blanks a level; real numbers with
 * the fewest digits that read back equal; keys in the order in which they were set. */
struct vfm_buf;
void vfm_json_text(struct vfm_buf *b, const json_t *v, int indent);

/* ---- JSON Lines ---- */
struct vfm_jsonl { /* a reader; `= {0}` before open */
	FILE *f;
	const char *name; /* for errors; "<stdin>" */
	int64_t line;     /* of the record last returned, from 1 */
	char *buf;
	size_t cap;
	size_t max_line; /* default 16 MiB: longer lines are an error for that record, and skipped */
	bool owns_file;
};
int vfm_jsonl_open(struct vfm_jsonl *r, const char *path, struct vfm_err *err); /* "-": stdin */
/* 1 = a record, an object (caller owns *out), 0 = end, VFM_EINPUT = this line is bad (go on
 * reading; err names file and line), VFM_EENV = read error.  Blank lines are skipped. */
int vfm_jsonl_next(struct vfm_jsonl *r, json_t **out, struct vfm_err *err);
void vfm_jsonl_close(struct vfm_jsonl *r);

/* One compact object and a newline.  Returns VFM_EENV if the write failed, VFM_EPIPE if nobody reads.
 * stdio buffers, so that the failure may show at a later call or in vfm_cmd_exit. */
int vfm_jsonl_write(FILE *f, const json_t *obj, struct vfm_err *err);

#endif
