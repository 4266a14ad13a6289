/* maker.h - the encoders that made a dataset: its tokenizer and its text encoder.
 *
 * Embeddings of different text encoders are incompatible, even with equal widths; only the label distinguishes them.
 * Labels therefore accompany the data: record -> index.vfmi -> plan -> checkpoint -> vfm-sample.  Each step compares
 * them with vfm_maker_compare and refuses a difference.  An unknown encoder matches every encoder.
 *
 * As text (records, index.vfmi) a maker is "NAME[:PARAMETERS][@VERSION]"; version 1 is omitted.  As JSON (plan,
 * checkpoint, records of vfm-sample) it is {"name":"wavelet:16","version":1}; readers ignore other keys.
 */
#ifndef VFM_DATA_MAKER_H
#define VFM_DATA_MAKER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define VFM_MAKER_LABEL       80 /* bytes of a buffer for a label */
#define VFM_MAKER_LABEL_BYTES 23 /* of a label in records and indexes, at most */

struct vfm_maker {       /* plain data; `= {0}`: unknown */
	char name[64];   /* with its parameters, "wavelet:16"; "" if unknown */
	int32_t version; /* >= 1; 0 if unknown */
};

struct vfm_makers {
	struct vfm_maker tokenizer, text;
};

enum vfm_maker_relation { VFM_MAKER_SAME, VFM_MAKER_UNKNOWN, VFM_MAKER_DIFFERENT };
/* Returns VFM_MAKER_UNKNOWN if one of them is unknown. */
enum vfm_maker_relation vfm_maker_compare(const struct vfm_maker *a, const struct vfm_maker *b);

/* "" gives an unknown maker.  VFM_EINPUT: empty name, more than 23 bytes, a blank or control character, a bad version.
 */
int vfm_maker_parse(struct vfm_maker *m, const char *label, struct vfm_err *err);
void vfm_maker_label(const struct vfm_maker *m, char label[VFM_MAKER_LABEL]);
json_t *vfm_maker_json(const struct vfm_maker *m); /* the caller owns it; JSON null if unknown */

/* Compares both encoders of a with those of b.  VFM_EUSAGE names the first two that differ and their owners:
 * "set 'a' has tokenizer 'wavelet:16', set 'b' has 'wavelet:8'". */
int vfm_makers_check(const struct vfm_makers *a, const char *a_owner, const struct vfm_makers *b, const char *b_owner,
	struct vfm_err *err);
/* Copies those that `all` does not know from `one`. */
void vfm_makers_fill(struct vfm_makers *all, const struct vfm_makers *one);

/* From the labels latent.tokenizer and text.embedder of a record; a missing one is unknown. */
int vfm_makers_from_record(struct vfm_makers *m, const json_t *rec, struct vfm_err *err);

/* {"tokenizer":…,"text":…} without the unknown ones; the caller owns it. */
json_t *vfm_makers_json(const struct vfm_makers *m);
/* o NULL: both are unknown.  VFM_EUSAGE names the key; `where` is the path of o. */
int vfm_makers_from_json(struct vfm_makers *m, const json_t *o, const char *where, struct vfm_err *err);

#endif
