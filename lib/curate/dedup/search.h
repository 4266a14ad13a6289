/* search.h - finds the records whose vectors are most similar to a query.
 *
 * Each record (JSON Lines) names an npy file (data/record/features.h).  Since many files are slow to read, the vectors
 * can be saved as one npy file [rows, dim], which later searches map.  Row i belongs to the i-th record with a vector.
 * Headers, records with "error" or "drop", and records without a vector are left out.
 *
 * A search belongs to one thread.
 */
#ifndef VFM_CURATE_DEDUP_SEARCH_H
#define VFM_CURATE_DEDUP_SEARCH_H

#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "data/record/features.h"
#include "data/record/encoder_id.h"
#include "io/names.h"

struct vfm_search { /* `= {0}` before open; close in any case */
	struct vfm_features vectors;
	int64_t left_out; /* records without a vector */
	/* private */
	char *const *paths;
	int n_paths;
	const char *key;
	struct vfm_names ids;        /* of the rows */
	struct vfm_encoder_id model; /* of the records */
};

/* Reads the records of paths [n], regular files that must not change, and their vectors, from `matrix` if it is not
 * NULL.  VFM_EINPUT: a vector is bad; VFM_EUSAGE: two records have the same id, or the matrix has another number of
 * rows. */
int vfm_search_open(
	struct vfm_search *s, char *const *paths, int n, const char *key, const char *matrix, struct vfm_err *err);
void vfm_search_close(struct vfm_search *s);
/* Writes the vectors as npy, atomically. */
int vfm_search_save(const struct vfm_search *s, const char *path, struct vfm_err *err);

/* Sets query [vectors.dim] to the vector of a record.  VFM_EUSAGE: there is none. */
int vfm_search_of_id(const struct vfm_search *s, const char *id, float *query, struct vfm_err *err);
/* Sets the query to an npy file [dim].  VFM_EINPUT: it is not such a file. */
int vfm_search_of_file(const struct vfm_search *s, const char *path, float *query, struct vfm_err *err);
/* Sets the query to the output of a model.  VFM_EUSAGE: its dimension or identity differs from that of the records. */
int vfm_search_of_array(const struct vfm_search *s, const struct vfm_npy *npy, const void *data,
	const struct vfm_encoder_id *model, float *query, struct vfm_err *err);

/* Writes the k records nearest to the query with "similarity", nearest first. */
int vfm_search_write(struct vfm_search *s, const float *query, int64_t k, FILE *out, struct vfm_err *err);

#endif
