/* pipeline_run.h - runs the stages of a pipeline as one program; vfm-pipeline(5) describes the folder of a run.
 *
 * Each stage is a child process that calls the function of its verb.  Its file DIR/NN-STAGE.jsonl is the queue of the
 * next stage (data/record/stage_link.h).  A stage that crashes does not end the others.  The run's only state is these
 * files and the progress file, so it survives kill -9.  The result equals that of the verbs in a shell pipeline, byte
 * for byte.
 *
 * The kernel kills the children when the run ends, even by SIGKILL.  The children inherit a lock, which keeps out a
 * second run until all are gone.
 */
#ifndef VFM_CURATE_PIPELINE_PIPELINE_RUN_H
#define VFM_CURATE_PIPELINE_PIPELINE_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "curate/pipeline/pipeline.h"

struct vfm_curation_run_opts {
	const char *config; /* the name of the pipeline's file, for messages */
	const char *dir;    /* of the run; each of several shares uses DIR/part-NNNNN */
	const char *share;  /* data/record/share.h; NULL: all, or that of Slurm's task */
	/* NULL, or a page that is written every two seconds; %t is replaced as in vfm_share_file */
	const char *html;
	int64_t jobs;    /* records processed at once, over all stages without their own threads */
	int64_t queue;   /* approximate number of records that wait before a stage */
	double every_s;  /* seconds between lines of progress, if stderr is not a terminal */
	bool is_default; /* the pipeline is the default one, which the run shows */
	bool update;     /* inputs or options may differ: the stages copy finished records (--done) */
};

/* Runs to the end.  The caller must not have started threads; the handlers of SIGINT, SIGTERM and SIGHUP are replaced.
 * Returns 0, or VFM_EINPUT with an empty message if records failed.  After other failures, the same call continues the
 * run:
 *
 * - VFM_EUSAGE: options or stages differ from those that began DIR, or a stage refused its options
 * - VFM_EENV: a stage or the machine failed; the message names the stage and its last message
 * - VFM_ESIGNAL: SIGINT, SIGTERM or SIGHUP stopped it */
int vfm_curation_run(const struct vfm_curation *p, const struct vfm_curation_run_opts *o, struct vfm_err *err);

#endif
