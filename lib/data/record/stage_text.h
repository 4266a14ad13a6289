/* stage_text.h - blocks of records that a stage works on as text (vfm_stage.text_fn).
 *
 * Internal to the loop of a stage (stage.h).  Threads do all the work on the records of a block that can be read
 * as text and that nothing is to be said against; the loop then takes the lines in order, and does the others itself.
 */
#ifndef VFM_DATA_RECORD_STAGE_TEXT_H
#define VFM_DATA_RECORD_STAGE_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "data/record/record_text.h"
#include "data/record/stage.h"
#include "io/json.h"

#define VFM_STAGE_BLOCK (1 << 20) /* bytes of records, about */

struct vfm_stage_text { /* what became of a line */
	bool is_ready;  /* the output is complete, unless a record before it has the id */
	bool is_passed; /* unchanged: with "error" or "drop"; without id */
	bool failed, dropped;
	uint64_t hash[2], content; /* of vfm_sample_seen */
	size_t at, len;            /* of the output, in `out` of the block */
};

struct vfm_stage_block { /* `= {0}` before; release in any case */
	struct vfm_jsonl_block lines;
	struct vfm_stage_text *of; /* [lines.n] */
	struct vfm_buf out;
	/* private */
	size_t cap;
	struct vfm_record_text text;
	struct vfm_buf keys;
};

/* Whether the first record of a file can be read as text.  If not, most others cannot either, and the threads of -j are
 * faster. */
bool vfm_stage_text_suits(const char *path);
/* Splits the lines that were read, and works on those that can be read as text.  settings: of the marks.  Thread-safe.
 */
void vfm_stage_text_work(const struct vfm_stage *s, const char *settings, struct vfm_stage_block *b);
void vfm_stage_block_release(struct vfm_stage_block *b);

/* The keys of a record that its mark does not cover, and those in which records of one id may differ. */
extern const char *const vfm_stage_unmarked[], *const vfm_stage_source_keys[];
/* Returns the text that a digest puts before the record in a mark; the caller frees it.  clip: by.clip, or NULL. */
char *vfm_stage_mark_head(const struct vfm_stage *s, const char *settings, const char *clip);

#endif
