/* stage_work.h - what a stage does with a record.  It is passed on, copied from finished ones, or given to the function
 * of the stage; the result is the lines of output, and counts. */
#ifndef VFM_DATA_RECORD_STAGE_WORK_H
#define VFM_DATA_RECORD_STAGE_WORK_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "data/record/done.h"
#include "data/record/stage.h"
#include "data/record/stage_link.h"

/* All belongs to the caller, and is the same for all records of a run. */
struct vfm_stage_work {
	const struct vfm_stage *stage;
	char *settings;              /* options and models, for marks */
	const char *share;           /* value of the key "part"; NULL: there is one share */
	struct vfm_done *done;       /* NULL: without --done */
	struct vfm_stage_link *link; /* NULL: it is no stage of a run */
};

struct vfm_stage_record {
	bool is_header; /* text is complete; without rec */
	bool is_due;    /* the stage has to work on rec: it neither passes unchanged nor was done before */
	json_t *rec;
	char mark[VFM_DONE_MARK];
	int64_t place;       /* among the inputs, from 1, with headers */
	uint64_t hash;       /* of the inputs up to it (stage_link.h) */
	bool is_passed;      /* it had "error" or "drop" before this stage */
	struct vfm_buf text; /* its output lines */
	struct vfm_stage_counts counts;
	int rc; /* < VFM_EINPUT: the loop must stop here */
	struct vfm_err err;
};

/* Works on n records, of which the caller has set is_header, rec or text, place and hash.  n is 1 unless the stage has
 * `batch`.  Thread-safe for different records. */
void vfm_stage_work_on(const struct vfm_stage_work *w, struct vfm_stage_record *const *r, int n, int worker);

#endif
