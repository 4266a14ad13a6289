/* semantic.h - groups of vectors with a high cosine similarity: SemDeDup (Abbas et al., arXiv:2303.09540).
 *
 * Spherical k-means makes clusters: random vectors are the first centroids, and Lloyd's iterations use a sample of at
 * most 256 vectors per centroid.  Each vector belongs to the `probe` clusters with the nearest centroids, and vectors
 * that share a cluster are compared; probe 1 is the algorithm of the paper.  groups.h describes the groups.
 *
 * Time: rows x clusters x dim for the assignment, and at most rows^2 x probe^2 / clusters x dim for the comparison.
 * Memory: 8 + 4 probe + 24 bytes per row, the centroids, and for each thread the representatives of a cluster.  The
 * result does not depend on the number of threads.
 */
#ifndef VFM_CURATE_DEDUP_SEMANTIC_H
#define VFM_CURATE_DEDUP_SEMANTIC_H

#include <stdint.h>

#include "base/err.h"
#include "curate/dedup/groups.h"
#include "data/record/features.h"

#define VFM_SEMANTIC_THRESHOLD 0.07 /* 1 - cosine */
#define VFM_SEMANTIC_PROBE_MAX 16

enum vfm_semantic_keep {
	VFM_SEMANTIC_BY_QUALITY, /* by `quality`, highest first */
	VFM_SEMANTIC_FAR,        /* farthest from the centroid: the rule of the paper */
	VFM_SEMANTIC_NEAR,
};

struct vfm_semantic_opts {
	double threshold; /* 1 - cosine of duplicates */
	int64_t clusters; /* 0: the square root of the rows */
	int64_t probe;    /* 1 to VFM_SEMANTIC_PROBE_MAX; 0: 2 */
	int64_t seed;
	enum vfm_semantic_keep keep;
};

struct vfm_semantic_stats {
	int64_t clusters, largest; /* rows of the largest cluster */
	double seconds[3];         /* of k-means, of the assignment, of the comparison */
};

struct vfm_semantic {
	struct vfm_groups groups; /* by rank; distances are 1 - cosine */
	uint32_t *row;            /* [n] the row of a rank */
	uint32_t *rank;           /* [n] the rank of a row */
	struct vfm_semantic_stats stats;
};

/* quality [rows] may be NULL unless o->keep needs it.  Rows of equal quality are ranked in their order.  VFM_EINPUT: a
 * vector is 0.  Release g in any case. */
int vfm_semantic_find(struct vfm_semantic *g, const struct vfm_features *f, const double *quality,
	const struct vfm_semantic_opts *o, struct vfm_err *err);
void vfm_semantic_release(struct vfm_semantic *g);

#endif
