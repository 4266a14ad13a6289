/* param.h - the parameters of a model, each described once.
 *
 * A description (spec/shard.h: global name, global shape, cut per mesh axis) plus how
 * it starts.  From it follow initialisation, checkpoint slices, optimizer ranges and the
 * memory count.  Masters and gradients lie in two flat f32 arrays with the same offsets, unit by
 * unit (embedders, each block, head: what FSDP will gather as a whole); in a unit the
 * matrices come first, then the vectors.  Matrices are computed with in `dtype` (a copy of the master when
 * that is not f32) and decay; vectors (biases, norm weights) stay f32 and do not.
 *
 * Gradients.  Every rank computes with data of its own (tp cuts the tokens of the residual stream, cp and dp
 * the samples, pp the layers), so what a rank has is a partial sum, and one rule is all there is: the gradient of a parameter is summed
 * over every axis along which it is not cut (over pp: if all stages hold it).  What would be counted twice must be computed
 * by one rank alone: the bias of a row-split linear layer is added by tp rank 0.
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
	float std;            /* of VFM_INIT_NORMAL */
	int unit;
	int64_t off, n;       /* place of the local tensor in the flat arrays, elements */
	struct vfm_var var;   /* what the ops read: the value in the compute dtype, the gradient f32 */
};

struct vfm_params {
	struct vfm_stream *stream;
	const struct vfm_mesh *mesh;
	struct vfm_param **p; /* in the order of their declaration */
	size_t n, cap;
	int units;
	bool all_stages;      /* of what is declared next */
	struct vfm_err bad;   /* the first description that does not divide */
	int64_t n_flat;       /* elements of the flat arrays, padding included */
	int64_t n_values;     /* parameters, padding left out */
	enum vfm_dtype dtype; /* of the matrices the ops read */
	float *master, *grad; /* device [n_flat] */
	void *copy;           /* device [n_flat] in dtype, or NULL when that is f32 */
};

/* The mesh must outlive it. */
void vfm_params_init(struct vfm_params *ps, struct vfm_stream *s, const struct vfm_mesh *mesh);
void vfm_params_release(struct vfm_params *ps);

/* Declares a parameter of the global shape; the pointer stays valid.  Units must not go down.  A dimension that does not divide is remembered
 * and fails vfm_params_alloc. */
struct vfm_param *vfm_param_add(struct vfm_params *ps, int unit, const struct vfm_pdesc *shape_and_cut, enum vfm_init init, float std,
	const char *name_fmt, ...) __attribute__((format(printf, 6, 7)));
/* The parameters declared from here on: held by all stages? (default no) */
void vfm_params_all_stages(struct vfm_params *ps, bool on);
struct vfm_param *vfm_param_find(const struct vfm_params *ps, const char *name);

/* Lays out the flat arrays and allocates them.  with_grad false: for sampling. */
int vfm_params_alloc(struct vfm_params *ps, enum vfm_dtype dtype, bool with_grad, struct vfm_err *err);
/* A function of (seed, name, global element index) alone. */
int vfm_params_fill(struct vfm_params *ps, uint64_t seed, struct vfm_err *err);
/* The compute copies follow the masters. */
int vfm_params_refresh(struct vfm_params *ps, struct vfm_err *err);
/* A region of a model that uses the parameters of one unit (vfm_region): with fsdp, the unit's weights are gathered before it and
 * dropped after it, in the forward and in the backward, and its gradients are reduced when the backward has passed; without, its gradients join
 * a bucket that is reduced beside the backward of a step's last pack. */
struct vfm_var *vfm_unit_region(struct vfm_tape *t, struct vfm_params *ps, int unit, enum vfm_recompute mode,
	struct vfm_var *(*fn)(struct vfm_tape *t, void *ctx), void *ctx, struct vfm_var **in, int n_in);
/* The same for code between begin and end (the embedders, the head), which is never run again. */
void vfm_unit_begin(struct vfm_tape *t, struct vfm_params *ps, int unit);
void vfm_unit_end(struct vfm_tape *t, struct vfm_params *ps, int unit);

/* Start of a step: no gradient yet. */
int vfm_params_grad_begin(struct vfm_params *ps, struct vfm_err *err);
/* After the last backward of a step: what nobody contributed to is zero. */
int vfm_params_grad_end(struct vfm_params *ps, struct vfm_err *err);

/* The ranges of the flat arrays that an optimizer treats alike: [off, off+n), with or without weight decay. */
struct vfm_param_range {
	int64_t off, n;
	bool matrix;
};
/* At most 2 a unit; returns their number, out may be NULL. */
int vfm_params_ranges(const struct vfm_params *ps, struct vfm_param_range *out);

/* Host <-> device, one parameter, f32 master. */
int vfm_param_set(struct vfm_params *ps, struct vfm_param *p, const float *host, struct vfm_err *err);

#endif
