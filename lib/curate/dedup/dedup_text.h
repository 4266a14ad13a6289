/* dedup_text.h - the two passes of dedup.h, as blocks of lines on several threads.
 *
 * Threads handle records that can be read as text (record_text.h), are well-formed, and have not been in the stage
 * before.  The others are parsed one after another.
 */
#ifndef VFM_CURATE_DEDUP_DEDUP_TEXT_H
#define VFM_CURATE_DEDUP_DEDUP_TEXT_H

#include <stdbool.h>

#include "base/err.h"
#include "data/record/stage.h"
#include "io/json.h"

struct vfm_dedup_files {    /* close in any case */
	char *const *paths; /* [n] regular files; they must outlive the blocks */
	int n;
	/* private */
	struct vfm_jsonl in;
	int n_opened;
};
/* Reads the next lines of the files.  Returns 1, or 0 at the end.  One thread at a time. */
int vfm_dedup_files_read(struct vfm_dedup_files *f, struct vfm_jsonl_block *b, struct vfm_err *err);
void vfm_dedup_files_close(struct vfm_dedup_files *f);

/* Returns whether the first record of a file can be read as text.  If not, most others cannot either, and the threads
 * of -j are faster. */
bool vfm_dedup_suits_text(const char *path);
/* For vfm_stage.lines, with a struct vfm_dedup as ctx and unique_ids: marks the records of the stage's files. */
int vfm_dedup_mark_lines(struct vfm_stage_loop *l, const struct vfm_stage *s, struct vfm_err *err);

#endif
