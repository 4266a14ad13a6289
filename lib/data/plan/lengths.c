/* lengths.c - 16-bit codes of a table of lengths, and the lengths themselves once there are more than 65536. */
#include "data/plan/lengths.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_CODES = 1 << 16 };

static size_t elements_of(const struct vfm_lengths *l)
{
	return (size_t)(l->n ? l->n : 1);
}

int vfm_lengths_init(struct vfm_lengths *l, int64_t n, int32_t max, struct vfm_err *err)
{
	*l = (struct vfm_lengths){.n = n, .max = max, .n_values = 1};
	l->code = vfm_big_alloc(elements_of(l) * sizeof(*l->code), "sample lengths", err);
	if (!l->code)
		return VFM_EENV;
	memset(l->code, 0, elements_of(l) * sizeof(*l->code));
	l->value = vfm_calloc(MAX_CODES, sizeof(*l->value));
	l->code_of = vfm_calloc(2 * (size_t)max + 1, sizeof(*l->code_of)); /* pages that are not used take no memory */
	l->code_of[max] = 1;
	return 0;
}

static int widen_lengths(struct vfm_lengths *l, struct vfm_err *err)
{
	l->wide = vfm_big_alloc(elements_of(l) * sizeof(*l->wide), "sample lengths", err);
	if (!l->wide)
		return VFM_EENV;
	for (int64_t i = 0; i < l->n; i++)
		l->wide[i] = l->value[l->code[i]];
	vfm_big_free(l->code, elements_of(l) * sizeof(*l->code));
	l->code = NULL;
	return 0;
}

int vfm_lengths_put(struct vfm_lengths *l, int64_t i, int32_t value, struct vfm_err *err)
{
	uint32_t *code = &l->code_of[value + l->max];

	if (l->code && !*code) {
		if (l->n_values < MAX_CODES) {
			l->value[l->n_values++] = value;
			*code = l->n_values;
		} else {
			TRY(widen_lengths(l, err));
		}
	}
	if (l->code)
		l->code[i] = (uint16_t)(*code - 1);
	else
		l->wide[i] = value;
	return 0;
}

void vfm_lengths_seal(struct vfm_lengths *l)
{
	free(l->code_of);
	l->code_of = NULL;
}

void vfm_lengths_release(struct vfm_lengths *l)
{
	vfm_lengths_seal(l);
	vfm_big_free(l->code, elements_of(l) * sizeof(*l->code));
	vfm_big_free(l->wide, elements_of(l) * sizeof(*l->wide));
	free(l->value);
	*l = (struct vfm_lengths){0};
}
