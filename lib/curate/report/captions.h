/* captions.h - the captions of the kept records: lengths, frequent words, samples.
 *
 * Counts of words are those of the most frequent ones (Anderson et al., "A high-performance algorithm for identifying
 * frequent items in data streams", 2017); of n words, a count is at most n/4096 too high. */
#ifndef VFM_CURATE_REPORT_CAPTIONS_H
#define VFM_CURATE_REPORT_CAPTIONS_H

#include <jansson.h>
#include <stdint.h>

#include "base/mem.h"
#include "curate/report/pictures.h"
#include "curate/report/reservoir.h"
#include "data/record/histogram.h"

struct report_captions {
	int64_t records; /* with a caption */
	struct vfm_histogram *lengths;
	struct reservoir sample;
	/* A prune subtracts the same from all counts, and removes those that become 0. */
	json_t *words; /* {word: count less `pruned`}, at most 8192 */
	int64_t pruned;
};

/* samples: records whose captions are shown. */
void report_captions_init(struct report_captions *c, int64_t samples);
void report_captions_release(struct report_captions *c);
void report_captions_add(struct report_captions *c, const json_t *rec);
/* Appends the section; nothing if no record has a caption. */
void report_captions_page(const struct report_captions *c, struct vfm_buf *b, struct report_pictures *p);

#endif
