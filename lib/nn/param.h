/* param.h - the parameters of a model, each described once.
 *
 * A description (spec/shard.h: global name, global shape, cut per mesh axis) plus how it starts. From it follow
 * initialisation, who reduces which gradient with whom, optimizer ranges, checkpoint slices and the memory count.
 *
 * The local array: what the tp and ep coordinates leave of every parameter, laid out one after the other. It is
 * made of *sections*, in each of which all parameters are treated alike: matrices or vectors, dense or experts,
 * summed over tp or not, held by one stage or by all. A section spans the units (embedders, each block, head) of a
 * gradient bucket; with fsdp, matrices have a section for every unit. It is padded so that its shards over the
 * section's shard group are equal and aligned.
 *
 * Owned arrays (master, and the optimizer's m, v, ema) hold this rank's shards alone, one section after the other;
 * without sharding that is the local array.
 *
 * With `split` the masters of matrices are in two halves (vfm_master_split): the shard's weight in bf16, and 16 bits
 * more in `lo`; `master` then holds vectors alone.  The values are the same, to the bit.
 *
 * What ops read. Matrices are computed with in `dtype` and decay; vectors (biases, norm weights) stay f32 and do
 * not. Where state is not sharded the weights are the masters themselves, or a copy in the compute dtype; where it
 * is, they are gathered from the shards, after an update (distopt, and all vectors) or for the time of a unit
 * (matrices with fsdp: outside of their unit they have no memory. An op of the backward must therefore read
 * p->var.v then, and not keep it; views of a matrix are out. Their gradient has memory from the first contribution
 * of a backward to the end of the unit's part in it).
 *
 * Gradients are f32. Every rank computes with data of its own (tp cuts the tokens of the residual stream, cp and
 * dp the samples, pp the layers), so what a rank has is a partial sum, and one rule is all there is: the gradient
 * of a parameter is summed over every axis along which the parameter is not cut (over pp: if all stages hold it).
 * What would be counted twice must be computed by one rank alone: the bias of a row-split linear layer is added by
 * tp rank 0. Sums are made on mesh->side beside the backward, over the shard group (reduce-scatter), then tp, then
 * the replicas, in a fixed order.
 *
 * What collectives work on all the time is memory of their library's kind where it has one, and known to the groups
 * (vfm_comm_mem): the weights that ops read where they are not the masters, gradients, and with fsdp the buffers of
 * units.  Of these two stand for weights and two for gradients, as large as the largest unit's: that many are in use at
 * a time (but for deferred weight gradients, which find more in the pool), so they cost no more than buffers that come
 * and go, except beside the first unit of a backward.  Groups of pp are left out: the stages' arrays differ, and NCCL
 * wants an operand at the same place everywhere.
 *
 * A step:
 *	vfm_params_grad_begin(ps, err);
 *	vfm_params_grad_packs(ps, n);       // optional: lets reductions begin before the end
 *	n times a forward and a backward of each chunk
 *	vfm_params_grad_end(ps, err);       // collective
 *	an update of the masters, vfm_params_publish(ps, false, err)
 *
 * "Collective" here: over the ranks of the stage (grad_end: of the job), which all make the same calls in the same
 * order; so do the forwards and backwards.
 */
#ifndef VFM_NN_PARAM_H
#define VFM_NN_PARAM_H

#include "grad/tape.h"
#include "mesh/mesh.h"
#include "spec/shard.h"

enum vfm_init { VFM_INIT_ZERO, VFM_INIT_ONE, VFM_INIT_NORMAL };

struct vfm_param {
	char name[96];
	struct vfm_pdesc d;   /* d.name is name; global shape and cuts (tp, ep) */
	struct vfm_part part; /* what this rank's coordinates leave of it: the local tensor */
	bool all_stages;      /* held by every pipeline stage: its gradient is summed over pp */
	enum vfm_init init;
	float std; /* of VFM_INIT_NORMAL */
	int unit;
	int section;
	int64_t off, n;                  /* place of the local tensor in the local array, elements */
	struct vfm_var var;              /* what the ops read: the value in the compute dtype, the gradient f32 */
	bool fp8;                        /* the weight of a linear layer that may be in fp8 */
	const struct vfm_fp8_past *past; /* of such a layer with delayed scaling (scales.h), or NULL */
	struct vfm_params *ps;
};

