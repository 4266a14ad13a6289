/* distributions.h - the numbers of a dataset as a table of histograms, kept and dropped records in two colours. */
#ifndef VFM_CURATE_REPORT_DISTRIBUTIONS_H
#define VFM_CURATE_REPORT_DISTRIBUTIONS_H

#include "base/mem.h"
#include "data/record/histogram.h"

/* Appends a row for each number, with the scores in the groups of vfm-scores(7), and a table of the keys with a single
 * value.  of: the heading of the counts. */
void vfm_report_distributions(struct vfm_buf *b, struct vfm_histogram *t, const char *of);

#endif
