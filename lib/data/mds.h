/* mds.h - datasets of MosaicML Streaming (MDS): a folder with index.json and shards, read in place.
 *
 * index.json lists the shards and their columns.  A shard is a table of offsets and, for each sample, the sizes of the
 * columns of variable size and the values of all columns (streaming 0.13, format "mds", version 2).  An array is a
 * column of encoding "ndarray", whose elements follow a header of a few bytes, or of encoding "bytes" with a .npy file.
 *
 * Columns get the names of the members of a shard of ours: latent, text, text.NAME, cond, image and json; "key" names
 * the sample.  A column that has such a name already is taken as it is, others are ignored.
 *
 * Reading is local and thread-safe.
 */
#ifndef VFM_DATA_MDS_H
#define VFM_DATA_MDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "data/npy.h"

enum { VFM_MDS_COLUMNS = 64 }; /* of a dataset */

enum vfm_mds_kind {
	VFM_MDS_OTHER, /* an encoding that nothing here reads */
	VFM_MDS_NDARRAY,
	VFM_MDS_BYTES,
	VFM_MDS_TEXT, /* str, json */
	VFM_MDS_INT,  /* 64 bits, signed, in native order */
};

struct vfm_mds_column {
	const char *name; /* of the dataset */
	const char *part; /* "latent.npy", …, "json", "key"; NULL: ignored */
	uint32_t bytes;   /* of a value; 0: they differ */
	enum vfm_mds_kind kind;
	bool is_bf16;             /* uint16 elements are bfloat16 */
	bool has_type, has_shape; /* of NDARRAY: fixed, not in the values */
	enum vfm_npy_type type;
	int ndim;
	int64_t shape[VFM_NPY_DIMS];
};

struct vfm_mds_shard {
	const char *file; /* in the folder */
	uint64_t bytes;
	uint32_t samples;
	int n_columns;
	struct vfm_mds_column *columns; /* in the order of the values */
};

struct vfm_mds { /* `= {0}` before; release in any case */
	struct vfm_mds_shard *shards;
	size_t n, cap;
	struct vfm_arena arena;
};

/* Whether the folder has an index.json. */
bool vfm_mds_exists(const char *dir);
/* Reads index.json.  columns: "PART=COLUMN[:bf16],…"; NULL: none.  needs_latent: a shard without such a column is an
 * error.  VFM_EUSAGE: index.json is damaged, or of another
 * format or version; a shard exists only compressed; a name of `columns` is wrong, or no column of a shard. */
int vfm_mds_open(struct vfm_mds *m, const char *dir, const char *columns, bool needs_latent, struct vfm_err *err);
void vfm_mds_release(struct vfm_mds *m);

/* Finds the values of sample i in a shard of `size` bytes, which has the samples that index.json says: their offsets
 * and bytes, at[n_columns] and bytes[n_columns], and those of the whole sample.  VFM_EINPUT: they lie outside. */
int vfm_mds_sample(const struct vfm_mds_shard *s, const uint8_t *data, uint64_t size, uint32_t i, uint64_t *at,
	uint64_t *bytes, uint64_t whole[2], struct vfm_err *err);
/* Checks that a shard of `size` bytes has room for the table of its samples.  VFM_EINPUT. */
int vfm_mds_check(const struct vfm_mds_shard *s, const uint8_t *data, uint64_t size, struct vfm_err *err);

/* Reads the header of an array, as vfm_npy_parse. */
int vfm_mds_array(struct vfm_npy *n, const struct vfm_mds_column *c, const uint8_t *value, uint64_t bytes,
	const char *what, struct vfm_err *err);

#endif
