/* param_impl.h - shared by param.c (declarations and layout), param_values.c (reads and writes), param_sync.c (moves
 * weights and gradients), param_base.c (dtypes of base weights) and param_store.c (base weights in host memory). */
#ifndef VFM_NET_NN_PARAM_IMPL_H
#define VFM_NET_NN_PARAM_IMPL_H

#include "net/nn/param.h"

enum { VFM_DIR_FORWARD, VFM_DIR_BACKWARD, VFM_DIRS };

/* The runtime state of a unit.  With fsdp, its buffers hold all its VFM_SHARDING_FULL buckets consecutively. */
struct vfm_unit {
	struct vfm_params *ps;
	int id;
	bool present;
	int64_t w_bytes;       /* of a buffer of gathered weights */
	int64_t n_grad;        /* elements of a buffer of gradients; frozen buckets have none */
	int64_t n_decoded;     /* elements of a buffer of decoded weights */
	int64_t store_bytes;   /* of a store of base weights (param_store.c); 0: none */
	char *w;               /* gathered weights; NULL: none */
	float *g, *g_reducing; /* gradients of the current backward; those of the previous one, in reduce-scatter */
	char *decoded;         /* decoded weights; NULL: none, since the unit does not run */
	char *store;           /* NULL: not placed yet */
	enum vfm_store_place place;
	char *fetched; /* copy of a store in host memory; NULL: none */
	bool ready, running,
		joined; /* w and fetched are in memory; the unit uses them; the compute stream has waited */
	struct vfm_event *gathered, *reduced, *fetch_done;
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
/* Returns the bytes that n elements of the bucket take in storage; whole shards, if stored in another dtype. */
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

/* Weights that are stored in another dtype (param_base.c). */
/* Elements: buckets of base weights have parameters at multiples of ALIGN, and shards of multiples of SHARD, so that
 * blocks of codes are whole and their bytes are aligned. */
enum { VFM_BASE_ALIGN = 64, VFM_BASE_SHARD = 1024 };
/* Fails unless the rows of each parameter consist of whole blocks on this rank.  option: named in the error. */
int vfm_params_check_base(const struct vfm_params *ps, const char *option, struct vfm_err *err);
/* Provide the weights of a unit to the ops, and drop them.  No-op without weights in another dtype. */
int vfm_unit_decode(struct vfm_unit *x, struct vfm_err *err);
void vfm_unit_drop_decoded(struct vfm_unit *x);
/* Converts the elements o [a, b) of the parameter from x, f32; with `back`, into x. */
int vfm_param_convert_base(struct vfm_params *ps, const struct vfm_param *p, const struct vfm_owned *o, float *x,
	bool back, struct vfm_err *err);

/* Base weights stored as int8 or NF4 (param_code.c). */
int vfm_bucket_alloc_code(struct vfm_params *ps, struct vfm_param_bucket *s, struct vfm_err *err);
void vfm_bucket_free_code(struct vfm_params *ps, struct vfm_param_bucket *s);
/* Encodes the elements o [a, b) of a parameter from x, f32.  Collective over the ranks of the pp stage that have other
 * parts of it, also those that own nothing.  x NULL: this rank has no values, and the call fails on all of them. */
int vfm_param_encode(struct vfm_params *ps, const struct vfm_param *p, const struct vfm_owned *o, const float *x,
	struct vfm_err *err);
int vfm_param_decode(
	struct vfm_params *ps, const struct vfm_param *p, const struct vfm_owned *o, float *x, struct vfm_err *err);
/* Decodes the shards at w, one after the other, to x [bucket]. */
int vfm_bucket_decode(struct vfm_params *ps, const struct vfm_param_bucket *s, char *w, void *x, enum vfm_dtype dt,
	struct vfm_err *err);

/* Stores of base weights (param_store.c). */
/* Returns whether the weights of a unit come to the device when it runs: all-gathered, or from host memory. */
static inline bool vfm_unit_fetches(const struct vfm_unit *x)
{
	return x->store_bytes > 0 && x->place != VFM_STORE_DEVICE;
}
static inline bool vfm_unit_arrives(const struct vfm_unit *x)
{
	return x->w_bytes > 0 || vfm_unit_fetches(x);
}
/* Enqueues the copy of a store in host memory to x->fetched; the event is x->fetch_done.  No-op for others. */
int vfm_unit_fetch(struct vfm_unit *x, struct vfm_err *err);
void vfm_unit_drop_fetched(struct vfm_unit *x); /* the compute stream must have waited for the copy */
/* Returns the address of the shard of a bucket for ops of its unit: device memory. */
char *vfm_bucket_stored(const struct vfm_params *ps, const struct vfm_param_bucket *s);
/* Sets *w to the address of the shard for ops outside of units, until the next call; perhaps pinned memory. */
int vfm_bucket_open(struct vfm_params *ps, const struct vfm_param_bucket *s, char **w, struct vfm_err *err);
int vfm_params_close_store(struct vfm_params *ps, struct vfm_err *err);
void vfm_params_stores_release(struct vfm_params *ps);
/* Drops gathered and fetched weights of all units (param_sync.c). */
int vfm_params_drop_units(struct vfm_params *ps, struct vfm_err *err);
/* Guesses the unit that follows each one; the observed order replaces it (param.c). */
void vfm_units_guess_order(struct vfm_params *ps);

/* Releases the buffers of units and the events. */
void vfm_params_sync_release(struct vfm_params *ps);

#endif
