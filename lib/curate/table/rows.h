/* rows.h - reads the rows of a table: JSON Lines, a JSON array or CSV, told apart by their contents.
 *
 * A row is a JSON object whose keys are the columns.  A missing value has no key: null, and an empty cell of CSV.
 * Cells of CSV are texts; JSON has types.  All texts are UTF-8 without NUL.
 *
 * CSV has its column names in the first row.  Headers of records (data/record/provenance.h) in JSON Lines are no rows.
 * Parquet comes as JSON Lines from share/exec/table_parquet.py.  One thread at a time.
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
	int n_columns;        /* -1: JSON, whose columns are not known before its rows are read */
	int64_t place;        /* where the last row begins, from 1 */
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

/* Opens a regular file; messages call it `name`, which must outlive *r.  `sep` of CSV: 0 finds it (csv.h).  VFM_EINPUT:
 * the file cannot be read, is empty, or is no such table; or `sep` is given, and it is no CSV. */
int vfm_rows_open(struct vfm_rows *r, const char *path, const char *name, char sep, struct vfm_err *err);
void vfm_rows_close(struct vfm_rows *r);

/* Chooses the columns of rows of CSV, which have none without this call: wanted [n_columns].  VFM_EINPUT: another
 * column has the name of a wanted one. */
int vfm_rows_select(struct vfm_rows *r, const bool *wanted, struct vfm_err *err);

/* Returns 1 with a row that the caller owns, or 0 at the end; VFM_EINPUT for a bad row, which err names: the next call
 * continues after it, or returns 0; VFM_EENV: the file cannot be read. */
int vfm_rows_next(struct vfm_rows *r, json_t **row, struct vfm_err *err);

#endif
