/* cuda_dev.h - the CUDA device as its own .c files see it.  CUDA headers come in here. */
#ifndef VFM_CUDA_CUDA_DEV_H
#define VFM_CUDA_CUDA_DEV_H

#include <cuda_runtime_api.h>

#include "cuda/cuda_int.h"

struct vfm_cuda_gemm; /* gemm.c: cuBLASLt's handle, what it found out about shapes */
struct vfm_cuda_attn; /* attn.c: cuDNN's handle, plans by shape */

struct vfm_cuda {
	struct vfm_dev dev; /* first */
	int ordinal;        /* of the CUDA runtime */
	int sm;             /* 90: compute capability 9.0 */
	int n_sm;           /* multiprocessors */
	int local_size;     /* ranks on this node, as in vfm_plugin_opts */
	bool deterministic;
	/* VFM_CUDA_SYNC=1: the host waits behind every op, so that a fault names the op that made it */
	bool sync;
	struct vfm_cuda_sys *sys;                                                 /* cuda_sys.h */
	void (*warn)(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* NULL: nobody listens */
	struct vfm_cuda_gemm *gemm;                                               /* both NULL until their first use */
	struct vfm_cuda_attn *attn;
};

static inline struct vfm_cuda *vfm_cuda_of(const struct vfm_stream *s)
{
	return (struct vfm_cuda *)s->dev;
}

/* A library took so many bytes from the system for `what`, or gave them back: they stand beside the pool's in what is
 * said when memory is out. */
void vfm_cuda_mem_lent(struct vfm_stream *s, const char *what, int64_t bytes);

cudaStream_t vfm_cuda_stream(struct vfm_stream *s);
/* 0, or VFM_EENV: "gemm: an illegal memory access was encountered". */
int vfm_cuda_check(cudaError_t e, const char *what, struct vfm_err *err);

/* Whether what is put on the stream now is written down for a graph; and refuses what has no place there: 0 outside of
 * graphs, else VFM_EENV.  first: it would have one if it had been done before, outside. */
bool vfm_cuda_captured(const struct vfm_cuda *c, cudaStream_t st);
int vfm_cuda_refuse(struct vfm_cuda *c, cudaStream_t st, const char *what, bool first, struct vfm_err *err);

/* Called when nothing runs any more and the streams of others are gone, while memory is still there. */
void vfm_cuda_gemm_free(struct vfm_cuda_gemm *g) __attribute__((weak));
void vfm_cuda_attn_free(struct vfm_cuda_attn *a) __attribute__((weak));

/* Page-locked, staged and mapped memory, NVTX ranges (VFM_NVTX=1): cuda_dev.c.  "cache/gemm-….jsonl" of this user:
 * $VFM_CACHE_DIR, $XDG_CACHE_HOME/vfm or ~/.cache/vfm; NULL where there is none. */
char *vfm_cuda_cache_path(const char *file); /* malloc'ed; the folder is there then */
void vfm_cuda_range_push(const char *name);
void vfm_cuda_range_pop(void);

#endif
