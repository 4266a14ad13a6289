/* cudnn_tune.h - choice among the plans of a graph by time. */
#ifndef VFM_DEVICE_CUDA_CUDNN_TUNE_H
#define VFM_DEVICE_CUDA_CUDNN_TUNE_H

#include "device/cuda/cudnn_graph.h"
#include "device/dev/dev.h"

/* Runs each plan of g several times with the operands of a call, whose outputs are overwritten, and keeps the fastest
 * (vfm_dnn_use).  Another than cuDNN's first must be 3 % faster.  Plans that cuDNN refuses to run are dropped; if it
 * refuses all, the first is kept.  Blocks the host.  Returns a failure of the device. */
int vfm_dnn_tune(struct vfm_stream *s, struct vfm_dnn_graph *g, const struct vfm_dnn_bind *b, int n, void *workspace,
	struct vfm_err *err);

#endif
