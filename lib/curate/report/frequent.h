/* frequent.h - the most frequent words of a stream in bounded memory (Space-Saving, see report.h). */
#ifndef VFM_CURATE_REPORT_FREQUENT_H
#define VFM_CURATE_REPORT_FREQUENT_H

#include <stddef.h>
#include <stdint.h>

struct vfm_frequent;

struct vfm_frequent_word {
	const char *word; /* belongs to the list */
	int64_t n;        /* at least its number of occurrences */
	int64_t excess;   /* by at most so much too high */
};

/* Keeps `words` counters. */
struct vfm_frequent *vfm_frequent_new(int words);
void vfm_frequent_free(struct vfm_frequent *f); /* accepts NULL */
void vfm_frequent_add(struct vfm_frequent *f, const char *word, size_t len);
int64_t vfm_frequent_total(const struct vfm_frequent *f); /* words added */
/* Copies the `most` most frequent words, most frequent first, equal ones in alphabetic order.  Returns their number. */
int vfm_frequent_top(const struct vfm_frequent *f, struct vfm_frequent_word *top, int most);

#endif
