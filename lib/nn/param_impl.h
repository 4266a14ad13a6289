/* param_impl.h - between param.c, which describes and lays out, and param_sync.c, which moves weights and gradients. */
#ifndef VFM_NN_PARAM_IMPL_H
#define VFM_NN_PARAM_IMPL_H

#include "nn/param.h"

enum { VFM_DIR_FORWARD, VFM_DIR_BACKWARD, VFM_DIRS };

/* The runtime state of a unit.  With fsdp, its buffers hold all its VFM_SHARDING_FULL buckets, one after the other. */
struct vfm_unit {
	struct vfm_params *ps;
	int id;
	bool present, gathers;
	int64_t n, n_grad;     /* elements of a buffer of weights; of gradients, which frozen buckets have none of */
	char *w;               /* weights; NULL: not gathered */
	float *g, *g_reducing; /* gradients of the current backward; of the previous one, in reduce-scatter */
	bool running, joined;  /* the unit uses w; the compute stream has waited for w */
	struct vfm_event *gathered, *reduced;
	int next[VFM_DIRS];     /* the unit that followed it the last time; -1: unknown */
	int64_t passes, passed; /* backwards per pack; backwards so far in this step */
};

enum vfm_dtype vfm_bucket_dtype(const struct vfm_params *ps, const struct vfm_bucket *s);
/* Returns the local tensor of p in an array of the bucket s that starts at base. */
struct vfm_tensor vfm_param_tensor(
	const struct vfm_param *p, const struct vfm_bucket *s, void *base, enum vfm_dtype dt);
/* Registers the arrays with the groups that use them.  No-op after the first call.  Collective. */
int vfm_params_register_buffers(struct vfm_params *ps, struct vfm_err *err);
/* vfm_var.want_grad of matrices in VFM_SHARDING_FULL buckets. */
int vfm_param_want_grad(struct vfm_var *x, struct vfm_err *err);
/* Releases the buffers of units and the events. */
void vfm_params_sync_release(struct vfm_params *ps);

#endif
