/* cudnn_graph.h - a graph of operations, made into an execution plan by cuDNN's backend API.
 *
 *	struct vfm_dnn_graph *g = vfm_dnn_new(&on);
 *	vfm_dnn_t x = vfm_dnn_tensor(g, CUDNN_DATA_FLOAT, dim, stride, VFM_DNN_DEVICE, 0);
 *	vfm_dnn_t y = vfm_dnn_pw(g, CUDNN_POINTWISE_EXP, x, 0, 0);	an intermediate result
 *	vfm_dnn_pw(g, CUDNN_POINTWISE_LOG, y, 0, z);			into a tensor that there is
 *	rc = vfm_dnn_build(g, deterministic, &err);			also says what went wrong above
 *	rc = vfm_dnn_run(g, stream, bind, n, workspace, &err);
 *
 * While a graph is built the first failure is kept, what follows does nothing, and vfm_dnn_build returns it.  All
 * tensors have four dimensions; sums are in f32.  A graph belongs to the thread of its device.  Local.
 */
#ifndef VFM_CUDA_CUDNN_GRAPH_H
#define VFM_CUDA_CUDNN_GRAPH_H

#include <cudnn_graph.h>
#include <stdbool.h>

#include "base/err.h"

/* Whom plans are for: a device's handle, or a description of a device that is not there (plans can be built, but not
 * run). */
struct vfm_dnn_on {
	cudnnHandle_t handle;
	cudnnBackendDescriptor_t devprop;
};
/* From the JSON that cuDNN writes of a device's properties. */
int vfm_dnn_on_devprop(struct vfm_dnn_on *on, const char *json, size_t len, struct vfm_err *err);
void vfm_dnn_on_release(struct vfm_dnn_on *on); /* the description; the handle is the caller's */

/* 0, or VFM_EENV with cuDNN's name for the status and the last thing it said. */
int vfm_dnn_check(cudnnStatus_t st, const char *what, struct vfm_err *err);

struct vfm_dnn_graph;
typedef int vfm_dnn_t; /* a tensor of a graph; 0: none */

struct vfm_dnn_graph *vfm_dnn_new(const struct vfm_dnn_on *on);
void vfm_dnn_free(struct vfm_dnn_graph *g); /* NULL is fine; nothing on any stream uses it */

enum vfm_dnn_kind {
	VFM_DNN_DEVICE,  /* memory of the device, bound when the plan runs */
	VFM_DNN_HOST,    /* one number in host memory, read when the plan is run */
	VFM_DNN_VIRTUAL, /* an intermediate result */
};
/* ragged: a tensor [b+1] of i64 with the first element of each entry of the batch, instead of the batch's stride. */
vfm_dnn_t vfm_dnn_tensor(struct vfm_dnn_graph *g, cudnnDataType_t dt, const int64_t dim[4], const int64_t stride[4],
	enum vfm_dnn_kind kind, vfm_dnn_t ragged);
/* Contiguous. */
vfm_dnn_t vfm_dnn_tensor4(struct vfm_dnn_graph *g, cudnnDataType_t dt, int64_t a, int64_t b, int64_t c, int64_t d,
	enum vfm_dnn_kind kind);

/* Operations.  `y` 0: a virtual f32 tensor of x's dimensions (of the product's, of x's with the last one 1) comes into
 * being.  They return y. */
vfm_dnn_t vfm_dnn_pw(struct vfm_dnn_graph *g, cudnnPointwiseMode_t mode, vfm_dnn_t x, vfm_dnn_t b, vfm_dnn_t y);
/* y [i32] = the index along `axis` of each element of x; y = a < b, y = a and b [bool]; y = x where `keep`, else b. */
vfm_dnn_t vfm_dnn_index(struct vfm_dnn_graph *g, vfm_dnn_t x, int axis);
vfm_dnn_t vfm_dnn_logic(struct vfm_dnn_graph *g, cudnnPointwiseMode_t mode, vfm_dnn_t a, vfm_dnn_t b);
vfm_dnn_t vfm_dnn_select(struct vfm_dnn_graph *g, vfm_dnn_t keep, vfm_dnn_t x, vfm_dnn_t b);
vfm_dnn_t vfm_dnn_reduce(struct vfm_dnn_graph *g, cudnnReduceTensorOp_t mode, vfm_dnn_t x, vfm_dnn_t y);
vfm_dnn_t vfm_dnn_reshape(struct vfm_dnn_graph *g, vfm_dnn_t x, vfm_dnn_t y);
/* y = a b for each of the first two dimensions (b's second may divide a's).  m, n, k: how much of these dimensions
 * there is, by batch, or 0. */
struct vfm_dnn_mnk {
	vfm_dnn_t m, n, k;
	bool zero_rest; /* what is beyond reads as 0 */
};
vfm_dnn_t vfm_dnn_matmul(struct vfm_dnn_graph *g, vfm_dnn_t a, vfm_dnn_t b, struct vfm_dnn_mnk len, vfm_dnn_t y);

/* The first plan that cuDNN's heuristics offer and that can be finished.  deterministic: only engines that give the
 * same bits each time. */
int vfm_dnn_build(struct vfm_dnn_graph *g, bool deterministic, struct vfm_err *err);

struct vfm_dnn_facts {     /* of a graph that was built */
	int64_t workspace; /* bytes */
	int64_t engine;
	int configs, tried; /* offered by the heuristics; until one could be finished */
	int ops;
};
struct vfm_dnn_facts vfm_dnn_facts(const struct vfm_dnn_graph *g);

struct vfm_dnn_bind {
	vfm_dnn_t t; /* 0: left out */
	void *p;
};
int vfm_dnn_run(struct vfm_dnn_graph *g, cudaStream_t s, const struct vfm_dnn_bind *b, int n, void *workspace,
	struct vfm_err *err);

#endif
