/* picture.h - the pictures that all videos of a run start with (--image) and end with (--last-image), as latents and as
 * image rows. */
#ifndef VFM_SAMPLE_PICTURE_H
#define VFM_SAMPLE_PICTURE_H

#include "sample.h"

/* Reads the pictures and encodes them to j->picture on leaders: to latents, with grey pictures in the places of the
 * others for a model with conditions, else alone; with --image-exec also to image rows.  Does nothing without the
 * option. Collective.  VFM_EUSAGE: the model or the tokenizer takes no picture; VFM_EINPUT: the file is bad. */
int picture_load(struct sample_job *j, struct vfm_err *err);
void picture_release(struct sample_picture *p); /* accepts `{0}` */

#endif
