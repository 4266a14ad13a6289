/* matrix_predict.h - predictions of the rows of vfm-bench matrix, and the search for the best layout. */
#ifndef CMD_MATRIX_PREDICT_H
#define CMD_MATRIX_PREDICT_H

#include "device/sim/machine.h"
#include "predict/matrix_rows.h"
#include "train/predict/bench.h"
#include "train/predict/dry_run.h"

/* The result of a row. */
struct matrix_outcome {
	bool fits;
	double need;             /* if it does not fit: bytes per rank; infinite: too many to count */
	double s[VFM_ESTIMATES]; /* predicted seconds of a step; 0: measured */
	struct vfm_bench_result r;
	double peak; /* TFLOP/s of a device; 0: unknown */
	int threads; /* of a rank */
	char layout[128], device[128], descr[256];
	/* of struct vfm_dry_run, predicted */
	double straggler, imbalance;
	int64_t step;
	double total_s; /* with stragglers */
	double copy_s;  /* stalls for copies */
	/* means over the ranks: seconds of the kernels and FLOPs that they execute */
	double class_s[VFM_SIM_CLASSES], class_flops[VFM_SIM_CLASSES];
	int first;               /* of a search: the row with its best layout; -1: no search, or this row */
	struct vfm_dry_run *run; /* with timeline and memory, owned; NULL: not requested, or not available */
};

/* Returns *asked with the configuration (owned by *w), the ranks and the context of the row. */
struct vfm_dry_run_opts matrix_dry_opts(const struct matrix_row *w, const struct vfm_dry_run_opts *asked);
/* Predicts the row.  asked: all fields except those that matrix_dry_opts sets; asked->timeline also sets o->run.  A row
 * that does not fit is not a failure; with asked->once its o->need is infinite. */
int matrix_predict_row(const struct matrix_row *w, const struct vfm_dry_run_opts *asked, struct matrix_outcome *o,
	struct vfm_err *err);
/* Frees o->run. */
void matrix_outcome_drop_run(struct matrix_outcome *o);

enum { MATRIX_DEGREES = 21 };

/* The result of a search. */
struct matrix_best {
	struct matrix_row row;
	struct matrix_outcome out;
};
struct matrix_found {
	int tried, full; /* number of layouts; number of layouts that do not fit */
	struct {
		int tried, full;
	} degree[MATRIX_DEGREES]; /* of the layouts with tp x cp x pp = 2^i */
	struct matrix_best *v;    /* [n], best first; the caller frees it and drops their runs */
	int n;
};

/* Searches for the best layout of w->ranks GPUs.  Candidates:
 *   - tp within a node; cp up to 64, by ring and by all-to-all; pp up to 16 with 1 or 2 virtual stages
 *   - fsdp or distopt over the remaining ranks
 *   - a degree that *w sets is fixed
 *
 * First compares the candidates by steps of fewer packs, then predicts the best `most` in full.  The best layout has
 * the shortest step, with stragglers.  The first `runs` results have a run if asked->timeline.  If no layout fits the
 * memory, returns those that need the least, without runs.  Forks a process per processor.  VFM_EUSAGE: no layout fits
 * the ranks. */
int matrix_search(const struct matrix_row *w, const struct vfm_dry_run_opts *asked, int most, int runs,
	struct matrix_found *found, struct vfm_err *err);

#endif
