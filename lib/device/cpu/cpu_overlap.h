/* cpu_overlap.h - vector work that runs between the steps of a product: AMX tiles leave the vector units idle.
 *
 * The work is divided into equal parts.  A kernel without AMX runs none of them; the caller finishes the work.
 */
#ifndef VFM_DEVICE_CPU_CPU_OVERLAP_H
#define VFM_DEVICE_CPU_CPU_OVERLAP_H

#include <stdint.h>

struct vfm_overlap {
	void (*run)(void *arg, int64_t first, int64_t end); /* runs parts [first, end); parts run in their order */
	void *arg;
	int64_t next, parts; /* the next part, and the number of all; equal: nothing is left */
	int64_t pace;        /* the parts to run after a step of the product */
};

/* Runs up to n parts. */
static inline void vfm_overlap_run(struct vfm_overlap *o, int64_t n)
{
	const int64_t first = o->next, left = o->parts - first;

	if (n > left)
		n = left;
	if (n <= 0)
		return;
	o->next = first + n;
	o->run(o->arg, first, first + n);
}

static inline void vfm_overlap_finish(struct vfm_overlap *o)
{
	vfm_overlap_run(o, o->parts - o->next);
}

#endif
