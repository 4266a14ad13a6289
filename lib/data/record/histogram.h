/* histogram.h - statistics of a stream of records: histograms of numbers, counts of words, and reasons of drops and
 * errors.
 *
 * Memory is bounded: 256 numeric keys, 64 words per key, 32 reasons (reasons.h), and 65,536 values per number, twice
 * that if records are dropped.  Beyond that it keeps a uniform sample of the values; count, mean, minimum and maximum stay exact.  One
 * thread at a time.
 */
#ifndef VFM_DATA_RECORD_HISTOGRAM_H
#define VFM_DATA_RECORD_HISTOGRAM_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { VFM_HISTOGRAM_BINS = 100 }; /* maximum */

struct vfm_histogram;
struct vfm_histogram *vfm_histogram_new(void);
void vfm_histogram_free(struct vfm_histogram *t);
void vfm_histogram_add(struct vfm_histogram *t, const json_t *rec);

/* Returns the statistics, which the caller owns.  `words` and `numbers` cover the records that are neither dropped nor
 * failed; `bins` has counts from min to max:
 *
 *	{"records","dropped","failed","reasons":{TEXT:N},
 *	 "seconds":{"kept","dropped","failed","reasons":{TEXT:SECONDS}},"words":{KEY:{WORD:N}},
 *	 "numbers":{KEY:{"count","missing","min","p5","p50","mean","p95","max","bins":[N]}}} */
json_t *vfm_histogram_object(struct vfm_histogram *t, int bins);

struct vfm_word_count {
	const char *word;
	int64_t n;
};
/* Returns the words of {WORD:N}, the largest number first, and their number in *n.  The caller frees the list; the
 * words belong to the object. */
struct vfm_word_count *vfm_word_counts_sort(const json_t *counts, size_t *n);

/* Returns the name of number i, in the order of the records, or NULL if there are fewer numbers. */
const char *vfm_histogram_key(const struct vfm_histogram *t, int i);

/* The values of a number. */
struct vfm_histogram_values {
	int64_t count;         /* values; those that `v` lacks are not in the uniform sample */
	double min, max, mean; /* of all values */
	const double *v;       /* [n] in no order; valid until the next call */
	size_t n;
};
/* Gets the values of the records that are kept, or of those that are dropped.  Returns false if none has the number. */
bool vfm_histogram_values(const struct vfm_histogram *t, const char *key, bool dropped, struct vfm_histogram_values *x);

#endif
