/* rows.h - reads the rows of a table: JSON Lines, a JSON array, CSV or Parquet, told apart by their contents.
 *
 * A row is a JSON object whose keys are the columns.  A missing value has no key: null, an empty cell of CSV, and NaN
 * and infinities of Parquet.  Cells of CSV are texts; Parquet and JSON have types.  All texts are UTF-8 without NUL.
 *
 * CSV has its column names in the first row.  Headers of records (data/record/provenance.h) in JSON Lines are no rows.
 * One thread at a time.
 */
#ifndef VFM_CURATE_TABLE_ROWS_H
#define VFM_CURATE_TABLE_ROWS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_rows;

/* Opens a regular file; `name` stands for it in messages, and must outlive *r.  `sep` of CSV: 0 finds it
 * (csv.h). VFM_EINPUT: the file cannot be read, is empty, or is no such table; or
 * `sep` is given, and it is no CSV. */
int vfm_rows_open(struct vfm_rows **r, const char *path, const char *name, char sep, struct vfm_err *err);
void vfm_rows_close(struct vfm_rows *r); /* accepts NULL */

/* Returns the number of columns, and sets *names to their names; JSON has none before its rows are read: returns -1. */
int vfm_rows_columns(const struct vfm_rows *r, const char *const **names);
/* Reads only the columns with wanted[i]; before the first row, and not of JSON.  Without this call, rows have no
 * columns.  VFM_EINPUT: a wanted column cannot be read, or another one has its name; *r can only be closed then. */
int vfm_rows_select(struct vfm_rows *r, const bool *wanted, struct vfm_err *err);

/* Returns 1 with a row that the caller owns, or 0 at the end; VFM_EINPUT for a bad row, which err names: the next call
 * goes on behind it, or returns 0; VFM_EENV: the file cannot be read. */
int vfm_rows_next(struct vfm_rows *r, json_t **row, struct vfm_err *err);
/* The place of the last row, from 1: a line of the file, or, if vfm_rows_unit is "row", a row of it. */
int64_t vfm_rows_place(const struct vfm_rows *r);
const char *vfm_rows_unit(const struct vfm_rows *r);
const char *vfm_rows_name(const struct vfm_rows *r); /* as of open */

#endif
