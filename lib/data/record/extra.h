/* extra.h - the arrays of a sample other than latents and texts, for image to video.
 *
 * cond   the condition [C, T, h, w], T, h and w as in the latents: for Wan the mask, then the given frames' latents
 * image  rows of an image encoder [rows, features]
 *
 * A record has an object "cond" or "image" with path, sha256 and maker, like "latent".  A shard has the member
 * KEY.cond.npy or KEY.image.npy, and the index has an entry after the texts of the sample.
 */
#ifndef VFM_DATA_RECORD_EXTRA_H
#define VFM_DATA_RECORD_EXTRA_H

enum vfm_extra { VFM_EXTRA_COND, VFM_EXTRA_IMAGE, VFM_EXTRAS };

struct vfm_extra_kind {
	const char *key;  /* in a record */
	const char *part; /* of the member's name */
	const char *name; /* in messages */
	int ndim;
	unsigned flag; /* of a record of the index */
};

extern const struct vfm_extra_kind vfm_extra_kinds[VFM_EXTRAS];

#endif
