/* selection.h - a subset of the records of an index, as ranges of record numbers.
 *
 * A selection to which nothing was added is empty.  Ranges may be added in any order; vfm_selection_cut uses this
 * order, and vfm_selection_seal sorts the ranges.
 */
#ifndef VFM_DATA_DATASET_SELECTION_H
#define VFM_DATA_DATASET_SELECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_selection { /* `= {0}` before; release in any case */
	struct vfm_selection_range {
		int64_t first, end; /* record numbers; end is excluded */
		int64_t before;     /* selected records in the ranges before; set by seal */
	} * v;
	size_t n, cap;
	int64_t total; /* selected records */
};

/* A part of a list of samples, as Megatron-Energon defines it: samples from..to, then the fractions low..high of these.
 * The ends are excluded. */
struct vfm_subset {
	bool counted;     /* from and to apply */
	int64_t from, to; /* to: -1 is the end of the list */
	double low, high; /* 0 <= low <= high <= 1 */
};
#define VFM_SUBSET_ALL ((struct vfm_subset){.to = -1, .high = 1})

/* Parses "A..B": numbers of samples, where B may be "end", or percentages ("10%..50%"; "end" is 100%).  VFM_EUSAGE
 * otherwise. */
int vfm_subset_parse(const char *text, struct vfm_subset *s, struct vfm_err *err);
/* As vfm_subset_parse for two strings, such as "100" and "end". */
int vfm_subset_parse_ends(const char *a, const char *b, struct vfm_subset *s, struct vfm_err *err);
/* Replaces *inner by its part `outer`.  VFM_EUSAGE: `outer` counts samples. */
int vfm_subset_nest(struct vfm_subset *inner, const struct vfm_subset *outer, struct vfm_err *err);

/* Adds records first..end-1, which must not be in the selection yet; no-op if the range is empty. */
void vfm_selection_add(struct vfm_selection *s, int64_t first, int64_t end);
/* Keeps a part of the records, in the order of their addition.  VFM_EUSAGE: there are fewer records. */
int vfm_selection_cut(struct vfm_selection *s, const struct vfm_subset *part, struct vfm_err *err);
/* Sorts the ranges and joins neighbours.  Call before the functions below. */
void vfm_selection_seal(struct vfm_selection *s);
/* Removes records [n] from the selection, if selected; they are ascending, without repetition. */
void vfm_selection_exclude(struct vfm_selection *s, const int64_t *records, size_t n);
/* Returns the number of the i-th selected record, 0 <= i < total. */
int64_t vfm_selection_at(const struct vfm_selection *s, int64_t i);
void vfm_selection_release(struct vfm_selection *s);

#endif
