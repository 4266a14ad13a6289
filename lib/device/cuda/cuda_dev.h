/* cuda_dev.h - the CUDA device for its .c files; includes CUDA headers. */
#ifndef VFM_DEVICE_CUDA_CUDA_DEV_H
#define VFM_DEVICE_CUDA_CUDA_DEV_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda_impl.h"

struct vfm_cuda_gemm; /* gemm_lt.c: cuBLASLt's handle and the chosen algorithms */
struct vfm_cuda_attn; /* attn.c: cuDNN's handle and its plans by shape */

struct vfm_cuda {
	struct vfm_dev dev; /* first */
	int ordinal;        /* of the CUDA runtime */
	int sm;             /* 90: compute capability 9.0 */
	int n_sm;           /* multiprocessors */
	int most_shared;    /* bytes of shared memory of a block that requests the maximum */
	int local_size;     /* ranks on this node, as in vfm_plugin_opts */
	bool deterministic;
	/* VFM_CUDA_SYNC=1: the host waits after every op, so that an error names the op that caused it */
	bool sync;
	struct vfm_cuda_sys *sys;                                                 /* cuda_sys.h */
	void (*warn)(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* may be NULL */
	struct vfm_cuda_gemm *gemm;                                               /* NULL until first used, like attn */
	struct vfm_cuda_attn *attn;
};

static inline struct vfm_cuda *vfm_cuda_of(const struct vfm_stream *s)
{
	return (struct vfm_cuda *)s->dev;
}

/* Returns the device d, which must be a CUDA device; for code of other folders, which tests run on other devices. */
const struct vfm_cuda *vfm_cuda_device(const struct vfm_dev *d);

/* Returns whether an environment variable is set and not 0; def if it is unset or empty. */
static inline bool vfm_cuda_asked(const char *env, bool def)
{
	const char *v = getenv(env);

	return v && *v ? strcmp(v, "0") != 0 : def;
}

/* Returns 0, or VFM_EENV: "gemm: an illegal memory access was encountered". */
int vfm_cuda_check(cudaError_t e, const char *what, struct vfm_err *err);
/* As vfm_cuda_check for error codes of the driver. */
int vfm_cuda_check_drv(struct vfm_cuda *c, CUresult e, const char *what, struct vfm_err *err);

/* Returns the path of "cache/gemm-….jsonl" of this user.  The folder is $VFM_CACHE_DIR, $XDG_CACHE_HOME/vfm or
 * ~/.cache/vfm; NULL if there is none.  The next two mark NVTX ranges (VFM_NVTX=1). */
char *vfm_cuda_cache_path(const char *file); /* malloc'ed; creates the folder */
void vfm_cuda_range_push(const char *name);
void vfm_cuda_range_pop(void);

/* Selects this device for the calling thread; otherwise CUDA would use device 0. */
int vfm_cuda_use(struct vfm_cuda *c, struct vfm_err *err);
/* Returns whether the context has a sticky error, after which every CUDA call fails. */
bool vfm_cuda_broken(void);

/* As in struct vfm_plugin (device/dev/plugin.h). */
struct vfm_plugin_opts;
struct vfm_dev *vfm_cuda_open(const struct vfm_plugin_opts *o, struct vfm_err *err);
void vfm_cuda_versions(char *buf, size_t len);

#endif
