/* cuda_graph.h - captured graphs. */
#ifndef VFM_DEVICE_CUDA_CUDA_GRAPH_H
#define VFM_DEVICE_CUDA_CUDA_GRAPH_H

#include "device/cuda/cuda_dev.h"

struct vfm_cuda_graphs;

int vfm_cuda_graph_begin(struct vfm_stream *s, struct vfm_err *err);
int vfm_cuda_graph_end(struct vfm_stream *s, bool run, struct vfm_err *err);
void vfm_cuda_graphs_free(struct vfm_cuda_graphs *g);

/* vfm_cuda_captured: whether the stream is being captured into a graph.  vfm_cuda_refuse: returns 0 outside of a
 * capture, else VFM_EENV, for work that cannot be captured.  first: it could be if it had run before the capture. */
bool vfm_cuda_captured(const struct vfm_cuda *c, cudaStream_t st);
int vfm_cuda_refuse(struct vfm_cuda *c, cudaStream_t st, const char *what, bool first, struct vfm_err *err);

#endif
