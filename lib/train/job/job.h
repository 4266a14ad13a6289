/* job.h - the ranks of one command: start, agreement on failures, end.  Commands use it through vfm_context_run
 * (context.h).
 *
 *	rc = vfm_job_start(&job, n, &opts, err);           // 1: this is the parent of forked ranks
 *	rc = vfm_job_agree(&job, local_work(err), err);    // all ranks fail or none does
 *	rc = vfm_job_end(&job, rc, err);
 *
 * A failure is reported once: rank 0 reports an agreed failure, and the first failing rank reports a local one.  On all
 * other ranks the message in err is empty.
 */
#ifndef VFM_TRAIN_JOB_JOB_H
#define VFM_TRAIN_JOB_JOB_H

#include "comm/coll/comm.h"
#include "comm/launch/launch.h"

struct vfm_job {
	struct vfm_launch launch;
	struct vfm_comm *world;
	char *mark;  /* path of the file that the first failing rank creates; NULL: none yet */
	bool agreed; /* all ranks know of the failure and hold the same message */
	bool failed, first;
};

/* n as for vfm_launch_init; recorder_dir: see comm/host/comm_host.h.  Returns 0 in a rank: its log lines then carry the
 * rank number, and only rank 0 of several ranks logs information.  Returns 1 in the parent of forked ranks, after they
 * have ended: job->launch.status is the exit status, and the cause of death has been logged. */
int vfm_job_start(struct vfm_job *j, int n, const char *recorder_dir, struct vfm_err *err);

/* Collective over c.  Every rank returns the worst code, with the message of the lowest rank that has this code, as
 * "rank 3: …".  The prefix is omitted if all ranks failed with the same message. */
int vfm_agree(struct vfm_comm *c, int rc, struct vfm_err *err);
/* Like vfm_agree, over all ranks.  Marks the failure as agreed. */
int vfm_job_agree(struct vfm_job *j, int rc, struct vfm_err *err);
/* Collective: replaces *text (malloc'ed, may be NULL) by that of rank 0. */
int vfm_job_broadcast(struct vfm_job *j, char **text, struct vfm_err *err);

/* Local.  Notifies the other ranks of a failure that is not agreed.  Call it before any operation that waits for them.
 * Returns rc. */
int vfm_job_failed(struct vfm_job *j, int rc, struct vfm_err *err);
/* Collective.  Rank 0 removes dir/failure.txt of an earlier job.  From then on, the first rank that fails writes its
 * message there, and the others print nothing.  dir must exist. */
int vfm_job_mark(struct vfm_job *j, const char *dir, struct vfm_err *err);

/* The last call of a rank.  Leaves in err the message to print; empty if it was already reported.  Returns rc. */
int vfm_job_end(struct vfm_job *j, int rc, struct vfm_err *err);

/* For failures before vfm_job_start, which occur in every task of a Slurm step: clears the message in all tasks except
 * task 0.  Returns rc. */
int vfm_job_say_once(int rc, struct vfm_err *err);

#endif
