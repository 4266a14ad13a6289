/* parquet.h - reads the rows of a Parquet file.
 *
 *	struct vfm_parquet *p;
 *	TRY(vfm_parquet_open(&p, fd, "x.parquet", err));
 *	TRY(vfm_parquet_select(p, (int[]){vfm_parquet_find(p, "caption")}, 1, err));
 *	while ((rc = vfm_parquet_next(p, &cell, err)) == 1)
 *		...
 *	vfm_parquet_close(p);
 *
 * Source of the format: apache/parquet-format, parquet.thrift, Encodings.md and LogicalTypes.md.
 *
 * Columns: a field of a struct is a column, named "meta.fps"; a list or map is one column with all that is in it, and
 * its cells are JSON.  A list is an array, in which null, NaN and infinities are null.  A struct in it is an object,
 * which lacks the keys of such values.  A map with texts or integers as keys is an object, any other an array of
 * objects with "key" and "value", or of keys if it has no values.  Lists have the forms of LogicalTypes.md with its
 * rules for old writers.
 *
 * Types: BOOLEAN, INT32, INT64, FLOAT, DOUBLE, BYTE_ARRAY, INT96, and FIXED_LEN_BYTE_ARRAY as UUID, FLOAT16 or DECIMAL.
 * Dates and times are the integers of the file; INT96 becomes nanoseconds since 1970.  A UUID is a text.  DECIMAL(p, s)
 * is an integer if s is 0 and p at most 18, a real if p is at most 15, which a double keeps, and else a text of all its
 * digits.  Refused are types that would lose their meaning: BSON, INTERVAL, VARIANT, GEOMETRY, GEOGRAPHY and other
 * FIXED_LEN_BYTE_ARRAY.
 *
 * Encodings: PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, RLE, DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY,
 * DELTA_BYTE_ARRAY, BYTE_STREAM_SPLIT.  Pages: versions 1 and 2, with their checksums if the file has them.  Codecs:
 * unpack.h.
 *
 * One page and one dictionary of each leaf of the selected columns are in memory, each of at most 256 MiB, and the
 * footer's table of row groups (40 bytes a leaf and group).  The lists and maps of a row take at most 16 MiB, about
 * 250,000 numbers.  Nothing is believed about sizes and offsets.  One thread at a time.
 */
#ifndef VFM_CURATE_TABLE_PARQUET_H
#define VFM_CURATE_TABLE_PARQUET_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum vfm_cell_type { VFM_CELL_NULL, VFM_CELL_BOOL, VFM_CELL_INT, VFM_CELL_REAL, VFM_CELL_TEXT, VFM_CELL_JSON };

struct vfm_cell {
	enum vfm_cell_type type;
	union {
		int64_t i; /* also of a bool */
		double x;
		struct {
			const char *s; /* [len] any bytes, without a NUL behind them */
			size_t len;
		} text;
		json_t *json; /* belongs to the reader */
	};
};

struct vfm_parquet;

/* Reads the footer.  `fd` is a regular file, which stays the caller's and open; `name` is for messages, and is copied.
 * VFM_EINPUT: the file is truncated, damaged or encrypted. */
int vfm_parquet_open(struct vfm_parquet **p, int fd, const char *name, struct vfm_err *err);
void vfm_parquet_close(struct vfm_parquet *p); /* accepts NULL */

int64_t vfm_parquet_rows(const struct vfm_parquet *p);
int vfm_parquet_columns(const struct vfm_parquet *p);
const char *vfm_parquet_name(const struct vfm_parquet *p, int column);
int vfm_parquet_find(const struct vfm_parquet *p, const char *name); /* -1: no such column */

/* Chooses the columns of the cells of vfm_parquet_next, before the first row.  VFM_EINPUT names a column that cannot be
 * read, and why. */
int vfm_parquet_select(struct vfm_parquet *p, const int *columns, int n, struct vfm_err *err);

/* Reads a row: cells [n of select].  Returns 1, or 0 at the end.  Texts and JSON are valid until the next call.
 * VFM_EINPUT names the column and the row: of a value that a cell cannot have (more than 63 bits, a list that is too
 * long, a text in a list that is not UTF-8), which the next call goes on behind; or of damage, behind which later calls
 * return 0. */
int vfm_parquet_next(struct vfm_parquet *p, struct vfm_cell *cells, struct vfm_err *err);

#endif
