/* cuda_copy.h - copies, and pinned memory of the host. */
#ifndef VFM_DEVICE_CUDA_CUDA_COPY_H
#define VFM_DEVICE_CUDA_CUDA_COPY_H

#include "device/cuda/cuda_dev.h"

struct vfm_cuda_staged;

void *vfm_cuda_alloc_host(struct vfm_dev *d, size_t bytes, const char *what, struct vfm_err *err);
void vfm_cuda_free_host(struct vfm_dev *d, void *p, size_t bytes);
int vfm_cuda_to_device(struct vfm_stream *s, void *dst, const void *host, size_t bytes, struct vfm_err *err);
int vfm_cuda_to_host(struct vfm_stream *s, void *host, const void *src, size_t bytes, struct vfm_err *err);
int vfm_cuda_zero(struct vfm_stream *s, void *dst, size_t bytes, struct vfm_err *err);
void vfm_cuda_staged_free(struct vfm_cuda_staged *g);

#endif
