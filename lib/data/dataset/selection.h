/* selection.h - a part of the records of an index, as ranges of record numbers.
 *
 * A selection without ranges that was never added to is empty.  Ranges are added in any order, which is that of the
 * samples for vfm_selection_cut; vfm_selection_seal sorts them.
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

/* A part of a list of samples, as Megatron-Energon defines it: first the samples from..to, then of these the fractions
 * low..high.  The ends are excluded. */
struct vfm_subset {
	bool counted;     /* from and to hold */
	int64_t from, to; /* to: -1 is the end of the list */
	double low, high; /* 0 <= low <= high <= 1 */
};
#define VFM_SUBSET_ALL ((struct vfm_subset){.to = -1, .high = 1})

/* Reads "A..B": numbers of samples, where B may be "end", or percentages ("10%..50%"; "end" is 100%). VFM_EUSAGE. */
int vfm_subset_parse(const char *text, struct vfm_subset *s, struct vfm_err *err);
/* The same of two texts, "100" and "end". */
int vfm_subset_parse_ends(const char *a, const char *b, struct vfm_subset *s, struct vfm_err *err);
/* Makes *inner the part `outer` of the part *inner.  VFM_EUSAGE: `outer` counts samples. */
int vfm_subset_nest(struct vfm_subset *inner, const struct vfm_subset *outer, struct vfm_err *err);

/* Adds records first..end-1, which are not in the selection; no-op if there are none. */
void vfm_selection_add(struct vfm_selection *s, int64_t first, int64_t end);
/* Keeps a part of the records in the order of their addition.  VFM_EUSAGE: there are fewer. */
int vfm_selection_cut(struct vfm_selection *s, const struct vfm_subset *part, struct vfm_err *err);
/* Sorts the ranges and joins neighbours.  The functions below need it. */
void vfm_selection_seal(struct vfm_selection *s);
/* Removes those of these records that are selected; records [n]: ascending, without repetition. */
void vfm_selection_exclude(struct vfm_selection *s, const int64_t *records, size_t n);
/* Returns the number of the i-th selected record, 0 <= i < total. */
int64_t vfm_selection_at(const struct vfm_selection *s, int64_t i);
void vfm_selection_release(struct vfm_selection *s);

#endif
