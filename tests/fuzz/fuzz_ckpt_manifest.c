/* manifest.json of a checkpoint: any bytes; what is accepted covers each tensor exactly once. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "ckpt/ckpt_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_cover(const struct vfm_ckpt_tensor *t)
{
	uint8_t *seen;

	if (t->numel > 65536)
		return;
	seen = vfm_calloc((size_t)t->numel + 1, 1);
	for (int k = 0; k < t->n_pieces; k++) {
		struct vfm_runs r = {0};

		if (t->piece[k].is_range)
			vfm_runs_add_range(&r, t->piece[k].a, t->piece[k].b, 0);
		else
			vfm_runs_add_box(&r, t->shape, &t->piece[k].box, 0, 0, INT64_MAX);
		for (size_t i = 0; i < r.n; i++)
			for (int64_t e = r.v[i].from; e < r.v[i].from + r.v[i].n; e++)
				if (e < 0 || e >= t->numel || seen[e]++)
					abort();
		vfm_runs_release(&r);
	}
	for (int64_t e = 0; e < t->numel; e++)
		if (!seen[e])
			abort();
	free(seen);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_err err = {0};
	struct vfm_ckpt *c;

	if (ckpt_parse_manifest(&c, (const char *)data, size, &err) == 0) {
		for (int i = 0; i < c->n; i++)
			check_cover(&c->t[i]);
		vfm_ckpt_close(c);
	} else if (!err.msg[0]) {
		abort();
	}
	return 0;
}
