/* shard.h - the layout of a parameter over the mesh, and arithmetic on slices.  Plain integers, no devices, no I/O.
 *
 * A global tensor is row-major.  On each mesh axis it is either replicated or cut along one dimension.  A cut first
 * divides the dimension into `groups` equal groups, then cuts each group over the axis: a fused qkv weight [3*D, D] has
 * 3 groups of rows, so a tp rank's part is 3 boxes.  Cuts along the same dimension nest in the order of the axes.
 *
 * The part of one rank (struct vfm_part), the *local* tensor, is row-major, too.  FSDP and the distributed optimizer
 * cut it once more as a flat array (vfm_flat_cut).  A list of runs (struct vfm_runs) maps the global tensor to the
 * storage of a rank; vfm_runs_plan computes the copies between two layouts.  All counts are elements unless a comment
 * says otherwise.
 */
#ifndef VFM_SPEC_MODEL_SHARD_H
#define VFM_SPEC_MODEL_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define VFM_NDIM_MAX 8

enum vfm_axis { VFM_AX_PP, VFM_AX_DP, VFM_AX_EP, VFM_AX_CP, VFM_AX_TP, VFM_AXES };

/* Zero-initialised = replicated. */
struct vfm_axis_cut {
	int groups; /* 0: replicated; >= 1: each of `groups` equal groups of `dim` is divided separately */
	int dim;
};

/* A parameter.  Plain; the name is borrowed. */
struct vfm_pdesc {
	const char *name;
	int ndim;
	int64_t shape[VFM_NDIM_MAX];
	struct vfm_axis_cut cut[VFM_AXES];
};

/* An n-dimensional box of a global tensor. */
struct vfm_box {
	int ndim;
	int64_t off[VFM_NDIM_MAX], ext[VFM_NDIM_MAX];
};

/* ---- boxes ---- */
int64_t vfm_shape_numel(int ndim, const int64_t *shape); /* 1 for ndim 0; -1 if negative or above 2^60 */
struct vfm_box vfm_box_full(int ndim, const int64_t *shape);
int64_t vfm_box_numel(const struct vfm_box *b);
bool vfm_box_inside(const struct vfm_box *b, const int64_t *shape);
bool vfm_box_intersect(
	const struct vfm_box *a, const struct vfm_box *b, struct vfm_box *out); /* false: empty; out may be NULL */

/* Splits the flat range [a, b) of a tensor into boxes in flat order.  Returns their number, at most 2*ndim - 1 (1 for
 * ndim 0). */
int vfm_range_boxes(int ndim, const int64_t *shape, int64_t a, int64_t b, struct vfm_box out[2 * VFM_NDIM_MAX]);

/* ---- a rank's part ---- */
struct vfm_part {
	int ndim;
	int64_t shape[VFM_NDIM_MAX];  /* of the local tensor */
	int64_t global[VFM_NDIM_MAX]; /* of the global tensor */
	int n;                        /* boxes, in row-major order of their positions in the local tensor */
	struct vfm_box *box;          /* [n] in the global tensor */
	struct vfm_box *loc;          /* [n] the same boxes in the local tensor */
};

/* Computes the part of the rank with coord[axis] of size[axis]; sizes 0 and 1 disable an axis.  VFM_EUSAGE: a dimension
 * is not divisible, as in "blocks.0.fc1.weight: dimension 0 (4097, in 1 group) cannot be cut over tp = 2". */
int vfm_part_of(const struct vfm_pdesc *d, const int coord[VFM_AXES], const int size[VFM_AXES], struct vfm_part *out,
	struct vfm_err *err);
void vfm_part_full(struct vfm_part *out, int ndim, const int64_t *shape); /* the whole tensor as one box */
void vfm_part_release(struct vfm_part *p);
int64_t vfm_part_numel(const struct vfm_part *p);

/* Returns the share [*a, *b) of rank r of n.  Shares are equal; the first n_elem % n ranks have one element more. */
void vfm_flat_cut(int64_t n_elem, int n, int r, int64_t *a, int64_t *b);

/* ---- runs ---- */
struct vfm_run {
	int64_t from, to, n; /* elements [from, from + n) of one array lie at [to, to + n) of another */
};
struct vfm_runs { /* `= {0}` is empty; sorted by from, disjoint, neighbours merged */
	struct vfm_run *v;
	size_t n, cap;
};
void vfm_runs_release(struct vfm_runs *r);
void vfm_runs_clear(struct vfm_runs *r);

/* These functions append runs from the flat global tensor to a storage and keep *r sorted.  New runs must be disjoint
 * from existing ones.  The storage of a box is a row-major array that begins at `loc0`.  vfm_runs_add_box lists only
 * the runs within the flat range [lo, hi) of the global tensor. */
void vfm_runs_add_range(struct vfm_runs *r, int64_t a, int64_t b, int64_t loc0);
void vfm_runs_add_box(
	struct vfm_runs *r, const int64_t *shape, const struct vfm_box *box, int64_t loc0, int64_t lo, int64_t hi);
/* Appends elements [a, b) of the local tensor.  The storage holds only these; element a is at 0. */
void vfm_runs_add_part(struct vfm_runs *r, const struct vfm_part *p, int64_t a, int64_t b);

/* Appends to *out the runs from the storage of src to that of dst, over all common elements.  Returns the number of
 * elements. */
int64_t vfm_runs_plan(const struct vfm_runs *src, const struct vfm_runs *dst, struct vfm_runs *out);

/* Converts elements [a, b) of the local tensor into boxes of the global tensor (*box) and of the local tensor (*loc),
 * as a checkpoint lists them for an FSDP shard.  The caller frees *box and *loc [*n] with free(). */
void vfm_part_range_boxes(
	const struct vfm_part *p, int64_t a, int64_t b, struct vfm_box **box, struct vfm_box **loc, int *n);

#endif
