/* metrics.h - the record of a step, and its output to metrics.jsonl and TensorBoard. */
#ifndef VFM_TRAIN_RUN_METRICS_H
#define VFM_TRAIN_RUN_METRICS_H

#include "io/json.h"
#include "train/run/held_out.h"
#include "train/run/tfevents.h"
#include "train/step/trainer.h"

/* An update of a network in a step. */
struct vfm_step_update {
	const char *network; /* of two (experts.h); NULL: the only one */
	double loss, grad_norm, lr;
};

struct vfm_step_record {
	int64_t step;            /* completed steps, from 1 */
	struct vfm_step_stats s; /* of all updates; s.rank: reduced over the ranks (stats.h) */
	struct vfm_step_update update[2];
	int updates; /* 1, or 2 of a step that trains two networks */
	int ranks;
	bool weighted;                     /* s.mse is valid */
	double peak_tflops;                /* peak of the device (spec/cost/hw.h); 0: unknown */
	struct vfm_held_out_loss held_out; /* after this step; levels 0: no evaluation */
	char previews[64];                 /* folder of the samples of this step, within RUN; "": none */
	int64_t skipped;                   /* number of skipped steps, including this one; 0: this step was applied */
};
/* Adds the next update of the same step. */
void vfm_step_record_add(struct vfm_step_record *r, const struct vfm_step_record *next);
/* Returns {v, step, loss, grad_norm, lr, tokens, samples, tok_s, tflops, mfu}, the keys of vfm_stats, `mse` if
 * weighted, held_out_loss and held_out_levels (an array) if evaluated, `previews` if samples were generated, and
 * `skipped` unless it is 0.  Of two networks, those that were trained have high_loss, high_grad_norm and high_lr, and
 * the same of low, instead of grad_norm and lr.  A loss or norm that is not finite is null.  The caller owns the
 * result. */
json_t *vfm_step_json(const struct vfm_step_record *r);

struct vfm_metrics {
	FILE *f;
	char *path;
	struct vfm_tfevents events;
	double t_flush;
};
/* Opens RUN/metrics.jsonl for appending after the line of step `steps_done`.  Truncates later lines, since the run
 * repeats their steps.  Warns if records of earlier steps are missing. */
int vfm_metrics_open(struct vfm_metrics *m, const char *dir, int64_t steps_done, struct vfm_err *err);
int vfm_metrics_add(struct vfm_metrics *m, const struct vfm_step_record *r, const json_t *record, struct vfm_err *err);
/* Returns once all records are on disk.  VFM_EENV: a file cannot be written, or RUN was moved or removed. */
int vfm_metrics_flush(struct vfm_metrics *m, struct vfm_err *err);
void vfm_metrics_close(struct vfm_metrics *m);

#endif
