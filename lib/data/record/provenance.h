/* provenance.h - the history of records: the stages that made them, in header lines between the records.
 *
 * A header is the line {"v":1,"provenance":[ENTRY, ...]}.  Its list is the chain: an entry for each stage, oldest
 * first.
 *
 *   tool     "vfm-curate score"
 *   version  of the tool, "0.1.0 (abc1234)"; absent if only fingerprints of records name the stage
 *   options  options that change the output, as text (stage.h); absent: none
 *   by       16 hexadecimal digits: two entries with equal `by` compute equal outputs from equal inputs
 *   maker    absent, or the models that the stage used: one (vfm_encoder_id_json), or one for each role
 *            (vfm_encoder_ids_json)
 *
 * A file may have several headers, anywhere, as after concatenation or sorting.  Its chain is their union.  A dataset
 * has its chain in DIR/provenance.json, one header line.  In memory a chain is a JSON array, which the caller owns. */
#ifndef VFM_DATA_RECORD_PROVENANCE_H
#define VFM_DATA_RECORD_PROVENANCE_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"

#define VFM_PROVENANCE_NAME    "provenance.json"
#define VFM_PROVENANCE_ENTRIES 1000      /* maximum per chain */
#define VFM_PROVENANCE_BYTES   (4 << 20) /* maximum of its text: a header fits on a line of JSON Lines */

/* Returns whether a record is a header: its key "provenance" is a list of entries, or it has this key but neither "id"
 * nor "src" (vfm_provenance_read may then refuse it). */
bool vfm_provenance_is_header(const json_t *rec);
json_t *vfm_provenance_header(const json_t *chain); /* the caller owns it */

/* Returns options and models as a string for stage fingerprints and `by`; both may be NULL.  The caller frees it. */
char *vfm_provenance_settings(const char *options, const json_t *models);
/* Makes the entry of a stage, which the caller owns.  `version` is that of its algorithm; options and models may be
 * NULL. */
json_t *vfm_provenance_entry(const char *stage, int version, const char *options, const json_t *models);
/* Appends an entry unless it is the last one.  Takes no reference. */
void vfm_provenance_append(json_t *chain, const json_t *entry);

/* Adds the entries of `more` that `chain` lacks, and keeps the order of both as far as they agree.  Returns 1 if it
 * added any, else 0.  VFM_EINPUT: the chain would exceed the limits; it is unchanged. */
int vfm_provenance_merge(json_t *chain, const json_t *more, struct vfm_err *err);
/* Checks a header and merges its chain.  VFM_EINPUT names the key that is wrong. */
int vfm_provenance_read(json_t *chain, const json_t *header, struct vfm_err *err);
/* Adds an entry with only `tool` for each stage that by.STAGE of the record names and `chain` lacks.  Returns whether
 * it added any; does not change a full chain. */
bool vfm_provenance_note(json_t *chain, const json_t *rec);
/* Does the same for the stages that vfm_provenance_note has collected in `noted`.  Call it at the end of the records,
 * since a header may follow them with the entries of these stages. */
void vfm_provenance_note_all(json_t *chain, const json_t *noted);

/* Merges the chain of DIR/provenance.json.  Returns 1, or 0 if there is no such file.  VFM_EUSAGE: it is damaged. */
int vfm_provenance_load(json_t *chain, const char *dir, struct vfm_err *err);
int vfm_provenance_store(const json_t *chain, const char *dir, struct vfm_err *err); /* writes it atomically */

/* Merges the chain of the headers and fingerprints of a file of records ("-": stdin).  VFM_EINPUT names file and line
 * of a damaged header, or of a line that is not a record. */
int vfm_provenance_of_records(json_t *chain, const char *path, struct vfm_err *err);

/* Returns the models of an entry's `maker` as "NAME VERSION SHA256[:12]", or with roles "tokenizer NAME ..., text NAME
 * ...".  The caller frees it.  Returns NULL without maker. */
char *vfm_provenance_models_text(const json_t *models);

#endif
