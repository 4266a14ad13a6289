/* report.h - one page about a dataset of records: distributions, drops, pictures, duplicates, captions and sources.
 *
 * Memory does not grow with the records: histograms (data/record/histogram.h), reservoirs of records (Vitter, "Random
 * sampling with a reservoir", 1985) with counter-based random numbers, and counts of the most frequent words (Anderson
 * et al., "A high-performance algorithm for identifying frequent items in data streams", 2017): a count is too high by
 * at most n/4096 of n words.  The same records in the same order give the same page, byte for byte.
 *
 * The page refers to no other file; pictures are PNGs within it.  One thread at a time.
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
	int64_t pairs;     /* of duplicates, 0 to 100 */
	int64_t captions;  /* samples, 0 to 1000 */
	double timeout_s;  /* for a picture */
};

struct vfm_report;
struct vfm_report *vfm_report_new(const struct vfm_report_opts *o);
void vfm_report_free(struct vfm_report *r); /* accepts NULL */

void vfm_report_add(struct vfm_report *r, const json_t *rec);

/* Reads the files of the records again ("-" is left out) for the originals of the duplicates that the page shows,
 * decodes the pictures and writes the page atomically.  An original that is not found is shown by its id; a picture
 * that cannot be decoded is replaced by the reason. */
int vfm_report_write(struct vfm_report *r, int n_files, char **files, const char *path, struct vfm_err *err);

/* Appends what a page tells of every record: its id, size and duration. */
void vfm_record_facts_html(struct vfm_buf *b, const json_t *rec);

#endif
