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
 * Vectors are updated on the compute stream, because vfm_params_grad_begin zeroes their gradients; other updates may
 * overlap the next forward.  Code that reads weights or owned arrays outside of units calls vfm_params_wait.
 *
 * "Collective", as forwards and backwards are: all ranks of the pp stage make the same calls in the same order
 * (grad_end: all ranks of the job).
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
	int64_t off, n; /* first element of the local tensor in the local array, and its number of elements */
	/* operand of the ops: the value in the compute dtype (vectors: f32), the gradient in f32.  An op of the
	 * backward reads var.v then and does not keep it, because fsdp gathers weights for each unit.  No views of a
	 * matrix. */
	struct vfm_var var;
	bool bias;                       /* of a linear layer; set before vfm_params_alloc */
	bool fp8;                        /* the weight of a linear layer that may multiply in fp8 */
	bool may_be_mxfp8;               /* frozen, and may be stored as MXFP8 (vfm_param_allow_mxfp8) */
	bool mxfp8;                      /* it is stored so */
	bool frozen;                     /* has no gradient */
	bool adapter;                    /* of a linear layer (struct vfm_linear), not of the base model */
	const struct vfm_fp8_past *past; /* fp8 with delayed scaling (scales.h); else NULL */
	struct vfm_param_stack *stack;   /* NULL: none */
	struct vfm_params *ps;
};

/* Parameters one after another in memory, which are one operand: matrices [rows, cols] as [sum of rows, cols], vectors
 * as a vector.  Their variables are views of var. */
struct vfm_param_stack {
	struct vfm_var var;
	struct vfm_param **p; /* [n] */
	int n;
};

enum vfm_sharding {
	VFM_SHARDING_NONE,  /* no sharding: the shard is the whole bucket */
	VFM_SHARDING_STATE, /* shards optimizer state; weights and gradients are full */
	VFM_SHARDING_FULL,  /* shards weights and gradients as well; they are full only while their unit runs */
};

struct vfm_param_bucket {
	bool matrix, bias, expert, tp_sum,
		all_pp_stages; /* bias: of linear layers, in a compute dtype other than f32 */
	bool frozen, mxfp8;
	enum vfm_sharding sharding;
	int first_unit, last_unit;
	struct vfm_comm *shard, *replica; /* of gradients; groups of one without sharding, without replicas */
	struct vfm_comm *gather;          /* of weights: the ranks of shard */
	int64_t off, n;                   /* first element in the local array; elements, padding included */
	int64_t own, own_n;               /* this rank's shard: elements [own, own + own_n) of the bucket */
	int64_t own_off;    /* first element of the shard in the owned arrays; frozen: among all frozen shards */
	int64_t master_off; /* the same in params.master, or in params.master_lo for split masters */
	/* the first of the tp ranks (if tp_sum), of the pp stages (if all_pp_stages) and, frozen without fsdp, of the
	 * shard group, that hold the same values */
	bool first;
	bool counts_norm; /* `first`, and the first replica: the only rank that adds this shard to the gradient norm */
	float *g;         /* device [own_n]: gradient of the shard */
	/* device [own_n]: the shard in the compute dtype, written by the optimizer, or frozen; NULL: no such copy.
	 * MXFP8: bytes [own_n + own_n / 32] */
	void *w;
	/* private to param*.c */
	char *full;           /* weights of the whole bucket; NULL: in a unit's buffer */
	float *grad;          /* gradients of the whole bucket; NULL: in a unit's buffer */
	int64_t buf_off;      /* first element in its unit's buffer of gradients */
	int64_t w_off;        /* first byte in its unit's buffer of gathered weights */
	int64_t mx_off;       /* MXFP8: first element in its unit's buffer of dequantized weights */
	struct vfm_param **p; /* [n_p], by offset */
	int n_p;
	int units;      /* with parameters in this bucket */
	int units_left; /* units whose last backward of the step is outstanding */
	bool g_begun, reducing;
	bool updating, gathering; /* its update on another stream, its all-gather: the compute stream has not waited */
	struct vfm_event *reduced, *ready; /* ready: of the newer of the two */
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
	struct vfm_tuning tuning; /* set before parameters are declared; zeros: all are trained */
	bool all_pp_stages;       /* of the next declarations */
	struct vfm_err bad;       /* the first description that does not divide, or layer that can have no adapter */
	int64_t n_flat;           /* elements of the local array, padding included */
	int64_t n_own;            /* elements of the owned arrays */
	int64_t n_frozen;         /* elements of the frozen shards */
	int64_t n_values;         /* parameters in the local array, without padding */
	enum vfm_dtype dtype;     /* compute dtype of matrices */
	struct vfm_param_bucket *bucket;
	int n_buckets, n_trained;  /* buckets [0, n_trained) are trained, the others frozen */
	bool fp8;                  /* linear layers of blocks multiply in fp8; may change between steps */
	struct vfm_scales *scales; /* delayed scaling (scales.h); NULL: current scaling */
	bool split;                /* split masters; set before vfm_params_alloc, dtype must be bf16 */
	float *master;             /* device [n_master]; n_master is n_own without split */
	int16_t *master_lo;        /* device [n_master_lo]: low 16 bits of split masters */
	int64_t n_master, n_master_lo;
	/* device: full gradients of all buckets but VFM_SHARDING_FULL, then the shards of the latter.  NULL: none.
	 * Without sharding [n_flat], with the offsets of the local array. */
	float *grad;
	/* device [1] f64: after grad_end, the sum of the squares of the gradients that this rank counts */
	struct vfm_tensor sumsq;
	int early; /* buckets whose reduction started before the end of the step (for tests and reports) */
	bool held; /* see vfm_params_hold */
	/* private to param*.c */
	int64_t n_grad;
	char *copy; /* weights for the ops, unless those are the masters */
	size_t copy_bytes;
	struct vfm_comm_mem copy_mem, grad_mem; /* of copy, grad */
	struct vfm_unit_buf {
		struct vfm_comm_mem mem;
		bool used;
	} w_buf[2], g_buf[2]; /* permanent unit buffers; absent without memory of the communication library */
	bool registered;      /* the buffers, with the groups */
	struct vfm_comm_mem node_scratch; /* of sums in two levels (vfm_mesh_nodes) */
	struct vfm_unit *unit;
	struct vfm_event *fork;
	int pending, last_unit, last_dir; /* -1: none */
	int updating, gathering;          /* buckets in these states */
	int unit_gathers;                 /* units whose weights the compute stream has not waited for */
	int *reduced, n_reduced;          /* buckets in the order of their reductions in this step */
	int64_t packs;
	bool hooks;
};

