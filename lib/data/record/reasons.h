/* reasons.h - counts dropped and failed records, and their seconds, by reason.  Plain data. */
#ifndef VFM_DATA_RECORD_REASONS_H
#define VFM_DATA_RECORD_REASONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	VFM_REASONS = 32,      /* the last one collects all others */
	VFM_REASON_TEXT = 120, /* bytes; longer texts are cut */
};

struct vfm_reason {
	char text[VFM_REASON_TEXT];
	bool is_error; /* else a drop */
	int64_t n;     /* records; 0: no reason */
	double s;      /* sum of their durations, as far as they have one */
};

struct vfm_reasons { /* `= {0}` before the first */
	struct vfm_reason v[VFM_REASONS];
};

/* Adds n records.  Drops are equal if their texts are.  Errors also are if they differ only in numbers, quoted names
 * and ids (words of 8 or more letters and digits); then the text has "#" and "'...'" for these.  Control characters
 * become '?'.  Returns the place of the reason in v; places are taken in order. */
int vfm_reasons_add(struct vfm_reasons *r, const char *text, bool is_error, int64_t n, double s);
void vfm_reasons_merge(struct vfm_reasons *r, const struct vfm_reasons *other);

enum { VFM_DURATION_TEXT = 32 };
/* Writes seconds as "352.0 s" or, from 10,000 on, as "2.78 h".  Returns the text. */
const char *vfm_duration_text(char text[VFM_DURATION_TEXT], double s);

#endif
