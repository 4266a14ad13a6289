/* pipeline_run.h - runs the stages of a pipeline as one program; vfm-pipeline(5) describes the folder of a run.
 *
 * Each stage is a child process that calls the function of its verb.  Its file DIR/NN-STAGE.jsonl is the queue of the
 * next stage (data/record/stage_link.h).  A stage that crashes does not end the others.  The run has no state but these
 * files and the progress file, so it survives kill -9.  The result equals that of the verbs in a shell pipeline, byte
 * for byte.
 *
 * The kernel kills the children when the run ends, also by SIGKILL.  A lock, which they inherit, keeps a second run
 * out until all are gone.
 */
#ifndef VFM_CURATE_PIPELINE_PIPELINE_RUN_H
#define VFM_CURATE_PIPELINE_PIPELINE_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "curate/pipeline/pipeline.h"

struct vfm_curation_run_opts {
	const char *config; /* the name of the pipeline's file, for messages */
	const char *dir;    /* of the run; a share of several has DIR/part-NNNNN */
	const char *share;  /* data/record/share.h; NULL: all, or that of Slurm's task */
	const char *html;   /* NULL, or a page that is written every two seconds; may have %t (vfm_share_file) */
	int64_t jobs;       /* records in work at once, in all stages without threads of their own */
	int64_t queue;      /* records that wait before a stage, about */
	double every_s;     /* seconds between lines of progress, if stderr is no terminal */
	bool is_default;    /* the pipeline is the default one: shows it */
	bool update;        /* inputs or options may differ: the stages copy the records that are done (--done) */
};

/* Runs to the end.  Returns 0, or VFM_EINPUT with an empty message if records failed.  VFM_EUSAGE: options or stages
 * differ from those that began DIR; a stage refused its options.  VFM_EENV: a stage or the machine failed; the message
 * names the stage and its last message.  VFM_ESIGNAL: SIGINT, SIGTERM or SIGHUP stopped it.  After these, the same call
 * continues.  The caller has started no threads; handlers of the three signals are replaced. */
int vfm_curation_run(const struct vfm_curation *p, const struct vfm_curation_run_opts *o, struct vfm_err *err);

#endif
