/* take.h - selects the columns of a table that become keys of records, and names these keys.
 *
 * A list contains "COLUMN" or "COLUMN=KEY"; one string may have several, separated by commas.  KEY is a dotted path
 * ("score.aesthetic"), by default the name of the column.  A string that equals the name of a column means this column.
 * A column of JSON may also be a dotted path.  Without a list, all columns are selected, except those without a name
 * and those with a key of the stages: v, id, by, part, siblings, transitions, provenance, error, drop.
 *
 * Strings in the columns of `numbers` become numbers; "nan" in any case is a missing value.
 */
#ifndef VFM_CURATE_TABLE_TAKE_H
#define VFM_CURATE_TABLE_TAKE_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/mem.h"
#include "curate/table/rows.h"
#include "io/opt.h"

struct vfm_take { /* `= {0}` before init; release in any case */
	struct vfm_take_column {
		char *column, *key;
		bool is_number, is_seen; /* some row had a value */
	} * columns;                     /* [n]; n 0: all columns of each row (JSON) */
	int n;
	struct vfm_strlist numbers; /* names, in `names` */
	bool all, takes_id;
	const char *table, *key_column;
	struct vfm_arena names;
};

/* Selects the columns of the rows.  `key_column` is read but does not become a key, and must outlive *t; NULL: none.
 * `takes_id`: a column may become the key "id".  VFM_EUSAGE names a column that the table lacks, or a key that is not
 * allowed. */
int vfm_take_init(struct vfm_take *t, struct vfm_rows *rows, const struct vfm_strlist *list,
	const struct vfm_strlist *numbers, const char *key_column, bool takes_id, struct vfm_err *err);
void vfm_take_release(struct vfm_take *t);

/* Appends everything that affects the values, as text for the fingerprint of a stage. */
void vfm_take_describe(const struct vfm_take *t, struct vfm_buf *b);

/* Copies the start of s, cut between characters, for messages.  Returns `text`. */
#define VFM_SHORT_TEXT 120
const char *vfm_short_text(char text[VFM_SHORT_TEXT], const char *s);

/* Returns the value of a column of a row, or NULL if it is missing. */
const json_t *vfm_take_value(const json_t *row, const char *column);
/* Sets *values to an object with the values of a row by KEY, with its dots; the caller owns it.  VFM_EINPUT names a
 * column whose string is not a number. */
int vfm_take_row(struct vfm_take *t, const json_t *row, json_t **values, struct vfm_err *err);

/* Returns a column without a value in all rows so far, or NULL. */
const char *vfm_take_unseen(const struct vfm_take *t);

/* Sets the values in a record.  VFM_EINPUT: the record has another value under a KEY (unless `overwrite`), or a part of
 * its path is not an object (the record is then unchanged); or two KEYs contain each other ("a" and "a.b"). */
int vfm_take_set(json_t *rec, const json_t *values, bool overwrite, struct vfm_err *err);

#endif
