/* binding.h - binds a record to the files of its sample, by SHA-256.
 *
 * encode writes digests into a record: latent.sha256, and for each text (data/record/caption.h) sha256, of the .npy
 * files with their headers. caption_sha256 is the digest of the caption that the text was made from.  shard compares
 * them before it writes a sample; verify compares the members of a shard with the record among them.  A record without
 * a digest (of another program) is not checked in that respect.
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

struct vfm_binding { /* plain data; "" where the record has no digest */
	char latent[VFM_SHA256_HEX], extra[VFM_EXTRAS][VFM_SHA256_HEX];
	int n_texts; /* in the order of their names */
	struct {
		char name[VFM_CAPTION_NAME], sha256[VFM_SHA256_HEX], caption[VFM_SHA256_HEX];
	} texts[VFM_CAPTIONS_MAX];
};

/* Digest of a caption of vfm_captions_of. */
void vfm_caption_sha256(const json_t *caption, char hex[VFM_SHA256_HEX]);

/* Reads the digests of a record and compares those of the captions.  VFM_EINPUT: a digest is not one, or a caption has
 * changed since its text was made. */
int vfm_binding_of(struct vfm_binding *b, const json_t *rec, struct vfm_err *err);

/* Compares the digest `want` of a record with the bytes of its file `what`; "" matches.  VFM_EINPUT: they differ. */
int vfm_binding_check(const char *want, const void *data, size_t len, const char *what, struct vfm_err *err);

/* Whether the latents, and the n_texts texts of the sample with their captions, are bound. */
bool vfm_binding_is_whole(const struct vfm_binding *b, int n_texts);

/* A number of the files: equal for equal digests of latents, texts and extra arrays; 0 if all are missing. */
uint64_t vfm_binding_number(const struct vfm_binding *b);

#endif
