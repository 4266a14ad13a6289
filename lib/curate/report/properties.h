/* properties.h - what records have besides scores: sizes, durations, codecs, rates. */
#ifndef VFM_CURATE_REPORT_PROPERTIES_H
#define VFM_CURATE_REPORT_PROPERTIES_H

#include "base/mem.h"
#include "curate/report/bars.h"

/* Appends histograms of the numbers that vary, the counts of words, and one line about keys that are the same in all
 * kept records, scores included. */
void report_properties(struct vfm_buf *b, const struct report_view *v, struct vfm_histogram *numbers);
/* Appends a table of {name: count}, each count raised by `more`: the `most` largest. */
void report_count_table(struct vfm_buf *b, const char *title, const json_t *counts, int64_t more, size_t most);

#endif
