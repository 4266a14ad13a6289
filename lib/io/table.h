/* table.h - reports: rows of typed cells, printed as text, Markdown, CSV, JSON, JSON Lines or SQL.
 *
 *	static struct vfm_table_opts o;             // set by the rows VFM_TABLE_OPTS(&o) of the options
 *	const struct vfm_table_column columns[] = {{"tok_s", "token/s", 0}, {0}}; // key in JSON and CSV, heading in text
 *	struct vfm_table *t = vfm_table_new(columns);
 *	vfm_table_row(t);                           // begins a row
 *	vfm_table_f64(t, "tok_s", 10052.0);         // cells in any order, by key; a missing cell is empty / null
 *	vfm_table_print(t, &o, stdout, err);
 *	vfm_table_free(t);
 *
 * csv, json, jsonl and sql have all columns; text and md only the main ones that have a cell.  Text fits 100 columns.
 * --columns chooses others for any format.
 *
 * Strings are copied.  NaN and infinities are null in JSON and SQL, empty in CSV, "-" in text.  Not thread-safe.  An
 * unknown key is a programming error and aborts.
 */
#ifndef VFM_IO_TABLE_H
#define VFM_IO_TABLE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

enum vfm_table_format { VFM_TABLE_TEXT, VFM_TABLE_MD, VFM_TABLE_CSV, VFM_TABLE_JSON, VFM_TABLE_JSONL, VFM_TABLE_SQL };
#define VFM_TABLE_FORMATS "text|md|csv|json|jsonl|sql" /* their names, for VFM_OPT_NAME */

struct vfm_table_opts {
	enum vfm_table_format format;
	const char *columns; /* "all", or keys in their order, "tok_s,mfu"; NULL: not given */
};
/* Rows of a struct vfm_opt table (io/opt.h); `o` is a struct vfm_table_opts *. */
#define VFM_TABLE_OPTS(o)                                                                                              \
	{VFM_OPT_NAME, 0, "format", VFM_TABLE_FORMATS, "how to print the table (text)", &(o)->format},                 \
	{                                                                                                              \
		VFM_OPT_STR, 0, "columns", "all|NAME,...", "the columns to print (text, md: the main ones; else all)", \
			&(o)->columns                                                                                  \
	}

/* Where a column is printed without --columns. */
enum vfm_table_show {
	VFM_COLUMN_MAIN,   /* everywhere */
	VFM_COLUMN_DETAIL, /* in all formats but text and md */
	/* in all formats; text and md print it in a line above the rows that share its value, if that makes at most
	 * half as many lines as rows */
	VFM_COLUMN_GROUP,
	VFM_COLUMN_JSON, /* only in json and jsonl, after all others; its cells are JSON texts */
};

struct vfm_table;
struct vfm_table_column {
	const char *key, *heading;
	/* of numbers in text and md: digits after the point; if negative, significant digits (%g).  Other formats keep
	 * full precision. */
	int digits;
	enum vfm_table_show show;
};
/* columns as for vfm_table_columns, or NULL. */
struct vfm_table *vfm_table_new(const struct vfm_table_column *columns);
void vfm_table_free(struct vfm_table *t);
void vfm_table_col(struct vfm_table *t, const char *key, const char *heading, int digits); /* a main one */
/* Adds the columns up to the first without a key. */
void vfm_table_columns(struct vfm_table *t, const struct vfm_table_column *c);
/* A value of `digits` for a column of strings.  SQL declares such a column as text even if it has no cells; it declares
 * other columns without cells as numbers. */
#define VFM_TABLE_STRINGS INT_MIN
void vfm_table_row(struct vfm_table *t);
void vfm_table_str(struct vfm_table *t, const char *key, const char *s); /* NULL: empty */
void vfm_table_i64(struct vfm_table *t, const char *key, int64_t x);
void vfm_table_f64(struct vfm_table *t, const char *key, double x);
void vfm_table_json(struct vfm_table *t, const char *key, const char *text);
/* Adds a line below the table ("median of 5 runs, 2 x EPYC …").  It is text in text and md, an entry of "notes" in
 * json, and a comment in sql.  csv and jsonl omit notes. */
void vfm_table_note(struct vfm_table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Returns the notes [*n], which belong to the table. */
const char *const *vfm_table_notes(const struct vfm_table *t, size_t *n);

/* The rows and columns of the text format, and the text of a cell; row -1 is the heading.  The caller frees the text.
 * *number: whether the cell is a number, which is aligned right. */
int vfm_table_rows(const struct vfm_table *t);
int vfm_table_cols(const struct vfm_table *t);
char *vfm_table_cell(const struct vfm_table *t, int row, int col, bool *number);
/* Returns the last row as an object, as --format json prints it; the caller owns it. */
struct json_t *vfm_table_last_row(const struct vfm_table *t);

/* Checks o->columns before a long computation.  VFM_EUSAGE: `columns` lacks one of the names; the message lists the
 * valid ones. */
int vfm_table_check(const struct vfm_table_column *columns, const struct vfm_table_opts *o, struct vfm_err *err);

/* Prints the table.
 *
 * - json is {"v":1,"rows":[{...}],"notes":[...]}; jsonl is {"v":1,...} for each row.
 * - sql (SQLite, PostgreSQL) is CREATE TABLE IF NOT EXISTS and an INSERT for each row.  The table has the program's
 *   name, with '_' for characters other than letters and digits (vfm_bench_matrix).  Columns are BIGINT, DOUBLE
 *   PRECISION or TEXT.
 * - text aligns numbers right and strings left, with two spaces between columns and no trailing blanks.  Widths are in
 *   code points.  It breaks long notes into lines; without o->columns, it also breaks the longest texts of a table
 *   wider than 100.
 *
 * Returns VFM_EUSAGE as vfm_table_check does. */
int vfm_table_print(const struct vfm_table *t, const struct vfm_table_opts *o, FILE *f, struct vfm_err *err);

#endif
