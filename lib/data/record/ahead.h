/* ahead.h - results that a stage computes for later stages, from the frames that it decodes anyway.
 *
 * A stage knows the later stages of its run, and those of its shell pipe that are processes of the same program on this
 * machine.  Results travel in the records, under the key "ahead": an object by stage.  A later stage takes its result
 * instead of decoding; the record is the same as without it.  Fingerprints do not cover the key.  A record loses it when
 * it is dropped or fails, and the last stage removes it.
 */
#ifndef VFM_DATA_RECORD_AHEAD_H
#define VFM_DATA_RECORD_AHEAD_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"

#define VFM_AHEAD_KEY "ahead"

struct vfm_later_stage {
	int argc;
	char **argv; /* [argc + 1] argv[0] is the stage: "split"; owned */
};

struct vfm_later_stages {
	struct vfm_later_stage *stage; /* [n], the next one first; owned */
	int n;
};

/* Finds the stages after this process, without their options -q and --quiet: those of its link (stage_link.h), else
 * those that read its standard output through pipes, up to the first process of another program or working directory.
 * Waits up to 0.1 s for the shell to start them. */
void vfm_later_stages_find(struct vfm_later_stages *l);
void vfm_later_stages_add(struct vfm_later_stages *l, int argc, char *const *argv); /* copies */
void vfm_later_stages_release(struct vfm_later_stages *l);

/* Returns whether no stage can follow: the output is neither a queue of a run nor a pipe. */
bool vfm_ahead_ends_here(void);

/* Removes and returns the result for a stage, which the caller owns; NULL: none. */
json_t *vfm_ahead_take(json_t *rec, const char *stage);
/* Takes ownership of `result`. */
void vfm_ahead_put(json_t *rec, const char *stage, json_t *result);

#endif
