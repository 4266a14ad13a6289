/* pipeline_view.h - the state of a run as text and as a page. */
#ifndef VFM_CURATE_PIPELINE_PIPELINE_VIEW_H
#define VFM_CURATE_PIPELINE_PIPELINE_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "data/record/stage_link.h"

enum vfm_view_state { VFM_VIEW_RUNS, VFM_VIEW_DONE, VFM_VIEW_STOPPED, VFM_VIEW_FAILED };

struct vfm_view_stage {
	const char *name;
	enum vfm_view_state state;
	struct vfm_stage_progress c;
	int64_t at_start; /* input records when this process began */
	bool is_apart;    /* has workers of its own, besides the jobs of the run */
	double wall_s;    /* since the first record of this process */
	/* of the first stage, with those whose outputs wait for earlier ones: inputs, bytes of files, time of threads */
	int64_t worked, worked_bytes;
	double worked_s;
	int64_t waiting; /* records that wait for it; -1: unknown */
	int busy;        /* records being processed */
	double rate;     /* records per second over about the last half minute */
};

struct vfm_view {
	const char *config, *dir;
	enum vfm_view_state state;
	const char *message; /* NULL, or the reason why the run ended */
	double elapsed_s;
	int64_t jobs, total, total_bytes; /* total: inputs of the first stage; -1: unknown */
	int n;
	struct vfm_view_stage stage[VFM_PROGRESS_STAGES];
};

/* An estimate of the time until a stage is done. */
struct vfm_view_left {
	double s;      /* < 0: unknown */
	bool is_least; /* a stage up to it has not begun, whose work is not in s */
	double done;   /* 0..1: the part of its input that it has processed */
};
/* Estimates left [v->n].  The first stage is done to the part of the bytes of its inputs, or of their number.  For other
 * stages, the input of the whole run is that of so far, divided by the part that the stage before has done.  A stage
 * needs as much work per second of video as so far, and the jobs share the work that is left. */
void vfm_view_estimate(const struct vfm_view *v, struct vfm_view_left *left);

/* Appends one line: "probe 120 (35/s), score 98 (30/s); 3 dropped, 0 failed; 0:12 left". */
void vfm_view_line(struct vfm_buf *b, const struct vfm_view *v);
/* Appends a table: a line for each stage with a bar, counts, rate and time left.  Lines have at most `columns`
 * characters (at least 23), and there are at most `rows` lines (at least 3).  Leaves out columns that do not fit, and
 * stages, finished ones first. */
void vfm_view_table(struct vfm_buf *b, const struct vfm_view *v, int columns, int rows);
/* Appends a line for each reason of drops and failures with its number, cut to `columns` characters. */
void vfm_view_reasons(struct vfm_buf *b, const struct vfm_view *v, int columns);
/* Appends a self-contained page.  While the run continues, the browser reloads it every two seconds. */
void vfm_view_page(struct vfm_buf *b, const struct vfm_view *v);

#endif
