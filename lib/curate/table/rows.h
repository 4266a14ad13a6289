/* rows.h - reads the rows of a table: JSON Lines, a JSON array or CSV, distinguished by content.
 *
 * A row is a JSON object whose keys are the columns.  It has no key for a missing value: null, or an empty cell of CSV.
 * Cells of CSV are strings; JSON has types.  All strings are UTF-8 without NUL.
 *
 * The first row of CSV has the column names.  In JSON Lines, headers of records (data/record/provenance.h) are not
 * rows.  share/exec/table_parquet.py converts Parquet to JSON Lines.  One thread at a time.
 */
#ifndef VFM_CURATE_TABLE_ROWS_H
#define VFM_CURATE_TABLE_ROWS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "curate/table/csv.h"
#include "io/json.h"

struct vfm_rows { /* `= {0}` before open; close in any case */
	const char *name;
	const char **columns; /* [n_columns] */
	int n_columns;        /* -1: JSON, whose columns are unknown until its rows are read */
	int64_t place;        /* start of the last row, from 1 */
	/* private */
	FILE *f;
	bool is_array, ended;
	bool *wanted; /* [n_columns] */
	struct vfm_csv csv;
	struct vfm_jsonl lines;
	/* of a JSON array */
	int64_t line;
	bool begun;
	char *object;
	size_t object_len, object_cap;
};

/* Opens a regular file; messages call it `name`, which must outlive *r.  `sep` is for CSV; 0: detected (csv.h).
 * VFM_EINPUT: the file cannot be read, is empty, or is not such a table; or `sep` is given, but it is not CSV. */
int vfm_rows_open(struct vfm_rows *r, const char *path, const char *name, char sep, struct vfm_err *err);
void vfm_rows_close(struct vfm_rows *r);

/* Selects the columns of CSV rows, which otherwise have none: wanted [n_columns].  VFM_EINPUT: another column has the
 * name of a wanted one. */
int vfm_rows_select(struct vfm_rows *r, const bool *wanted, struct vfm_err *err);

/* Returns 1 with a row that the caller owns, or 0 at the end.  VFM_EINPUT names a bad row; the next call continues
 * after it, or returns 0.  VFM_EENV: the file cannot be read. */
int vfm_rows_next(struct vfm_rows *r, json_t **row, struct vfm_err *err);

#endif
