/* cpu_attn.h - attention on the CPU, forward and backward, over packed samples of any length.
 *
 * A thread holds the score matrix only as a tile of BK keys by BQ queries (online softmax: Milakov & Gimelshein, arXiv
 * 1805.02867; tiling and backward: Dao, arXiv 2307.08691).  Besides a fixed scratch per thread, the backward of samples
 * of more than KS keys allocates an f32 copy of their dq on the stream's device.
 *
 * Results have the same bits for any number of threads, and are equal to rounding between instruction sets.  Sums and
 * softmax are f32.  bf16 operands are multiplied as bf16 with avx512_bf16, and converted to f32 tile by tile otherwise;
 * with AMX, products of f32 are six products of bf16 (cpu_bf16x3.h).  vfm_op_attn has checked the operands.
 */
#ifndef VFM_DEVICE_CPU_CPU_ATTN_H
#define VFM_DEVICE_CPU_CPU_ATTN_H

#include "device/ops/ops.h"

int vfm_cpu_attn(struct vfm_stream *s, const struct vfm_attn *a, struct vfm_err *err);
int vfm_cpu_attn_bias(struct vfm_stream *s, const struct vfm_attn_bias *a, struct vfm_err *err);
int vfm_cpu_attn_bwd(struct vfm_stream *s, const struct vfm_attn_bwd *a, struct vfm_err *err);

#endif
