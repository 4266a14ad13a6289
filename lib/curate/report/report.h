/* report.h - one page about a dataset of records: distributions, drops, pictures, duplicates, captions and sources.
 *
 * The same records in the same order give the same page, byte for byte.  The page refers to no other file; pictures are
 * PNGs within it.  One thread at a time.
 *
 * Memory does not grow with the records:
 *
 * - histograms (data/record/histogram.h)
 * - reservoirs of records (Vitter, "Random sampling with a reservoir", 1985) with counter-based random numbers
 * - counts of the most frequent words (Anderson et al., "A high-performance algorithm for identifying frequent items in
 *   data streams", 2017); of n words, a count is at most n/4096 too high
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
			      else width */
	int64_t pictures;  /* 0 to 200 */
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
