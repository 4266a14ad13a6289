/* features.h - a set of feature vectors: the rows of an npy file, or one vector per record.
 *
 * An npy file [rows, dim] of floating-point numbers is mapped.  In records (JSON Lines, such as those of `vfm-curate
 * embed`), a key names the npy file [dim] of each vector: as a path, or as an object with `path` and, optionally,
 * `sha256` and `maker`, which are then checked.  The vectors are copied to an unlinked temporary file in TMPDIR and
 * mapped, so memory does not grow with them.  Headers, and records with "error" or "drop", are left out.
 *
 * Reading is thread-safe.
 */
#ifndef VFM_DATA_RECORD_FEATURES_H
#define VFM_DATA_RECORD_FEATURES_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "base/map.h"
#include "base/mem.h"
#include "data/record/encoder_id.h"
#include "io/npy.h"

struct vfm_features { /* `= {0}` before open; close in any case */
	int64_t rows, dim;
	int64_t left_out;            /* records with "error" or "drop" */
	char *name;                  /* the file, for messages */
	const char **ids;            /* [rows] keys of the records; NULL for an npy file */
	struct vfm_encoder_id model; /* of the records; unknown if they name no model */

	/* private */
	const char *key; /* of the vectors in records */
	enum vfm_npy_type type;
	const uint8_t *data;
	struct vfm_map map;
	FILE *file;  /* the temporary file, until end */
	void *spool; /* … mapped */
	size_t spool_bytes, cap_ids;
	struct vfm_arena arena; /* the ids */
};

/* Opens a file and checks that all elements are finite.  A name that ends in .npy is an npy file, any other is JSON
 * Lines ("-": stdin).  `key` is the dotted path of the vector in a record.  VFM_EINPUT: the file or a vector is bad;
 * err names the element or the record. */
int vfm_features_open(struct vfm_features *f, const char *path, const char *key, struct vfm_err *err);
void vfm_features_close(struct vfm_features *f);

/* These functions make a set record by record: begin, add for each, then end, after which the vectors can be read.
 * add returns VFM_EINPUT if the vector is missing, bad, or unlike the first; the set is then unchanged. */
int vfm_features_begin(struct vfm_features *f, struct vfm_err *err);
int vfm_features_add(struct vfm_features *f, const json_t *rec, const char *key, struct vfm_err *err);
int vfm_features_end(struct vfm_features *f, struct vfm_err *err);
/* Checks the vector of a record as add does, without adding it.  Thread-safe. */
int vfm_features_explain(const struct vfm_features *f, const json_t *rec, const char *key, struct vfm_err *err);

/* Converts rows first to first + n - 1 to out [n, stride]; leaves the elements from dim to stride unchanged. */
void vfm_features_read(const struct vfm_features *f, int64_t first, int64_t n, int64_t stride, double *out);
/* Converts a row to out [dim], rounded to float32. */
void vfm_features_read_f32(const struct vfm_features *f, int64_t row, float *out);
/* Call after reading.  VFM_EENV: another process changed the file in the meantime. */
int vfm_features_check(struct vfm_features *f, struct vfm_err *err);

/* VFM_EUSAGE: the vectors of a and b cannot be compared, since their dimensions or models differ. */
int vfm_features_match(const struct vfm_features *a, const struct vfm_features *b, struct vfm_err *err);

/* Sets out [a->rows] to the cosine similarity x y / (|x| |y|), in float64, of each row of a and its partner in b: the
 * row with the same id if both sets are from records, else the row with the same number.  VFM_EUSAGE: as
 * vfm_features_match, or a row has no partner; VFM_EINPUT: a vector is 0.  err names the row. */
int vfm_features_cosine(const struct vfm_features *a, const struct vfm_features *b, double *out, struct vfm_err *err);

#endif
