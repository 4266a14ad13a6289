/* bars.h - histograms whose bars are links to lists of their records, without scripts: the browser shows a list while
 * it is the target of the URL (:target).
 *
 * Kept records are drawn in one colour, dropped ones on top in another.  If half of the positive values lie below a
 * tenth of the largest, and none is negative, the axis is logarithmic: on a linear one they would share four bars.
 * Zeros then have no place on the axis, and are counted next to it. */
#ifndef VFM_CURATE_REPORT_BARS_H
#define VFM_CURATE_REPORT_BARS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "curate/report/pictures.h"
#include "data/record/histogram.h"

/* The records of one kind, videos or images, whose numbers the page shows. */
struct report_view {
	const char *id; /* the beginning of the ids of its elements */
	const struct vfm_histogram *numbers;
	const json_t *const *samples; /* [n_samples] records for the lists: at most 3 kept and 2 dropped ones a bar */
	int n_samples;
	struct report_pictures *pictures;
};

struct report_bars {
	const struct report_view *view;
	const char *id, *key;       /* of the element with the histogram; of the number */
	const json_t *const *first; /* [n_first] records that the lists show before the samples */
	int n_first;
	double low, high;  /* limits that are drawn as dashed lines; NAN: none */
	int64_t undefined; /* records whose value is null */
};

/* Returns whether the number has more than one value in the kept and dropped records. */
bool report_bars_vary(const struct vfm_histogram *numbers, const char *key);
/* Appends the facts of the kept values, the histogram and the lists of its bars. */
void report_bars_add(struct vfm_buf *b, const struct report_bars *h);

#endif
