/* encoder_id.h - the identities of a dataset's encoders: tokenizer, text encoder, and image encoder if it has one.
 *
 * Latents of two tokenizers, or embeddings of two text encoders, may have equal shapes: only the identity tells them
 * apart.  It accompanies the data: record -> index.vfmi -> plan -> checkpoint -> vfm-sample.  Each step refuses a
 * difference (vfm_encoder_id_compare).  An unknown identity matches every other.  Its key in records is "maker".
 *
 * JSON: {"name":"wan-vae","version":"2.1","sha256":"<64 hex digits>","geometry":{…}} for a tokenizer
 * (spec/model/geometry.h), {…,"dim":4096,"rows":512} for a text encoder, with "max_rows" instead of "rows" if they
 * vary.  The sha256 is that of the weights; a built-in encoder has none.  Everything but the name and the version is
 * optional, and other keys are ignored.
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
	char name[64];                /* with the parameters of a built-in one, "wavelet:16"; "" if unknown */
	char version[32];             /* "" if unknown */
	char sha256[VFM_SHA256_HEX];  /* of the weights; "": it has none */
	struct vfm_geometry geometry; /* of a tokenizer */
	/* of a text or image encoder: width; rows of every text or image, 0 if they vary.  dim 0: unknown */
	int32_t dim, rows;
	int32_t max_rows; /* where a text encoder cuts texts whose rows vary; 0: not recorded */
};

enum vfm_encoder_kind { VFM_ENCODER_TOKENIZER, VFM_ENCODER_TEXT, VFM_ENCODER_IMAGE, VFM_ENCODER_KINDS };
extern const struct vfm_encoder_names {
	const char *key, *name; /* "text", in JSON; "text encoder", in messages */
} vfm_encoder_kinds[VFM_ENCODER_KINDS];

struct vfm_encoder_ids {
	union {
		struct {
			struct vfm_encoder_id tokenizer, text, image;
		};
		struct vfm_encoder_id of[VFM_ENCODER_KINDS];
	};
};

enum vfm_encoder_id_relation { VFM_ENCODER_ID_SAME, VFM_ENCODER_ID_UNKNOWN, VFM_ENCODER_ID_DIFFERENT };
/* Compares names, versions and sha256, and, if both record them, geometries and sizes of texts.  Returns
 * VFM_ENCODER_ID_UNKNOWN if one of them is unknown. */
enum vfm_encoder_id_relation vfm_encoder_id_compare(const struct vfm_encoder_id *a, const struct vfm_encoder_id *b);

/* Writes "wan-vae 2.1 (sha256 1a2b3c4d5e6f)", "wavelet:16 1" or "unknown". */
void vfm_encoder_id_label(const struct vfm_encoder_id *m, char label[VFM_ENCODER_ID_LABEL]);
/* Writes the labels of two different identities.  They contain the whole sha256 and the geometry if only these differ.
 */
void vfm_encoder_id_label_pair(const struct vfm_encoder_id *a, const struct vfm_encoder_id *b,
	char x[VFM_ENCODER_ID_LABEL], char y[VFM_ENCODER_ID_LABEL]);

json_t *vfm_encoder_id_json(const struct vfm_encoder_id *m); /* the caller owns it; JSON null if unknown */
/* Reads and checks one identity from outside.  VFM_EUSAGE names the key;
 * `where` is the path of o. */
int vfm_encoder_id_from_json(struct vfm_encoder_id *m, const json_t *o, const char *where, struct vfm_err *err);

/* VFM_EUSAGE names two identities that differ, and their owners: "set 'a' has tokenizer 'wavelet:16 1', set 'b' has
 * 'wavelet:8 1'". */
int vfm_encoder_id_check(enum vfm_encoder_kind e, const struct vfm_encoder_id *a, const char *a_owner,
	const struct vfm_encoder_id *b, const char *b_owner, struct vfm_err *err);
/* The same for all encoders of a and b. */
int vfm_encoder_ids_check(const struct vfm_encoder_ids *a, const char *a_owner, const struct vfm_encoder_ids *b,
	const char *b_owner, struct vfm_err *err);
/* Either all samples of a dataset name an encoder or none: a dataset without one matches every other.  VFM_EINPUT. */
int vfm_encoder_id_check_named(enum vfm_encoder_kind e, const struct vfm_encoder_id *sample,
	const struct vfm_encoder_id *dataset, struct vfm_err *err);

/* Compares arrays with the identity of their encoder: the channels of a latent; rows and width of a text, or of image
 * rows.  VFM_EINPUT names both. */
int vfm_encoder_id_check_latent(const struct vfm_encoder_id *m, int64_t channels, struct vfm_err *err);
int vfm_encoder_id_check_rows(
	enum vfm_encoder_kind e, const struct vfm_encoder_id *m, int64_t rows, int64_t dim, struct vfm_err *err);

/* Copies those that `all` does not know from `one`, and of equal identities the geometry and the sizes of texts. */
void vfm_encoder_ids_fill(struct vfm_encoder_ids *all, const struct vfm_encoder_ids *one);

/* Reads latent.maker, text.maker and image.maker of a record; a missing one is unknown.  A condition is made by the
 * tokenizer: cond.maker must not differ.  VFM_EINPUT names the key. */
int vfm_encoder_ids_from_record(struct vfm_encoder_ids *m, const json_t *rec, struct vfm_err *err);

/* {"tokenizer":…,"text":…,"image":…} without the unknown ones; the caller owns it. */
json_t *vfm_encoder_ids_json(const struct vfm_encoder_ids *m);
/* o NULL: all are unknown.  VFM_EUSAGE names the key; `where` is the path of o. */
int vfm_encoder_ids_from_json(struct vfm_encoder_ids *m, const json_t *o, const char *where, struct vfm_err *err);

/* ---- differences that a user accepted ----
 *
 * `forced` in a plan, a checkpoint's state and records of vfm-sample is an array of
 * {"tool":"vfm-pack","encoder":"tokenizer","file":"data/b","expected":{…},"used":{…}}, where `file` is what the
 * identities were compared with.  Each step passes on the entries that it read. */

/* The caller owns the entry. */
json_t *vfm_forced_entry(const char *tool, enum vfm_encoder_kind e, const char *file,
	const struct vfm_encoder_id *expected, const struct vfm_encoder_id *used);
/* Appends the entries of the array `more` (NULL: none) that *all lacks.  *all may be NULL: it becomes a new array if
 * there are entries. */
void vfm_forced_add(json_t **all, const json_t *more);

#endif
