/* tally.h - what a stream of records holds: numbers as histograms, words as counts, drops and
 * errors by reason.  Memory is bounded: 65,536 values a number (a uniform sample beyond that; count,
 * mean, least and greatest stay exact), 256 numbers, 64 words a key.  One thread at a time. */
#ifndef VFM_DATA_TALLY_H
#define VFM_DATA_TALLY_H

#include <jansson.h>
#include <stdio.h>

#include "base/err.h"

struct vfm_tally;
struct vfm_tally *vfm_tally_new(void);
void vfm_tally_free(struct vfm_tally *t);
void vfm_tally_add(struct vfm_tally *t, const json_t *rec);

void vfm_tally_print(struct vfm_tally *t, int bins, FILE *out);
/* {"records","dropped","failed","reasons":{…},"words":{key:{…}},"numbers":{key:{count,min,p5,p50,mean,p95,max,bins:[…]}}}
 */
int vfm_tally_json(struct vfm_tally *t, int bins, FILE *out, struct vfm_err *err);

#endif
