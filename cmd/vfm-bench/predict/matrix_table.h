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
	const char *const *machine; /* [n] of predicted rows; NULL: they are measured */
	const char *source;         /* of published figures; NULL: there are none */
	const char *found;          /* lines about searches, or ""; NULL: none, and rows do not lose */
	const char *plan;           /* whose packs the steps have; NULL: none */
	bool parts;                 /* its packs have parts, and steps unequal numbers of packs */
	bool imbalance;             /* the ranks may be unequal */
	double straggler_cv;        /* 0: the GPUs do not differ */
	struct matrix_old *old;     /* to compare with; NULL: none */
};

/* vfm_table_check of its columns; row, out and n are not used, and machine only whether it is NULL. */
int matrix_table_check(const struct matrix_report *p, const struct vfm_table_opts *o, struct vfm_err *err);
/* The caller frees the table. */
struct vfm_table *matrix_table(const struct matrix_report *p);

#endif
