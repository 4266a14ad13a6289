/* given.h - what prompts give besides their text, for image to video: conditions, image rows, first frames.  Their
 * records name the files, as vfm-curate encode and shard know them (vfm-shard(5)); a picture replaces some of them. */
#ifndef VFM_SAMPLE_GIVEN_H
#define VFM_SAMPLE_GIVEN_H

#include "net/diffusion/sampler.h"
#include "sample.h"

/* Checks that each prompt names what the model reads and --image does not give.  Local.  VFM_EUSAGE names the prompt,
 * the key and the option. */
int check_given(const struct sample_job *j, struct vfm_err *err);

struct given_pictures {
	float *cond, *image, *first;
	const float **frames;
	size_t bytes[3];
};

/* Reads what the model needs for n prompts and sets it in r; rank 0 of those that sample together reads.  A picture of
 * j replaces what the prompts name.  Collective over the ranks that sample together.  VFM_EUSAGE: a prompt lacks it;
 * VFM_EINPUT: a file is bad or has another size. */
int given_load(struct given_pictures *g, struct vfm_sample_request *r, const struct sample_job *j,
	const struct item *items, int n, struct vfm_err *err);
void given_release(struct given_pictures *g); /* accepts `{0}` */

#endif
