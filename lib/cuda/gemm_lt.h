/* gemm_lt.h - GEMM by cuBLASLt (gemm_lt.c), called by gemm.cu.  In the emulation these functions are NULL. */
#ifndef VFM_CUDA_GEMM_LT_H
#define VFM_CUDA_GEMM_LT_H

#ifdef __cplusplus
extern "C" {
#endif

#include "cuda/gemm_plan.h"

#define VFM_MAYBE __attribute__((weak))

struct vfm_lt_args {       /* device memory */
	const void *a, *b; /* the library's A and B */
	void *c;
	void *bias; /* read, or written by BGRADB; NULL in find: scratch memory */
	void *aux;
	const float *scale_a, *scale_b; /* [1] each, with p->scaled */
	void *ws;                       /* NULL for find */
	size_t ws_bytes;                /* find: the scratch that run will have */
};

/* Bytes of scratch memory: for tuned products, and for small concurrent ones. */
enum { VFM_LT_WS = 64 << 20, VFM_LT_WS_SMALL = 8 << 20 };

/* Chooses an algorithm for p unless one is cached.  With `tune` candidates are timed (unless VFM_CUDA_TUNE=0); timing
 * overwrites c and aux if the product writes them, but not a c that is added to.  Returns 1: the library supports p; 0:
 * it does not; negative: an error.  *us is negative without a time. */
int vfm_lt_find(struct vfm_stream *s, const struct vfm_lt_problem *p, const struct vfm_lt_args *x, bool tune,
	double *us, struct vfm_err *err) VFM_MAYBE;
/* Enqueues p, for which find returned 1. */
int vfm_lt_run(struct vfm_stream *s, const struct vfm_lt_problem *p, const struct vfm_lt_args *x,
	struct vfm_err *err) VFM_MAYBE;
/* Times the work that fn enqueues, and caches the time the same way; *us as above. */
struct vfm_lt_timed {
	const char *key;
	int (*fn)(void *ctx, void *scratch, struct vfm_err *err);
	void *ctx;
	size_t scratch; /* bytes */
};
int vfm_lt_measure(
	struct vfm_stream *s, const struct vfm_lt_timed *what, bool tune, double *us, struct vfm_err *err) VFM_MAYBE;
/* fork: streams wait for s and run products concurrently that do not fill the device; join: s waits for them.  Returns
 * their number. */
int vfm_lt_fork(struct vfm_stream *s, struct vfm_stream *const **sides, struct vfm_err *err) VFM_MAYBE;
int vfm_lt_join(struct vfm_stream *s, struct vfm_err *err) VFM_MAYBE;

#ifdef __cplusplus
}
#endif
#endif
