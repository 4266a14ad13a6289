/* param.h - the parameters of a model.
 *
 * The model declares each parameter once: a description (spec/model/shard.h) and its initialisation.  The local array
 * holds this rank's tp and ep slice of every parameter, in flat-parameter buckets.  param.c describes the design.
 *
 * A step:
 *	vfm_params_grad_begin(ps, err);
 *	vfm_params_set_packs(ps, n);        // optional: lets reductions start before the end of the step
 *	n forwards and backwards of each chunk
 *	vfm_params_grad_end(ps, err);       // collective
 *	vfm_params_update_begin(ps, err);
 *	for each bucket i, on the compute stream or another one: an update of its masters,
 *		vfm_params_updated(ps, i, stream, false, err);
 *	vfm_params_update_end(ps, err);
 *
 * Vectors are updated on the compute stream, because vfm_params_grad_begin zeroes their gradients.  Other updates may
 * overlap the next forward.  Code that reads weights or owned arrays outside of units first calls vfm_params_wait.
 *
 * "Collective" calls, and forwards and backwards, are made by all ranks of the pp stage in the same order
 * (vfm_params_grad_end: by all ranks of the job).
 */
#ifndef VFM_NET_NN_PARAM_H
#define VFM_NET_NN_PARAM_H

#include "net/mesh/mesh.h"
#include "net/tape/tape.h"
#include "spec/model/shard.h"
#include "spec/model/tuning.h"

enum vfm_init { VFM_INIT_ZERO, VFM_INIT_ONE, VFM_INIT_NORMAL };

struct vfm_param {
	char name[96];
	struct vfm_pdesc d;   /* d.name is name; global shape and cuts (tp, ep) */
	struct vfm_part part; /* the local tensor: the slice of this rank's coordinates */
	bool all_pp_stages;   /* held by every pp stage: its gradient is summed over pp */
	enum vfm_init init;
	float std; /* of VFM_INIT_NORMAL */
	int unit;
	int bucket;
	int64_t off, n; /* first element of the local tensor in the local array; number of its elements */
	/* operand of the ops: the value in the compute dtype (vectors: f32), the gradient in f32.  The backward of an
	 * op reads var.v at that time and does not keep it, because fsdp gathers weights for each unit.  Matrices have
	 * no views. */
	struct vfm_var var;
	bool bias;                       /* of a linear layer; set before vfm_params_alloc */
	bool fp8;                        /* the weight of a linear layer that may multiply in fp8 */
	bool frozen;                     /* has no gradient */
	bool base;                       /* a frozen weight of a block (vfm_param_base) */
	enum vfm_frozen_dtype stored;    /* of base weights; else VFM_FROZEN_SAME */
	bool adapter;                    /* of a linear layer (struct vfm_linear); not part of the base model */
	const struct vfm_fp8_past *past; /* fp8 with delayed scaling (scales.h); else NULL */
	struct vfm_param_stack *stack;   /* NULL: none */
	struct vfm_params *ps;
};

/* Parameters that are contiguous in memory and form one operand: matrices [rows, cols] as [sum of rows, cols], vectors
 * as one vector.  Their variables are views of var. */
struct vfm_param_stack {
	struct vfm_var var;
	struct vfm_param **p; /* [n] */
	int n;
};

enum vfm_sharding {
	VFM_SHARDING_NONE,  /* no sharding: the shard is the whole bucket */
	VFM_SHARDING_STATE, /* shards optimizer state; weights and gradients are full */
	VFM_SHARDING_FULL,  /* also shards weights and gradients; they are full only while their unit runs */
};

