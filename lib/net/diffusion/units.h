/* units.h - the tokens of a pack by frames or columns, on the device; made once per pack. */
#ifndef VFM_NET_DIFFUSION_UNITS_H
#define VFM_NET_DIFFUSION_UNITS_H

#include "net/nn/layers.h"
#include "spec/layout/division.h"
#include "spec/model/model.h"

struct vfm_pack;

struct vfm_units {
	struct vfm_attn_units a;
	struct vfm_division d;
	struct vfm_stream *stream;
	void *mem;
	size_t bytes;
};

/* Release u even after a failure. */
int vfm_units_make(struct vfm_units *u, enum vfm_division_kind kind, struct vfm_stream *s, const struct vfm_mesh *mesh,
	const struct vfm_model_spec *m, const struct vfm_pack *p, struct vfm_err *err);
void vfm_units_release(struct vfm_units *u);

#endif
