/* param_impl.h - between param.c, which describes and lays out, and param_sync.c, which moves weights and gradients. */
#ifndef VFM_NN_PARAM_IMPL_H
#define VFM_NN_PARAM_IMPL_H

#include "nn/param.h"

enum { VFM_DIR_FORWARD, VFM_DIR_BACKWARD, VFM_DIRS };

/* A unit as it runs.  Buffers are those of fsdp: all its gathered sections, one after the other. */
struct vfm_unit {
	struct vfm_params *ps;
	int id;
	bool present, gathers;
	int64_t n;             /* elements of a buffer */
	char *w;               /* weights; NULL: not here */
	float *g, *g_reducing; /* gradients of the backward that runs; of the one before, on their way to the shards */
	bool running, joined;  /* uses w; has waited for w */
	struct vfm_event *gathered, *reduced;
	int next[VFM_DIRS];     /* the unit that came after it the last time, -1: unknown */
	int64_t passes, passed; /* backwards a pack; in this step so far */
};

enum vfm_dtype vfm_section_dtype(const struct vfm_params *ps, const struct vfm_section *s);
/* Element 0 of p at base + (p->off - s->off). */
struct vfm_tensor vfm_param_tensor(
	const struct vfm_param *p, const struct vfm_section *s, void *base, enum vfm_dtype dt);
/* The groups that work on the arrays learn of them, once.  Collective. */
int vfm_params_known(struct vfm_params *ps, struct vfm_err *err);
/* vfm_var.want_grad of matrices that are gathered. */
int vfm_param_want_grad(struct vfm_var *x, struct vfm_err *err);
/* Drops what hangs on units and events. */
void vfm_params_sync_release(struct vfm_params *ps);

#endif