struct vfm_param_bucket {
	bool matrix, bias, expert, tp_sum,
		all_pp_stages; /* bias: of linear layers, in a compute dtype other than f32 */
	bool frozen;
	bool base; /* frozen weights of one unit that are stored in another dtype, or may move to host memory */
	enum vfm_frozen_dtype stored;
	enum vfm_sharding sharding;
	int first_unit, last_unit;
	struct vfm_comm *shard, *replica; /* for gradients; groups of one without sharding, without replicas */
	struct vfm_comm *gather;          /* for weights: the ranks of shard */
	int64_t off, n;                   /* first element in the local array; number of elements, including padding */
	int64_t own, own_n;               /* this rank's shard: elements [own, own + own_n) of the bucket */
	int64_t own_off;    /* first element of the shard in the owned arrays; if frozen: among all frozen shards */
	int64_t master_off; /* the same in params.master, or in params.master_lo for split masters */
	/* this rank is the first of those with the same values: the tp ranks (if tp_sum), the pp stages (if
	 * all_pp_stages) and, for frozen values without fsdp, the shard group */
	bool first;
	bool counts_norm; /* `first` in the first replica: only this rank adds the shard to the gradient norm */
	float *g;         /* device [own_n]: gradient of the shard */
	/* device [own_n]: the shard in the compute dtype, written by the optimizer or frozen; NULL: no such copy, or
	 * base weights in a store (param_store.c).  Stored in another dtype: [vfm_bucket_bytes] */
	void *w;
	/* private to param*.c */
	char *full;                 /* weights of the whole bucket; NULL: in a unit's buffer */
	float *grad;                /* gradients of the whole bucket; NULL: in a unit's buffer */
	int64_t buf_off;            /* first element in its unit's buffer of gradients */
	int64_t w_off;              /* first byte in its unit's buffer of gathered weights */
	int64_t store_off;          /* first byte in its unit's store */
	int64_t decoded_off;        /* stored in another dtype: first element in its unit's buffer of decoded weights */
	struct vfm_base_code *code; /* of int8 and NF4 (param_code.c); else NULL */
	struct vfm_param **p;       /* [n_p], by offset */
	int n_p;
	int units;      /* units with parameters in this bucket */
	int units_left; /* units whose last backward of the step is outstanding */
	bool g_begun, reducing;
	/* an update on another stream, an all-gather, for which the compute stream has not waited yet */
	bool updating, gathering;
	struct vfm_event *reduced, *ready; /* ready: the newer of update and all-gather */
};

struct vfm_unit;
struct vfm_scales;

struct vfm_params {
	struct vfm_stream *stream;
	const struct vfm_mesh *mesh;
	struct vfm_param **p; /* in the order of their declaration */
	size_t n, cap;
	struct vfm_param_stack **stack;
	size_t n_stack, cap_stack;
	int units;
	struct vfm_tuning tuning; /* set before parameters are declared; zeros: all parameters are trained */
	bool stores;              /* base weights have stores (vfm_params_store); set before vfm_params_alloc */
	bool all_pp_stages;       /* applies to the next declarations */
	/* the first description that is not divisible, or the first layer that cannot have an adapter */
	struct vfm_err bad;
	int64_t n_flat;       /* elements of the local array, including padding */
	int64_t n_own;        /* elements of the owned arrays */
	int64_t n_frozen;     /* elements of the frozen shards */
	int64_t n_values;     /* parameters in the local array, without padding */
	enum vfm_dtype dtype; /* compute dtype of matrices */
	struct vfm_param_bucket *bucket;
	int n_buckets, n_trained;  /* buckets [0, n_trained) are trained, the others frozen */
	bool fp8;                  /* linear layers of blocks multiply in fp8; may change between steps */
	struct vfm_scales *scales; /* delayed scaling (scales.h); NULL: current scaling */
	bool split;                /* split masters; set before vfm_params_alloc, dtype must be bf16 */
	float *master;             /* device [n_master]; n_master is n_own without split */
	int16_t *master_lo;        /* device [n_master_lo]: low 16 bits of split masters */
	int64_t n_master, n_master_lo;
	/* device: full gradients of all buckets except VFM_SHARDING_FULL, then the shards of the latter; NULL: none.
	 * Without sharding [n_flat], with the offsets of the local array. */
	float *grad;
	/* device [1] f64: after grad_end, the sum of squares of the gradients that this rank counts */
	struct vfm_tensor sumsq;
	int early;          /* buckets whose reduction started before the end of the step (for tests and reports) */
	bool held;          /* see vfm_params_hold */
	int64_t host_units; /* units with base weights in host memory */
	double host_limit;  /* most pinned bytes of base weights; 0: this rank's share of most of the host's memory */
	/* private to param*.c */
	struct vfm_stream *fetch_stream; /* copies stores of base weights from host memory */
	struct vfm_unit *open;           /* the store in `bounce`; NULL: none */
	char *bounce;                    /* pinned [bounce_bytes]; NULL: no store is in a file */
	int64_t bounce_bytes;
	double other_pinned; /* bytes of base weights of another network */
	int64_t n_grad;
	char *copy; /* weights for the ops, if they are not the masters */
	size_t copy_bytes;
	struct vfm_comm_mem copy_mem, grad_mem; /* of copy, grad */
	struct vfm_unit_buf {
		struct vfm_comm_mem mem;
		bool used;
	} w_buf[2], g_buf[2];             /* permanent unit buffers; absent if the transport has no memory */
	bool registered;                  /* the buffers are registered with the groups */
	struct vfm_comm_mem node_scratch; /* for two-level sums (vfm_mesh_nodes) */
	struct vfm_unit *unit;
	struct vfm_event *fork;
	int pending, last_unit, last_dir; /* -1: none */
	int updating, gathering;          /* number of buckets in these states */
	int unit_gathers;                 /* number of units whose weights the compute stream has not waited for */
	int *reduced, n_reduced;          /* buckets in the order of their reductions in this step */
	int64_t packs;
	bool hooks;
};

