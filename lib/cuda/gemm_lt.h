/* gemm_lt.h - products through cuBLASLt (gemm_lt.c), as gemm.cu asks for them.  The emulation has none of it: there
 * these are NULL. */
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
	void *bias; /* read, or written by BGRADB; NULL for find: will be in scratch memory */
	void *aux;
	const float *scale_a, *scale_b; /* with p->scaled: [1] each */
	void *ws;                       /* NULL for find */
	size_t ws_bytes;                /* find: as much as run will have */
};

/* Scratch memory that products are given: for those that are tuned, and for small ones side by side. */
enum { VFM_LT_WS = 64 << 20, VFM_LT_WS_SMALL = 8 << 20 };

/* Whether the library does p, and how fast: chooses an algorithm if that has not been done.  With `tune` by timing
 * (VFM_CUDA_TUNE=0: not so), which overwrites c and aux where the product writes them, unless it adds to c: then the
 * result goes elsewhere.  1: yes; 0: no; negative: an error.  *us: negative where nothing was timed. */
int vfm_lt_find(struct vfm_stream *s, const struct vfm_lt_problem *p, const struct vfm_lt_args *x, bool tune,
	double *us, struct vfm_err *err) VFM_MAYBE;
/* Puts it on the stream; find has said yes. */
int vfm_lt_run(struct vfm_stream *s, const struct vfm_lt_problem *p, const struct vfm_lt_args *x,
	struct vfm_err *err) VFM_MAYBE;
/* The time of what fn puts on the stream, found out and kept in the same way; *us as above. */
struct vfm_lt_timed {
	const char *key;
	int (*fn)(void *ctx, void *scratch, struct vfm_err *err);
	void *ctx;
	size_t scratch; /* bytes */
};
int vfm_lt_measure(
	struct vfm_stream *s, const struct vfm_lt_timed *what, bool tune, double *us, struct vfm_err *err) VFM_MAYBE;
/* Streams beside s for products that do not fill the device: fork: they wait for s; join: s waits for them.  Returns
 * how many. */
int vfm_lt_fork(struct vfm_stream *s, struct vfm_stream *const **sides, struct vfm_err *err) VFM_MAYBE;
int vfm_lt_join(struct vfm_stream *s, struct vfm_err *err) VFM_MAYBE;

#ifdef __cplusplus
}
#endif
#endif
