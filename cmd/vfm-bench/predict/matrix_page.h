/* matrix_page.h - the page of vfm-bench matrix: the table, the rates of the rows as bars, and the dry-run sections of
 * predicted rows (train/predict/dry_run_page.h). */
#ifndef CMD_MATRIX_PAGE_H
#define CMD_MATRIX_PAGE_H

#include "io/table.h"
#include "predict/matrix_predict.h"

enum {
	MATRIX_PAGE_ROWS = 20, /* most rows with dry-run sections */
	/* most launches per step, over all simulated ranks; a larger step is not simulated on more GPUs */
	MATRIX_PAGE_LAUNCHES = 200000,
};

struct matrix_page_row {
	const struct matrix_row *row;
	const struct matrix_outcome *out;
	const char *machine;           /* NULL: measured */
	struct vfm_dry_run_opts asked; /* of the prediction, except the machine */
};

/* Writes the page for rows [n] of the table t.  Rows with a run have sections. */
int matrix_write_page(
	const char *path, const struct vfm_table *t, const struct matrix_page_row *rows, int n, struct vfm_err *err);

#endif
