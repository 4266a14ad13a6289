/* cudnn_graph.h - a graph of operations, made into an execution plan by cuDNN's backend API.
 *
 *	struct vfm_dnn_graph *g = vfm_dnn_new(&on);
 *	vfm_dnn_t x = vfm_dnn_tensor(g, CUDNN_DATA_FLOAT, dim, stride, VFM_DNN_DEVICE, 0);
 *	vfm_dnn_t y = vfm_dnn_pw(g, CUDNN_POINTWISE_EXP, x, 0, 0);	an intermediate result
 *	vfm_dnn_pw(g, CUDNN_POINTWISE_LOG, y, 0, z);			into a tensor that there is
 *	rc = vfm_dnn_build(g, true, 1, &err);		also says what went wrong above
 *	rc = vfm_dnn_run(g, 0, stream, bind, n, workspace, &err);
 *
 * The first failure while a graph is built is kept: the following calls are no-ops, and vfm_dnn_build returns it.
 * Tensors have four dimensions, except images; sums are in f32.  A graph belongs to the thread of its device. 
 * Local.
 */
#ifndef VFM_DEVICE_CUDA_CUDNN_GRAPH_H
#define VFM_DEVICE_CUDA_CUDNN_GRAPH_H

#include <cudnn_graph.h>
#include <stdbool.h>

#include "base/err.h"

/* The target of plans: a handle of a device, or a description of an absent device, whose plans can be built but not
 * run. */
struct vfm_dnn_on {
	cudnnHandle_t handle;
	cudnnBackendDescriptor_t devprop;
};

/* Returns 0, or VFM_EENV with the name of the status and the last message of cuDNN. */
int vfm_dnn_check(cudnnStatus_t st, const char *what, struct vfm_err *err);

struct vfm_dnn_graph;
typedef int vfm_dnn_t; /* a tensor of a graph; 0: none */

struct vfm_dnn_graph *vfm_dnn_new(const struct vfm_dnn_on *on);
void vfm_dnn_free(struct vfm_dnn_graph *g); /* no-op for NULL; no stream may use the graph any more */

enum vfm_dnn_kind {
	VFM_DNN_DEVICE,  /* device memory, bound at each run */
	VFM_DNN_HOST,    /* one value in host memory, read at each run */
	VFM_DNN_VIRTUAL, /* an intermediate result */
};
/* ragged: a tensor [b+1] of i64 with the first element of each batch entry, which replaces the batch stride. */
vfm_dnn_t vfm_dnn_tensor(struct vfm_dnn_graph *g, cudnnDataType_t dt, const int64_t dim[4], const int64_t stride[4],
	enum vfm_dnn_kind kind, vfm_dnn_t ragged);
/* A contiguous tensor. */
vfm_dnn_t vfm_dnn_tensor4(struct vfm_dnn_graph *g, cudnnDataType_t dt, int64_t a, int64_t b, int64_t c, int64_t d,
	enum vfm_dnn_kind kind);

/* Operations.  They return y.  y = 0 creates a virtual f32 tensor with the dimensions of x (of the product; of x with
 * the last one 1). */
vfm_dnn_t vfm_dnn_pw(struct vfm_dnn_graph *g, cudnnPointwiseMode_t mode, vfm_dnn_t x, vfm_dnn_t b, vfm_dnn_t y);
/* y [i32] = the index along `axis` of each element of x; y = a < b, y = a and b [bool]; y = x where `keep`, else b. */
vfm_dnn_t vfm_dnn_index(struct vfm_dnn_graph *g, vfm_dnn_t x, int axis);
vfm_dnn_t vfm_dnn_logic(struct vfm_dnn_graph *g, cudnnPointwiseMode_t mode, vfm_dnn_t a, vfm_dnn_t b);
vfm_dnn_t vfm_dnn_select(struct vfm_dnn_graph *g, vfm_dnn_t keep, vfm_dnn_t x, vfm_dnn_t b);
vfm_dnn_t vfm_dnn_reduce(struct vfm_dnn_graph *g, cudnnReduceTensorOp_t mode, vfm_dnn_t x, vfm_dnn_t y);
vfm_dnn_t vfm_dnn_reshape(struct vfm_dnn_graph *g, vfm_dnn_t x, vfm_dnn_t y);
/* y = a b for each pair of the first two dimensions (the second of b may divide that of a).  m, n, k: the valid sizes
 * of these dimensions for each batch entry, or 0. */
struct vfm_dnn_mnk {
	vfm_dnn_t m, n, k;
	bool zero_rest; /* elements beyond them read as 0 */
};
vfm_dnn_t vfm_dnn_matmul(struct vfm_dnn_graph *g, vfm_dnn_t a, vfm_dnn_t b, struct vfm_dnn_mnk len, vfm_dnn_t y);

/* O = softmax(scale Q K^T) V and its lse, as one operation; q, k, v, o are [b, h, s, d].  Available since cuDNN
 * 9.15. */
struct vfm_dnn_sdpa {
	vfm_dnn_t q, k, v, o, lse, scale;
	vfm_dnn_t len_q, len_k; /* or 0 */
};
void vfm_dnn_sdpa(struct vfm_dnn_graph *g, const struct vfm_dnn_sdpa *x);

enum { VFM_DNN_PLANS = 4 };
/* Builds the first plans of cuDNN's heuristics, at most `most`, that can be finalized.  deterministic: excludes engines
 * that add in a varying order.  All plans are of one mode of the heuristics, since modes A and B of cuDNN 9 list the
 * same engines and knobs for attention. */
int vfm_dnn_build(struct vfm_dnn_graph *g, bool deterministic, int most, struct vfm_err *err);
/* Makes plan i the only one; cudnn_attn.h chooses it by time. */
void vfm_dnn_use(struct vfm_dnn_graph *g, int i);

struct vfm_dnn_facts {     /* of a built graph */
	int64_t workspace; /* bytes, for the largest plan */
	int64_t engine;    /* of the first plan */
	int plans;
	int configs, tried; /* configurations offered by the heuristics, and tried */
	int ops;
};
struct vfm_dnn_facts vfm_dnn_facts(const struct vfm_dnn_graph *g);

struct vfm_dnn_bind {
	vfm_dnn_t t; /* 0: omitted */
	void *p;
};
/* Enqueues a plan; 0 is the first. */
int vfm_dnn_run(struct vfm_dnn_graph *g, int plan, cudaStream_t s, const struct vfm_dnn_bind *b, int n, void *workspace,
	struct vfm_err *err);

#endif