enum vfm_hold {
	VFM_HOLD_OWN,    /* the shard is all of the section */
	VFM_HOLD_WHOLE,  /* weights and gradients are whole, state is a shard */
	VFM_HOLD_GATHER, /* weights and gradients are whole only while their unit runs */
};

struct vfm_section {
	bool matrix, expert, tp_sum, all_stages;
	enum vfm_hold hold;
	int first_unit, last_unit;
	struct vfm_comm *shard, *replica; /* groups of one where there is nothing to do */
	int64_t off, n;                   /* place in the local array, padding included */
	int64_t own, own_n;               /* this rank's shard: elements [own, own + own_n) of the section */
	int64_t own_off;                  /* its place in the owned arrays */
	int64_t master_off;               /* its place in params.master, or with split and matrices in params.lo */
	/* of the tp ranks (summed over tp) and stages (held by all) with the same values, this is the first */
	bool first;
	bool counts; /* and the first replica: the one rank that counts this shard's norm */
	float *g;    /* device [own_n]: the shard's gradient */
	/* device [own_n]: the shard in the compute dtype, where that is not the master's; NULL: nothing to write there
	 */
	void *w;
	/* private to param*.c */
	char *full;           /* weights of the whole section; NULL: the masters, or a unit's buffer */
	float *grad;          /* gradients of the whole section; NULL: a unit's buffer */
	int64_t buf_off;      /* place in its unit's buffers, elements */
	struct vfm_param **p; /* [n_p], in the order of their place */
	int n_p;
	int units, left; /* with parameters here; of these, whose last backward of the step has not passed */
	bool g_begun, reducing, fetching;
	struct vfm_event *reduced, *fetched;
};

struct vfm_unit;
struct vfm_scales;

struct vfm_params {
	struct vfm_stream *stream;
	const struct vfm_mesh *mesh;
	struct vfm_param **p; /* in the order of their declaration */
	size_t n, cap;
	int units;
	bool all_stages;      /* of what is declared next */
	struct vfm_err bad;   /* the first description that does not divide */
	int64_t n_flat;       /* elements of the local array, padding included */
	int64_t n_own;        /* elements of the owned arrays */
	int64_t n_values;     /* parameters of this rank's local array, padding left out */
	enum vfm_dtype dtype; /* of the matrices the ops read */
	struct vfm_section *sec;
	int n_sec;
	bool fp8;                  /* linear layers of blocks multiply in fp8; may be set at any time between steps */
	struct vfm_scales *scales; /* delayed scaling (scales.h); NULL: each tensor's own */
	bool split;                /* to be set before vfm_params_alloc; dtype must be bf16 */
	float *master;             /* device [n_master]; n_own without split */
	int16_t *lo;               /* device [n_lo]: with split, the lower halves of the matrices' masters */
	int64_t n_master, n_lo;
	/* device: of all sections but those gathered, whole; then the shards of these.  NULL: none.  Where nothing is
	 * sharded: [n_flat], with the local array's offsets */
	float *grad;
	int early; /* sections whose reduction began before the end of the step (for tests and reports) */
	/* private to param*.c */
	int64_t n_grad;
	char *copy;
	size_t copy_bytes;
	struct vfm_comm_mem copy_mem, grad_mem; /* of copy, grad */
	struct vfm_unit_buf {
		struct vfm_comm_mem mem;
		bool used;
	} w_buf[2], g_buf[2]; /* of units; none where the library has no memory of its own */
	bool known;           /* the groups know them */
	struct vfm_unit *unit;
	struct vfm_event *fork;
	int pending, last_unit, last_dir; /* -1: none */
	int fetching;
	int64_t packs;
	bool hooks;
};

/* The mesh must outlive it. */
void vfm_params_init(struct vfm_params *ps, struct vfm_stream *s, const struct vfm_mesh *mesh);
void vfm_params_release(struct vfm_params *ps);

/* Declares a parameter of the global shape; the pointer stays valid.  Units must not go down.  A dimension that does
 * not divide is remembered and fails vfm_params_alloc. */
struct vfm_param *vfm_param_add(struct vfm_params *ps, int unit, const struct vfm_pdesc *shape_and_cut,
	enum vfm_init init, float std, const char *name_fmt, ...) __attribute__((format(printf, 6, 7)));
/* The parameters declared from here on: held by all stages? (default no)  Their unit is run once a chunk, all others
 * once a pack. */
void vfm_params_all_stages(struct vfm_params *ps, bool on);
struct vfm_param *vfm_param_find(const struct vfm_params *ps, const char *name);

