/* job.h - the ranks of one command: how they start, how they agree that something failed, how they end.
 *
 *	rc = vfm_job_start(&job, n, &opts, err);           // 1: the parent of forks; it is done
 *	rc = vfm_job_agree(&job, local_work(err), err);    // all ranks fail or none does
 *	rc = vfm_job_end(&job, rc, err);
 *
 * Commands use it through vfm_context_run (context.h).
 *
 * A failure is said once: what all ranks know by rank 0, another by the first that meets it; the message in the
 * others' err is empty then.
 */
#ifndef VFM_TRAIN_JOB_H
#define VFM_TRAIN_JOB_H

#include "comm/comm.h"
#include "launch/launch.h"

struct vfm_job {
	struct vfm_launch launch;
	struct vfm_comm *world;
	char *mark;  /* file that the first rank to fail makes; NULL: none yet */
	bool agreed; /* the failure is known to all ranks, in these words */
	bool failed, first;
};

/* n as for vfm_launch_init.  0: a rank, which from here on has its number in front of what it says, and of several
 * ranks all but 0 are quiet; 1: the parent of forks; the ranks have ended, job->launch.status is what to exit with,
 * and what killed them was said.  recorder_dir: see comm_host.h. */
int vfm_job_start(struct vfm_job *j, int n, const char *recorder_dir, struct vfm_err *err);

/* Collective over c: every rank returns the worst of the codes, with the message of the lowest rank that has it, "rank
 * 3: …" (or as it is when all ranks failed with the same words). */
int vfm_agree(struct vfm_comm *c, int rc, struct vfm_err *err);
/* The same over all ranks.  A failure is then one that all know. */
int vfm_job_agree(struct vfm_job *j, int rc, struct vfm_err *err);
/* Collective: *text (malloc'ed, may be NULL) of rank 0 on all ranks. */
int vfm_job_broadcast(struct vfm_job *j, char **text, struct vfm_err *err);

/* A failure that the other ranks do not know of (local): tells them.  To be called before anything
 * that waits for them.  Returns rc. */
int vfm_job_failed(struct vfm_job *j, int rc, struct vfm_err *err);
/* RUN/failure.txt is where the first of them leaves its words (local, once RUN is there; removes an old one). */
void vfm_job_mark(struct vfm_job *j, const char *dir);

/* The last thing a rank does: leaves in err what it is to print (nothing, where that was said already).  Returns rc. */
int vfm_job_end(struct vfm_job *j, int rc, struct vfm_err *err);

/* For a failure before vfm_job_start, which every task of a Slurm step meets: clears the message in all but task 0.
 * Returns rc. */
int vfm_job_say_once(int rc, struct vfm_err *err);

#endif
