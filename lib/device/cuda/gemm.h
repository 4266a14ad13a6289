/* gemm.h - GEMM by cuBLASLt (gemm_lt.c), and with our own kernels (kern/gemm.cu).  C and C++.  In the emulation
 * tests/ops/emu_lt.c stands for the library. */
#ifndef VFM_DEVICE_CUDA_GEMM_H
#define VFM_DEVICE_CUDA_GEMM_H

#ifdef __cplusplus
extern "C" {
#endif

#include "device/cuda/gemm_choice.h"

/* ---- kern/gemm.cu ---- */

/* Enqueues an op by a choice.  ws: vfm_gemm_ws(op, c) bytes at a 256-byte boundary. */
size_t vfm_gemm_ws(const struct vfm_gemm_op *op, const struct vfm_gemm_choice *c);
int vfm_gemm_enqueue(struct vfm_stream *s, const struct vfm_gemm_op *op, const struct vfm_gemm_choice *c, void *ws,
	struct vfm_err *err);
/* Fills x with n normally distributed elements of variance 1, f32, bf16 or fp8: a GPU multiplies zeros faster
 * than the numbers of a training step. */
int vfm_gemm_noise(struct vfm_stream *s, enum vfm_dtype dt, void *x, int64_t n, uint64_t seed, struct vfm_err *err);

/* ---- gemm_lt.c ---- */

struct vfm_lt_args {       /* device memory */
	const void *a, *b; /* the library's A and B */
	void *c;
	void *bias; /* read, or written by BGRADB */
	void *aux;
	const float *scale_a, *scale_b; /* [1] each, with p->scaled */
	void *ws;                       /* at least algo->ws bytes */
};

/* Bytes of scratch memory: for tuned products, and for small concurrent ones. */
enum { VFM_LT_WS = 64 << 20, VFM_LT_WS_SMALL = 8 << 20 };

/* vfm_gemm_choose for the device of s; sets the fields of op that the device determines.  Timing uses operands of its
 * own.  Counts the fallbacks of the device (device/dev/dev.h) unless `part`: a product within another op. */
int vfm_lt_choose(
	struct vfm_stream *s, struct vfm_gemm_op *op, bool part, struct vfm_gemm_choice *out, struct vfm_err *err);
/* Enqueues c->p. */
int vfm_lt_run(struct vfm_stream *s, const struct vfm_gemm_choice *c, const struct vfm_lt_args *x, struct vfm_err *err);
/* fork: streams wait for s and run products concurrently that do not fill the device; join: s waits for them.  Returns
 * their number. */
int vfm_lt_fork(struct vfm_stream *s, struct vfm_stream *const **sides, struct vfm_err *err);
int vfm_lt_join(struct vfm_stream *s, struct vfm_err *err);

/* Scratch memory is divided at 256-byte boundaries. */
static inline size_t vfm_round_256(size_t n)
{
	return (n + 255) / 256 * 256;
}

struct vfm_cuda_gemm;
/* Called after all work and all other streams are gone, while memory still exists. */
void vfm_cuda_gemm_free(struct vfm_cuda_gemm *g) __attribute__((weak));

#ifdef __cplusplus
}
#endif
#endif
