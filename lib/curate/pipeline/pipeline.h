/* pipeline.h - the stages of a run, read from JSON (vfm-pipeline(5)).
 *
 * The keys of a stage are the long options of its verb; a value has the type of the option.
 */
#ifndef VFM_CURATE_PIPELINE_PIPELINE_H
#define VFM_CURATE_PIPELINE_PIPELINE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/mem.h"
#include "data/record/stage_link.h"
#include "io/hash.h"
#include "io/opt.h"

struct vfm_curation_stage {
	const struct vfm_verb *verb;
	char *argv[130]; /* [argc] verb and options "--NAME=VALUE"; owned */
	int argc;
	char identity[VFM_SHA256_HEX]; /* of verb and options, without "jobs" */
	bool has_jobs;                 /* "jobs" is given: the stage has its own threads */
	bool needs_dir;                /* it requires "dir", which is not given: the run sets it to DIR/STAGE */
	/* it computes with a model in this process, and chooses its number of threads */
	bool has_model;
	bool has_resume, reads_all; /* of its traits (data/record/stage.h) */
};

struct vfm_curation {
	int n;
	struct vfm_curation_stage stage[VFM_PROGRESS_STAGES];
	char **inputs; /* [n_inputs] operands of the first stage; owned */
	int n_inputs;
	json_t *doc; /* the object of the file, including these inputs */
};

/* Reads a file.  `verbs` ends in a NULL name.  VFM_EUSAGE names the file and the key: bad JSON, an unknown stage or
 * option, a value of another type, or no stage.  The caller releases *p in any case. */
int vfm_curation_read(struct vfm_curation *p, const char *path, const struct vfm_verb *verbs, struct vfm_err *err);
/* As vfm_curation_read from a string; `what` names it in messages. */
int vfm_curation_parse(struct vfm_curation *p, const char *text, size_t len, const char *what,
	const struct vfm_verb *verbs, struct vfm_err *err);
/* Sets *p to the default pipeline for raw videos and images (vfm-curate-run(1)), without inputs. */
int vfm_curation_default(struct vfm_curation *p, const struct vfm_verb *verbs, struct vfm_err *err);
/* Replaces the inputs.  VFM_EUSAGE: a name is not UTF-8. */
int vfm_curation_set_inputs(struct vfm_curation *p, int n, char *const *inputs, struct vfm_err *err);
/* Appends the pipeline as the text of a file, one line per stage. */
void vfm_curation_text(struct vfm_buf *b, const struct vfm_curation *p);
void vfm_curation_release(struct vfm_curation *p);

#endif
