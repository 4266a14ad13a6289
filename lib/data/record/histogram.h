/* histogram.h - statistics of a stream of records: histograms of numbers, counts of words, and reasons of drops and
 * errors.
 *
 * Memory is bounded: 256 numeric keys, 64 words a key, and 65,536 values a number.  Of more values it keeps a uniform
 * sample; count, mean, minimum and maximum stay exact.  One thread at a time.
 */
#ifndef VFM_DATA_RECORD_HISTOGRAM_H
#define VFM_DATA_RECORD_HISTOGRAM_H

#include <jansson.h>
#include <stdio.h>

struct vfm_histogram;
struct vfm_histogram *vfm_histogram_new(void);
void vfm_histogram_free(struct vfm_histogram *t);
void vfm_histogram_add(struct vfm_histogram *t, const json_t *rec);

/* bins: 1 to 100. */
void vfm_histogram_print(struct vfm_histogram *t, int bins, FILE *out);
/* {"records","dropped","failed","reasons":{…},"words":{key:{…}},"numbers":{key:{count,min,p5,p50,mean,p95,max,bins:[…]}}}
 */
json_t *vfm_histogram_object(struct vfm_histogram *t, int bins); /* the caller owns it */

#endif
