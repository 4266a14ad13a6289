/* mds.h - datasets of MosaicML Streaming (MDS): a folder with index.json and shards, read in place.
 *
 * A shard (streaming 0.13, format "mds", version 2) is a table of offsets, then for each sample the sizes of its
 * variable-size columns and the values of all columns.  Columns that are arrays:
 *   - encoding "ndarray"
 *   - encoding "bytes" with a .npy file
 *   - plain elements, whose type and shape the user gives
 *
 * Each column is mapped to a member of our shards: latent, text, text.NAME, cond, image and json; "key" is the key of
 * the sample.  A column with such a name is used as it is, if its encoding fits; others are ignored.  Reading is local
 * and thread-safe. */
#ifndef VFM_DATA_DATASET_MDS_H
#define VFM_DATA_DATASET_MDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/npy.h"

enum { VFM_MDS_COLUMNS = 64 }; /* maximum per dataset */

enum vfm_mds_kind {
	VFM_MDS_OTHER, /* an unsupported encoding */
	VFM_MDS_NDARRAY,
	VFM_MDS_BYTES,
	VFM_MDS_STR, /* str, str_int */
	VFM_MDS_JSON,
	VFM_MDS_INT, /* int, int8 to int64, uint8 to uint64: little endian */
};

struct vfm_mds_column {
	const char *name, *encoding; /* of the dataset */
	const char *part;            /* "latent.npy", …, "json", "key"; NULL: ignored */
	const char *unfit;           /* the part with the column's name, if the encoding does not fit; else NULL */
	uint32_t bytes;              /* of a value; 0: variable */
	enum vfm_mds_kind kind;
	bool is_signed;           /* of INT */
	bool is_chosen;           /* by the user; false: the column has the name of its part */
	bool is_bf16;             /* the user declares uint16 elements to be bfloat16 */
	bool is_raw;              /* the user gave type and shape */
	bool has_type, has_shape; /* of NDARRAY: fixed by the encoding, not stored in the values */
	enum vfm_npy_type type;
	int ndim;
	int64_t shape[VFM_NPY_DIMS]; /* 0: determined by the bytes of the value */
};

struct vfm_mds_hash {
	const char *algorithm, *hex;
};

struct vfm_mds_shard {
	const char *file; /* in the folder or, if index.json merges several, in subfolders */
	uint64_t bytes;
	uint32_t samples;
	int n_columns;
	struct vfm_mds_column *columns; /* in the order of the values */
	int n_hashes;
	struct vfm_mds_hash *hashes;
};

struct vfm_mds { /* `= {0}` before; release in any case */
	struct vfm_mds_shard *shards;
	size_t n, cap;
	struct vfm_arena arena;
};

/* Returns whether the folder has an index.json. */
bool vfm_mds_exists(const char *dir);
/* Reads index.json.  columns: "PART=COLUMN[:bf16|:TYPE:DxDxDxD],…", where TYPE is float16, bfloat16 or float32, and one
 * D may be "?"; NULL: none.  Without COLUMN, the part is absent.  needs_latent: each shard must have such a column.
 * VFM_EUSAGE:
 *
 * - index.json is damaged, or of another format or version
 * - a shard exists only compressed
 * - a name in `columns` is wrong, names no column of a shard, or one whose encoding does not fit */
int vfm_mds_open(struct vfm_mds *m, const char *dir, const char *columns, bool needs_latent, struct vfm_err *err);
void vfm_mds_release(struct vfm_mds *m);

/* Finds the values of sample i in a shard of `size` bytes with the samples that index.json lists.  Sets at[n_columns]
 * and bytes[n_columns] to their offsets and bytes, and `whole` to those of the sample.  VFM_EINPUT: they lie
 * outside. */
int vfm_mds_sample(const struct vfm_mds_shard *s, const uint8_t *data, uint64_t size, uint32_t i, uint64_t *at,
	uint64_t *bytes, uint64_t whole[2], struct vfm_err *err);
/* VFM_EINPUT: a shard of `size` bytes is too small for the table of its samples. */
int vfm_mds_check(const struct vfm_mds_shard *s, const uint8_t *data, uint64_t size, struct vfm_err *err);

/* Compares a shard with its hashes in index.json.  *unchecked is the first algorithm that OpenSSL lacks, which is
 * skipped; NULL: none.  VFM_EINPUT: a hash differs. */
int vfm_mds_check_hashes(
	const struct vfm_mds_shard *s, const uint8_t *data, uint64_t size, const char **unchecked, struct vfm_err *err);

/* Reads the header of an array like vfm_npy_parse. */
int vfm_mds_array(struct vfm_npy *n, const struct vfm_mds_column *c, const uint8_t *value, uint64_t bytes,
	const char *what, struct vfm_err *err);

#endif
