/* matrix_table.h - the table of vfm-bench matrix. */
#ifndef CMD_MATRIX_TABLE_H
#define CMD_MATRIX_TABLE_H

#include "io/table.h"
#include "predict/matrix_compare.h"
#include "predict/matrix_predict.h"
#include "predict/matrix_rows.h"

struct matrix_report {
	const struct matrix_row *row;     /* [n] */
	const struct matrix_outcome *out; /* [n] */
	size_t n;
	const char *const *machine; /* [n] of predicted rows; NULL: measured rows */
	const char *source;         /* of published figures; NULL: none */
	const char *found;          /* lines about searches, or ""; NULL: no searches, no column loses_by */
	const char *plan;           /* the plan of the packs; NULL: none */
	/* the packs of the plan have parts, and its steps differ in their number of packs */
	bool parts;
	bool imbalance;         /* ranks may be uneven */
	double straggler_cv;    /* 0: no differences between GPUs */
	struct matrix_old *old; /* table to compare with; NULL: none */
};

/* vfm_table_check for the columns of this table.  Ignores row, out and n; of machine, only tests for NULL. */
int matrix_table_check(const struct matrix_report *p, const struct vfm_table_opts *o, struct vfm_err *err);
/* The caller frees the table. */
struct vfm_table *matrix_table(const struct matrix_report *p);

#endif
