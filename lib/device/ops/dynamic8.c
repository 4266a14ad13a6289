/* dynamic8.c - fills the table of magnitudes and the midpoints between them. */
#include "device/ops/dynamic8.h"

#include <math.h>

void vfm_dynamic8_init(struct vfm_dynamic8 *t, bool is_signed)
{
	enum { DECADES = 7 };

	*t = (struct vfm_dynamic8){.n = 1, .is_signed = is_signed};
	for (int i = 0; i < DECADES; i++) {
		int items = 1 << (is_signed ? i : i + 1);

		for (int k = 0; k < items; k++)
			t->mag[t->n++] = (float)(pow(10, i - DECADES + 1) * (0.1 + 0.9 * (k + 0.5) / items));
	}
	t->mag[t->n++] = 1;
	for (int k = 0; k + 1 < t->n; k++)
		t->mid[k] = 0.5f * (t->mag[k] + t->mag[k + 1]);
}
