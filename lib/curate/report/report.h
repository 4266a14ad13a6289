/* report.h - one page about a dataset of records: hours kept and lost by reason and by source, scores, pictures,
 * duplicates and captions.
 *
 * The same records in the same order give the same page, byte for byte, for a page in the same folder.  The page
 * contains all that it shows; it refers to the files of the records by links.
 *
 * Memory does not grow with the records: it holds histograms (data/record/histogram.h), sums by reason and source
 * (account.h), extremes of scores (scores.h), frequent words (captions.h) and reservoirs of records (reservoir.h).
 */
#ifndef VFM_CURATE_REPORT_REPORT_H
#define VFM_CURATE_REPORT_REPORT_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

struct vfm_report_opts {
	const char *title; /* NULL: "Dataset" */
	const char *by;    /* the number that chooses pictures, "score.motion"; NULL: the first score, else duration_s,
			      width for images */
	int64_t pictures;  /* of kept records of a kind, 0 to 200 */
	int64_t examples;  /* of each end of a score, and half of those of a reason, 0 to 8 */
	int64_t pairs;     /* pairs of duplicates, 0 to 100 */
	int64_t captions;  /* samples, 0 to 1000 */
	double timeout_s;  /* per picture */
};

struct vfm_report;
struct vfm_report *vfm_report_new(const struct vfm_report_opts *o);
void vfm_report_free(struct vfm_report *r); /* accepts NULL */

void vfm_report_add(struct vfm_report *r, const json_t *rec);

/* Reads the files of the records again (except "-") for the originals of the duplicates on the page, decodes the
 * pictures and writes the page atomically.  Shows an original that is not found by its id.  Replaces a picture that
 * cannot be decoded by the reason. */
int vfm_report_write(struct vfm_report *r, int n_files, char **files, const char *path, struct vfm_err *err);

/* Appends the facts that a page shows for every record: id, size and duration. */
void vfm_record_facts_html(struct vfm_buf *b, const json_t *rec);

#endif
