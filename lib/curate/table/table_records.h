/* table_records.h - the rows of tables (rows.h) as records, for vfm-curate table.
 *
 * A record has the selected columns (take.h) and an "id": that of a column, or else the first 16 hexadecimal digits of
 * the SHA-256 of its values.  A row that cannot be read becomes an error of the input.
 */
#ifndef VFM_CURATE_TABLE_TABLE_RECORDS_H
#define VFM_CURATE_TABLE_TABLE_RECORDS_H

#include <jansson.h>

#include "base/err.h"
#include "io/opt.h"

struct vfm_table_records_opts {
	int n_files; /* 0: stdin */
	char **files;
	struct vfm_strlist take, numbers;
	char sep; /* for CSV; 0: detected */
};

struct vfm_table_records;

/* Copies pipes to files in TMPDIR.  The strings of `o` must outlive *t.  VFM_EUSAGE: the first table cannot be opened,
 * or an option does not fit it. */
int vfm_table_records_open(struct vfm_table_records **t, const struct vfm_table_records_opts *o, struct vfm_err *err);
void vfm_table_records_close(struct vfm_table_records *t); /* accepts NULL */

/* A vfm_stage_next_fn.  VFM_EINPUT: a row, or a whole table other than the first, cannot be read. */
int vfm_table_records_next(void *t, json_t **rec, struct vfm_err *err);

/* Returns the options as text for the fingerprint of the stage; the caller frees it. */
char *vfm_table_records_settings(const struct vfm_table_records_opts *o);

#endif
