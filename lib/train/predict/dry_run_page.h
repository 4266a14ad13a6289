/* dry_run_page.h - a page about a predicted run: facts, timeline of a step, memory by owner, time of each simulated
 * rank by kind of work, and rate per GPU by number of GPUs. */
#ifndef VFM_TRAIN_PREDICT_DRY_RUN_PAGE_H
#define VFM_TRAIN_PREDICT_DRY_RUN_PAGE_H

#include "base/mem.h"
#include "spec/cost/goodput.h"
#include "train/predict/dry_run.h"

/* A run on more GPUs: data parallelism with the same number of packs per rank. */
struct vfm_scaled_run {
	int ranks;
	double tflops_gpu[VFM_ESTIMATES];
	double straggler; /* of struct vfm_dry_run */
};

/* Predicts the run *d of *o on twice as many GPUs, and so on up to 10,000, with the same number of packs per rank; not
 * for a plan.  Fills v [VFM_SCALED_MOST], which begins with *d, and sets *n to the number of entries. */
enum { VFM_SCALED_MOST = 16 };
int vfm_scale_run(const struct vfm_dry_run_opts *o, const struct vfm_dry_run *d, struct vfm_scaled_run *v, int *n,
	struct vfm_err *err);

/* Appends "64 GPUs, 8 nodes of 8"; nodes only for a job of several ranks. */
void vfm_nodes_sentence(struct vfm_buf *b, const struct vfm_machine *m, int ranks);

/* Fractions of a step in which the ranks wait, as means over the ranks. */
struct vfm_stalls {
	double comm, bubble, copy; /* for communication, other pp stages, copies */
	/* in collectives, for ranks with other packs, experts or speed; may also be part of the others */
	double imbalance;
};
/* Appends "bubble 12.1 %, exposed communication 9.7 %": the largest first, without those below 0.05 %; "nothing" if
 * none is left. */
void vfm_stalls_sentence(struct vfm_buf *b, const struct vfm_stalls *s);

/* Appends the rate of failures, the best interval between checkpoints, and the goodput.  Returns the goodput, or 0 if
 * the formula does not apply. */
double vfm_goodput_sentence(struct vfm_buf *b, const struct vfm_failures *f);

struct vfm_dry_run_page {
	const struct vfm_dry_run_opts *o;
	const struct vfm_dry_run *d;         /* with timelines and memory */
	const struct vfm_failures *failures; /* of the job; NULL: none */
	const struct vfm_scaled_run *scaled; /* [n_scaled], by ranks */
	int n_scaled;
};
/* Appends a section with headings h3, for a page with other content. */
void vfm_dry_run_section(struct vfm_buf *b, const struct vfm_dry_run_page *p);
/* Appends the page. */
void vfm_dry_run_html(struct vfm_buf *b, const struct vfm_dry_run_page *p);

#endif
