/* sample.h - one run of vfm-sample: its options and its state.
 *
 * main.c parses and calls; items.c collects the prompts and names their files.  train/sample does the work.
 */
#ifndef VFM_SAMPLE_SAMPLE_H
#define VFM_SAMPLE_SAMPLE_H

#include "io/opt.h"
#include "train/sample/sample_net.h"
#include "train/sample/sampling.h"

struct sample_opts {
	struct vfm_sample_net_opts net;
	struct vfm_sampling_opts sampling;
	const char *out_file, *out_dir, *format, *prompt_file, *caption;
	struct vfm_strlist prompts;
};

struct sample_job {
	struct sample_opts *o;
	struct vfm_sampling s;
	struct vfm_sample_net net;
	struct vfm_context *x;
	json_t *repeats; /* the number of items of each prompt */
};

/* Returns whether -o FILE has a name for each of several prompts: its last component contains "{prompt}" or "{n}".
 * They become the prompt, and the number of earlier items with the same prompt. */
bool items_has_template(const char *out_file);
/* Adds the prompts of -p and --prompts to j->s.  VFM_EUSAGE: no prompt, several prompts for one file, or an invalid
 * file name. */
int items_collect(struct sample_job *j, struct vfm_err *err);

#endif
