/* gemm_choice.h - the choice of an implementation for an op: the epilogue of the library, or its plain product and our
 * kernels, each with the library's algorithms, by the time of the whole op.  gemm_lt.c implements the table of
 * functions with cuBLASLt; tests need no GPU.
 *
 * A choice is kept in memory for exactly these operands (dimensions, strides, alignment, dtypes), and in a file by the
 * key of the op (gemm_plan.h).  Without timing the library is asked once for each rounded number of rows, since groups
 * of experts have new ones in every step.  VFM_CUDA_GEMM=epilogue|plain|auto forces one kind.
 */
#ifndef VFM_DEVICE_CUDA_GEMM_CHOICE_H
#define VFM_DEVICE_CUDA_GEMM_CHOICE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "device/cuda/gemm_plan.h"

struct vfm_lt_algo {
	uint8_t opaque[VFM_LT_ALGO];
	size_t ws; /* bytes of scratch memory that it needs */
};

struct vfm_gemm_choice {
	struct vfm_gemm_path path;
	struct vfm_lt_problem p; /* the library's problem of the path, unless path.f32 */
	struct vfm_lt_algo algo; /* for p */
	double us;               /* of the whole op; negative: not timed */
	bool untimed;            /* the algorithm is the first of the library's heuristic */
	bool refused;            /* the library refused the epilogue or the product, which it should support */
};

/* The library and the device.  ctx is the first argument of all functions. */
struct vfm_gemm_lib {
	/* Lists the algorithms of p that need at most ws bytes of scratch memory, the one that the library recommends
	 * first.  Returns their number; 0: the library does not support p. */
	int (*list)(void *ctx, const struct vfm_lt_problem *p, size_t ws, struct vfm_lt_algo *out, int most);
	/* Whether the library supports the algorithm for exactly p with at most ws bytes; sets a->ws. */
	bool (*supports)(void *ctx, const struct vfm_lt_problem *p, size_t ws, struct vfm_lt_algo *a);
	/* Begins the timing of an op: allocates operands of its shapes with random values.  Returns 1: ready; 0: not
	 * possible, and *why is the reason, or NULL if the user does not want timing; negative: an error. */
	int (*time_begin)(void *ctx, const struct vfm_gemm_op *op, const char **why, struct vfm_err *err);
	/* Times the whole op by this choice.  May stop early if it is much slower than `best` microseconds (negative:
	 * none).  Returns 1; 0: the library refused the call; negative: the device failed. */
	int (*time)(void *ctx, const struct vfm_gemm_choice *c, double best, double *us, struct vfm_err *err);
	void (*time_end)(void *ctx);
	void (*warn)(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* may be NULL */
};

enum vfm_gemm_mode { VFM_GEMM_AUTO, VFM_GEMM_EPILOGUE, VFM_GEMM_PLAIN };
/* Reads VFM_CUDA_GEMM. */
int vfm_gemm_mode_of_env(enum vfm_gemm_mode *mode, struct vfm_err *err);

struct vfm_gemm_chooser;
/* lib must outlive the chooser.  path: the file, or NULL; it may be that of other ranks, unless `alone`. */
struct vfm_gemm_chooser *vfm_gemm_chooser_new(
	const struct vfm_gemm_lib *lib, void *ctx, enum vfm_gemm_mode mode, const char *path, bool alone);
void vfm_gemm_chooser_free(struct vfm_gemm_chooser *c);

/* Chooses an implementation; M, N, K > 0.  Returns 1; 0: only our own kernels compute the op (out->path.f32, whose
 * product the caller asks for as an op of its own); negative: an error.  A refusal, and a choice without timing that
 * the user did not ask for, are warned about once for each kind. */
int vfm_gemm_choose(
	struct vfm_gemm_chooser *c, const struct vfm_gemm_op *op, struct vfm_gemm_choice *out, struct vfm_err *err);

#ifdef __cplusplus
}
#endif
#endif