/* Initialises ps; the mesh must outlive it. */
void vfm_params_init(struct vfm_params *ps, struct vfm_stream *s, const struct vfm_mesh *mesh);
void vfm_params_release(struct vfm_params *ps);

/* Declares a parameter of the given global shape.  The pointer stays valid.  Units must not decrease from call to call.
 * vfm_params_alloc fails if a dimension is not divisible. */
struct vfm_param *vfm_param_add(struct vfm_params *ps, int unit, const struct vfm_pdesc *shape_and_cut,
	enum vfm_init init, float std, const char *name_fmt, ...) __attribute__((format(printf, 6, 7)));
/* Sets whether all pp stages hold the parameters that are declared from now on (default: false).  Their unit runs once
 * per chunk; other units run once per pack. */
void vfm_params_all_pp_stages(struct vfm_params *ps, bool on);
/* Makes n parameters one operand and returns its variable, which is valid after vfm_params_alloc.  They must be
 * declared in one unit, with no other parameter of their bucket between them.  They must not be cut nor, if n > 1,
 * sharded by fsdp. */
struct vfm_var *vfm_params_stack(struct vfm_params *ps, struct vfm_param *const *p, int n);
/* Declares a weight of a linear layer of a block, or of experts.  If it is frozen, it is a base weight: stored in the
 * frozen_dtype of the tuning, and in host memory if its unit is.  Call before vfm_params_alloc. */
void vfm_param_base(struct vfm_param *p);
/* Returns the bytes of a frozen parameter over all ranks together, without copies, if the compute dtype is dt. */
int64_t vfm_param_frozen_bytes(const struct vfm_param *p, enum vfm_dtype dt);
struct vfm_param *vfm_param_find(const struct vfm_params *ps, const char *name);

/* Lays out and allocates the arrays (local).  with_grad is false for sampling. */
int vfm_params_alloc(struct vfm_params *ps, enum vfm_dtype dtype, bool with_grad, struct vfm_err *err);
/* Sets the initial values, which depend only on (seed, name, global element index).  Collective. */
int vfm_params_fill(struct vfm_params *ps, uint64_t seed, struct vfm_err *err);
/* For tests and benchmarks: sets nonzero values that keep outputs about as large as inputs, so that every gradient is
 * exercised.  Collective. */
int vfm_params_fill_dense(struct vfm_params *ps, uint64_t seed, struct vfm_err *err);

/* Of the units with base weights, keeps those of n in host memory, evenly spaced, and the others on the device.  Call
 * it after vfm_params_alloc with `stores`, which leaves them without memory; later calls move them.  Before a unit in
 * host memory runs, forward or backward, it is copied to the device while the previous one runs.  Host memory is pinned
 * up to the limit, and else a file in $TMPDIR.  Local; blocks. */
