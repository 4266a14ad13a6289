/* items.h - the prompts of vfm-sample, each with the file of its video and its record. */
#ifndef VFM_SAMPLE_ITEMS_H
#define VFM_SAMPLE_ITEMS_H

#include <jansson.h>

#include "io/opt.h"
#include "train/job/job.h"

struct item {
	json_t *rec;
	const char *caption, *negative; /* belong to rec; "" is the null text */
	char *path;                     /* of the video, or of the latents */
	char *why;                      /* it failed: the message; NULL: it did not */
};

struct items {
	struct item *v;
	size_t n, cap;
	/* options, borrowed: one of out_dir and out_file; the format of files in out_dir; the negative text of items
	 * without one; the name of the captions of a file, NULL: none is given */
	const char *out_dir, *out_file, *format, *negative, *caption;
	json_t *repeats; /* private: the number of items of each prompt */
};

/* Whether -o FILE names a file for each of several prompts: "{prompt}" and "{n}" in its last component become the
 * prompt, and the number of earlier items with the same prompt. */
bool items_has_template(const char *out_file);

/* Adds the prompts of the command line and those of a file of JSON Lines (NULL: none; "-": stdin).  VFM_EUSAGE names
 * what is wrong, also if there is no prompt, several for one file, or one that is no file name. */
int items_collect(struct items *s, const struct vfm_strlist *prompts, const char *file, struct vfm_err *err);
/* Broadcasts the items of rank 0, the only rank that reads stdin.  Collective. */
int items_share(struct items *s, struct vfm_job *job, struct vfm_err *err);
void items_release(struct items *s);

#endif
