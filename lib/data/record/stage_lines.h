/* stage_lines.h - the lines of a stage that reads its inputs itself (vfm_stage.lines), as blocks on several threads.
 *
 * Its function gives the loop the lines in blocks, in order, from one thread at a time.  It may give outputs of
 * records, too, as the loop would write them: with the mark of the stage, or unchanged if the record has "error" or
 * "drop". The loop does all the others.  Outputs may be given without --part, --done and sees_all.
 */
#ifndef VFM_DATA_RECORD_STAGE_LINES_H
#define VFM_DATA_RECORD_STAGE_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "data/record/stage.h"
#include "io/json.h"

struct vfm_stage_output {
	size_t len;                /* of the line, with its newline; 0: there is none */
	bool is_passed;            /* unchanged: the record had "error" or "drop" */
	bool failed, dropped;      /* the output has "error" or "drop" */
	uint64_t hash[2], content; /* for unique_ids: of the id (vfm_sample_hash), of all but vfm_stage_source_keys */
};

/* Takes the lines of a block, and writes their outputs.  o [b->n]: the outputs, which stand in `text` one after the
 * other; the loop makes its own where a header is due, or where another record had the id.  Returns 0, or the code with
 * which the stage must end. */
int vfm_stage_take(struct vfm_stage_loop *l, const struct vfm_jsonl_block *b, const struct vfm_stage_output *o,
	const char *text, struct vfm_err *err);

/* The keys of a record that its mark does not cover, and those in which records of one id may differ. */
extern const char *const vfm_stage_unmarked[], *const vfm_stage_source_keys[];
/* Returns the text that a digest puts before the record in a mark; the caller frees it.  settings: those of
 * provenance.h; clip: by.clip, or NULL. */
char *vfm_stage_mark_head(const struct vfm_stage *s, const char *settings, const char *clip);

#endif
