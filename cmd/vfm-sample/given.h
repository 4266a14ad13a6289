/* given.h - what prompts give besides their text, for image to video: conditions, image rows, first frames.  Their
 * records name the files, as vfm-curate encode and shard know them (vfm-shard(5)); a picture replaces some of them. */
#ifndef VFM_SAMPLE_GIVEN_H
#define VFM_SAMPLE_GIVEN_H

#include <jansson.h>
#include <stdbool.h>

#include "comm/coll/comm.h"
#include "data/record/maker.h"
#include "net/diffusion/sampler.h"
#include "sample.h"

/* Checks that each prompt names what the model reads and --image does not give.  Local.  VFM_EUSAGE names the prompt,
 * the key and the option. */
int check_given(const struct sample_job *j, struct vfm_err *err);

struct given_from {
	const struct vfm_model_spec *model;
	const int32_t *dims;             /* of a latent: t, h, w */
	const struct vfm_makers *makers; /* of the latents and image rows that the model knows; unknown ones match */
	bool first_frame;                /* give the first latent frame of `latent`, or of the picture */
	const struct sample_picture *picture; /* what all prompts are given instead of their own, if it is set */
	struct vfm_comm *together;            /* the ranks that sample together, of which rank 0 reads */
	const struct item *items;             /* the prompts */
};

struct given_pictures {
	float *cond, *image, *first;
	const float **frames;
	size_t bytes[3];
};

/* Reads what the model needs for n prompts and sets it in r.  Collective over from->together.  VFM_EUSAGE: a prompt
 * lacks it; VFM_EINPUT: a file is bad or has another size. */
int given_load(struct given_pictures *g, struct vfm_sample_request *r, const struct given_from *from, int n,
	struct vfm_err *err);
void given_release(struct given_pictures *g); /* accepts `{0}` */

#endif
