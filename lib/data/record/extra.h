/* extra.h - the arrays of a sample other than latents and texts, for image to video and a second text encoder.
 *
 * cond   the condition [C, T, h, w], T, h and w as in the latents: for Wan the mask, then the given frames' latents
 * image  rows of an image encoder [rows, features]
 * text2  rows of a second text encoder [rows, features], made from the first caption of the sample in the order of
 *        names.  The number of rows varies, and a sample may have none: for example, a byT5 embeds only the text that
 *        the picture shows.
 *
 * A record has an object "cond", "image" or "text2" with path, sha256 and maker, like "latent"; that of text2 also has
 * the caption_sha256 of its caption.  A shard has the member KEY.cond.npy, KEY.image.npy or KEY.text2.npy, and the
 * index has an entry after the texts of the sample.
 */
#ifndef VFM_DATA_RECORD_EXTRA_H
#define VFM_DATA_RECORD_EXTRA_H

#include "data/record/encoder_id.h"

enum vfm_extra { VFM_EXTRA_COND, VFM_EXTRA_IMAGE, VFM_EXTRA_TEXT2, VFM_EXTRAS };

struct vfm_extra_kind {
	const char *key;               /* in a record */
	const char *part;              /* of the member's name */
	const char *name;              /* in messages */
	int ndim;                      /* 4: a condition; 2: rows */
	unsigned flag;                 /* of a record of the index */
	enum vfm_encoder_kind encoder; /* that made it */
};

extern const struct vfm_extra_kind vfm_extra_kinds[VFM_EXTRAS];

#endif