/* The mesh must outlive ps. */
void vfm_params_init(struct vfm_params *ps, struct vfm_stream *s, const struct vfm_mesh *mesh);
void vfm_params_release(struct vfm_params *ps);

/* Declares a parameter of the given global shape.  The pointer stays valid.  Units must not decrease from call to call.
 * If a dimension does not divide, vfm_params_alloc fails. */
struct vfm_param *vfm_param_add(struct vfm_params *ps, int unit, const struct vfm_pdesc *shape_and_cut,
	enum vfm_init init, float std, const char *name_fmt, ...) __attribute__((format(printf, 6, 7)));
/* Sets whether all pp stages hold the parameters declared from here on (default: no).  Their unit runs once a
 * chunk; other units run once a pack. */
void vfm_params_all_pp_stages(struct vfm_params *ps, bool on);
/* Makes n parameters one operand and returns its variable, which is valid after vfm_params_alloc.  They are declared in
 * one unit without others of their bucket between them, and are neither cut nor, if n > 1, sharded by fsdp. */
struct vfm_var *vfm_params_stack(struct vfm_params *ps, struct vfm_param *const *p, int n);
/* Lets a matrix be stored as MXFP8 if it is frozen and the tuning asks for it.  Call before vfm_params_alloc. */
void vfm_param_allow_mxfp8(struct vfm_param *p);
/* Returns the bytes that all ranks together take to store a frozen parameter, without copies, if the compute dtype is
 * dt. */
int64_t vfm_param_frozen_bytes(const struct vfm_param *p, enum vfm_dtype dt);
struct vfm_param *vfm_param_find(const struct vfm_params *ps, const char *name);

/* Lays out and allocates the arrays (local).  with_grad false: for sampling. */
int vfm_params_alloc(struct vfm_params *ps, enum vfm_dtype dtype, bool with_grad, struct vfm_err *err);
/* Sets the initial values, which depend on (seed, name, global element index) only.  Collective. */
int vfm_params_fill(struct vfm_params *ps, uint64_t seed, struct vfm_err *err);
/* For tests and benchmarks: sets values without zeros that keep outputs about as large as inputs, so that every
 * gradient is exercised.  Collective. */
int vfm_params_fill_dense(struct vfm_params *ps, uint64_t seed, struct vfm_err *err);

/* Makes the weights follow the masters.  begin waits for the last updates and drops gathered weights. updated is called
 * once for each bucket: s writes the masters of bucket i until now; it starts the all-gather of the bucket on
 * mesh->gather_stream. cast false: the optimizer has already written the shards in the compute dtype (vfm_bucket.w).
 * end starts the all-gather of the next unit.  Collective. */
