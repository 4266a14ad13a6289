/* encoder_id.h - the identities of a dataset's encoders: tokenizer, text encoder, and image encoder and second text
 * encoder if it has them.
 *
 * Latents of two tokenizers, or embeddings of two text encoders, may have equal shapes; only the identity distinguishes
 * them.  It accompanies the data: record -> index.vfmi -> plan -> checkpoint -> vfm-sample.  Each step refuses a
 * difference (vfm_encoder_id_compare).  An unknown identity matches every other.  Its key in records is "maker".
 *
 * JSON: {"name":"wan-vae","version":"2.1","sha256":"<64 hex digits>","geometry":{…}} for a tokenizer
 * (spec/model/geometry.h), {…,"dim":4096,"rows":512} for a text encoder, with "max_rows" instead of "rows" if they
 * vary.  The sha256 is that of the weights; a built-in encoder has none.  Only name and version are required; other
 * keys are ignored.
 */
#ifndef VFM_DATA_RECORD_ENCODER_ID_H
#define VFM_DATA_RECORD_ENCODER_ID_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "io/hash.h"
#include "spec/model/geometry.h"

#define VFM_ENCODER_ID_LABEL 320 /* bytes of a buffer for a label */

struct vfm_encoder_id {               /* plain data; `= {0}`: unknown */
	char name[64];                /* a built-in encoder includes its parameters, "wavelet:16"; "" if unknown */
	char version[32];             /* "" if unknown */
	char sha256[VFM_SHA256_HEX];  /* of the weights; "": none */
	struct vfm_geometry geometry; /* of a tokenizer */
	/* of a text or image encoder: width; rows of every text or image, 0 if they vary.  dim 0: unknown */
	int32_t dim, rows;
	int32_t max_rows; /* if rows vary: maximum rows, to which the text encoder cuts; 0: not recorded */
};

enum vfm_encoder_kind {
	VFM_ENCODER_TOKENIZER,
	VFM_ENCODER_TEXT,
	VFM_ENCODER_IMAGE,
	VFM_ENCODER_TEXT2,
	VFM_ENCODER_KINDS
};
extern const struct vfm_encoder_names {
	const char *key, *name; /* "text", in JSON; "text encoder", in messages */
} vfm_encoder_kinds[VFM_ENCODER_KINDS];

struct vfm_encoder_ids {
	union {
		struct {
			struct vfm_encoder_id tokenizer, text, image, text2;
		};
		struct vfm_encoder_id of[VFM_ENCODER_KINDS];
	};
};

enum vfm_encoder_id_relation { VFM_ENCODER_ID_SAME, VFM_ENCODER_ID_UNKNOWN, VFM_ENCODER_ID_DIFFERENT };
/* Compares names, versions and sha256; if both identities have them, also geometries and sizes of texts.  Returns
 * VFM_ENCODER_ID_UNKNOWN if an identity is unknown. */
enum vfm_encoder_id_relation vfm_encoder_id_compare(const struct vfm_encoder_id *a, const struct vfm_encoder_id *b);

/* Writes "wan-vae 2.1 (sha256 1a2b3c4d5e6f)", "wavelet:16 1" or "unknown". */
void vfm_encoder_id_label(const struct vfm_encoder_id *m, char label[VFM_ENCODER_ID_LABEL]);
/* Writes the labels of two different identities, including the whole sha256 and the geometry if only these differ. */
void vfm_encoder_id_label_pair(const struct vfm_encoder_id *a, const struct vfm_encoder_id *b,
	char x[VFM_ENCODER_ID_LABEL], char y[VFM_ENCODER_ID_LABEL]);

json_t *vfm_encoder_id_json(const struct vfm_encoder_id *m); /* the caller owns it; JSON null if unknown */
/* Reads and checks an identity.  VFM_EUSAGE names the key; `where` is the path of o. */
int vfm_encoder_id_from_json(struct vfm_encoder_id *m, const json_t *o, const char *where, struct vfm_err *err);

/* VFM_EUSAGE: a and b differ; the message names them and their owners: "set 'a' has tokenizer 'wavelet:16 1', set 'b'
 * has 'wavelet:8 1'". */
int vfm_encoder_id_check(enum vfm_encoder_kind e, const struct vfm_encoder_id *a, const char *a_owner,
	const struct vfm_encoder_id *b, const char *b_owner, struct vfm_err *err);
/* As vfm_encoder_id_check for all encoders of a and b. */
int vfm_encoder_ids_check(const struct vfm_encoder_ids *a, const char *a_owner, const struct vfm_encoder_ids *b,
	const char *b_owner, struct vfm_err *err);
/* VFM_EINPUT: only some samples of a dataset name an encoder.  All or none must, since a dataset without an encoder
 * matches every other. */
int vfm_encoder_id_check_named(enum vfm_encoder_kind e, const struct vfm_encoder_id *sample,
	const struct vfm_encoder_id *dataset, struct vfm_err *err);

/* Compare an array with the identity of its encoder: the channels of a latent; rows and width of a text, or of image
 * rows.  VFM_EINPUT names both. */
int vfm_encoder_id_check_latent(const struct vfm_encoder_id *m, int64_t channels, struct vfm_err *err);
int vfm_encoder_id_check_rows(
	enum vfm_encoder_kind e, const struct vfm_encoder_id *m, int64_t rows, int64_t dim, struct vfm_err *err);

/* Copies the identities that `all` lacks from `one`; for equal identities, the geometry and the sizes of texts. */
void vfm_encoder_ids_fill(struct vfm_encoder_ids *all, const struct vfm_encoder_ids *one);

/* Reads latent.maker, text.maker, image.maker and text2.maker of a record; a missing one is unknown.  The tokenizer also
 * makes conditions, so cond.maker must be the same.  VFM_EINPUT names the key. */
int vfm_encoder_ids_from_record(struct vfm_encoder_ids *m, const json_t *rec, struct vfm_err *err);

/* Returns {"tokenizer":…,"text":…,"image":…,"text2":…} without unknown identities; the caller owns it. */
json_t *vfm_encoder_ids_json(const struct vfm_encoder_ids *m);
/* Reads all identities; o NULL: all are unknown.  VFM_EUSAGE names the key; `where` is the path of o. */
int vfm_encoder_ids_from_json(struct vfm_encoder_ids *m, const json_t *o, const char *where, struct vfm_err *err);

/* ---- differences that a user accepted ----
 *
 * `forced` in a plan, a checkpoint's state and records of vfm-sample is an array of
 * {"tool":"vfm-pack","encoder":"tokenizer","file":"data/b","expected":{…},"used":{…}}.  `file` is the data set, latents
 * or checkpoint whose identity was compared.  Each step copies the entries of its inputs. */

/* Returns an entry, which the caller owns. */
json_t *vfm_forced_entry(const char *tool, enum vfm_encoder_kind e, const char *file,
	const struct vfm_encoder_id *expected, const struct vfm_encoder_id *used);
/* Appends the entries of the array `more` (NULL: none) that *all lacks.  If *all is NULL and there are entries, it
 * becomes a new array. */
void vfm_forced_add(json_t **all, const json_t *more);

#endif
