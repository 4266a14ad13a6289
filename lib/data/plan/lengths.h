/* lengths.h - an array of numbers in two bytes each, as long as they have at most 65536 different values.
 *
 * A table contains each value once, and each element is an index into it.  With more values, each element takes four
 * bytes.  One thread writes; then any number of threads read.
 */
#ifndef VFM_DATA_PLAN_LENGTHS_H
#define VFM_DATA_PLAN_LENGTHS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_lengths {
	int64_t n;
	uint16_t *code; /* [n] index into value; NULL: there are more than 65536 values, and `wide` holds them */
	int32_t *wide;  /* [n] */
	int32_t *value;
	/* private */
	int32_t max;
	uint32_t n_values;
	uint32_t *code_of; /* [2 max + 1] 1 + the code of a value + max; 0: none yet */
};

/* Allocates n elements, all 0, for values from -max to max; the caller releases them.  VFM_EENV: out of memory. */
int vfm_lengths_init(struct vfm_lengths *l, int64_t n, int32_t max, struct vfm_err *err);
/* Sets element i.  VFM_EENV: no memory for the wide array. */
int vfm_lengths_put(struct vfm_lengths *l, int64_t i, int32_t value, struct vfm_err *err);
/* Frees the memory that only vfm_lengths_put needs. */
void vfm_lengths_seal(struct vfm_lengths *l);
void vfm_lengths_release(struct vfm_lengths *l); /* accepts `{0}` */

static inline int32_t vfm_lengths_get(const struct vfm_lengths *l, int64_t i)
{
	return l->code ? l->value[l->code[i]] : l->wide[i];
}

/* Prefetches element i into the cache. */
static inline void vfm_lengths_prefetch(const struct vfm_lengths *l, int64_t i)
{
	if (l->code)
		__builtin_prefetch(&l->code[i]);
	else
		__builtin_prefetch(&l->wide[i]);
}

#endif
