/* matrix_predict.h - predictions of the rows of vfm-bench matrix, and the search for the best layout. */
#ifndef CMD_MATRIX_PREDICT_H
#define CMD_MATRIX_PREDICT_H

#include "matrix_rows.h"
#include "sim/machine.h"
#include "train/bench.h"

/* The result of a row. */
struct matrix_outcome {
	bool fits;
	double need;             /* if not: bytes per rank; infinite: too many to be counted */
	double s[VFM_ESTIMATES]; /* predicted seconds of a step; 0: measured */
	struct vfm_bench_result r;
	int64_t beside; /* bytes of the context and of libraries, beside those of r */
	double peak;    /* TFLOP/s of a device; 0: unknown */
	int threads;    /* of a rank */
	char layout[128], device[128], descr[256];
};

/* text: rows of a sample; packs: of a step.  w->ranks GPUs of *m.  needed: predict a step that does not fit once more,
 * with more memory, for o->need. */
int matrix_predict_row(const struct matrix_row *w, int64_t text, int64_t packs, const struct vfm_machine *m,
	bool needed, struct matrix_outcome *o, struct vfm_err *err);

/* What a search found. */
struct matrix_best {
	struct matrix_row row;
	struct matrix_outcome out;
};
struct matrix_found {
	int tried, full;       /* layouts; those that do not fit */
	struct matrix_best *v; /* [n] the best first; the caller frees it */
	int n;
};

/* Tries the layouts of w->ranks GPUs: tp within a node, cp up to 64 by ring and by all-to-all, pp up to 16 with 1 or 2
 * virtual stages, and fsdp or distopt over the rest.  A degree that *w sets stays.  Layouts are first compared by steps
 * of fewer packs; the best `most` are then predicted in full.  Forks a process for each processor.  VFM_EUSAGE: no
 * layout fits the ranks. */
int matrix_search(const struct matrix_row *w, int64_t text, int64_t packs, const struct vfm_machine *m, int most,
	struct matrix_found *found, struct vfm_err *err);

#endif
