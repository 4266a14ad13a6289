/* binding.h - binds a record to the files of its sample, by SHA-256.
 *
 * encode writes digests into a record: latent.sha256, and sha256 for each text (data/record/caption.h) and
 * extra array (data/record/extra.h), of the .npy files with their headers.  caption_sha256 is the digest of the caption
 * that the text, or text2, was made from.  shard compares
 * them before it writes a sample; verify compares the members of a shard with the record among them.  Nothing compares
 * a digest that a record of another program lacks.
 */
#ifndef VFM_DATA_RECORD_BINDING_H
#define VFM_DATA_RECORD_BINDING_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/record/caption.h"
#include "data/record/extra.h"
#include "io/hash.h"

struct vfm_binding { /* plain data; "" if the record has no digest */
	char latent[VFM_SHA256_HEX], extra[VFM_EXTRAS][VFM_SHA256_HEX];
	int n_texts; /* in the order of their names */
	struct {
		char name[VFM_CAPTION_NAME], sha256[VFM_SHA256_HEX], caption[VFM_SHA256_HEX];
	} texts[VFM_CAPTIONS_MAX];
};

/* Reads the digest of a section of a record; "": it has none.  VFM_EINPUT: it is malformed; the message names `what`
 * and `key`. */
int vfm_binding_digest(
	char hex[VFM_SHA256_HEX], const json_t *section, const char *what, const char *key, struct vfm_err *err);
/* Computes the digest of a caption from vfm_captions_of. */
void vfm_caption_sha256(const json_t *caption, char hex[VFM_SHA256_HEX]);

/* Reads the digests of a record and compares those of the captions.  VFM_EINPUT: a digest is malformed, or a caption
 * has changed since its text was made. */
int vfm_binding_of(struct vfm_binding *b, const json_t *rec, struct vfm_err *err);

/* Compares the digest `want` of a record with the bytes of its file `what`; "" matches.  VFM_EINPUT: they differ. */
int vfm_binding_check(const char *want, const void *data, size_t len, const char *what, struct vfm_err *err);

/* Returns whether the latents, and the n_texts texts of the sample with their captions, are bound. */
bool vfm_binding_is_whole(const struct vfm_binding *b, int n_texts);

/* Returns a hash of the files: equal for equal digests of latents, texts and extra arrays; 0 without any digest. */
uint64_t vfm_binding_number(const struct vfm_binding *b);

#endif
