/* trackers.h - children of rank 0 that follow a run and send it to other services: `--track`, share/track.
 *
 * A tracker is started as `CMD RUN`, in a process group of its own at a lower priority, without stdin.  Its output
 * goes to RUN/track/NAME.log.  It reads the files of RUN (run.h), and exits once it has sent the end that
 * RUN/end.json tells.  No pipe connects it with the trainer, so it cannot block a step.  A guardian kills it if the
 * trainer is killed.
 *
 * All functions are local, belong to one thread, and accept NULL as the object.
 */
#ifndef VFM_TRAIN_RUN_TRACKERS_H
#define VFM_TRAIN_RUN_TRACKERS_H

#include <signal.h>

#include "base/err.h"
#include "io/opt.h"

struct vfm_trackers;

/* Checks the commands and starts the guardian: call it before the first thread.  No commands: *t is NULL.
 * VFM_EUSAGE: a command is malformed, or there is no such program. */
int vfm_trackers_new(struct vfm_trackers **t, const struct vfm_strlist *commands, struct vfm_err *err);
/* Starts the trackers of `run`, which has its config.json and metrics.jsonl.  VFM_EENV: a log cannot be written. */
int vfm_trackers_start(struct vfm_trackers *t, const char *run, struct vfm_err *err);
/* Logs the trackers that have ended, and starts those that failed again, after 10 s, 20 s, ... 10 minutes.  A status
 * of 2 means that another start would fail as well. */
void vfm_trackers_poll(struct vfm_trackers *t);
/* The run has ended, and end.json is written: trackers that wait for their next start are started now, and later no
 * more.  Does not wait.  rc, ranks: the result of the run and the size of the job, which determine the limit of
 * vfm_trackers_close. */
void vfm_trackers_end(struct vfm_trackers *t, int rc, int ranks);
/* Waits for the trackers, then stops and reports those that have not ended: after 60 s, 15 s if a signal ended the run,
 * 10 s if it failed, or 2.5 s if it failed with several ranks.  Another signal, which changes *stop, ends the wait.
 * Frees t. */
void vfm_trackers_close(struct vfm_trackers *t, const volatile sig_atomic_t *stop);

#endif
