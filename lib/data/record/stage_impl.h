/* stage_impl.h - shared by the files of the loop: the inputs of a stage (stage_input.c), the work on a record
 * (stage_work.c), and the loop between them (stage.c).
 */
#ifndef VFM_DATA_RECORD_STAGE_IMPL_H
#define VFM_DATA_RECORD_STAGE_IMPL_H

#include "base/mem.h"
#include "data/record/done.h"
#include "data/record/sample_set.h"
#include "data/record/stage.h"
#include "data/record/stage_link.h"
#include "io/json.h"

/* ---- work: passes a record on, copies it from finished ones, or calls the function of the stage; the result is the
 * output lines and counts ---- */

/* Belongs to the caller and is the same for all records of a run. */
struct vfm_stage_work {
	const struct vfm_stage *stage;
	char *settings;              /* options and models, for fingerprints */
	const char *share;           /* value of the key "part"; NULL: there is only one share */
	struct vfm_done *done;       /* NULL: without --done */
	struct vfm_stage_link *link; /* NULL: not a stage of a run */
	bool is_last;                /* no stage follows that could take results (ahead.h) */
};

struct vfm_stage_record {
	bool is_header; /* text is complete; rec is unused */
	bool is_due;    /* the stage must process rec, which neither passes unchanged nor was finished before */
	json_t *rec;
	char fingerprint[VFM_FINGERPRINT_TEXT];
	int64_t place;       /* number among the inputs, from 1, including headers */
	uint64_t hash;       /* of the inputs up to this one (stage_link.h) */
	bool is_refused;     /* it got "error" or "drop" when it was read */
	bool is_passed;      /* it had "error" or "drop" before this stage */
	struct vfm_buf text; /* its output lines */
	struct vfm_stage_counts counts;
	struct vfm_reasons *reasons; /* of drops and errors of this stage; owned; NULL: none */
	int rc;                      /* < VFM_EINPUT: the loop must stop here */
	struct vfm_err err;
};

/* Processes n records.  The caller has set is_header, rec or text, place and hash of each.  n is 1 unless the stage has
 * `batch`.  Thread-safe for different records. */
void vfm_stage_work_on(const struct vfm_stage_work *w, struct vfm_stage_record *const *r, int n, int worker);

/* ---- inputs: the records of a share, and the headers that must precede them.  stage.h describes the treatment of
 * headers, shares and damaged lines.  One thread reads.  ---- */

struct vfm_stage_input {
	/* set by the caller before vfm_stage_input_open */
	const struct vfm_stage *s;
	struct vfm_stage_link *link; /* NULL: not a stage of a run */
	FILE *linked;                /* its input, instead of stdin; NULL: none */
	int64_t share, n_shares;
	char share_text[48]; /* "I/N" */
	bool is_given;       /* the caller passes the lines (vfm_stage_input_give) */
	json_t *own;         /* the entry of this stage, after those of --done that differ only in the version */

	/* results */
	int64_t other_shares; /* records of other shares */
	bool refused;         /* the last record that was read got its "error" or "drop" here */

	/* private */
	struct vfm_jsonl lines; /* unless s->next; with is_given: name and position of the current line */
	int file;
	bool at_last_end;
	int64_t n_lines;
	json_t *chain;   /* of the headers read so far */
	bool header_due; /* the chain is not written yet */
	json_t *held;    /* a record that waits for its header */
	struct vfm_sample_set ids;
	const struct vfm_jsonl_line *given; /* NULL: lines are read */
};

/* Opens the first input.  VFM_EUSAGE, VFM_EENV: it cannot be opened.  Close the input in any case. */
int vfm_stage_input_open(struct vfm_stage_input *in, struct vfm_err *err);
/* Reads the next input of the share that a run has not finished before, or the header in front of it.  Sets is_header,
 * rec or text, place and hash of *r, and zeroes the rest.  Returns 1, and the caller owns rec and text; 0 at the end,
 * or at the end of the given line. */
int vfm_stage_input_next(struct vfm_stage_input *in, struct vfm_stage_record *r, struct vfm_err *err);

/* Makes line i of a block the next line; a NULL block is the end of the inputs. */
void vfm_stage_input_give(struct vfm_stage_input *in, const struct vfm_jsonl_block *b, size_t i);
/* Counts the record of an output as read.  Returns true if the output can be written now. */
bool vfm_stage_input_accept(struct vfm_stage_input *in, const struct vfm_stage_output *o);

/* Also releases `own` and closes `linked`. */
void vfm_stage_input_close(struct vfm_stage_input *in);

/* Returns the entries that this run adds to the chain.  Copied records may come from another version of the program.
 * done: NULL, or that of --done. */
json_t *vfm_stage_own_entries(const struct vfm_stage *s, const struct vfm_done *done);
/* Sets "error".  If the message is not UTF-8, each byte above ASCII becomes '?'. */
void vfm_stage_set_error(json_t *rec, const char *msg);
/* Returns the reason of a drop without its stage. */
const char *vfm_stage_reason(const struct vfm_stage *s, const char *drop);
/* Appends one line of JSON, with "v":1 first. */
void vfm_stage_line_text(struct vfm_buf *text, const json_t *rec);

#endif