int vfm_params_place(struct vfm_params *ps, int64_t n, struct vfm_err *err);
/* Returns the bytes of host memory that a rank may use for offloading: an equal share of most of its host's.  A host
 * that is predicted has as much as is needed, if its machine does not say how much. */
double vfm_params_host_memory(const struct vfm_mesh *m, const struct vfm_dev *d);
/* Returns the number of units with base weights; 0 without `stores`.  *most: bytes of the largest one on this rank. */
int64_t vfm_params_stores(const struct vfm_params *ps, double *most);

/* The base weights of a unit of another network with the same layout, for networks that take turns
 * (train/step/idle.h).  `= {0}`: none. */
enum vfm_store_place { VFM_STORE_DEVICE, VFM_STORE_PINNED, VFM_STORE_MAPPED };
struct vfm_other_store {
	char *p;
	size_t bytes;
	enum vfm_store_place place;
};
/* Copies the base weights of a unit to *x: to host memory, unless on_device and they are on the device, too.  No-op for
 * a unit without a store.  Local. */
int vfm_params_copy_store(
	struct vfm_params *ps, int unit, bool on_device, struct vfm_other_store *x, struct vfm_err *err);
void vfm_params_free_store(struct vfm_params *ps, int unit, struct vfm_other_store *x);
/* Exchanges the base weights in host memory with *x.  Returns the bytes of those on the device, at *own, which the
 * caller exchanges; 0: none are left.  No fetch may be pending: call vfm_params_update_begin before.  Local; blocks. */
size_t vfm_params_swap_store(struct vfm_params *ps, int unit, struct vfm_other_store *x, void **own);
/* Calls fn for each array on the device that holds scales of base weights. */
void vfm_params_each_scale(const struct vfm_params *ps, void (*fn)(void *ctx, void *data, size_t bytes), void *ctx);

/* Update the weights from the masters; collective.
 *
 * - begin waits for the last updates and drops gathered weights.
 * - updated is called once for each bucket, after the update of its masters is enqueued on s.  It starts the all-gather
 *   of bucket i on mesh->gather_stream.  With cast false, the optimizer has already written the shards in the compute
 *   dtype (vfm_param_bucket.w).
 * - end starts the all-gather of the next unit. */
int vfm_params_update_begin(struct vfm_params *ps, struct vfm_err *err);
int vfm_params_updated(struct vfm_params *ps, int i, struct vfm_stream *s, bool cast, struct vfm_err *err);
int vfm_params_update_end(struct vfm_params *ps, struct vfm_err *err);
/* Makes the compute stream wait for all updates and all-gathers of buckets (local). */
int vfm_params_wait(struct vfm_params *ps, struct vfm_err *err);
/* Does all three for masters that are already written, with the cast.  The compute stream waits for the all-gathers.
 * Collective. */
int vfm_params_refresh(struct vfm_params *ps, struct vfm_err *err);

/* Promises that the weights do not change until vfm_params_update_begin, which ends the promise; the caller writes to
 * no weights meanwhile.  Devices may then keep copies of matrices in another layout (device/ops/tensor.h), which pays
 * if several forwards or backwards follow.  Matrices that are gathered for each unit are not held.  Local. */
void vfm_params_hold(struct vfm_params *ps);

/* Code between begin and end uses the parameters of one unit: an embedder, a block with its region, or the head.  Units
 * do not nest.  With fsdp, begin gathers the weights of the unit and end drops them, in the forward and in the
 * backward, and the unit's gradients are reduced after its backward.  Without fsdp, its gradients belong to a bucket,
 * whose reduction overlaps with the backward of the step's last pack. */
void vfm_unit_begin(struct vfm_tape *t, struct vfm_params *ps, int unit);
void vfm_unit_end(struct vfm_tape *t, struct vfm_params *ps, int unit);

