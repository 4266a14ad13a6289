/* scores.h - the scores of one kind of records, videos or images: histograms, usual limits, and the kept records with
 * the lowest and highest values.  Memory is bounded: 64 scores. */
#ifndef VFM_CURATE_REPORT_SCORES_H
#define VFM_CURATE_REPORT_SCORES_H

#include <jansson.h>
#include <stdint.h>

#include "base/mem.h"
#include "curate/report/bars.h"

enum { REPORT_SCORES = 64, REPORT_EXAMPLES = 8 /* maximum of each end */ };

struct report_score;

struct report_scores {
	struct report_score *list[REPORT_SCORES]; /* [n] */
	int n, examples;                          /* of each end */
};

/* examples: 0 to REPORT_EXAMPLES. */
void report_scores_init(struct report_scores *s, int examples);
void report_scores_release(struct report_scores *s);
void report_scores_add(struct report_scores *s, const json_t *rec);

/* Requests the pictures of the examples that the page shows. */
void report_scores_pictures(const struct report_scores *s, const struct report_view *v);
/* Appends a block for each score that varies, in the groups of vfm-scores(7). */
void report_scores_page(const struct report_scores *s, struct vfm_buf *b, const struct report_view *v);

#endif
