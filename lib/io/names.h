/* names.h - a hash table of names, numbered in the order of their addition.  Only lookups are thread-safe. */
#ifndef VFM_IO_NAMES_H
#define VFM_IO_NAMES_H

#include <stddef.h>
#include <stdint.h>

struct vfm_names { /* `= {0}` is empty */
	int64_t n; /* below 2^31 */
	/* private */
	char *text;
	size_t len, cap, cap_at;
	uint64_t *at;   /* [n] in text */
	int32_t *table; /* number + 1, 0 is free; [size], a power of two */
	size_t size;
};

/* Returns the number of the new name, or -1 if v already has it or is full (2^31 - 1 names). */
int64_t vfm_names_add(struct vfm_names *v, const char *name);
/* Returns the number of a name, or -1. */
int64_t vfm_names_find(const struct vfm_names *v, const char *name);
static inline const char *vfm_names_at(const struct vfm_names *v, int64_t i)
{
	return v->text + v->at[i];
}
void vfm_names_release(struct vfm_names *v);

#endif
