/* account.h - where the records and their seconds went: kept, or lost for a reason, and by source.
 *
 * A record counts with its duration_s; a record without it is counted, but its time is unknown.  Memory is bounded:
 * the reasons of reasons.h with a sample of records each, and 4096 sources.  Beyond that, the paths of sources are
 * shortened by one level, as often as needed, so that sums stay exact. */
#ifndef VFM_CURATE_REPORT_ACCOUNT_H
#define VFM_CURATE_REPORT_ACCOUNT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "curate/report/pictures.h"
#include "curate/report/reservoir.h"
#include "data/record/reasons.h"

struct report_amount {
	int64_t records, images, untimed; /* images, and records without duration, are part of the records */
	double seconds;
};

struct report_reason {
	const struct vfm_reason *why;
	struct report_amount lost;
	struct reservoir sample;
};

struct report_account {
	struct report_amount in, kept, dropped, failed;
	struct vfm_reasons why;
	struct report_reason *reasons[VFM_REASONS]; /* [n_reasons] in the order of `why` */
	int order[VFM_REASONS];                     /* [n_reasons] after close: the largest loss first */
	int n_reasons, samples;                     /* records of a sample */
	struct report_source *sources;              /* [n_sources]; [0]: records without source */
	size_t n_sources, cap;
	int depth;             /* levels of a path that name a source */
	json_t *source_places; /* {name: index} */
};

/* samples: the maximum number of records shown for a reason. */
void report_account_init(struct report_account *a, int samples);
void report_account_release(struct report_account *a);
void report_account_add(struct report_account *a, const json_t *rec);

/* Orders the reasons.  To be called after the last record, and before the functions below. */
void report_account_close(struct report_account *a);
/* Requests the pictures of the dropped records that the page shows. */
void report_account_pictures(const struct report_account *a, struct report_pictures *p);
/* Append the cards; the table of reasons; the table of sources; and the records of each reason. */
void report_account_cards(const struct report_account *a, struct vfm_buf *b);
void report_account_reasons(const struct report_account *a, struct vfm_buf *b);
void report_account_sources(struct report_account *a, struct vfm_buf *b, const struct report_links *l);
void report_account_samples(const struct report_account *a, struct vfm_buf *b, struct report_pictures *p);

#endif
