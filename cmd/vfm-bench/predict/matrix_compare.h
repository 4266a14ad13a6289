/* matrix_compare.h - an earlier table of vfm-bench matrix, and how the rows of a new one differ from it. */
#ifndef CMD_MATRIX_COMPARE_H
#define CMD_MATRIX_COMPARE_H

#include "base/err.h"
#include "io/table.h"

struct matrix_old;

/* Reads the rows and notes of --format json, or the rows of --format jsonl.  VFM_EUSAGE: the message names file and
 * key. */
int matrix_old_load(struct matrix_old **out, const char *path, struct vfm_err *err);
void matrix_old_free(struct matrix_old *o); /* NULL: no-op */

/* Sets the cells old_tflops_gpu, change_pct and beyond_spread of the last row if *o has a row of the same key: model,
 * context, config, gpus, gbs, mbs and layout.  The caller has set the other cells.  Takes the first old row of this key
 * that no row was compared with yet. */
void matrix_old_cells(struct matrix_old *o, struct vfm_table *t);
/* Adds notes on the comparison, after all other notes of the table. */
void matrix_old_notes(const struct matrix_old *o, struct vfm_table *t);

#endif
