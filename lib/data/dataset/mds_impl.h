/* mds_impl.h - shared by mds*.c: columns of MDS shards, their encodings, and the parts that they hold. */
#ifndef VFM_DATA_DATASET_MDS_IMPL_H
#define VFM_DATA_DATASET_MDS_IMPL_H

#include "data/dataset/mds.h"

/* Types of elements: their names, and the numbers at the start of a value with dynamic type. */
struct vfm_mds_type {
	const char *name;
	int number;
	enum vfm_npy_type type;
};
enum { VFM_MDS_TYPES = 7 };
extern const struct vfm_mds_type vfm_mds_types[VFM_MDS_TYPES];

/* Sets kind, type and shape of a column from its encoding and its size in column_sizes (0: null there).  An unknown
 * encoding gives the kind OTHER. */
void vfm_mds_parse_encoding(struct vfm_mds_column *c);

/* A user's choice of a column. */
struct vfm_mds_choice {
	const char *part, *column; /* column "": none */
	bool is_bf16, is_raw;
	struct vfm_npy raw; /* type and shape; 0 is a free dimension */
};

struct vfm_mds_choices {
	struct vfm_mds_choice list[VFM_MDS_COLUMNS];
	int n;
	bool needs_latent;
};

/* text as for vfm_mds_open; NULL: none. */
int vfm_mds_parse_choices(struct vfm_mds_choices *to, const char *text, struct vfm_arena *arena, struct vfm_err *err);
/* Assigns parts to the columns of a shard. */
int vfm_mds_choose(
	struct vfm_mds_shard *s, const struct vfm_mds_choices *choices, struct vfm_arena *arena, struct vfm_err *err);

#endif
