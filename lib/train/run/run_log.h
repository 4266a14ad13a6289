/* run_log.h - the records of a run as curves, its starts, its configuration and identity, for a report.  Memory does
 * not grow with the steps (media/draw/trace.h).  Reading is local and writes nothing; the run may be active.
 */
#ifndef VFM_TRAIN_RUN_RUN_LOG_H
#define VFM_TRAIN_RUN_RUN_LOG_H

#include "io/json.h"
#include "media/draw/trace.h"

enum vfm_run_curve_flag {
	VFM_CURVE_LOG = 1,     /* logarithmic, if the range is large */
	VFM_CURVE_ZERO = 2,    /* the axis begins at 0 */
	VFM_CURVE_SMOOTH = 4,  /* with a moving average */
	VFM_CURVE_PERCENT = 8, /* 1 is 100 % */
	VFM_CURVE_IF_ANY = 16, /* hidden if all values are 0 */
	VFM_CURVE_LEVELS = 32, /* an array over the noise levels, from 1; the newest array counts */
};

/* A curve: a key of the records (vfm-train(1)), or its ratio to another key. */
struct vfm_run_curve {
	const char *key, *of; /* of NULL: the value itself */
	unsigned flags;       /* enum vfm_run_curve_flag */
	const char *title, *note;
};
enum { VFM_RUN_CURVES = 24, VFM_RUN_JUMPS = 64, VFM_RUN_MARKS = 256 };
extern const struct vfm_run_curve vfm_run_curves[VFM_RUN_CURVES];
/* Returns the number of the curve of a key. */
int vfm_run_curve_of(const char *key);

/* Two lines of metrics.jsonl whose steps are not consecutive. */
struct vfm_run_jump {
	int64_t line, from, to; /* line of step `to`, from 1 */
};

/* A start of the program, from its event file (tfevents.h). */
struct vfm_run_start {
	double time;  /* seconds since 1970 */
	int64_t step; /* the first one */
	char host[64];
};

struct vfm_run_log {
	char *dir;     /* the folder of the run */
	char *metrics; /* its metrics.jsonl */
	char *name;    /* of the folder */
	char *phase;   /* the training phase; NULL: none */
	struct vfm_trace trace[VFM_RUN_CURVES];
	double sum[VFM_RUN_CURVES];              /* of the values; for ratios, of the numerators */
	int64_t levels;                          /* noise levels of the last evaluation of held-out data */
	int64_t steps, first, last;              /* records; smallest and largest step; first > last: none */
	int64_t not_finite;                      /* number of steps */
	double tokens, samples, replaced, tflop; /* of all steps; tflop: per rank */
	bool cut;                                /* the last line has no end: the run is active, or was killed */
	struct vfm_run_jump jump[VFM_RUN_JUMPS];
	int64_t n_jumps;             /* total number; the first ones are in jump */
	struct vfm_run_start *start; /* [n_starts] by time */
	int n_starts;
	int64_t mark[VFM_RUN_MARKS]; /* [n_marks] steps of jumps and of starts after the first */
	int n_marks;
	json_t *config, *identity; /* config.json and run.json; NULL: none */
	char *failure;             /* failure.txt: the error that ended the run; NULL: none */
	int64_t checkpoint;        /* step of the newest one; -1: none */
};

/* Reads a run: a folder, or a metrics.jsonl, whose folder is that of the run.  Release l in any case.  VFM_EUSAGE:
 * there are no records, or a line or a file is damaged; the message names file and line. */
int vfm_run_log_read(struct vfm_run_log *l, const char *run, struct vfm_err *err);
void vfm_run_log_release(struct vfm_run_log *l);

#endif
