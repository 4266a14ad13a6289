/* dedup_text.h - the records of a stage as text: for a stage of many records whose function only sets keys that the
 * record lacks.
 *
 * Threads work on blocks of lines: on the records that can be read as text (record_text.h), are well-formed, and have
 * not been in the stage before.  The loop of the stage does the others on one thread.
 */
#ifndef VFM_CURATE_DEDUP_DEDUP_TEXT_H
#define VFM_CURATE_DEDUP_DEDUP_TEXT_H

#include <stdbool.h>

#include "base/err.h"
#include "base/mem.h"
#include "curate/dedup/record_text.h"
#include "data/record/stage.h"

/* Appends to `keys` what the stage sets in a record, each as ,"KEY":VALUE; *dropped: "drop" is among them.  Returns
 * false for a record that only vfm_stage.fn can do.  Called from several threads at once. */
typedef bool (*vfm_stage_text_fn)(
	const struct vfm_record_text *rec, struct vfm_buf *keys, bool *dropped, const void *ctx);

/* Returns whether the first record of a file can be read as text.  If not, most others cannot either, and the threads
 * of -j are faster. */
bool vfm_stage_text_suits(const char *path);
/* For vfm_stage.lines, with unique_ids: reads the files of the stage, which are regular ones. */
int vfm_stage_text_lines(
	struct vfm_stage_loop *l, const struct vfm_stage *s, vfm_stage_text_fn fn, struct vfm_err *err);

#endif
