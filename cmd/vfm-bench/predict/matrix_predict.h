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
	double need;             /* if not: bytes per rank; infinite: too many to be counted */
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
	int first;               /* of a search: the row with its best layout; -1: none, or this one */
	struct vfm_dry_run *run; /* with timeline and memory, owned; NULL: they were not asked for, or there is none */
};

/* Returns *asked with the configuration, which *w keeps, the ranks and the context of the row. */
struct vfm_dry_run_opts matrix_dry_opts(const struct matrix_row *w, const struct vfm_dry_run_opts *asked);
/* asked: all but what matrix_dry_opts sets.  A row that does not fit is no failure; its o->need is infinite with
 * asked->once.  asked->timeline: also sets o->run. */
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
	int tried, full; /* layouts; those that do not fit */
	struct {
		int tried, full;
	} degree[MATRIX_DEGREES]; /* of these, those with tp x cp x pp = 2^i */
	struct matrix_best *v;    /* [n] the best first; the caller frees it, and drops their runs */
	int n;
};

/* Tries the layouts of w->ranks GPUs: tp within a node, cp up to 64 by ring and by all-to-all, pp up to 16 with 1 or 2
 * virtual stages.  The rest has fsdp or distopt.  A degree that *w sets stays.  Layouts are first compared by steps of
 * fewer packs; the best `most` are then predicted in full, and the first `runs` of these have a run if asked->timeline.
 * The best has the shortest step, with stragglers; where none fits the memory, they are those that need the least,
 * without runs.  Forks a process for each processor.  VFM_EUSAGE: no layout fits the ranks. */
int matrix_search(const struct matrix_row *w, const struct vfm_dry_run_opts *asked, int most, int runs,
	struct matrix_found *found, struct vfm_err *err);

#endif
