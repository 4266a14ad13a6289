/* matrix_compare.h - compares the rows of a table of vfm-bench matrix with those of an earlier one. */
#ifndef CMD_MATRIX_COMPARE_H
#define CMD_MATRIX_COMPARE_H

#include "base/err.h"
#include "io/table.h"

struct matrix_old;

/* Reads the rows and notes of --format json, or the rows of --format jsonl.  VFM_EUSAGE: the message names the file and
 * the key. */
int matrix_old_load(struct matrix_old **out, const char *path, struct vfm_err *err);
void matrix_old_free(struct matrix_old *o); /* NULL: no-op */

/* Compares the last row of t, whose other cells must be set, with the first unused old row of the same key (model,
 * context, config, gpus, gbs, mbs and layout).  Sets old_tflops_gpu, change_pct and beyond_spread; without such a row,
 * counts the row as new. */
void matrix_old_cells(struct matrix_old *o, struct vfm_table *t);
/* Adds notes on the comparison.  Call after all other notes. */
void matrix_old_notes(const struct matrix_old *o, struct vfm_table *t);

#endif
