/* run_samples.h - the samples that a run generated during training (preview.h), for its report. */
#ifndef VFM_TRAIN_RUN_RUN_SAMPLES_H
#define VFM_TRAIN_RUN_RUN_SAMPLES_H

#include "base/err.h"
#include "base/mem.h"

/* Appends the samples in RUN/samples under a heading, if there are any: a row for each of the first four, with up to
 * six evaluations, the first and the last among them.  Of each there is a frame, scaled down, with a relative link to
 * its file.  page_dir: the folder of the page. */
void vfm_run_samples_html(struct vfm_buf *b, const char *name, const char *run_dir, const char *page_dir);

#endif