int vfm_params_update_begin(struct vfm_params *ps, struct vfm_err *err);
int vfm_params_updated(struct vfm_params *ps, int i, struct vfm_stream *s, bool cast, struct vfm_err *err);
int vfm_params_update_end(struct vfm_params *ps, struct vfm_err *err);
/* Makes the compute stream wait for all updates and all-gathers of buckets (local). */
int vfm_params_wait(struct vfm_params *ps, struct vfm_err *err);
/* All of these for masters that are written, with the cast; the compute stream waits for the all-gathers.  Collective.
 */
int vfm_params_refresh(struct vfm_params *ps, struct vfm_err *err);

/* Promises that ops find the same weights from here on until vfm_params_update_begin, which ends the promise.  Devices
 * may then keep copies of matrices in a layout of their own (device/ops/tensor.h), which pays if several forwards or
 * backwards follow.  The caller does not write to weights otherwise.  Matrices gathered for each unit are not held.
 * Local. */
void vfm_params_hold(struct vfm_params *ps);

/* Code between begin and end uses the parameters of one unit: an embedder, a block with its region, the head.  With
 * fsdp, the weights of the unit are gathered at begin and dropped after end, in the forward and in the backward, and
 * its gradients are reduced after its backward.  Otherwise its gradients belong to a bucket, whose reduction overlaps
 * with the backward of the step's last pack.  Units do not nest. */
void vfm_unit_begin(struct vfm_tape *t, struct vfm_params *ps, int unit);
void vfm_unit_end(struct vfm_tape *t, struct vfm_params *ps, int unit);

/* Returns the bytes that gathered weights and gradients of units, and dequantized weights, take from the device at most
 * during a step, beyond the bytes already allocated; 0 without fsdp and MXFP8. */
double vfm_params_unit_bytes(const struct vfm_params *ps);
/* Returns the bytes of the gradients of the largest unit; 0 without fsdp.  Each unit whose gradients of weights are
 * deferred has them. */
double vfm_params_unit_grad_bytes(const struct vfm_params *ps);

/* Starts a step: drops all gradients (local). */
int vfm_params_grad_begin(struct vfm_params *ps, struct vfm_err *err);
/* Announces the number of backwards of each chunk in this step (local).  The caller calls it before the last of them
 * begins.  Without it no reduction starts before vfm_params_grad_end. */
void vfm_params_set_packs(struct vfm_params *ps, int64_t packs);
/* Save and restore which parameters have gradients, has_grad [ps->n] (local).  For a pack that is enqueued a second
 * time because none of its first enqueued work ran.  Only valid if all gradients stay on this rank. */
void vfm_params_save_grad_flags(const struct vfm_params *ps, bool *has_grad);
void vfm_params_restore_grad_flags(struct vfm_params *ps, const bool *has_grad);
/* Ends the gradients of a step, after the last backward.  Gradients without contributions are zeroed; owned gradients
 * become sums over the job.  Collective. */
int vfm_params_grad_end(struct vfm_params *ps, struct vfm_err *err);

/* The elements of a parameter that this rank owns: [a, b) of the local tensor (a == b: none), stored at [at, at + b -
 * a) of the owned arrays, or among all frozen shards.  g: their gradients, or NULL.  writes: this rank writes them to
 * checkpoints.  Exactly one of the ranks with the same elements does; replicas divide the elements among themselves. */
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
	float *scale; /* of u8: [vfm_params_blocks8], each bucket's from vfm_bucket_block8 on; its shard starts a block
		       */
	bool is_signed; /* of u8 */
};
/* Returns the scales of a u8 array, and the first of them that belongs to bucket i. */
int64_t vfm_params_blocks8(const struct vfm_params *ps);
int64_t vfm_bucket_block8(const struct vfm_params *ps, int i);
/* Copy the owned elements [a, b) of a parameter (vfm_owned) out of an owned array into x [b - a] f32, or from x into
 * the array, which is not u8 then.  a NULL: the masters; after a put into them the caller calls vfm_params_refresh.
 * Local, ordered by the compute stream.  x: device memory or memory of alloc_host.  For an f32 array, except split
 * masters, x may be any host memory. */
int vfm_param_get(
	struct vfm_params *ps, const struct vfm_array *a, const struct vfm_param *p, float *x, struct vfm_err *err);
int vfm_param_put(struct vfm_params *ps, const struct vfm_array *a, const struct vfm_param *p, const float *x,
	struct vfm_err *err);
/* Returns the address of these elements in the array, or NULL if the array does not store them as f32.  The caller
 * has called vfm_params_wait since the last update. */
const float *vfm_param_at(const struct vfm_params *ps, const struct vfm_array *a, const struct vfm_param *p);

#endif
