/* join.h - joins the rows of a table to records by a key.
 *
 * The selected columns are in an unlinked file in TMPDIR, and the keys in a set that may exceed memory
 * (data/record/sample_set.h).
 *
 * The key of a record is a dotted path ("id", "meta.name") to a string or a number.  PATH:name is the last component of
 * a file name ("src:name" of "raw/a.mp4" is "a.mp4"); PATH:stem is the same without its extension ("a").  A number is
 * compared by its decimal text: 5 equals "5" but not "05".
 */
#ifndef VFM_CURATE_TABLE_JOIN_H
#define VFM_CURATE_TABLE_JOIN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "io/opt.h"

enum vfm_join_missing { VFM_JOIN_KEEP, VFM_JOIN_DROP, VFM_JOIN_FAIL };

struct vfm_join_opts {
	const char *table;                /* a file or a pipe */
	char sep;                         /* for CSV; 0: detected */
	const char *on;                   /* "KEY" or "KEY=COLUMN"; NULL: "id" */
	struct vfm_strlist take, numbers; /* take.h */
	enum vfm_join_missing missing;    /* records without a row */
	bool first;                       /* use the first of several rows with the same key; else they are an error */
	bool overwrite;
};

struct vfm_table_join_stats {
	int64_t rows;        /* of the table, including the following two */
	int64_t without_key; /* whose column is missing, or neither a string nor a number */
	int64_t same;        /* left out, since another row has this key */
	int64_t used;        /* joined to a record by this process */
	int64_t without_row; /* records without a row */
};

struct vfm_join;

/* Reads the table.  The strings of `o` must outlive *j.  VFM_EUSAGE names a bad option, row or key of the table.
 * VFM_EENV: out of memory, or no space in TMPDIR. */
int vfm_join_open(struct vfm_join **j, const struct vfm_join_opts *o, struct vfm_err *err);
void vfm_join_close(struct vfm_join *j); /* accepts NULL */

/* Returns the options of the stage that determine the results, with the digest of the table; valid until close. */
const char *vfm_join_settings(const struct vfm_join *j);

/* Joins a row to a record, or drops the record.  VFM_EINPUT: the record has no row (with VFM_JOIN_FAIL), or its values
 * differ from those of the row.  VFM_EENV: the temporary file cannot be read.  Thread-safe. */
int vfm_join_record(struct vfm_join *j, json_t *rec, struct vfm_err *err);

/* Returns the statistics, valid until close.  Read them only while no record is being joined. */
const struct vfm_table_join_stats *vfm_join_stats(const struct vfm_join *j);

#endif