/* Lays out the arrays and allocates them (local).  with_grad false: for sampling. */
int vfm_params_alloc(struct vfm_params *ps, enum vfm_dtype dtype, bool with_grad, struct vfm_err *err);
/* A function of (seed, name, global element index) alone.  Collective. */
int vfm_params_fill(struct vfm_params *ps, uint64_t seed, struct vfm_err *err);
/* For tests and benchmarks: nothing is zero and outputs are about as large as inputs, so that every gradient counts.
 * Collective. */
int vfm_params_fill_dense(struct vfm_params *ps, uint64_t seed, struct vfm_err *err);

/* The weights follow the masters; gathers run on mesh->side until their unit is entered.  cast false: shards in the
 * compute dtype (vfm_section.w) have been written already, by the optimizer.  Collective. */
int vfm_params_publish(struct vfm_params *ps, bool cast, struct vfm_err *err);
/* The same with the cast, and waits for the gathers.  Collective. */
int vfm_params_refresh(struct vfm_params *ps, struct vfm_err *err);

/* A region of a model that uses the parameters of one unit (vfm_region): with fsdp, the unit's weights are gathered
 * before it and dropped after it, in the forward and in the backward, and its gradients are reduced when the backward
 * has passed; without, its gradients join a bucket that is reduced beside the backward of a step's last pack. */
struct vfm_var *vfm_unit_region(struct vfm_tape *t, struct vfm_params *ps, int unit, enum vfm_recompute mode,
	struct vfm_var *(*fn)(struct vfm_tape *t, void *ctx), void *ctx, struct vfm_var **in, int n_in);
/* The same for code between begin and end (the embedders, the head), which is never run again.  Units do not nest. */
void vfm_unit_begin(struct vfm_tape *t, struct vfm_params *ps, int unit);
void vfm_unit_end(struct vfm_tape *t, struct vfm_params *ps, int unit);

/* Start of a step: no gradient yet (local). */
int vfm_params_grad_begin(struct vfm_params *ps, struct vfm_err *err);
/* This step has so many backwards of each chunk (local).  To be called before the last of them begins; without it
 * nothing is reduced before the end. */
void vfm_params_grad_packs(struct vfm_params *ps, int64_t packs);
/* For a pack whose forward and backward are put on the device a second time, since nothing of the first ran: note
 * [ps->n] before it and go back to that.  Only where all gradients stay with this rank (local). */
void vfm_params_note(const struct vfm_params *ps, bool *has_grad);
void vfm_params_go_back(struct vfm_params *ps, const bool *has_grad);
/* After the last backward of a step: what nobody contributed to is zero, and owned gradients are the sums over the
 * job.  Collective. */
int vfm_params_grad_end(struct vfm_params *ps, struct vfm_err *err);

/* What this rank owns of a parameter: elements [a, b) of the local tensor (a == b: none), which lie at [at, at + b - a)
 * of the owned arrays; g: their gradients, NULL without.  writes: of the ranks with the same elements this one writes
 * them to checkpoints, which the replicas share among themselves. */
struct vfm_owned {
	int64_t a, b, at;
	float *g;
	bool writes;
};
struct vfm_owned vfm_param_owned(const struct vfm_params *ps, const struct vfm_param *p);

/* An owned array: [n_own] f32 or bf16, in memory that the device can address. */
struct vfm_array {
	void *data;
	enum vfm_dtype dtype;
};
/* This rank's elements [a, b) of a parameter (vfm_owned) in an owned array, as f32: x [b - a].  a NULL: the masters.
 * Local, in the order of the compute stream; after a put into the masters publish follows.  x: device memory or memory
 * of alloc_host; where the array is f32, and not the masters in halves, any host memory will do. */
int vfm_param_get(const struct vfm_params *ps, const struct vfm_array *a, const struct vfm_param *p, float *x,
	struct vfm_err *err);
int vfm_param_put(struct vfm_params *ps, const struct vfm_array *a, const struct vfm_param *p, const float *x,
	struct vfm_err *err);
/* Where these elements lie as f32; NULL: in another form. */
const float *vfm_param_at(const struct vfm_params *ps, const struct vfm_array *a, const struct vfm_param *p);

/* The owned elements of the master of one parameter from its local tensor [p->n] f32 in host memory (local; publish
 * follows). */
int vfm_param_set(struct vfm_params *ps, struct vfm_param *p, const float *host, struct vfm_err *err);

#endif
