/* param_impl.h - shared by param.c (declarations and layout), param_values.c (reads and writes) and param_sync.c (moves
 * weights and gradients). */
#ifndef VFM_NET_NN_PARAM_IMPL_H
#define VFM_NET_NN_PARAM_IMPL_H

#include "net/nn/param.h"

enum { VFM_DIR_FORWARD, VFM_DIR_BACKWARD, VFM_DIRS };

/* The runtime state of a unit.  With fsdp, its buffers hold all its VFM_SHARDING_FULL buckets consecutively. */
struct vfm_unit {
	struct vfm_params *ps;
	int id;
	bool present, gathers;
	int64_t w_bytes;       /* of a buffer of gathered weights */
	int64_t n_grad;        /* elements of a buffer of gradients; frozen buckets have none */
	int64_t n_mx;          /* elements of a buffer of dequantized weights */
	char *w;               /* gathered weights; NULL: none */
	float *g, *g_reducing; /* gradients of the current backward; those of the previous one, in reduce-scatter */
	char *mx;              /* dequantized weights; NULL: none, since the unit does not run */
	bool running, joined;  /* the unit uses w; the compute stream has waited for w */
	struct vfm_event *gathered, *reduced;
	int next[VFM_DIRS];     /* the unit that followed it last time; -1: unknown */
	int64_t passes, passed; /* backwards per pack; backwards so far in this step */
};

static inline bool vfm_param_is_matrix(const struct vfm_param *p)
{
	return p->d.ndim > 1;
}
/* Returns whether the masters of the bucket are split (param.h). */
static inline bool vfm_bucket_is_split(const struct vfm_params *ps, const struct vfm_param_bucket *s)
{
	return ps->split && s->matrix && !s->frozen;
}
/* Returns the dtype that ops read. */
enum vfm_dtype vfm_bucket_dtype(const struct vfm_params *ps, const struct vfm_param_bucket *s);
/* Returns the bytes that n elements of the bucket take in storage; whole shards for MXFP8. */
int64_t vfm_bucket_bytes(const struct vfm_params *ps, const struct vfm_param_bucket *s, int64_t n);
/* Sets the address of a bucket's weights for ops, if it has memory only within its unit; w NULL: none. */
void vfm_bucket_set_weights(struct vfm_params *ps, const struct vfm_param_bucket *s, char *w);
/* Returns the local tensor of p in an array of the bucket s that starts at base. */
struct vfm_tensor vfm_param_tensor(
	const struct vfm_param *p, const struct vfm_param_bucket *s, void *base, enum vfm_dtype dt);
/* Registers the arrays with the groups that use them.  No-op after the first call.  Collective. */
int vfm_params_register_buffers(struct vfm_params *ps, struct vfm_err *err);
/* vfm_var.want_grad of matrices in VFM_SHARDING_FULL buckets. */
int vfm_param_want_grad(struct vfm_var *x, struct vfm_err *err);

/* Weights that are stored as MXFP8 (param_mx.c). */
enum { VFM_MX_SHARD = 512 }; /* elements; shards are multiples of it, so that their bytes are aligned */
/* Fails unless the rows of each parameter consist of whole blocks on this rank. */
int vfm_params_check_mx(const struct vfm_params *ps, struct vfm_err *err);
/* Provide the weights of a unit to the ops, and drop them.  No-op without MXFP8. */
int vfm_unit_dequantize(struct vfm_unit *x, struct vfm_err *err);
void vfm_unit_drop_dequantized(struct vfm_unit *x);
/* Converts the elements o [a, b) of the parameter from x, f32; with `back`, into x. */
int vfm_param_convert_mx(struct vfm_params *ps, const struct vfm_param *p, const struct vfm_owned *o, float *x,
	bool back, struct vfm_err *err);

/* Releases the buffers of units and the events. */
void vfm_params_sync_release(struct vfm_params *ps);

#endif
