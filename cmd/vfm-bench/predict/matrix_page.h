/* matrix_page.h - the page of vfm-bench matrix: the table, the rates of the rows as bars, and of predicted rows the
 * sections of a dry run (train/predict/dry_run_page.h). */
#ifndef CMD_MATRIX_PAGE_H
#define CMD_MATRIX_PAGE_H

#include "io/table.h"
#include "predict/matrix_predict.h"

enum {
	MATRIX_PAGE_ROWS = 20, /* rows whose runs are kept for sections */
	/* launches of a step on all simulated ranks; a larger step is not simulated on more GPUs */
	MATRIX_PAGE_LAUNCHES = 200000,
};

struct matrix_page_row {
	const struct matrix_row *row;
	const struct matrix_outcome *out;
	const char *machine;           /* NULL: measured */
	struct vfm_dry_run_opts asked; /* of the prediction, but for the machine */
};

/* Writes the page about rows [n] of the table t.  Rows with a run have sections. */
int matrix_write_page(
	const char *path, const struct vfm_table *t, const struct matrix_page_row *rows, int n, struct vfm_err *err);

#endif
