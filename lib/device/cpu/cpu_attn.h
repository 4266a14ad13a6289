/* cpu_attn.h - attention on the CPU, forward and backward, over packed samples of any length.
 *
 * A thread holds the score matrix only as a tile of BK keys by BQ queries (online softmax: Milakov & Gimelshein, arXiv
 * 1805.02867; tiling and backward: Dao, arXiv 2307.08691).  Besides a fixed scratch per thread, the backward of samples
 * of more than KS keys allocates an f32 copy of their dq on the stream's device.
 *
 * Results are bitwise reproducible for any number of threads: the division of the work depends on shapes alone, and
 * gradients are summed in a fixed order.  Results of different instruction sets are equal to rounding.
 *
 * bf16 operands are multiplied as bf16 on CPUs with avx512_bf16, and converted to f32 tile by tile on others; sums and
 * softmax are f32 on both.  With AMX, products of f32 are six products of bf16 (cpu_bf16x3.h).  vfm_op_attn has checked
 * the operands.
 */
#ifndef VFM_DEVICE_CPU_CPU_ATTN_H
#define VFM_DEVICE_CPU_CPU_ATTN_H

#include "device/ops/ops.h"

int vfm_cpu_attn(struct vfm_stream *s, const struct vfm_attn *a, struct vfm_err *err);
int vfm_cpu_attn_bias(struct vfm_stream *s, const struct vfm_attn_bias *a, struct vfm_err *err);
int vfm_cpu_attn_bwd(struct vfm_stream *s, const struct vfm_attn_bwd *a, struct vfm_err *err);

#endif
