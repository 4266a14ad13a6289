/* cuda_dev.h - the CUDA device for its .c files; includes CUDA headers. */
#ifndef VFM_DEVICE_CUDA_CUDA_DEV_H
#define VFM_DEVICE_CUDA_CUDA_DEV_H

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda_impl.h"

struct vfm_cuda_gemm; /* gemm_lt.c: cuBLASLt's handle and the algorithms chosen */
struct vfm_cuda_attn; /* attn.c: cuDNN's handle and its plans by shape */
struct vfm_cuda_conv; /* conv_dnn.c: the same for convolutions */

struct vfm_cuda {
	struct vfm_dev dev; /* first */
	int ordinal;        /* of the CUDA runtime */
	int sm;             /* 90: compute capability 9.0 */
	int n_sm;           /* multiprocessors */
	int most_shared;    /* bytes of shared memory of a block that requests them */
	int local_size;     /* ranks on this node, as in vfm_plugin_opts */
	bool deterministic;
	/* VFM_CUDA_SYNC=1: the host waits after every op, so that an error names the op that caused it */
	bool sync;
	struct vfm_cuda_sys *sys;                                                 /* cuda_sys.h */
	void (*warn)(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* may be NULL */
	struct vfm_cuda_gemm *gemm; /* NULL until first used, as the next two */
	struct vfm_cuda_attn *attn;
	struct vfm_cuda_conv *conv;
};

static inline struct vfm_cuda *vfm_cuda_of(const struct vfm_stream *s)
{
	return (struct vfm_cuda *)s->dev;
}

/* Returns the device d, which must be a CUDA device, for code of other folders, which tests run on other devices. */
const struct vfm_cuda *vfm_cuda_device(const struct vfm_dev *d);

/* Accounts for memory that a library allocated (bytes > 0) or freed for `what`, so that out-of-memory errors list it.
 */
void vfm_cuda_mem_lent(struct vfm_stream *s, const char *what, int64_t bytes);

/* Whether a variable of the environment asks for something: it is set and not 0; unset or empty: def. */
static inline bool vfm_cuda_asked(const char *env, bool def)
{
	const char *v = getenv(env);

	return v && *v ? strcmp(v, "0") != 0 : def;
}

cudaStream_t vfm_cuda_stream(struct vfm_stream *s);
/* Returns 0, or VFM_EENV: "gemm: an illegal memory access was encountered". */
int vfm_cuda_check(cudaError_t e, const char *what, struct vfm_err *err);

/* vfm_cuda_captured: whether the stream is being captured into a graph.  vfm_cuda_refuse: returns 0 outside of a
 * capture, else VFM_EENV, for work that cannot be captured.  first: it could be if it had run before the capture. */
bool vfm_cuda_captured(const struct vfm_cuda *c, cudaStream_t st);
int vfm_cuda_refuse(struct vfm_cuda *c, cudaStream_t st, const char *what, bool first, struct vfm_err *err);

/* first_use.c: waits until no stream of the device has work, for at most so many seconds, and returns whether none has.
 * It does not wait for ever, because a stream may wait for another rank, and that for this host thread. */
bool vfm_cuda_idle(struct vfm_cuda *c, double most_s);

/* Called after all work and all other streams are gone, while memory still exists. */
void vfm_cuda_gemm_free(struct vfm_cuda_gemm *g) __attribute__((weak));
/* Keeps the plans for the next opening of the same device in this process. */
void vfm_cuda_attn_close(struct vfm_cuda_attn *a) __attribute__((weak));
void vfm_cuda_conv_free(struct vfm_cuda_conv *c) __attribute__((weak));

/* cuda_dev.c: the path of "cache/gemm-….jsonl" of this user, and NVTX ranges (VFM_NVTX=1).  The folder is
 * $VFM_CACHE_DIR, $XDG_CACHE_HOME/vfm or ~/.cache/vfm; NULL if there is none. */
char *vfm_cuda_cache_path(const char *file); /* malloc'ed; creates the folder */
void vfm_cuda_range_push(const char *name);
void vfm_cuda_range_pop(void);

#endif
