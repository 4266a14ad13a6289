/* cuda_mem.h - the pool of device memory (device/dev/heap.h). */
#ifndef VFM_DEVICE_CUDA_CUDA_MEM_H
#define VFM_DEVICE_CUDA_CUDA_MEM_H

#include "device/cuda/cuda_dev.h"

struct vfm_cuda_mem;

struct vfm_cuda_mem *vfm_cuda_mem_new(struct vfm_cuda *c, struct vfm_err *err);
void vfm_cuda_mem_free(struct vfm_cuda_mem *m); /* no work may use the memory any more; no-op for NULL */
void *vfm_cuda_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err);
void vfm_cuda_free(struct vfm_stream *s, void *p, size_t bytes);
void vfm_cuda_trim(struct vfm_stream *s);
bool vfm_cuda_mem_holds(const struct vfm_cuda_mem *m, const void *p);

/* Records memory that a library allocated (bytes > 0) or freed for `what`, so that out-of-memory errors list it. */
void vfm_cuda_mem_lent(struct vfm_stream *s, const char *what, int64_t bytes);

#endif