/* Returns the maximum number of bytes, beyond those already allocated, that gathered weights, gradients of units,
 * fetched and decoded weights take on the device during a step; 0 without fsdp, stores and other dtypes. */
double vfm_params_unit_bytes(const struct vfm_params *ps);
/* The stores of base weights that it counts: two are fetched at a time, and gaps that they leave in the pool. */
enum { VFM_STORES_FETCHED = 3 };
/* Returns the bytes of the gradients of the largest unit; 0 without fsdp.  Each unit with deferred weight gradients
 * holds that many. */
double vfm_params_unit_grad_bytes(const struct vfm_params *ps);

/* Starts a step: drops all gradients (local). */
int vfm_params_grad_begin(struct vfm_params *ps, struct vfm_err *err);
/* Announces the number of backwards of each chunk in this step (local).  Call it before the last of them begins.
 * Without it, no reduction starts before vfm_params_grad_end. */
void vfm_params_set_packs(struct vfm_params *ps, int64_t packs);
/* Save and restore which parameters have gradients, has_grad [ps->n] (local): for a pack that is enqueued a second time
 * because nothing of the first attempt ran.  Only valid if all gradients stay on this rank. */
void vfm_params_save_grad_flags(const struct vfm_params *ps, bool *has_grad);
void vfm_params_restore_grad_flags(struct vfm_params *ps, const bool *has_grad);
/* Completes the gradients of a step, after the last backward.  Zeroes gradients without contributions, and turns owned
 * gradients into sums over the job.  Collective. */
int vfm_params_grad_end(struct vfm_params *ps, struct vfm_err *err);

/* The elements of a parameter that this rank owns: [a, b) of the local tensor (a == b: none), stored at [at, at + b -
 * a) of the owned arrays, or among all frozen shards.  g: their gradients, or NULL.  writes: this rank writes them to
 * checkpoints; exactly one of the ranks with the same elements does, and replicas divide the elements among
 * themselves. */
struct vfm_owned {
	int64_t a, b, at;
	float *g;
	bool writes;
};
struct vfm_owned vfm_param_owned(const struct vfm_params *ps, const struct vfm_param *p);

/* An owned array: [n_own] f32, bf16, or u8 for block-wise 8-bit floats (device/ops/dynamic8.h), in memory that the
 * device can address. */
struct vfm_array {
	void *data;
	enum vfm_dtype dtype;
	/* of u8: [vfm_params_blocks8]; bucket i begins at vfm_bucket_block8(i), since its shard starts a block */
	float *scale;
	bool is_signed; /* of u8 */
};
/* Return the number of scales of a u8 array, and the first that belongs to bucket i. */
int64_t vfm_params_blocks8(const struct vfm_params *ps);
int64_t vfm_bucket_block8(const struct vfm_params *ps, int i);
/* get copies the owned elements [a, b) of a parameter (vfm_owned) from an owned array to x [b - a] f32; put copies x to
 * the array, which must not be u8.  Array NULL means the masters; after a put to them the caller calls
 * vfm_params_refresh.  Local, ordered by the compute stream.  x is device memory or memory of alloc_host; for an f32
 * array, except split masters, x may be any host memory. */
int vfm_param_get(
	struct vfm_params *ps, const struct vfm_array *a, const struct vfm_param *p, float *x, struct vfm_err *err);
int vfm_param_put(struct vfm_params *ps, const struct vfm_array *a, const struct vfm_param *p, const float *x,
	struct vfm_err *err);
/* Returns whether vfm_param_put of the masters is collective over the pp stage, as the scales of int8 and NF4 follow
 * from whole tensors.  Ranks that own nothing make the call, too.  x NULL: this rank has no values, and all ranks fail.
 */
static inline bool vfm_param_put_is_collective(const struct vfm_param *p)
{
	return p->stored == VFM_FROZEN_INT8 || p->stored == VFM_FROZEN_NF4;
}
/* Returns the address of these elements in the array, or NULL if the array does not store them as f32.  The caller must
 * have called vfm_params_wait since the last update. */
const float *vfm_param_at(const struct vfm_params *ps, const struct vfm_array *a, const struct vfm_param *p);

#endif
