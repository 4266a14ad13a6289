/* dry_run_page.h - a page about a predicted run: its facts, the time of each simulated rank by kind of work, the
 * timeline of a step, and how the rate of a GPU falls with their number.
 */
#ifndef VFM_TRAIN_DRY_RUN_PAGE_H
#define VFM_TRAIN_DRY_RUN_PAGE_H

#include "base/mem.h"
#include "train/dry_run.h"

/* A run on more GPUs: data parallelism with as many packs for each rank. */
struct vfm_scaled_run {
	int ranks;
	double tflops_gpu[VFM_ESTIMATES];
	double straggler; /* of struct vfm_dry_run */
};

struct vfm_dry_run_page {
	const struct vfm_dry_run_opts *o;
	const struct vfm_dry_run *d; /* with timelines */
	const char *title;
	const struct vfm_scaled_run *scaled; /* [n_scaled], by ranks */
	int n_scaled;
};
void vfm_dry_run_html(struct vfm_buf *b, const struct vfm_dry_run_page *p);

#endif
